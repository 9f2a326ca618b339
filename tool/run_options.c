#include "tool/run_options.h"

#include "common/exit.h"
#include "common/limits.h"
#include "common/option_rows.h"
#include "common/presets.h"
#include "tool/faults.h"
#include "tool/json.h"
#include "tool/run_command.h"
#include "tool/run_job.h"
#include "tool/run_state.h"
#include "tool/state_dir.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(member) offsetof(struct gk_run_options, member)

#define DENSITY_MIN 1e-9
#define STEPS_MAX UINT32_MAX /* of the job spec */

#define SEED_MAX 9007199254740991 /* 2^53 - 1: what every reader of JSON holds exactly */

/* The worker's models and operators; tests/integration/test_errors.py compares them. */
#define COMPRESSORS "dense|topk|gaussk|gaussk-paper|dgc|randk"

enum { BATCH_MAX = 1 << 20, DEADLINE_MAX_S = 1000000 };

static const struct gk_option options_table[] = {
    {"servers", GK_OPTION_UINT, AT(servers), "2", NULL, 1, GK_SERVERS_MAX, "S",
     "Number of server processes; each holds one shard of the model.", NULL, "Cluster"},
    {"workers", GK_OPTION_UINT, AT(workers), "4", NULL, 1, GK_WORKERS_MAX, "N",
     "Number of worker processes.", NULL, "Cluster"},
    {"job", GK_OPTION_STRING, AT(job), NULL, NULL, 0, 0, "NAME",
     "Name of the job (gkps-PID when unset).", NULL, "Cluster"},
    {"restart", GK_OPTION_CHOICE, AT(restart), "never", "never|always", 0, 0, "POLICY",
     "What to do when a daemon dies: end the run, or start it again (always with --state-dir, "
     "unless you say never).",
     NULL, "Cluster"},
    {"deadline", GK_OPTION_UINT, AT(deadline), "120", NULL, 1, DEADLINE_MAX_S, "S",
     "Seconds to wait for a daemon at the start, and for a peer that went away.", NULL, "Cluster"},
    {"faults", GK_OPTION_STRING, AT(faults), NULL, NULL, 0, 0, "FILE",
     "Disturb the run as this script says, and judge it (docs/faults.md).", NULL, "Cluster"},
    {"state-dir", GK_OPTION_STRING, AT(state_dir), NULL, NULL, 0, 0, "DIR",
     "Keep the state of all daemons there; the same command goes on where the last one stopped.",
     NULL, "State"},
    {"fresh", GK_OPTION_BOOL, AT(fresh), "false", NULL, 0, 0, NULL,
     "Remove the job that is in --state-dir, and begin anew.", NULL, "State"},
    {"sync", GK_OPTION_CHOICE, AT(sync), "always", "always|interval|never", 0, 0, "POLICY",
     "When the servers sync their logs: before a version is served, in the background, or never "
     "(safe against kill -9 only).",
     NULL, "State"},
    {"keep-versions", GK_OPTION_UINT, AT(keep_versions), "0", NULL, 0, 1e9, "VERSIONS",
     "How far back gkps rewind must be able to go.", NULL, "State"},
    {"model", GK_OPTION_CHOICE, AT(model), "fnn3", GK_MODEL_CHOICES, 0, 0, "NAME",
     "Model to train; it has defaults of its own for some of the options below (docs/models.md).",
     NULL, "Training"},
    {"data", GK_OPTION_STRING, AT(data), "digits", NULL, 0, 0, "NAME[:PATH]",
     "Data set: digits (built in), mnist:DIR, cifar10:DIR or text:FILE.", NULL, "Training"},
    {"steps", GK_OPTION_UINT, AT(steps), "1000", NULL, 1, STEPS_MAX, "T", "Training steps.", NULL,
     "Training"},
    {"batch", GK_OPTION_UINT, AT(batch), "32", NULL, 1, BATCH_MAX, "B",
     "Samples per worker and step.", NULL, "Training"},
    {"seed", GK_OPTION_UINT, AT(seed), "1", NULL, 0, SEED_MAX, "N",
     "Seed of all random draws: same seed, same model.", NULL, "Training"},
    {"init", GK_OPTION_STRING, AT(init), NULL, NULL, 0, 0, "FILE",
     "Begin with the model in this safetensors or npz file (gkps export writes such), not with one "
     "of the seed.",
     NULL, "Training"},
    {"eval-every", GK_OPTION_UINT, AT(eval_every), "0", NULL, 0, STEPS_MAX, "T",
     "Rank 0 measures the accuracy every T steps; 0: at the end only.", NULL, "Training"},
    {"nonfinite", GK_OPTION_CHOICE, AT(nonfinite), "abort", "abort", 0, 0, "POLICY",
     "What to do with a gradient that is not finite.", NULL, "Training"},
    {"clip", GK_OPTION_FLOAT, AT(clip), "0", NULL, 0, 1e6, "NORM",
     "Cut a worker's gradient to this length when it is longer; 0: never.", NULL, "Training"},
    {"backend", GK_OPTION_STRING, AT(backend), "auto", NULL, 0, 0, "auto|cpu|cuda[:N]",
     "Where workers compute and select: auto is the processor; cuda without a number gives GPU I "
     "to "
     "worker I.",
     NULL, "Compression"},
    {"compressor", GK_OPTION_CHOICE, AT(compressor), "gaussk", COMPRESSORS, 0, 0, "NAME",
     "How entries are selected (gkps-worker --help explains them).", NULL, "Compression"},
    {"density", GK_OPTION_FLOAT, AT(density), "0.01", NULL, DENSITY_MIN, 1, "R",
     "Part of the entries that a worker pushes in a step.", NULL, "Compression"},
    {"optimizer", GK_OPTION_CHOICE, AT(optimizer), "momentum", "none|sgd|momentum|nesterov|adamw",
     0, 0, "NAME", "Optimizer on the servers.", NULL, "Optimizer"},
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
     "Weight decay (not on biases and norms).", NULL, "Optimizer"},
    {"schedule", GK_OPTION_CHOICE, AT(schedule), "constant", "constant|milestones|cosine", 0, 0,
     "NAME", "Learning rate over the steps.", NULL, "Optimizer"},
    {"milestones", GK_OPTION_STRING, AT(milestones), "", NULL, 0, 0, "T,T,...",
     "Steps at which the rate is multiplied by --lr-gamma.", NULL, "Optimizer"},
    {"lr-gamma", GK_OPTION_FLOAT, AT(lr_gamma), "0.1", NULL, 0, 1, "X", "Factor at each milestone.",
     NULL, "Optimizer"},
    {"lr-min", GK_OPTION_FLOAT, AT(lr_min), "0", NULL, 0, 1e6, "X",
     "Rate at the end of the cosine.", NULL, "Optimizer"},
    {"warmup", GK_OPTION_UINT, AT(warmup), "0", NULL, 0, STEPS_MAX, "T",
     "Steps in which the rate grows to --lr.", NULL, "Optimizer"},
    {"summary", GK_OPTION_STRING, AT(summary), NULL, NULL, 0, 0, "FILE",
     "Write the summary as JSON; - is standard output.", NULL, "Output"},
    GK_OPTION_LOG_FORMAT(AT(log_format), "Output"),
    GK_OPTION_LOG_LEVEL(AT(log_level), "warn", "Output"),
    {"quiet", GK_OPTION_BOOL, AT(quiet), "false", NULL, 0, 0, NULL,
     "No progress, no table, only warnings and errors.", NULL, "Output"},
};

