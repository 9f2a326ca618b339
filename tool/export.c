/* `gkps export`: the model of a job, from its state directories, as a file that others read. */
#include "tool/commands.h"

#include "common/config.h"
#include "common/exit.h"
#include "common/stdout.h"
#include "common/tensors.h"
#include "tool/export_live.h"
#include "tool/output.h"
#include "tool/shards.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { DIRS_MAX = 1024, NOTE_BYTES = 80, NOTES = 6, TRIES_MAX = 20 };

struct export_options {
    const char *output;
    uint32_t format; /* 0: by the name */
    uint64_t version;
    const char *server;
    double timeout;
};

#define AT(member) offsetof(struct export_options, member)

static const struct gk_option options_table[] = {
    {"output", GK_OPTION_STRING, AT(output), NULL, NULL, 0, 0, "FILE",
     "Where to write the model; also -o FILE.", NULL, NULL},
    {"format", GK_OPTION_CHOICE, AT(format), "auto", "auto|safetensors|npz", 0, 0, "FORMAT",
     "auto: by the end of the file's name.", NULL, NULL},
    {"at", GK_OPTION_UINT, AT(version), NULL, NULL, 0, 0, "V",
     "Which version; unset: the newest that all shards have.", NULL, NULL},
    {"server", GK_OPTION_STRING, AT(server), NULL, NULL, 0, 0, "ADDR[,ADDR...]",
     "Instead of DIR: the servers of a running job, all of them.", NULL, NULL},
    {"timeout", GK_OPTION_FLOAT, AT(timeout), "60", NULL, 0.1, 86400, "S",
     "With --server: seconds that all of it may take.", NULL, NULL},
};

static const struct gk_program program = {
    .name = "gkps export",
    .summary = "Write the model that is in the state directories of a job, or in its running "
               "servers, all shards at one version, with the names of its tensors.",
    .usage = "DIR... | --server ADDR[,ADDR...]  --output FILE [options]",
    .notes =
        "Examples:\n"
        "  gkps export job1 -o model.safetensors\n"
        "  gkps export job1/server-0 job1/server-1 --at 500 -o v500.npz\n"
        "  gkps export --server 10.0.0.5:7000,10.0.0.6:7000 -o now.safetensors\n"
        "\n"
        "A DIR is the folder of one server or of a whole run.  gkps run --init FILE starts from\n"
        "such a file.  With --server the job trains on meanwhile, and the version is one a little\n"
        "ahead, or --at V.\n"
        "\n"
        "Exit codes: 0 written, 64 usage, 65 a directory or an answer is damaged, 69 a server "
        "does\n"
        "not answer, 74 the file cannot be written, 75 the job has no version yet, 77 a server\n"
        "refuses, 78 shards are missing, do not belong together or do not have that version.\n",
    .options = options_table,
    .options_count = sizeof(options_table) / sizeof(options_table[0]),
    .positional_max = DIRS_MAX,
};

struct export
{
    struct export_options options;
    bool version_given;
    enum gk_tensors_format format;
    struct gk_shards *shards;  /* of directories */
    struct gk_live_model live; /* of servers */
    const char *job;           /* these three in one of them */
    const struct gk_spec *spec;
    uint32_t epoch;
    uint64_t version, model_hash;
    float *params;
    struct gk_tensors *tensors;
};

/* The parameters of one shard into their place. */
static enum gk_err take_shard(struct export *export, uint32_t shard, struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = export->version};
    struct gk_archive *archive = export->shards->list[shard].archive;
    struct gk_archived state;
    uint64_t hash = 0, length;
    enum gk_err err = gk_archive_read(archive, &wish, &state, words);

    if (err) {
        return err;
    }
    err = gk_archive_hash(archive, &state, false, &hash, words);
    export->model_hash += hash;
    length = state.image->hi - state.image->lo;
    err = err ? err
              : archive->ops->wait(archive->queue,
                                   archive->ops->copy(archive->queue,
                                                      export->params + state.image->lo,
                                                      state.planes[0], length * sizeof(float)));
    gk_archived_fini(archive, &state);
    return err;
}

