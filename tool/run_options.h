/* Options of `gkps run`, and the command lines of the daemons that follow from them.  Pure but for
 * reading flags, variables and the configuration file. */
#ifndef GK_TOOL_RUN_OPTIONS_H
#define GK_TOOL_RUN_OPTIONS_H

#include "common/config.h"
#include "common/err.h"
#include "common/words.h"
#include "tool/args.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

enum { GK_RUN_ADDRESS_BYTES = 64 }; /* of one server, with its terminator */

struct gk_run_options {
    uint64_t servers, workers, steps, batch, warmup, seed, eval_every, deadline, keep_versions;
    const char *data, *milestones, *job, *summary, *faults, *state_dir, *init;
    double density, lr, momentum, beta1, beta2, epsilon, weight_decay, lr_gamma, lr_min;
    uint32_t model, compressor, optimizer, schedule, nonfinite, restart, sync, log_format,
        log_level;
    bool quiet, fresh;
};

struct gk_faults;

struct gk_run_config {
    struct gk_run_options options;
    struct gk_config *config; /* owns the strings */
    char job[32];             /* the name that was made up when none was given */
    struct gk_faults *faults; /* the script of --faults; NULL: none */
    struct gk_args args;      /* the command line with what a script and a state directory add */
    char temporary_state[64]; /* made for a script that needs one; "": none */
    bool replace;             /* the job in the state directory is another one, and has not begun */
};

/* Flags, variables, file; then the options of the job in --state-dir, which count where nothing
 * else was said.  Errors and *ret_exit as gk_config_load; GK_E_REFUSED: the state is of another
 * job. */
enum gk_err gk_run_config_load(struct gk_run_config *run, int argc, char **argv, int *ret_exit,
                               struct gk_words *words);
void gk_run_config_fini(struct gk_run_config *run); /* accepts a zeroed one */

/* What the table lets through and the daemons would refuse, alone or beside others (the worker's
 * own rules, told before anything starts): the option to blame, and words; NULL: all are good.
 * *ret_data: the reason is a missing data file, which has an exit code of its own. */
const char *gk_run_check(const struct gk_run_config *run, bool *ret_data, struct gk_words *words);

enum gk_run_optimizer { /* of `optimizer` */
                        GK_RUN_NONE,
                        GK_RUN_SGD,
                        GK_RUN_MOMENTUM,
                        GK_RUN_NESTEROV,
                        GK_RUN_ADAMW,
};
enum gk_run_schedule { GK_RUN_CONSTANT, GK_RUN_MILESTONES, GK_RUN_COSINE }; /* of `schedule` */
enum gk_run_restart { GK_RUN_RESTART_NEVER, GK_RUN_RESTART_ALWAYS }; /* values of `restart` */

/* Arguments of a daemon, argv[0] = program.  Training options travel by the text that the user
 * wrote, so that both sides read the same number.  `ret_args` starts zeroed.  `address`: where a
 * former life was bound; "": the system chooses. */
void gk_run_server_args(const struct gk_run_config *run, const char *program, uint32_t shard,
                        const char *address, struct gk_args *ret_args);
/* `servers`: S addresses shorter than GK_RUN_ADDRESS_BYTES.  `takeover`: the child replaces one
 * that was reaped. */
void gk_run_worker_args(const struct gk_run_config *run, const char *program,
                        const char *const *servers, uint32_t rank, bool takeover,
                        struct gk_args *ret_args);

/* Environment of the children: ours without the variables that configure `gkps run` itself (a
 * daemon must see one source for a value, the flags), and one BLAS thread per worker unless the
 * user chose. */
void gk_run_environment(const char *const *environment, struct gk_args *ret_args);

/* The configuration in force, typed.  NULL: out of memory. */
json_t *gk_run_config_json(const struct gk_run_config *run);

#endif
