/* What the children of a run have told, and what follows from it: progress, sums, the model hash,
 * the summary for people and for programs.  Pure: no I/O but the FILE that it is given. */
#ifndef GK_TOOL_TALLY_H
#define GK_TOOL_TALLY_H

#include "common/err.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum gk_role { GK_ROLE_SERVER, GK_ROLE_WORKER };

const char *gk_role_name(enum gk_role role); /* "server", "worker" */

enum gk_tally_event {                 /* what one line of a child was */
                      GK_TALLY_OTHER, /* unknown: ignored, so that a daemon may say more than we
                                          know */
                      GK_TALLY_ENDPOINT,
                      GK_TALLY_PROGRESS,
                      GK_TALLY_EVAL,
                      GK_TALLY_SUMMARY,
                      GK_TALLY_NOTE,    /* words for the user */
                      GK_TALLY_TROUBLE, /* what it cannot go on without; no words: not any more */
                      GK_TALLY_DEATH,
};

enum { GK_TALLY_TIMES = 5, GK_TALLY_BLAS_BYTES = 128 };
extern const char
    *const gk_tally_times[GK_TALLY_TIMES]; /* "compute", "select", "push", "wait", "pull" */

struct gk_tally_worker { /* of its last life, but for step and loss */
    uint32_t restarts;
    bool opened;   /* any of its lives has told anything: its program uses gkps */
    bool reported; /* progress came in this life */
    bool summed;   /* the summary came; then what follows counts */
    uint64_t step; /* done */
    double loss;   /* of late; at the end the final one */
    uint64_t steps, samples;
    double seconds;
    double accuracy, test_loss; /* rank 0 */
    uint64_t bytes_pushed, bytes_pulled, bytes_headers;
    uint64_t bytes_dense; /* what all three would be about if every gradient went whole */
    uint64_t selected, retries;
    uint64_t residuals_lost;
    bool left_before;               /* it did nothing but say so: a former run of it had left */
    uint64_t parameters;            /* of the model; 0: not told */
    char blas[GK_TALLY_BLAS_BYTES]; /* library, core and threads of its matrix products; "": not
                                       told */
    double time[GK_TALLY_TIMES];    /* seconds */
};

struct gk_tally_server {
    bool summed;
    bool hashed; /* the model hash came with it */
    uint64_t version, model_hash;
    uint64_t pushes, applied, returned, skipped, lost;
};

struct gk_tally {
    uint32_t servers_count, workers_count;
    struct gk_tally_server *servers;
    struct gk_tally_worker *workers;
    bool evaluated;
    uint64_t eval_step;
    double accuracy, test_loss; /* of the last evaluation */
    uint64_t steps;             /* of the job; 0: not told */
    bool uneven;                /* a worker may leave before the last step: the program's matter */
    bool from_state;            /* nobody ran: the numbers of the servers alone, from their files */
    bool resumed;               /* a former run has made version resumed_from */
    uint64_t resumed_from;
    uint32_t restarts; /* of all children */
    double seconds;    /* of the whole run as the launcher saw it; 0: not told */
};

struct gk_tally_total {
    bool complete; /* every summary came */
    bool hashed;   /* every shard told its hash and all are at one version */
    bool one_version;
    bool balanced; /* pushes = applied + returned + skipped + lost on every shard */
    uint64_t model_hash, version;
    uint32_t restarts;
    bool from_state, resumed;
    uint64_t resumed_from;
    uint64_t steps, samples, parameters;
    const char *blas; /* of rank 0, in the tally */
    double seconds, steps_per_s, samples_per_s;
    double loss, accuracy, test_loss;
    uint64_t bytes_pushed, bytes_pulled, bytes_headers, bytes_dense, selected, retries;
    uint64_t residuals_lost;
    uint64_t pushes, applied, returned, skipped, lost;
    double time[GK_TALLY_TIMES]; /* mean over workers */
};

/* GK_E_NOMEM. */
enum gk_err gk_tally_init(struct gk_tally *tally, uint32_t servers, uint32_t workers);
void gk_tally_fini(struct gk_tally *tally); /* accepts a zeroed one */

/* Take in one line of a child. */
enum gk_tally_event gk_tally_line(struct gk_tally *tally, enum gk_role role, uint32_t index,
                                  const json_t *object);

/* A child died, and another life of it begins: what the former one did not tell is not known. */
void gk_tally_restart(struct gk_tally *tally, enum gk_role role, uint32_t index);

/* Some worker has done a step: the servers hold what nobody could give them again. */
bool gk_tally_begun(const struct gk_tally *tally);

/* It has summed up, but with fewer steps than the job has (where that means anything), or as one
 * that had left before, in a job that this run found at an earlier version. */
bool gk_tally_short(const struct gk_tally *tally, uint32_t rank);

/* Steps that every worker has done that is still at work, or, when none is, that any has done; 0
 * until all have told. */
uint64_t gk_tally_step(const struct gk_tally *tally);

/* Mean of the workers' last losses; NAN when none is known. */
double gk_tally_loss(const struct gk_tally *tally);

void gk_tally_total(const struct gk_tally *tally, struct gk_tally_total *ret_total);

/* The summary as one object, `config` (borrowed) within, and what of it makes runs comparable also
 * at the top.  NULL: out of memory. */
json_t *gk_tally_json(const struct gk_tally_total *total, const char *job, const json_t *config);

/* The summary as a table for people. */
void gk_tally_print(const struct gk_tally_total *total, const char *job, FILE *out);

#endif
