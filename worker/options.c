#include "worker/options.h"

#include "common/exit.h"
#include "common/limits.h"
#include "common/net/zsock.h"
#include "common/option_rows.h"
#include "common/presets.h"
#include "proto/msg.h"
#include "worker/select/select.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct gk_worker_options, field)

#define STEPS_MAX UINT32_MAX /* of the job spec */

static const struct gk_option options[] = {
    {"servers", GK_OPTION_STRING, AT(servers), "tcp://127.0.0.1:5600", NULL, 0, 0, "ADDRESSES",
     "Comma-separated addresses of the servers, shard 0 first.", NULL, "Cluster"},
    {"rank", GK_OPTION_STRING, AT(rank), NULL, NULL, 0, 0, "R",
     "Rank of this worker, 0 to workers - 1, or any: shard 0 assigns one; 0 when there is one "
     "worker.",
     "RANK|SLURM_PROCID|JOB_COMPLETION_INDEX|OMPI_COMM_WORLD_RANK", "Cluster"},
    {"workers", GK_OPTION_UINT, AT(workers), "1", NULL, 1, GK_WORKERS_MAX, "N",
     "Number of workers of the job.", NULL, "Cluster"},
    {"job", GK_OPTION_STRING, AT(job), "gkps", NULL, 0, 0, "NAME",
     "Name of the job: servers refuse workers of another one.", NULL, "Cluster"},
    {"takeover", GK_OPTION_BOOL, AT(takeover), "false", NULL, 0, 0, NULL,
     "The former process of this rank is known to be dead: take its place at once.", NULL,
     "Cluster"},
    {"deadline", GK_OPTION_UINT, AT(deadline_s), "120", NULL, 0, 1e6, "SECONDS",
     "How long to wait for missing peers before giving up with exit code 69; 0: for ever.", NULL,
     "Cluster"},
    {"state-dir", GK_OPTION_STRING, AT(state_dir), NULL, NULL, 0, 0, "DIR",
     "Keep residual and pushes in this directory, of this worker alone: one that is killed goes on "
     "where it was.",
     NULL, "State"},
    {"state-sync", GK_OPTION_BOOL, AT(state_sync), "false", NULL, 0, 0, NULL,
     "Sync every step to the disk, so that a crash of the machine loses nothing either.", NULL,
     "State"},
    {"model", GK_OPTION_STRING, AT(model), "fnn3", NULL, 0, 0, "NAME",
     "Model: charlstm, fnn3, lenet5, resnet20, softmax or vgg16; it has defaults of its own for "
     "some "
     "of the options below (docs/models.md).",
     NULL, "Training"},
    {"data", GK_OPTION_STRING, AT(data), "digits", NULL, 0, 0, "NAME",
     "Data set: digits (built in), mnist:DIR (IDX files), cifar10:DIR (binary version) or "
     "text:FILE.",
     NULL, "Training"},
    {"steps", GK_OPTION_UINT, AT(steps), "1000", NULL, 1, STEPS_MAX, "T", "Steps to train.", NULL,
     "Training"},
    {"batch", GK_OPTION_UINT, AT(batch), "32", NULL, 1, 1048576, "B",
     "Samples per worker and step.", NULL, "Training"},
    {"seed", GK_OPTION_UINT, AT(seed), "1", NULL, 0, 0, "K",
     "Seed of parameters, batches and random selection.", NULL, "Training"},
    {"init", GK_OPTION_STRING, AT(init), NULL, NULL, 0, 0, "FILE",
     "Rank 0 begins a new job with the parameters in this safetensors or npz file, not with those "
     "of the seed.",
     NULL, "Training"},
    {"eval-every", GK_OPTION_UINT, AT(eval_every), "0", NULL, 0, 0, "STEPS",
     "Rank 0 evaluates on the test data every so many steps; 0: at the end only.", NULL,
     "Training"},
    {"nonfinite", GK_OPTION_CHOICE, AT(nonfinite), "abort", "abort", 0, 0, "POLICY",
     "What to do about a gradient that is not finite.", NULL, "Training"},
    {"clip", GK_OPTION_FLOAT, AT(clip), "0", NULL, 0, 1e6, "NORM",
     "A worker's gradient (the mean over its batch) that is longer is cut to this length before it "
     "is added to the residual; 0: never.",
     NULL, "Training"},
    {"compressor", GK_OPTION_STRING, AT(compressor), "gaussk", NULL, 0, 0, "NAME",
     "Selection operator, one of the list below.", NULL, "Compression"},
    {"density", GK_OPTION_FLOAT, AT(density), "0.01", NULL, 1e-9, 1, "R",
     "Share of the parameters that each worker pushes per step.", NULL, "Compression"},
    {"optimizer", GK_OPTION_CHOICE, AT(optimizer), "momentum", "none|sgd|momentum|nesterov|adamw",
     0, 0, "NAME", "Optimizer, run by the servers.", NULL, "Optimizer"},
    {"lr", GK_OPTION_FLOAT, AT(lr), "0.1", NULL, 0, 1e6, "X",
     "Learning rate; adamw is used with smaller ones, like 0.001.", NULL, "Optimizer"},
    {"momentum", GK_OPTION_FLOAT, AT(momentum), GK_OPTION_MOMENTUM, NULL, 0, 1, "X",
     "Momentum of momentum and nesterov.", NULL, "Optimizer"},
    {"beta1", GK_OPTION_FLOAT, AT(beta1), GK_OPTION_BETA1, NULL, 0, 1, "X",
     "How slowly adamw forgets gradients.", NULL, "Optimizer"},
    {"beta2", GK_OPTION_FLOAT, AT(beta2), GK_OPTION_BETA2, NULL, 0, 1, "X",
     "How slowly adamw forgets their squares.", NULL, "Optimizer"},
    {"epsilon", GK_OPTION_FLOAT, AT(epsilon), GK_OPTION_EPSILON, NULL, 1e-30, 1, "X",
     "What adamw adds to the root of the squares.", NULL, "Optimizer"},
    {"weight-decay", GK_OPTION_FLOAT, AT(weight_decay), "0", NULL, 0, 1e3, "X",
     "Weight decay; never on biases.", NULL, "Optimizer"},
    {"schedule", GK_OPTION_CHOICE, AT(schedule), "constant", "constant|milestones|cosine", 0, 0,
     "KIND", "Course of the learning rate.", NULL, "Optimizer"},
    {"milestones", GK_OPTION_STRING, AT(milestones), "", NULL, 0, 0, "STEPS",
     "Steps at which milestones multiplies by --lr-gamma: 500,750.", NULL, "Optimizer"},
    {"lr-gamma", GK_OPTION_FLOAT, AT(lr_gamma), "0.1", NULL, 0, 1, "X", "Factor at each milestone.",
     NULL, "Optimizer"},
    {"lr-min", GK_OPTION_FLOAT, AT(lr_min), "0", NULL, 0, 1e6, "X", "Where cosine ends.", NULL,
     "Optimizer"},
    {"warmup", GK_OPTION_UINT, AT(warmup), "0", NULL, 0, STEPS_MAX, "STEPS",
     "Linear warm-up of the learning rate.", NULL, "Optimizer"},
    GK_OPTION_CPU(AT(cpu)),
    GK_OPTION_LOG_FORMAT(AT(log_format), "Log"),
    GK_OPTION_LOG_LEVEL(AT(log_level), "info", "Log"),
    GK_OPTION_LAUNCHER_FD(AT(launcher_fd)),
    GK_OPTION_ALLOW_FAULTS(AT(allow_faults)),
};

