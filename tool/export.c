/* `gkps export`: the model of a job, from its state directories, as a file that others read. */
#include "tool/commands.h"

#include "common/config.h"
#include "common/exit.h"
#include "common/stdout.h"
#include "common/tensors.h"
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
};

#define AT(member) offsetof(struct export_options, member)

static const struct gk_option options_table[] = {
    {"output", GK_OPTION_STRING, AT(output), NULL, NULL, 0, 0, "FILE",
     "Where to write the model; also -o FILE.", NULL, NULL},
    {"format", GK_OPTION_CHOICE, AT(format), "auto", "auto|safetensors|npz", 0, 0, "FORMAT",
     "auto: by the end of the file's name.", NULL, NULL},
    {"at", GK_OPTION_UINT, AT(version), NULL, NULL, 0, 0, "V",
     "Which version; unset: the newest that all shards have.", NULL, NULL},
};

static const struct gk_program program = {
    .name = "gkps export",
    .summary = "Write the model that is in the state directories of a job, all shards at one "
               "version, with the names of its tensors.",
    .usage = "DIR... --output FILE [options]",
    .notes =
        "Examples:\n"
        "  gkps export job1 -o model.safetensors\n"
        "  gkps export job1/server-0 job1/server-1 --at 500 -o v500.npz\n"
        "\n"
        "A DIR is the folder of one server or of a whole run. gkps run --init FILE starts from "
        "such a file.\n"
        "\n"
        "Exit codes: 0 written, 64 usage, 65 a directory is damaged, 74 the file cannot be "
        "written, 78\n"
        "shards are missing, do not belong together or do not have that version.\n",
    .options = options_table,
    .options_count = sizeof(options_table) / sizeof(options_table[0]),
    .positional_max = DIRS_MAX,
};

struct export
{
    struct export_options options;
    bool version_given;
    enum gk_tensors_format format;
    struct gk_shards *shards;
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

static enum gk_err take_model(struct export *export, struct gk_words *words)
{
    const struct gk_spec *spec = &export->shards->spec;
    enum gk_err err = GK_OK;

    export->params = malloc((size_t)spec->params_count * sizeof(float));
    export->tensors = calloc(1, sizeof(*export->tensors));
    if (!export->params || !export->tensors) {
        gk_words_set(words, "no memory for %" PRIu64 " parameters", spec->params_count);
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < export->shards->count && !err; i++) {
        err = take_shard(export, i, words);
    }
    for (uint32_t i = 0; i < spec->tensors_count && !err; i++) {
        const struct gk_tensor *tensor = &spec->tensors[i];
        struct gk_tensors_entry *entry = &export->tensors->list[export->tensors->count++];

        memcpy(entry->name, tensor->name, sizeof(entry->name));
        memcpy(entry->dims, tensor->dims, sizeof(entry->dims));
        entry->dims_count = tensor->dims_count;
        entry->count = tensor->count;
        entry->values = export->params + tensor->offset;
    }
    return err;
}

static enum gk_err write_model(void *context, FILE *out, struct gk_words *words)
{
    const struct export *export = context;
    const struct gk_shards *shards = export->shards;
    char texts[NOTES][NOTE_BYTES];
    const struct gk_tensors_note list[NOTES] = {
        {"job", texts[0]},   {"version", texts[1]}, {"model_hash", texts[2]},
        {"model", texts[3]}, {"seed", texts[4]},    {"epoch", texts[5]},
    };
    const struct gk_tensors_notes notes = {list, NOTES};

    (void)snprintf(texts[0], NOTE_BYTES, "%s", shards->list[0].archive->owner.job);
    (void)snprintf(texts[1], NOTE_BYTES, "%" PRIu64, export->version);
    (void)snprintf(texts[2], NOTE_BYTES, "%016" PRIx64, export->model_hash);
    (void)snprintf(texts[3], NOTE_BYTES, "%s", shards->spec.model);
    (void)snprintf(texts[4], NOTE_BYTES, "%" PRIu64, shards->spec.seed);
    (void)snprintf(texts[5], NOTE_BYTES, "%" PRIu32, shards->epoch);
    return gk_tensors_write(out, export->format, export->tensors, &notes, words);
}

static int run(struct export *export, struct gk_words *words)
{
    const struct gk_shards *shards = export->shards;
    enum gk_err err;

    if (!shards->one_epoch) {
        gk_words_set(words, "the shards are of several epochs: a rewind was interrupted; do it "
                            "again (gkps rewind)");
        return GK_EXIT_CONFIG;
    }
    export->version = export->version_given ? export->options.version : shards->common;
    err = take_model(export, words);
    if (err) {
        return gk_shards_exit(err);
    }
    err = gk_output_make(export->options.output, write_model, export, words);
    if (err) {
        return err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_IO;
    }
    (void)printf("version %" PRIu64 " of the job '%s': %" PRIu32 " tensors, %" PRIu64
                 " parameters, model hash %016" PRIx64 ", to %s\n",
                 export->version, shards->list[0].archive->owner.job, export->tensors->count,
                 shards->spec.params_count, export->model_hash, export->options.output);
    return gk_stdout_flush(stdout, words) == GK_E_IO ? GK_EXIT_IO : GK_EXIT_OK;
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

    if (name) {
        return gk_config_blame(config, name, words);
    }
    if (count == 0) {
        gk_words_set(words, "which folder? gkps export DIR... --output FILE");
        return GK_EXIT_USAGE;
    }
    export->version_given = gk_config_text(config, "at") != NULL;
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        if (gk_shards_open(dirs, count, false, &export->shards, &code, words) == GK_OK) {
            code = run(export, words);
        }
        /* A living server removes what it has folded: look at what is there now. */
        if (code != GK_EXIT_CONFIG || !strstr(words->text, "No such file")) {
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
