/* The worker's option table and what its values mean together. */
#ifndef GK_WORKER_OPTIONS_H
#define GK_WORKER_OPTIONS_H

#include "common/config.h"

struct gk_worker_options {
    const char *servers; /* comma-separated addresses, in the order of the shards */
    const char *rank;    /* a number; NULL: not given */
    uint64_t workers;
    const char *job;
    const char *model, *data, *compressor;
    double density;
    uint64_t steps, batch, seed;
    uint32_t optimizer; /* position in the choices */
    double lr, momentum, weight_decay;
    uint32_t schedule;
    const char *milestones; /* "300,600" */
    double lr_gamma, lr_min;
    uint64_t warmup;
    uint32_t nonfinite;
    uint64_t eval_every;
    uint64_t deadline_s;
    bool takeover;
    uint64_t launcher_fd; /* 0: none */
    uint32_t cpu;         /* enum gk_cpu */
    uint32_t log_format, log_level;
};

const struct gk_program *gk_worker_program(void);

/* GK_RANK_ANY for "any". */
enum gk_err gk_worker_options_rank(const struct gk_worker_options *options, uint32_t *ret_rank,
                                   struct gk_words *words);

/* The addresses of --servers, copied; free with gk_worker_addresses_free(). */
struct gk_addresses {
    char *text;
    const char **list;
    uint32_t count;
};
enum gk_err gk_worker_options_addresses(const struct gk_worker_options *options,
                                        struct gk_addresses *ret, struct gk_words *words);
void gk_addresses_fini(struct gk_addresses *addresses);

#endif
