/* The worker's option table and what its values mean together. */
#ifndef GK_WORKER_OPTIONS_H
#define GK_WORKER_OPTIONS_H

#include "common/config.h"

/* Filled by gk_config_load(); strings belong to the config. */
struct gk_worker_options {
    const struct gk_config *config; /* where the values came from; set after loading */
    const char *servers;            /* comma-separated addresses, in the order of the shards */
    const char *rank;               /* a number, or any; NULL: not given */
    uint64_t workers;
    const char *job;
    const char *model, *data, *compressor;
    double density;
    uint64_t steps, batch, seed;
    uint32_t optimizer; /* positions in the choices, as all uint32_t here */
    double lr, momentum, beta1, beta2, epsilon, weight_decay;
    uint32_t schedule;
    const char *milestones; /* "300,600" */
    double lr_gamma, lr_min;
    uint64_t warmup;
    uint32_t nonfinite;
    double clip;      /* norm; 0: none */
    const char *init; /* a file of tensors; NULL: from the seed */
    uint64_t eval_every;
    uint64_t deadline_s;
    bool takeover;
    const char *state_dir; /* NULL: no durable state */
    bool state_sync;
    uint64_t launcher_fd; /* 0: none */
    bool allow_faults;
    uint32_t cpu; /* enum gk_cpu */
    uint32_t log_format, log_level;
};

/* The table, with names, defaults and bounds.  Static. */
const struct gk_program *gk_worker_program(void);

/* The functions below judge what the table lets through: GK_E_CONFIG, words that say where the
 * value came from and what would be right, and the exit code that goes with them.  Any thread. */

/* The job's name, and the options of the state. */
enum gk_err gk_worker_options_check(const struct gk_worker_options *options, int *ret_exit,
                                    struct gk_words *words);

/* The rank: below `workers`; GK_RANK_ANY for "any"; 0 when none was given and there is one worker.
 */
enum gk_err gk_worker_options_rank(const struct gk_worker_options *options, uint32_t *ret_rank,
                                   int *ret_exit, struct gk_words *words);

/* The addresses of --servers in their order, 1 to GK_SERVERS_MAX, none twice, each well-formed
 * (names are not looked up).  Zeroed: none. */
struct gk_addresses {
    char *text;        /* what the list points into */
    const char **list; /* `count` of them */
    uint32_t count;
};

/* Gives a copy, to be freed with gk_addresses_fini().  Also GK_E_NOMEM. */
enum gk_err gk_worker_options_addresses(const struct gk_worker_options *options,
                                        struct gk_addresses *ret, int *ret_exit,
                                        struct gk_words *words);

/* Accepts a zeroed one; zeroes it. */
void gk_addresses_fini(struct gk_addresses *addresses);

#endif
