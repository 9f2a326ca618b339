/* What the children of a run have told, and what follows from it: progress, sums, the model hash,
 * the summary for people and for programs.  Pure: no I/O but the FILE that it is given. */
#ifndef GK_TOOL_REPORT_H
#define GK_TOOL_REPORT_H

#include "common/err.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum gk_role { GK_ROLE_SERVER, GK_ROLE_WORKER };

const char *gk_role_name(enum gk_role role); /* "server", "worker" */

enum gk_report_event {                  /* what one line of a child was */
                       GK_REPORT_OTHER, /* unknown: ignored, so that a daemon may say more than we
                                           know */
                       GK_REPORT_ENDPOINT,
                       GK_REPORT_PROGRESS,
                       GK_REPORT_EVAL,
                       GK_REPORT_SUMMARY,
                       GK_REPORT_DEATH,
};

enum { GK_REPORT_TIMES = 5 };
extern const char
    *const gk_report_times[GK_REPORT_TIMES]; /* "compute", "select", "push", "wait", "pull" */

struct gk_report_worker {
    bool reported; /* progress came */
    bool summed;   /* the summary came; then what follows counts */
    uint64_t step; /* done */
    double loss;   /* of late; at the end the final one */
    uint64_t steps, samples;
    double seconds;
    double accuracy, test_loss; /* rank 0 */
    uint64_t bytes_pushed, bytes_pulled, bytes_headers, bytes_dense;
    uint64_t selected, retries;
    double time[GK_REPORT_TIMES]; /* seconds */
};

struct gk_report_server {
    bool summed;
    bool hashed; /* the model hash came with it */
    uint64_t version, model_hash;
    uint64_t pushes, applied, returned, skipped, lost;
};

struct gk_report {
    uint32_t servers_count, workers_count;
    struct gk_report_server *servers;
    struct gk_report_worker *workers;
    bool evaluated;
    uint64_t eval_step;
    double accuracy, test_loss; /* of the last evaluation */
};

struct gk_report_total {
    bool complete; /* every summary came */
    bool hashed;   /* every shard told its hash and all are at one version */
    bool one_version;
    bool balanced; /* pushes = applied + returned + skipped + lost on every shard */
    uint64_t model_hash, version;
    uint64_t steps, samples;
    double seconds, steps_per_s, samples_per_s;
    double loss, accuracy, test_loss;
    uint64_t bytes_pushed, bytes_pulled, bytes_headers, bytes_dense, selected, retries;
    uint64_t pushes, applied, returned, skipped, lost;
    double time[GK_REPORT_TIMES]; /* mean over workers */
};

/* GK_E_NOMEM. */
enum gk_err gk_report_init(struct gk_report *report, uint32_t servers, uint32_t workers);
void gk_report_fini(struct gk_report *report); /* accepts a zeroed one */

/* Take in one line of a child. */
enum gk_report_event gk_report_line(struct gk_report *report, enum gk_role role, uint32_t index,
                                    const json_t *object);

/* Steps that every worker has done; 0 until all have told. */
uint64_t gk_report_step(const struct gk_report *report);

/* Mean of the workers' last losses; NAN when none is known. */
double gk_report_loss(const struct gk_report *report);

void gk_report_total(const struct gk_report *report, struct gk_report_total *ret_total);

/* The summary as one object, `config` (borrowed) within.  NULL: out of memory. */
json_t *gk_report_json(const struct gk_report_total *total, const char *job, const json_t *config);

/* The summary as a table for people. */
void gk_report_print(const struct gk_report_total *total, const char *job, FILE *out);

#endif