enum { OPTIONS_COUNT = sizeof(options_table) / sizeof(options_table[0]) };

static const struct gk_program program = {
    .name = "gkps run",
    .summary = "Train one model on this machine: start servers and workers, show progress, sum up.",
    .usage = "[options] [-- COMMAND ...]",
    .notes =
        "With a command, the workers are copies of that program: it uses libgkps, and finds its "
        "place\n"
        "in the job in its environment (docs/run-command.md).\n"
        "\n"
        "Examples:\n"
        "  gkps run\n"
        "  gkps run --workers 8 --density 0.001 --steps 2000 --eval-every 200\n"
        "  gkps run --compressor dense --summary dense.json\n"
        "  gkps run --state-dir job1 --steps 10000    (once more to go on: gkps run --state-dir "
        "job1)\n"
        "  gkps run --servers 2 --workers 4 -- python3 train.py --epochs 3\n"
        "\n"
        "Ctrl-C stops the run cleanly, a second Ctrl-C at once.\n"
        "\n"
        "Exit codes: 0 done, 64 usage, 65 data, 69 a peer is missing or lost, 70 internal error,\n"
        "a killed daemon or a false expectation of --faults, 74 output cannot be written, 75 try\n"
        "again, 76 fenced, 77 refused, 78 configuration or state, 130 and 143 stopped by a\n"
        "signal, 141 the reader of --summary - has gone.\n",
    .options = options_table,
    .options_count = OPTIONS_COUNT,
    .positional_max = 0,
    .command = true,
    .preset_by = "model",
    .preset = gk_model_preset,
};

