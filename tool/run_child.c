#include "tool/run_child.h"

#include "common/limits.h"
#include "tool/guard.h"
#include "tool/run_command.h"
#include "tool/state_dir.h"

#include <stdio.h>
#include <string.h>

extern char **environ; /* POSIX: not declared by any header */

#define SELF                                                                                       \
    "/proc/self/exe" /* of whoever asks: in a child before its exec, still this program            \
                      */

/* What a worker needs beside its place in the job. */
static const char *const worker_options[] = {
    "model",        "data",       "compressor", "density",  "steps",   "batch",
    "optimizer",    "lr",         "momentum",   "beta1",    "beta2",   "epsilon",
    "weight-decay", "schedule",   "milestones", "lr-gamma", "lr-min",  "warmup",
    "seed",         "eval-every", "nonfinite",  "clip",     "backend",
};

static void add_common(const struct gk_run_config *run, struct gk_args *args)
{
    gk_args_add(args, "--job=%s", run->options.job);
    gk_args_add(args, "--deadline=%s", gk_config_text(run->config, "deadline"));
    gk_args_add(args, "--launcher-fd=3");
    gk_args_add(args, "--log-format=%s", gk_config_text(run->config, "log-format"));
    gk_args_add(args, "--log-level=%s", gk_config_text(run->config, "log-level"));
}

void gk_run_server_args(const struct gk_run_config *run, const char *path, uint32_t shard,
                        const char *address, struct gk_args *ret_args)
{
    char folder[GK_STATE_PATH_BYTES];

    gk_args_add(ret_args, "%s", path);
    gk_args_add(ret_args, "--bind=%s", *address ? address : "tcp://127.0.0.1:*");
    gk_args_add(ret_args, "--shard=%u", shard);
    gk_args_add(ret_args, "--servers=%s", gk_config_text(run->config, "servers"));
    gk_args_add(ret_args, "--workers=%s", gk_config_text(run->config, "workers"));
    add_common(run, ret_args);
    if (run->options.state_dir) {
        gk_state_path(run->options.state_dir, GK_ROLE_SERVER, shard, folder, sizeof(folder));
        gk_args_add(ret_args, "--state-dir=%s", folder);
        gk_args_add(ret_args, "--sync=%s", gk_config_text(run->config, "sync"));
        gk_args_add(ret_args, "--keep-versions=%s", gk_config_text(run->config, "keep-versions"));
    }
}

void gk_run_child_addresses(const struct gk_run_config *run, const char *const *servers, char *ret,
                            size_t ret_bytes)
{
    size_t used = 0;

    ret[0] = '\0';
    for (uint64_t i = 0; i < run->options.servers; i++) {
        (void)snprintf(ret + used, ret_bytes - used, "%s%s", i ? "," : "", servers[i]);
        used = strlen(ret);
    }
}

void gk_run_worker_args(const struct gk_run_config *run, const char *path,
                        const char *const *servers, uint32_t rank, bool takeover,
                        struct gk_args *ret_args)
{
    char addresses[GK_RUN_ADDRESSES_BYTES], folder[GK_STATE_PATH_BYTES];

    gk_run_child_addresses(run, servers, addresses, sizeof(addresses));
    gk_args_add(ret_args, "%s", path);
    gk_args_add(ret_args, "--servers=%s", addresses);
    gk_args_add(ret_args, "--rank=%u", rank);
    gk_args_add(ret_args, "--workers=%s", gk_config_text(run->config, "workers"));
    for (size_t i = 0; i < sizeof(worker_options) / sizeof(worker_options[0]); i++) {
        const char *text = gk_config_text(run->config, worker_options[i]);

        if (text && *text) {
            gk_args_add(ret_args, "--%s=%s", worker_options[i], text);
        }
    }
    if (rank == 0 && run->options.init) {
        gk_args_add(ret_args, "--init=%s", run->options.init);
    }
    add_common(run, ret_args);
    if (run->options.state_dir) {
        gk_state_path(run->options.state_dir, GK_ROLE_WORKER, rank, folder, sizeof(folder));
        gk_args_add(ret_args, "--state-dir=%s", folder);
    }
    if (takeover) {
        gk_args_add(ret_args, "--takeover");
    }
}

void gk_run_environment(const char *const *environment, struct gk_args *ret_args)
{
    bool threads_chosen = false;

    for (; *environment; environment++) {
        if (gk_run_configures(*environment)) {
            continue;
        }
        threads_chosen = threads_chosen || strncmp(*environment, "OPENBLAS_NUM_THREADS=", 21) == 0;
        gk_args_add(ret_args, "%s", *environment);
    }
    if (!threads_chosen) {
        gk_args_add(ret_args, "OPENBLAS_NUM_THREADS=1");
    }
}

void gk_run_child_server(const struct gk_run_config *run, const char *server,
                         const struct gk_run_place *place, struct gk_run_child *ret)
{
    ret->program = server;
    gk_run_server_args(run, server, place->index, place->address, &ret->args);
    if (place->faults) {
        gk_args_add(&ret->args, "--allow-faults");
    }
    gk_run_environment((const char *const *)environ, &ret->environment);
}

static void fill_command(const struct gk_run_config *run, const struct gk_run_place *place,
                         struct gk_run_child *ret)
{
    ret->program = SELF;
    ret->guarded = true;
    (void)snprintf(ret->prefix, sizeof(ret->prefix), "[%u] ", place->index);
    gk_args_add(&ret->args, "gkps");
    gk_args_add(&ret->args, GK_GUARD_NAME);
    for (size_t i = 0; i < run->command_count; i++) {
        gk_args_add(&ret->args, "%s", run->command[i]);
    }
    gk_run_command_environment(run, place, (const char *const *)environ, &ret->environment);
}

void gk_run_child_worker(const struct gk_run_config *run, const char *worker,
                         const struct gk_run_place *place, struct gk_run_child *ret)
{
    if (gk_run_is_command(run)) {
        fill_command(run, place, ret);
        return;
    }
    ret->program = worker;
    gk_run_worker_args(run, worker, place->servers, place->index, place->takeover, &ret->args);
    if (place->faults) {
        gk_args_add(&ret->args, "--allow-faults");
    }
    gk_run_environment((const char *const *)environ, &ret->environment);
}

void gk_run_child_fini(struct gk_run_child *child)
{
    gk_args_fini(&child->args);
    gk_args_fini(&child->environment);
}
