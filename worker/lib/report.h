/* What a worker tells its launcher, and the counts behind it. */
#ifndef GK_WORKER_LIB_REPORT_H
#define GK_WORKER_LIB_REPORT_H

#include "common/net/daemon.h"
#include "worker/core/worker.h"

/* Times are of gk_now_us() in microseconds, bytes are bytes, counts are of this life of the
 * process. Zero at first, except for what the owner gives. */
struct gk_worker_report {
    /* Given. */
    const struct gk_daemon *daemon; /* whom to tell */
    const char *arithmetic;         /* what computes the gradients; NULL: not known */
    uint32_t rank;
    uint64_t params_count;
    bool every_step;  /* progress lines are not rationed */
    bool left_before; /* the state directory had nothing left to do */

    uint64_t started_us; /* of the first step */
    uint64_t ended_us;   /* of the last version */
    uint64_t told_us;    /* of the last progress line */
    uint64_t steps, samples;
    bool has_loss;
    double loss; /* per sample, of the last step, smoothed over about ten */
    bool evaluated;
    double accuracy, test_loss; /* share of 1; per sample */
    uint64_t selected;          /* entries, all steps */
    /* Every frame that was sent or received, repetitions included: the arrays of pushes, the arrays
     * of pulls, and all the rest (headers, bodies, words, INIT). */
    uint64_t bytes_pushed, bytes_pulled, bytes_headers;
    uint64_t compute_us, select_us; /* summed over the steps */
};

/* The functions below tell the launcher, and nobody when there is none.  Loop thread only. */

struct gk_report_step {
    uint64_t step, samples;
    double loss;       /* mean over the samples; NaN: not known */
    uint64_t selected; /* entries */
    uint64_t compute_us, select_us;
};

struct gk_report_eval {
    uint64_t step;         /* the version it belongs to */
    double accuracy, loss; /* share of 1, mean; NaN: not known */
};

/* The process takes part. */
void gk_report_open(const struct gk_worker_report *report);

/* A step that ended well; a progress line, at most every 200 ms and only while the launcher reads.
 */
void gk_report_step(struct gk_worker_report *report, const struct gk_report_step *step,
                    uint64_t now_us);

/* Told only while the launcher reads, too: the summary has the last one. */
void gk_report_eval(struct gk_worker_report *report, const struct gk_report_eval *eval);

/* A message went out or came in, with all its parts. */
void gk_report_message(struct gk_worker_report *report, const struct gk_msg *msg,
                       struct gk_buf *const *parts, uint32_t parts_count);

/* {"event":"summary",...}; times in seconds. */
void gk_report_summary(const struct gk_worker_report *report, const struct gk_worker_stats *stats);

/* What dense training would have moved: every gradient and every parameter once a step. */
uint64_t gk_report_bytes_dense(const struct gk_worker_report *report);

/* Something a person wants to see at the start. */
void gk_report_note(const struct gk_worker_report *report, const char *words);

#endif