/* Which policies need a state directory, and were asked for without one; NULL: none. */
static const char *state_missing(const struct gk_run_config *run)
{
    static const char *const names[] = {"fresh", "sync", "keep-versions"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!run->options.state_dir && gk_run_given(run, names[i])) {
            return names[i];
        }
    }
    return NULL;
}

static const char *check(const struct gk_run_config *run, bool *ret_data, struct gk_words *words)
{
    const char *name = state_missing(run);

    if (name) {
        gk_words_set(words, "needs --state-dir DIR");
        return name;
    }
    if (run->options.init && !*run->options.init) {
        gk_words_set(words, "needs the name of a file");
        return "init";
    }
    if (run->options.state_dir && !*run->options.state_dir) {
        gk_words_set(words, "needs the name of a folder");
        return "state-dir";
    }
    return gk_run_check(run, ret_data, words);
}

static enum gk_err load(struct gk_run_config *run, int argc, char **argv, int *ret_exit,
                        struct gk_words *words)
{
    const struct gk_config_args args = {.program = &program,
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &run->options,
                                        .values_bytes = sizeof(run->options)};
    const char *name;
    bool data = false;
    enum gk_err err;

    err = gk_config_load(&args, &run->config, ret_exit, words);
    if (err) {
        return err;
    }
    run->command_count = gk_config_command(run->config, &run->command);
    name = check(run, &data, words);
    if (name) {
        *ret_exit = gk_config_blame(run->config, name, words);
        *ret_exit = data ? GK_EXIT_DATA : *ret_exit;
        err = GK_E_CONFIG;
    } else {
        err = gk_run_command_check(run, ret_exit, words);
    }
    if (err) {
        gk_config_free(run->config);
        run->config = NULL;
        return err;
    }
    if (!run->options.job) {
        (void)snprintf(run->job, sizeof(run->job), "gkps-%ld", (long)getpid());
        run->options.job = run->job;
    }
    return GK_OK;
}

/* An option of the script that is wrong: what the command line alone is not. */
static void blame_script(const struct gk_faults *faults, struct gk_words *words)
{
    for (uint32_t i = 0; i < faults->options_count; i++) {
        size_t length = strlen(faults->options[i].name);
        const char *flag = strstr(words->text, "--");

        if (flag && strncmp(flag + 2, faults->options[i].name, length) == 0 &&
            !isalnum((unsigned char)flag[2 + length]) && flag[2 + length] != '-') {
            gk_words_prefix(words, "%s:%" PRIu32 ": run: ", faults->name, faults->options[i].line);
            return;
        }
    }
    gk_words_prefix(words, "%s: run: ", faults->name);
}

/* What a script needs and nobody gave: a state directory, for this run alone. */
static enum gk_err make_state(struct gk_run_config *run, struct gk_words *words)
{
    const char *folder = getenv("TMPDIR");
    int length;

    for (uint32_t i = 0; i < run->faults->options_count; i++) {
        if (strcmp(run->faults->options[i].name, "state-dir") == 0) {
            return GK_OK;
        }
    }
    folder = folder && *folder ? folder : "/tmp";
    length = snprintf(run->temporary_state, sizeof(run->temporary_state), "%s/gkps-state-XXXXXX",
                      folder);
    if (length < 0 || (size_t)length >= sizeof(run->temporary_state) ||
        !mkdtemp(run->temporary_state)) {
        gk_words_set(words, "cannot make a state directory in %.200s: --state-dir DIR says where",
                     folder);
        run->temporary_state[0] = '\0';
        return GK_E_IO;
    }
    gk_args_add(&run->args, "--state-dir=%s", run->temporary_state);
    return GK_OK;
}

