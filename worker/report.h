/* What a worker tells its launcher, and the counts behind it. */
#ifndef GK_WORKER_REPORT_H
#define GK_WORKER_REPORT_H

#include "common/net/link.h"
#include "worker/core/worker.h"
#include "worker/trainer.h"

struct gk_worker_report {
    struct gk_link *link; /* NULL: nobody listens */
    uint32_t rank;
    uint64_t params_count;
    uint64_t batch;
    uint64_t started_us; /* of the first step */
    uint64_t ended_us;   /* of the last version */
    uint64_t told_us;    /* of the last progress line */
    uint64_t steps;
    double loss; /* of the last step, smoothed over about ten */
    bool evaluated;
    double accuracy, test_loss;
    uint64_t selected;
    uint64_t bytes_pushed, bytes_pulled, bytes_headers;
    uint64_t compute_us, select_us;
};

void gk_report_step(struct gk_worker_report *report, const struct gk_trainer_step *step,
                    uint64_t now_us);
void gk_report_eval(struct gk_worker_report *report, const struct gk_trainer_eval *eval);
void gk_report_summary(const struct gk_worker_report *report, const struct gk_worker_stats *stats);
/* Something a person wants to see at the start. */
void gk_report_note(const struct gk_worker_report *report, const char *words);

/* Logged, and told to the launcher. */
void gk_report_death(const struct gk_worker_report *report, int exit_code, const char *words);

/* The same before there is a loop: logged, and written to the descriptor of the launcher (0: none).
 */
void gk_report_early_death(int launcher_fd, int exit_code, const char *words);

#endif
