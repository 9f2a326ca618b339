#include "worker/options.h"

#include "common/limits.h"
#include "common/option_rows.h"
#include "worker/select/select.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct gk_worker_options, field)

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
    {"model", GK_OPTION_STRING, AT(model), "fnn3", NULL, 0, 0, "NAME", "Model: fnn3 or softmax.",
     NULL, "Training"},
    {"data", GK_OPTION_STRING, AT(data), "digits", NULL, 0, 0, "NAME",
     "Data set: digits (built in) or mnist:DIR (IDX files).", NULL, "Training"},
    {"steps", GK_OPTION_UINT, AT(steps), "1000", NULL, 1, 1e15, "T", "Steps to train.", NULL,
     "Training"},
    {"batch", GK_OPTION_UINT, AT(batch), "32", NULL, 1, 1048576, "B",
     "Samples per worker and step.", NULL, "Training"},
    {"seed", GK_OPTION_UINT, AT(seed), "1", NULL, 0, 0, "K",
     "Seed of parameters, batches and random selection.", NULL, "Training"},
    {"eval-every", GK_OPTION_UINT, AT(eval_every), "0", NULL, 0, 0, "STEPS",
     "Rank 0 evaluates on the test data every so many steps; 0: at the end only.", NULL,
     "Training"},
    {"nonfinite", GK_OPTION_CHOICE, AT(nonfinite), "abort", "abort", 0, 0, "POLICY",
     "What to do about a gradient that is not finite.", NULL, "Training"},
    {"compressor", GK_OPTION_STRING, AT(compressor), "gaussk", NULL, 0, 0, "NAME",
     "Selection operator, one of the list below.", NULL, "Compression"},
    {"density", GK_OPTION_FLOAT, AT(density), "0.01", NULL, 1e-9, 1, "R",
     "Share of the parameters that each worker pushes per step.", NULL, "Compression"},
    {"optimizer", GK_OPTION_CHOICE, AT(optimizer), "momentum", "none|sgd|momentum|nesterov", 0, 0,
     "NAME", "Optimizer, run by the servers.", NULL, "Optimizer"},
    {"lr", GK_OPTION_FLOAT, AT(lr), "0.1", NULL, 0, 1e6, "X", "Learning rate.", NULL, "Optimizer"},
    {"momentum", GK_OPTION_FLOAT, AT(momentum), "0.9", NULL, 0, 1, "X",
     "Momentum of momentum and nesterov.", NULL, "Optimizer"},
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
    {"warmup", GK_OPTION_UINT, AT(warmup), "0", NULL, 0, 1e15, "STEPS",
     "Linear warm-up of the learning rate.", NULL, "Optimizer"},
    GK_OPTION_CPU(AT(cpu)),
    GK_OPTION_LOG_FORMAT(AT(log_format), "Log"),
    GK_OPTION_LOG_LEVEL(AT(log_level), "info", "Log"),
    GK_OPTION_LAUNCHER_FD(AT(launcher_fd)),
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
        .summary =
            "Train as one worker of a job: gradients, selection, sparse push, dense pull.\n"
            "All workers of a job need the same training, compression and optimizer options.",
        .usage = "[options]",
        .notes =
            "Exit codes: 0 done, 64 wrong flags, 65 data, 69 a peer is missing or lost, 70 "
            "internal,\n"
            "75 try again, 76 fenced by a newer life of this rank, 77 refused, 78 configuration,\n"
            "130 and 143 stopped by a signal.",
        .list_heading = "Selection operators",
        .list_entry = list_operator,
        .options = options,
        .options_count = sizeof(options) / sizeof(options[0]),
        .positional_max = 0,
    };

    return &program;
}

enum gk_err gk_worker_options_rank(const struct gk_worker_options *values, uint32_t *ret_rank,
                                   struct gk_words *words)
{
    unsigned long long rank;
    char *end;

    if (!values->rank) {
        if (values->workers == 1) {
            *ret_rank = 0;
            return GK_OK;
        }
        gk_words_set(
            words,
            "--rank is needed with %llu workers: 0 to %llu or any (also GKPS_RANK, RANK, ...)",
            (unsigned long long)values->workers, (unsigned long long)values->workers - 1);
        return GK_E_CONFIG;
    }
    if (strcmp(values->rank, "any") == 0) {
        *ret_rank = GK_RANK_ANY;
        return GK_OK;
    }
    errno = 0;
    rank = strtoull(values->rank, &end, 10);
    if (errno || end == values->rank || *end || values->rank[0] == '-' || rank >= values->workers) {
        gk_words_set(words, "--rank '%s': must be any, or a number from 0 to %llu (--workers %llu)",
                     values->rank, (unsigned long long)values->workers - 1,
                     (unsigned long long)values->workers);
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

enum gk_err gk_worker_options_addresses(const struct gk_worker_options *values,
                                        struct gk_addresses *ret, struct gk_words *words)
{
    struct gk_addresses addresses = {.count = 0};
    char *rest = NULL;

    addresses.text = strdup(values->servers);
    addresses.list = calloc(GK_SERVERS_MAX, sizeof(*addresses.list));
    if (!addresses.text || !addresses.list) {
        gk_words_set(words, "no memory for the addresses of --servers");
        gk_addresses_fini(&addresses);
        return GK_E_NOMEM;
    }
    for (char *at = strtok_r(addresses.text, ", ", &rest); at; at = strtok_r(NULL, ", ", &rest)) {
        bool known = false;

        for (uint32_t i = 0; i < addresses.count; i++) {
            known = known || strcmp(addresses.list[i], at) == 0;
        }
        if (known || strncmp(at, "tcp://", 6) != 0 || addresses.count == GK_SERVERS_MAX) {
            gk_words_set(words, "--servers: '%s' %s", at,
                         known ? "stands there twice"
                         : addresses.count == GK_SERVERS_MAX
                             ? "is one server too many (256 at most)"
                             : "is no address: expected tcp://HOST:PORT");
            gk_addresses_fini(&addresses);
            return GK_E_CONFIG;
        }
        addresses.list[addresses.count++] = at;
    }
    if (addresses.count == 0) {
        gk_words_set(words, "--servers is empty: expected tcp://HOST:PORT[,tcp://HOST:PORT ...]");
        gk_addresses_fini(&addresses);
        return GK_E_CONFIG;
    }
    *ret = addresses;
    return GK_OK;
}