static enum gk_err name_tensors(struct export *export, struct gk_words *words)
{
    const struct gk_spec *spec = export->spec;

    export->tensors = calloc(1, sizeof(*export->tensors));
    if (!export->tensors) {
        gk_words_set(words, "no memory for the table of tensors");
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        const struct gk_tensor *tensor = &spec->tensors[i];
        struct gk_tensors_entry *entry = &export->tensors->list[export->tensors->count++];

        memcpy(entry->name, tensor->name, sizeof(entry->name));
        memcpy(entry->dims, tensor->dims, sizeof(entry->dims));
        entry->dims_count = tensor->dims_count;
        entry->count = tensor->count;
        entry->values = export->params + tensor->offset;
    }
    return GK_OK;
}

static enum gk_err take_model(struct export *export, struct gk_words *words)
{
    enum gk_err err = GK_OK;

    export->params = malloc((size_t) export->spec->params_count * sizeof(float));
    if (!export->params) {
        gk_words_set(words, "no memory for %" PRIu64 " parameters", export->spec->params_count);
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < export->shards->count && !err; i++) {
        err = take_shard(export, i, words);
    }
    return err;
}

static enum gk_err write_model(void *context, FILE *out, struct gk_words *words)
{
    const struct export *export = context;
    char texts[NOTES][NOTE_BYTES];
    const struct gk_tensors_note list[NOTES] = {
        {"job", texts[0]},   {"version", texts[1]}, {"model_hash", texts[2]},
        {"model", texts[3]}, {"seed", texts[4]},    {"epoch", texts[5]},
    };
    const struct gk_tensors_notes notes = {list, NOTES};

    (void)snprintf(texts[0], NOTE_BYTES, "%s", export->job);
    (void)snprintf(texts[1], NOTE_BYTES, "%" PRIu64, export->version);
    (void)snprintf(texts[2], NOTE_BYTES, "%016" PRIx64, export->model_hash);
    (void)snprintf(texts[3], NOTE_BYTES, "%s", export->spec->model);
    (void)snprintf(texts[4], NOTE_BYTES, "%" PRIu64, export->spec->seed);
    (void)snprintf(texts[5], NOTE_BYTES, "%" PRIu32, export->epoch);
    return gk_tensors_write(out, export->format, export->tensors, &notes, words);
}

static int write_out(struct export *export, struct gk_words *words)
{
    enum gk_err err = name_tensors(export, words);

    err = err ? err : gk_output_make(export->options.output, write_model, export, words);
    if (err) {
        return err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_IO;
    }
    (void)printf("version %" PRIu64 " of the job '%s': %" PRIu32 " tensors, %" PRIu64
                 " parameters, model hash %016" PRIx64 ", to %s\n",
                 export->version, export->job, export->tensors->count, export->spec->params_count,
                 export->model_hash, export->options.output);
    return gk_stdout_flush(stdout, words) == GK_E_IO ? GK_EXIT_IO : GK_EXIT_OK;
}

/* *ret_code: the exit code.  GK_E_AGAIN: a file that was listed went away. */
static enum gk_err run(struct export *export, int *ret_code, struct gk_words *words)
{
    const struct gk_shards *shards = export->shards;
    enum gk_err err;

    if (!shards->one_epoch) {
        gk_words_set(words, "the shards are of several epochs: a rewind was interrupted; do it "
                            "again (gkps rewind)");
        *ret_code = GK_EXIT_CONFIG;
        return GK_E_REFUSED;
    }
    export->version = export->version_given ? export->options.version : shards->common;
    export->job = shards->list[0].archive->owner.job;
    export->spec = &shards->spec;
    export->epoch = shards->epoch;
    err = take_model(export, words);
    *ret_code = err ? gk_shards_exit(err) : write_out(export, words);
    return err;
}