static bool list_operator(size_t i, const char **ret_name, const char **ret_explanation)
{
    uint32_t count;
    const struct gk_operator *const *operators = gk_operators(&count);

    if (i >= count) {
        return false;
    }
    *ret_name = operators[i]->name;
    *ret_explanation = operators[i]->summary;
    return true;
}

const struct gk_program *gk_worker_program(void)
{
    static const struct gk_program program = {
        .name = "gkps-worker",
        .summary = "Train as one worker of a job: gradients, selection, sparse push, dense pull. "
                   "All workers "
                   "of a job need the same options: model, steps, seed, density and optimizer are "
                   "compared "
                   "and refused when they differ; batch, data and operator are not compared.",
        .usage = "[options]",
        .notes = "Exit codes: 0 done, 64 wrong flags, 65 data, 69 a peer is missing or lost, 70 "
                 "internal or no\n"
                 "memory, 75 try again, 76 fenced by a newer life of this rank, 77 refused, 78 "
                 "configuration\n"
                 "or state, 130 and 143 stopped by a signal.",
        .list_heading = "Selection operators",
        .list_entry = list_operator,
        .options = options,
        .options_count = sizeof(options) / sizeof(options[0]),
        .positional_max = 0,
        .preset_by = "model",
        .preset = gk_model_preset,
    };

    return &program;
}