/* The script's options count as flags that stand before those of the command line, which win. */
static enum gk_err load_script(struct gk_run_config *run, int argc, char **argv, int *ret_exit,
                               struct gk_words *words)
{
    struct gk_faults_job job = {0};
    enum gk_err err = gk_faults_read(run->options.faults, &run->faults, words);

    *ret_exit = err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_CONFIG;
    if (err) {
        return err;
    }
    gk_args_add(&run->args, "%s", argv[0]);
    for (uint32_t i = 0; i < run->faults->options_count; i++) {
        gk_args_add(&run->args, "--%s=%s", run->faults->options[i].name,
                    run->faults->options[i].text);
    }
    if (!run->options.state_dir && gk_faults_need_state(run->faults)) {
        err = make_state(run, words);
        if (err) {
            return err;
        }
    }
    for (int i = 1; i < argc; i++) {
        gk_args_add(&run->args, "%s", argv[i]);
    }
    if (run->args.failed) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    gk_config_free(run->config);
    run->config = NULL;
    err = load(run, (int)run->args.count, run->args.v, ret_exit, words);
    if (err) {
        blame_script(run->faults, words);
        *ret_exit = *ret_exit == GK_EXIT_USAGE ? GK_EXIT_CONFIG : *ret_exit;
        return err;
    }
    job.servers = (uint32_t)run->options.servers;
    job.workers = (uint32_t)run->options.workers;
    *ret_exit = GK_EXIT_CONFIG;
    return gk_faults_check(run->faults, &job, words);
}

/* What the job in the directory says, as flags and a command: all of it that this command line
 * leaves open. */
static enum gk_err add_stored(struct gk_run_config *run, struct gk_args *args,
                              struct gk_args *ret_command, int *ret_exit, struct gk_words *words)
{
    const char *dir = run->options.state_dir;
    struct gk_run_config there = {0};
    struct gk_args stored = {0};
    const char *name;
    enum gk_err err;

    gk_args_add(&stored, "%s", program.name);
    gk_args_add(&stored, "--state-dir=%s", dir);
    err = gk_run_job_read(dir, &stored, words);
    *ret_exit = err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_CONFIG;
    if (!err) {
        err = load(&there, (int)stored.count, stored.v, ret_exit, words);
        if (err) {
            *ret_exit = *ret_exit == GK_EXIT_USAGE ? GK_EXIT_CONFIG : *ret_exit;
            gk_words_prefix(words, "the job in %.100s: ", dir);
        }
    }
    name = err ? NULL : gk_run_job_differs(run, &there);
    run->replace = name && !gk_run_state_begun(dir);
    if (name && !run->replace) {
        gk_run_job_refuse(run, &there, name, words);
        *ret_exit = GK_EXIT_CONFIG;
        err = GK_E_REFUSED;
    }
    for (size_t i = 0; i < gk_run_job_options_count && !err && !run->replace; i++) {
        const char *text = gk_config_text(there.config, gk_run_job_options[i]);

        if (text && gk_run_given(&there, gk_run_job_options[i]) &&
            !gk_run_given(run, gk_run_job_options[i])) {
            gk_args_add(args, "--%s=%s", gk_run_job_options[i], text);
        }
    }
    for (size_t i = 0; i < there.command_count && !err && !run->replace; i++) {
        if (run->command_count == 0) {
            gk_args_add(ret_command, "%s", there.command[i]);
        }
    }
    gk_config_free(there.config);
    gk_args_fini(&stored);
    return err == GK_E_NOTFOUND ? GK_OK : err;
}

/* Once more, with what the state directory adds: the options of the job in it, and restarts. */
static enum gk_err load_state(struct gk_run_config *run, int argc, char **argv, int *ret_exit,
                              struct gk_words *words)
{
    struct gk_args args = {0}, command = {0}, former = run->args;
    enum gk_err err = gk_state_check(run->options.state_dir, words);