static int run_live(struct export *export, struct gk_words *words)
{
    const struct gk_live_wish wish = {.servers = export->options.server,
                                      .timeout_us = (uint64_t)(export->options.timeout * 1e6),
                                      .at_given = export->version_given,
                                      .at = export->options.version};
    int code;

    code = gk_export_live(&wish, &export->live, words);
    if (code) {
        return code;
    }
    export->version = export->live.version;
    export->model_hash = export->live.model_hash;
    export->job = export->live.job;
    export->spec = &export->live.spec;
    export->epoch = export->live.epoch;
    export->params = export->live.params;
    export->live.params = NULL; /* ours from here on */
    return write_out(export, words);
}

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);

    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* What the table lets through: the option to blame, NULL: all is well. */
static const char *check(struct export *export, struct gk_words *words)
{
    const struct export_options *options = &export->options;

    if (!options->output || !*options->output || strcmp(options->output, "-") == 0) {
        gk_words_set(words, "which file? --output FILE");
        return "output";
    }
    export->format = options->format == 2 ? GK_TENSORS_NPZ : GK_TENSORS_SAFETENSORS;
    if (options->format == 0) {
        bool npz = ends_in(options->output, ".npz");

        if (!npz && !ends_in(options->output, ".safetensors")) {
            gk_words_set(words, "a name that ends in neither .safetensors nor .npz needs --format");
            return "format";
        }
        export->format = npz ? GK_TENSORS_NPZ : GK_TENSORS_SAFETENSORS;
    }
    return NULL;
}

static void close_model(struct export *export)
{
    gk_shards_close(export->shards);
    gk_live_model_clear(&export->live);
    free(export->tensors);
    free(export->params);
    export->shards = NULL;
    export->tensors = NULL;
    export->params = NULL;
    export->model_hash = 0;
}

static int start(struct export *export, const struct gk_config *config, struct gk_words *words)
{
    const char *const *dirs;
    size_t count = gk_config_positional(config, &dirs);
    const char *name = check(export, words);
    int code = GK_EXIT_USAGE;
    enum gk_err err;

    if (name) {
        return gk_config_blame(config, name, words);
    }
    if ((count == 0) == (export->options.server == NULL)) {
        gk_words_set(words, count == 0 ? "which folder? gkps export DIR... --output FILE"
                                       : "either folders or --server, not both");
        return GK_EXIT_USAGE;
    }
    /* Before a job is asked for anything, and before long reading. */
    err = gk_output_probe(export->options.output, words);
    if (err) {
        return err == GK_E_REFUSED ? GK_EXIT_CONFIG : GK_EXIT_IO;
    }
    export->version_given = gk_config_text(config, "at") != NULL;
    if (export->options.server) {
        return run_live(export, words);
    }
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        err = gk_shards_open(dirs, count, false, &export->shards, &code, words);
        err = err ? err : run(export, &code, words);
        /* A living server removes what it has folded: look at what is there now. */
        if (err != GK_E_AGAIN) {
            break;
        }
        close_model(export);
    }
    return code;
}

int gk_tool_export(int argc, char **argv)
{
    static char long_name[] = "--output";
    struct export export = {0};
    const struct gk_config_args args = {.program = &program,
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &export.options,
                                        .values_bytes = sizeof(export.options)};
    struct gk_config *config = NULL;
    struct gk_words words = {""};
    int code = GK_EXIT_USAGE;
    enum gk_err err;

    for (int i = 1; i < argc; i++) {
        argv[i] = strcmp(argv[i], "-o") == 0 ? long_name : argv[i];
    }
    err = gk_config_load(&args, &config, &code, &words);
    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* a reader of our words that has gone is no error */
    code = err ? code : start(&export, config, &words);
    if (code != GK_EXIT_OK) {
        (void)fprintf(stderr, "gkps export: %s\n", words.text);
    }
    close_model(&export);
    gk_config_free(config);
    return code;
}