enum gk_err gk_worker_options_check(const struct gk_worker_options *values, int *ret_exit,
                                    struct gk_words *words)
{
    if (gk_job_name_check(values->job, words)) {
        *ret_exit = gk_config_blame(values->config, "job", words);
        return GK_E_CONFIG;
    }
    if (values->state_dir && !values->state_dir[0]) {
        gk_words_set(words, "empty: expected a directory");
        *ret_exit = gk_config_blame(values->config, "state-dir", words);
        return GK_E_CONFIG;
    }
    if (values->state_sync && !values->state_dir) {
        gk_words_set(words, "needs --state-dir");
        *ret_exit = gk_config_blame(values->config, "state-sync", words);
        return GK_E_CONFIG;
    }
    return GK_OK;
}

enum gk_err gk_worker_options_rank(const struct gk_worker_options *values, uint32_t *ret_rank,
                                   int *ret_exit, struct gk_words *words)
{
    unsigned long long rank;
    char *end;

    if (!values->rank && values->workers > 1) {
        gk_words_set(words,
                     "needed with %" PRIu64 " workers: 0 to %" PRIu64
                     " or any (also GKPS_RANK, RANK, ...)",
                     values->workers, values->workers - 1);
        *ret_exit = gk_config_blame(values->config, "rank", words);
        return GK_E_CONFIG;
    }
    if (!values->rank) {
        *ret_rank = 0;
        return GK_OK;
    }
    if (strcmp(values->rank, "any") == 0) {
        *ret_rank = GK_RANK_ANY;
        return GK_OK;
    }
    errno = 0;
    rank = strtoull(values->rank, &end, 10);
    if (errno || *values->rank < '0' || *values->rank > '9' || *end || rank >= values->workers) {
        gk_words_set(
            words, "'%.60s' must be any, or a number from 0 to %" PRIu64 " (workers: %" PRIu64 ")",
            values->rank, values->workers - 1, values->workers);
        *ret_exit = gk_config_blame(values->config, "rank", words);
        return GK_E_CONFIG;
    }
    *ret_rank = (uint32_t)rank;
    return GK_OK;
}

void gk_addresses_fini(struct gk_addresses *addresses)
{
    free(addresses->text);
    free(addresses->list);
    memset(addresses, 0, sizeof(*addresses));
}

/* One address more.  GK_E_CONFIG, and words that say what is wrong with it. */
static enum gk_err add_address(struct gk_addresses *addresses, const char *address,
                               struct gk_words *words)
{
    if (gk_zsock_address_check(address, false, words)) {
        return GK_E_CONFIG;
    }
    for (uint32_t i = 0; i < addresses->count; i++) {
        if (strcmp(addresses->list[i], address) == 0) {
            gk_words_set(words, "'%s' stands there twice", address);
            return GK_E_CONFIG;
        }
    }
    if (addresses->count == GK_SERVERS_MAX) {
        gk_words_set(words, "'%s' is one server too many (%d at most)", address, GK_SERVERS_MAX);
        return GK_E_CONFIG;
    }
    addresses->list[addresses->count++] = address;
    return GK_OK;
}

enum gk_err gk_worker_options_addresses(const struct gk_worker_options *values,
                                        struct gk_addresses *ret, int *ret_exit,
                                        struct gk_words *words)
{
    struct gk_addresses addresses = {.count = 0};
    enum gk_err err = GK_OK;
    char *rest = NULL;

    addresses.text = strdup(values->servers);
    addresses.list = calloc(GK_SERVERS_MAX, sizeof(*addresses.list));
    if (!addresses.text || !addresses.list) {
        gk_words_set(words, "no memory for the addresses of --servers");
        *ret_exit = GK_EXIT_INTERNAL;
        err = GK_E_NOMEM;
        goto out;
    }
    for (char *at = strtok_r(addresses.text, ", ", &rest); at && !err;
         at = strtok_r(NULL, ", ", &rest)) {
        err = add_address(&addresses, at, words);
    }
    if (!err && addresses.count == 0) {
        gk_words_set(words, "empty: expected tcp://HOST:PORT[,tcp://HOST:PORT ...]");
        err = GK_E_CONFIG;
    }
    if (err) {
        *ret_exit = gk_config_blame(values->config, "servers", words);
        goto out;
    }
    *ret = addresses;
    return GK_OK;
out:
    gk_addresses_fini(&addresses);
    return err;
}
