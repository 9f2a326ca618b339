/* `gkps rewind`: all shards of a stopped job back to one version, in a new epoch.
 *
 * Nothing is written before every shard has shown that it can reach the version; then each gets a
 * snapshot of it in the new epoch, and when all have theirs, the older epoch's files go.  Cut short
 * in between, the same command does the rest. */
#include "tool/commands.h"

#include "common/config.h"
#include "common/exit.h"
#include "common/stdout.h"
#include "server/store/rewind.h"
#include "tool/shards.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

enum { DIRS_MAX = 1024 };

struct rewind_options {
    uint64_t to;
    bool dry_run;
};

#define AT(member) offsetof(struct rewind_options, member)

static const struct gk_option options_table[] = {
    {"to", GK_OPTION_UINT, AT(to), NULL, NULL, 0, 0, "V", "The version to go back to.", NULL, NULL},
    {"dry-run", GK_OPTION_BOOL, AT(dry_run), "false", NULL, 0, 0, NULL,
     "Check and say what would be done, and write nothing.", NULL, NULL},
};

static const struct gk_program program = {
    .name = "gkps rewind",
    .summary = "Take all shards of a stopped job back to one version. What came behind it is lost; "
               "copy the folders first if you may want it again.",
    .usage = "--to V DIR... [options]",
    .notes = "Examples:\n"
             "  gkps rewind --to 500 job1 --dry-run\n"
             "  gkps rewind --to 500 job1/server-0 job1/server-1\n"
             "\n"
             "The epoch of the job rises: residuals and pushes of workers that have seen later "
             "versions are\n"
             "void, and they say so when they come back.\n"
             "\n"
             "Exit codes: 0 done, 64 usage, 65 a directory is damaged, 74 it cannot be written to, "
             "75 a server\n"
             "is running, 78 shards are missing, do not belong together or do not have that "
             "version.\n",
    .options = options_table,
    .options_count = sizeof(options_table) / sizeof(options_table[0]),
    .positional_max = DIRS_MAX,
};

/* By a rewind that was cut short: it holds that version of the newest epoch and nothing else. */
static bool is_done(const struct gk_shards *shards, uint32_t i, uint64_t to)
{
    const struct gk_archive *archive = shards->list[i].archive;

    return archive->epoch == shards->epoch && archive->epoch > 0 && archive->segments.count == 0 &&
           archive->snapshots.count == 1 && archive->snapshots.list[0].version == to;
}

/* The epoch that all shards will be in. */
static uint32_t target_epoch(const struct gk_shards *shards, uint64_t to)
{
    for (uint32_t i = 0; i < shards->count; i++) {
        if (shards->list[i].archive->epoch == shards->epoch && !is_done(shards, i, to)) {
            return shards->epoch + 1;
        }
    }
    return shards->epoch;
}

static enum gk_err check_shard(const struct gk_shard_state *shard, uint64_t to,
                               struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = to, .without_planes = true};
    struct gk_archived state;
    enum gk_err err = gk_archive_read(shard->archive, &wish, &state, words);

    if (!err) {
        gk_archived_fini(shard->archive, &state);
    }
    return err;
}

static enum gk_err write_shard(const struct gk_shard_state *shard, uint64_t to, uint32_t epoch,
                               struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = to};
    struct gk_archived state;
    enum gk_err err = gk_archive_read(shard->archive, &wish, &state, words);

    if (!err) {
        err = gk_rewind_write(shard->archive, &state, &shard->end, epoch, words);
        gk_archived_fini(shard->archive, &state);
    }
    return err;
}

static int rewind_exit(enum gk_err err)
{
    return err == GK_E_IO || err == GK_E_LIMIT ? GK_EXIT_IO : gk_shards_exit(err);
}

static enum gk_err write_all(const struct gk_shards *shards, const struct rewind_options *options,
                             uint32_t epoch, struct gk_words *words)
{
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < shards->count && !err; i++) {
        const struct gk_shard_state *shard = &shards->list[i];
        bool done = shard->archive->epoch == epoch;

        if (!done && !options->dry_run) {
            err = write_shard(shard, options->to, epoch, words);
        }
        if (!err) {
            (void)printf("%s: from version %" PRIu64 " of epoch %" PRIu32 " to version %" PRIu64
                         " of epoch %" PRIu32 "%s\n",
                         shard->path, shard->newest, shard->archive->epoch, options->to, epoch,
                         done ? " (was done)" : "");
        }
    }
    return err;
}

static enum gk_err cut_all(const struct gk_shards *shards, const struct rewind_options *options,
                           uint32_t epoch, struct gk_words *words)
{
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < shards->count && !err; i++) {
        uint32_t files;

        err = gk_rewind_cut(shards->list[i].archive, epoch, options->dry_run, &files, words);
        if (!err && files > 0) {
            (void)printf("%s: %s%" PRIu32 " files of older epochs\n", shards->list[i].path,
                         options->dry_run ? "would remove " : "removed ", files);
        }
    }
    return err;
}

static int rewind_shards(const struct gk_shards *shards, const struct rewind_options *options,
                         struct gk_words *words)
{
    uint32_t epoch = target_epoch(shards, options->to);
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < shards->count && !err; i++) {
        err = check_shard(&shards->list[i], options->to, words);
    }
    err = err ? err : write_all(shards, options, epoch, words);
    err = err ? err : cut_all(shards, options, epoch, words);
    if (err) {
        return rewind_exit(err);
    }
    (void)printf("the job '%s' %s at version %" PRIu64 " in epoch %" PRIu32 "%s\n",
                 shards->list[0].archive->owner.job, options->dry_run ? "would be" : "is",
                 options->to, epoch, options->dry_run ? "; nothing was written (--dry-run)" : "");
    return gk_stdout_flush(stdout, words) == GK_E_IO ? GK_EXIT_IO : GK_EXIT_OK;
}

static int start(const struct rewind_options *options, const struct gk_config *config,
                 struct gk_words *words)
{
    const char *const *dirs;
    size_t count = gk_config_positional(config, &dirs);
    struct gk_shards *shards;
    int code = GK_EXIT_USAGE;

    if (!gk_config_text(config, "to") || count == 0) {
        gk_words_set(words, "which version of which folders? gkps rewind --to V DIR...");
        return GK_EXIT_USAGE;
    }
    if (gk_shards_open(dirs, count, true, &shards, &code, words) != GK_OK) {
        return code;
    }
    code = rewind_shards(shards, options, words);
    gk_shards_close(shards);
    return code;
}

int gk_tool_rewind(int argc, char **argv)
{
    struct rewind_options options;
    const struct gk_config_args args = {.program = &program,
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &options,
                                        .values_bytes = sizeof(options)};
    struct gk_config *config = NULL;
    struct gk_words words = {""};
    int code = GK_EXIT_USAGE;
    enum gk_err err = gk_config_load(&args, &config, &code, &words);

    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* a reader of our words that has gone stops nothing */
    code = err ? code : start(&options, config, &words);
    if (code != GK_EXIT_OK) {
        (void)fflush(stdout);
        (void)fprintf(stderr, "gkps rewind: %s\n", words.text);
    }
    gk_config_free(config);
    return code;
}
