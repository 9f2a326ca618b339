/* The settings of a worker: what gkps_open() and the flags of gkps-worker both take, what they mean
 * together, and the part of the job spec that they make.
 *
 * One list of rows (settings_rows.inc) serves both option tables, so that a setting has one name,
 * one text and one set of bounds. */
#ifndef GK_WORKER_LIB_SETTINGS_H
#define GK_WORKER_LIB_SETTINGS_H

#include "common/backend.h"
#include "common/config.h"
#include "proto/spec.h"

/* Filled by gk_config_load(); strings belong to the config. */
struct gk_settings {
    const char *servers; /* comma-separated addresses, in the order of the shards */
    const char *rank;    /* a number, or any; NULL: not given */
    uint64_t workers;
    const char *job;
    const char *compressor;
    double density;
    uint64_t steps, seed;
    uint32_t optimizer; /* positions in the choices, as all uint32_t here */
    double lr, momentum, beta1, beta2, epsilon, weight_decay;
    uint32_t schedule;
    const char *milestones; /* "300,600" */
    double lr_gamma, lr_min;
    uint64_t warmup;
    uint32_t nonfinite;
    double clip; /* norm; 0: none */
    uint64_t deadline_s;
    bool takeover;
    const char *state_dir; /* NULL: no durable state */
    bool state_sync;
    uint64_t launcher_fd; /* 0: none */
    bool allow_faults;
    const char *backend; /* "auto", "cpu", "cuda", "cuda:1" */
    uint32_t cpu;        /* enum gk_cpu */
    uint32_t log_format, log_level;
};

#define GK_STEPS_MAX UINT32_MAX /* of the job spec */

/* Settings and where they came from. */
struct gk_settings_place {
    const struct gk_settings *values;
    const struct gk_config *config; /* whose table has the rows */
};

/* The functions below judge what the table lets through: GK_E_CONFIG, words that say where the
 * value came from and what would be right, and the exit code that goes with them.  Any thread. */

/* Everything that can be judged without the model: job, state, operator, processor, schedule, rank,
 * addresses.  GK_E_NOMEM. */
enum gk_err gk_settings_check(const struct gk_settings_place *place, int *ret_exit,
                              struct gk_words *words);

/* Whether `backend` wishes for a CUDA device, and for which one. */
bool gk_settings_device(const struct gk_settings_place *place, uint32_t *ret_number);

/* The vector table that `backend` and `cpu` name.  Also GK_E_UNSUPPORTED: this machine or this
 * build has none. */
enum gk_err gk_settings_table(const struct gk_settings_place *place,
                              const struct gk_vector_ops **ret_ops, int *ret_exit,
                              struct gk_words *words);

/* The rank: below `workers`; GK_RANK_ANY for "any"; 0 when none was given and there is one worker.
 */
enum gk_err gk_settings_rank(const struct gk_settings_place *place, uint32_t *ret_rank,
                             int *ret_exit, struct gk_words *words);

/* The addresses of `servers` in their order, 1 to GK_SERVERS_MAX, none twice, each well-formed
 * (names are not looked up).  Zeroed: none. */
struct gk_addresses {
    char *text;        /* what the list points into */
    const char **list; /* `count` of them */
    uint32_t count;
};

/* Gives a copy, to be freed with gk_addresses_fini().  Also GK_E_NOMEM. */
enum gk_err gk_settings_addresses(const struct gk_settings_place *place, struct gk_addresses *ret,
                                  int *ret_exit, struct gk_words *words);

/* Accepts a zeroed one; zeroes it. */
void gk_addresses_fini(struct gk_addresses *addresses);

/* The settings' part of the job spec: all but model and push_max. */
enum gk_err gk_settings_spec(const struct gk_settings_place *place, uint32_t servers,
                             struct gk_spec *ret_spec, int *ret_exit, struct gk_words *words);

/* The operators and what they do, for --help. */
bool gk_settings_list_operator(size_t i, const char **ret_name, const char **ret_explanation);

#endif
