/* Options of `gkps run`.  Pure but for reading flags, variables and the configuration file. */
#ifndef GK_TOOL_RUN_OPTIONS_H
#define GK_TOOL_RUN_OPTIONS_H

#include "common/config.h"
#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"
#include "tool/args.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

enum {
    GK_RUN_ADDRESS_BYTES = 64, /* of one server, with its terminator */
    GK_RUN_ADDRESSES_BYTES = GK_SERVERS_MAX * GK_RUN_ADDRESS_BYTES,
};

struct gk_run_options {
    uint64_t servers, workers, steps, batch, warmup, seed, eval_every, deadline, keep_versions;
    const char *data, *backend, *milestones, *job, *summary, *faults, *state_dir, *init;
    double density, lr, momentum, beta1, beta2, epsilon, weight_decay, clip, lr_gamma, lr_min;
    uint32_t model, compressor, optimizer, schedule, nonfinite, restart, sync, log_format,
        log_level;
    bool quiet, fresh;
};

struct gk_faults;

struct gk_run_config {
    struct gk_run_options options;
    struct gk_config *config; /* owns the strings */
    char *const *command;     /* behind --, in argv or args: the program that each worker is */
    size_t command_count;     /* 0: gkps-worker */
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

/* Option i of the table; NULL: there are no more. */
const struct gk_option *gk_run_option(size_t i);

/* Was it given: by a flag, a variable, a file, a script or the job in the state directory? */
bool gk_run_given(const struct gk_run_config *run, const char *name);

/* Does a variable ("NAME=VALUE") configure `gkps run`? */
bool gk_run_configures(const char *variable);

/* The configuration in force, typed, and the command; what a program of the user's is left to
 * choose is null.  NULL: out of memory. */
json_t *gk_run_config_json(const struct gk_run_config *run);

#endif