    *ret_exit = GK_EXIT_CONFIG;
    gk_args_add(&args, "%s", argv[0]);
    if (!err && !run->options.fresh) {
        err = add_stored(run, &args, &command, ret_exit, words);
    }
    if (!gk_run_given(run, "restart")) {
        gk_args_add(&args, "--restart=always");
    }
    for (int i = 1; i < argc; i++) {
        gk_args_add(&args, "%s", argv[i]);
    }
    for (size_t i = 0; i < command.count; i++) {
        if (i == 0) {
            gk_args_add(&args, "--");
        }
        gk_args_add(&args, "%s", command.v[i]);
    }
    if (!err && (args.failed || command.failed)) {
        gk_words_set(words, "out of memory");
        *ret_exit = GK_EXIT_INTERNAL;
        err = GK_E_NOMEM;
    }
    if (!err) {
        gk_config_free(run->config);
        run->config = NULL;
        err = load(run, (int)args.count, args.v, ret_exit, words);
    }
    run->args = args;
    gk_args_fini(&former);
    gk_args_fini(&command);
    return err;
}

enum gk_err gk_run_config_load(struct gk_run_config *run, int argc, char **argv, int *ret_exit,
                               struct gk_words *words)
{
    enum gk_err err;

    memset(run, 0, sizeof(*run));
    err = load(run, argc, argv, ret_exit, words);
    if (!err && run->options.faults) {
        err = load_script(run, argc, argv, ret_exit, words);
        argc = (int)run->args.count;
        argv = run->args.v;
    }
    if (!err && run->options.state_dir) {
        err = load_state(run, argc, argv, ret_exit, words);
    }
    if (err) {
        gk_run_config_fini(run);
    }
    return err;
}

void gk_run_config_fini(struct gk_run_config *run)
{
    if (run->temporary_state[0]) {
        (void)rmdir(run->temporary_state); /* fails when it is not empty: it is kept then */
    }
    gk_config_free(run->config);
    gk_faults_free(run->faults);
    gk_args_fini(&run->args);
    memset(run, 0, sizeof(*run));
}

/* "GKPS_LOG_LEVEL=debug" configures "log-level". */
static bool configures(const char *variable, const char *name)
{
    if (strncmp(variable, "GKPS_", 5) != 0) {
        return false;
    }
    for (variable += 5; *name; name++, variable++) {
        char letter = (char)toupper((unsigned char)*name);

        if (*name == '-') {
            letter = '_';
        }
        if (*variable != letter) {
            return false;
        }
    }
    return *variable == '=';
}

const struct gk_option *gk_run_option(size_t i)
{
    return i < OPTIONS_COUNT ? &options_table[i] : NULL;
}

bool gk_run_given(const struct gk_run_config *run, const char *name)
{
    return strcmp(gk_config_source(run->config, name), "default") != 0;
}

bool gk_run_configures(const char *variable)
{
    if (configures(variable, "config")) {
        return true;
    }
    for (size_t i = 0; i < OPTIONS_COUNT; i++) {
        if (configures(variable, options_table[i].name)) {
            return true;
        }
    }
    return false;
}

static json_t *option_json(const struct gk_run_config *run, const struct gk_option *option)
{
    const char *at = (const char *)&run->options + option->offset;
    const char *text;
    uint64_t number;
    double real;
    bool truth;

    switch (option->type) {
    case GK_OPTION_UINT:
    case GK_OPTION_BYTES:
        memcpy(&number, at, sizeof(number));
        return gk_json_integer(number);
    case GK_OPTION_FLOAT:
        memcpy(&real, at, sizeof(real));
        return gk_json_real(real);
    case GK_OPTION_BOOL:
        memcpy(&truth, at, sizeof(truth));
        return json_boolean(truth);
    case GK_OPTION_STRING:
        memcpy(&text, at, sizeof(text));
        return text ? gk_json_string(text) : json_null();
    case GK_OPTION_CHOICE:
        break;
    }
    text = gk_config_text(run->config, option->name);
    return text ? json_string(text) : json_null();
}

json_t *gk_run_config_json(const struct gk_run_config *run)
{
    json_t *object = json_object();
    bool failed = false;

    for (size_t i = 0; i < OPTIONS_COUNT; i++) {
        const struct gk_option *option = &options_table[i];

        failed = json_object_set_new(object, option->name,
                                     gk_run_command_leaves_open(run, option)
                                         ? json_null()
                                         : option_json(run, option)) != 0 ||
                 failed;
    }
    failed = json_object_set_new(object, "command", gk_run_command_json(run)) != 0 || failed;
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}
