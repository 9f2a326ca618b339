/* The loop thread hands out at most one write, one sync and one fold.  Write and sync share the log
 * thread, because the store takes one of them at a time; a fold takes long and has its own.  A job
 * belongs to its thread from submit() until its `done`, which may hand out the next one at once:
 * what it still needs of the old one it takes out before. */
#include "server/journal.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/log.h"
#include "common/net/compute.h"
#include "server/full_disk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SLOW_SYNC_US = 10 * 1000 };

struct write_job {
    uint64_t op;
    const struct gk_record *record;
    enum gk_err err;
    uint64_t durable_version;
    struct gk_words words;
};

struct fold_job {
    enum gk_err err;
    uint64_t version;
    struct gk_words words;
};

struct gk_journal {
    struct gk_journal_setup setup;
    struct gk_store *store;
    struct gk_disk *full_disk; /* under a fault script: the store's, which can be told to be full */
    struct gk_compute *log_thread, *fold_thread;
    struct write_job write, sync;
    struct fold_job fold;
    bool writing, syncing, folding;
    bool closing;          /* the threads take no more jobs */
    uint32_t threads_open; /* while they end */
    bool slow_said, fold_full_said;
    uint64_t version, durable_version; /* of the last ROUND that was written; loop thread */
    uint64_t syncing_version;
};

static enum gk_err use_full_disk(struct gk_journal *journal, struct gk_store_setup *store,
                                 struct gk_words *words)
{
    journal->full_disk = gk_full_disk_new(store->disk_ops, store->disk);
    if (!journal->full_disk) {
        gk_words_set(words, "no memory for the state directory");
        return GK_E_NOMEM;
    }
    store->disk = journal->full_disk;
    store->disk_ops = gk_full_disk_ops();
    return GK_OK;
}

void gk_journal_fill(struct gk_journal *journal, bool full)
{
    if (journal && journal->full_disk) {
        gk_full_disk_set(journal->full_disk, full);
    }
}

enum gk_err gk_journal_open(const struct gk_journal_setup *setup, struct gk_journal **ret_journal,
                            struct gk_recovered *ret_recovered, struct gk_words *words)
{
    const struct gk_server_options *options = setup->options;
    struct gk_journal *journal = calloc(1, sizeof(*journal));
    struct gk_store_setup store_setup = {
        .disk_ops = setup->disk_ops ? setup->disk_ops : gk_disk_system(),
        .disk = setup->disk,
        .directory = options->state_dir,
        .job = options->job,
        .shard = (uint32_t)options->shard,
        .servers = (uint32_t)options->servers,
        .workers = (uint32_t)options->workers,
        .sync = (enum gk_sync_policy)options->sync,
        .fold_every = options->fold_every,
        .log_bytes_max = options->log_bytes,
        .keep_versions = options->keep_versions,
        .ops = setup->ops,
        .allocate = setup->allocate,
        .context = setup->context,
    };
    enum gk_err err;
    int number = 0;

    if (!journal) {
        store_setup.disk_ops->close(store_setup.disk);
        gk_words_set(words, "no memory for the state directory");
        return GK_E_NOMEM;
    }
    journal->setup = *setup;
    err = setup->disk ? GK_OK : gk_disk_open(options->state_dir, true, &store_setup.disk, &number);
    if (err) {
        gk_words_set(words, "state directory %.200s: %s", options->state_dir, strerror(number));
        goto out;
    }
    err = options->allow_faults ? use_full_disk(journal, &store_setup, words) : GK_OK;
    if (err) {
        goto out;
    }
    err = gk_store_open(&store_setup, &journal->store, ret_recovered, words);
    if (err) {
        goto out;
    }
    journal->version = journal->durable_version = ret_recovered->image->version;
    *ret_journal = journal;
    return GK_OK;
out:
    free(journal);
    return err;
}

/* The log thread. */

static void run_write(void *context, void *item)
{
    struct gk_journal *journal = context;
    struct write_job *job = item;

    job->err = gk_store_append(journal->store, job->record, &job->durable_version, &job->words);
}

static void run_sync(void *context, void *item)
{
    struct gk_journal *journal = context;
    struct write_job *job = item;

    job->err = gk_store_sync(journal->store, &job->durable_version, &job->words);
}

/* The fold thread. */

static void run_fold(void *context, void *item)
{
    struct gk_journal *journal = context;
    struct fold_job *job = item;

    job->err = gk_store_fold(journal->store, &job->version, &job->words);
}

/* The loop thread. */

static void submit(struct gk_compute *thread, const struct gk_compute_job *job)
{
    enum gk_err err = gk_compute_submit(thread, job);

    GK_ASSERT(!err); /* at most one of each kind: the queue cannot be full */
}

/* A disk that fails may be another one in the next life, as with a write that fails; damage and
 * hashes that differ stay. */
static void fail(const struct gk_journal *journal, enum gk_err err, const char *words)
{
    journal->setup.failed(journal->setup.context, err == GK_E_IO ? GK_EXIT_RETRY : GK_EXIT_CONFIG,
                          words);
}

static void fold_done(void *context, void *item);

static void maybe_fold(struct gk_journal *journal)
{
    const struct gk_compute_job job = {.run = run_fold, .done = fold_done, .job = &journal->fold};

    if (!journal->folding && !journal->closing && gk_store_fold_due(journal->store)) {
        journal->folding = true;
        journal->fold = (struct fold_job){0};
        submit(journal->fold_thread, &job);
    }
}

static void fold_done(void *context, void *item)
{
    struct gk_journal *journal = context;
    const struct fold_job *job = item;

    journal->folding = false;
    if (job->err == GK_OK) {
        gk_log(GK_LOG_DEBUG, "SERVER-SNAPSHOT", "snapshot of version %" PRIu64, job->version);
        journal->fold_full_said = false;
        maybe_fold(journal);
    } else if (job->err == GK_E_LIMIT || job->err == GK_E_NOMEM) {
        if (!journal->fold_full_said) {
            journal->fold_full_said = true;
            gk_log(
                GK_LOG_WARN, "SERVER-SNAPSHOT",
                "%s; the log stays as it is, and the snapshot is tried again with a later record",
                job->words.text);
        }
    } else {
        fail(journal, job->err, job->words.text);
    }
}

static void warn_slow(struct gk_journal *journal)
{
    struct gk_store_stats stats;

    if (journal->slow_said) {
        return;
    }
    gk_store_stats(journal->store, &stats);
    if (stats.sync_us_median > SLOW_SYNC_US) {
        journal->slow_said = true;
        gk_log(GK_LOG_WARN, "SERVER-SLOW-DISK",
               "a sync of %s takes %.1f ms, and every step waits for one; --sync interval, or a "
               "faster disk, would help",
               journal->setup.options->state_dir, (double)stats.sync_us_median / 1e3);
    }
}

static void sync_done(void *context, void *item);

/* INTERVAL: while records come in, one sync follows the other. */
static void maybe_sync(struct gk_journal *journal)
{
    const struct gk_compute_job job = {.run = run_sync, .done = sync_done, .job = &journal->sync};

    if (journal->setup.options->sync == GK_SYNC_INTERVAL && !journal->syncing &&
        !journal->closing && journal->durable_version < journal->version) {
        journal->syncing = true;
        journal->sync = (struct write_job){0};
        submit(journal->log_thread, &job);
    }
}

static void sync_done(void *context, void *item)
{
    struct gk_journal *journal = context;
    const struct write_job *job = item;
    struct gk_server_event event = {.kind = GK_SERVER_SYNCED, .version = job->durable_version};

    journal->syncing = false;
    if (job->err) {
        fail(journal, job->err, job->words.text);
        return;
    }
    journal->durable_version = job->durable_version;
    if (event.version > journal->version) {
        event.version = journal->version; /* the record behind it has not been told of yet */
    }
    journal->setup.event(journal->setup.context, &event);
    maybe_sync(journal);
}

static void write_done(void *context, void *item)
{
    struct gk_journal *journal = context;
    struct write_job *job = item;
    const struct gk_record *record = job->record;
    struct gk_server_event event = {
        .kind = GK_SERVER_WRITE_DONE, .op = job->op, .err = job->err, .words = job->words.text};
    bool good = !job->err;

    journal->writing = false;
    if (good) {
        journal->version = record->version;
        journal->durable_version = job->durable_version;
        event.unsynced = job->durable_version < record->version;
    }
    journal->setup.event(journal->setup.context, &event); /* may write the next, or close us */
    if (good) {
        warn_slow(journal);
        maybe_sync(journal);
    }
    maybe_fold(journal); /* a fold also makes room */
}

enum gk_err gk_journal_start(struct gk_journal *journal, struct uv_loop_s *loop,
                             struct gk_words *words)
{
    enum gk_err err = gk_compute_open(loop, journal, &journal->log_thread, words);

    return err ? err : gk_compute_open(loop, journal, &journal->fold_thread, words);
}

void gk_journal_write(struct gk_journal *journal, uint64_t op, const struct gk_record *record)
{
    const struct gk_compute_job job = {
        .run = run_write, .done = write_done, .job = &journal->write};

    GK_ASSERT(!journal->writing);
    journal->writing = true;
    journal->write = (struct write_job){.op = op, .record = record};
    submit(journal->log_thread, &job);
}

static void thread_closed(void *context)
{
    struct gk_journal *journal = context;

    if (--journal->threads_open == 0) {
        journal->setup.closed(journal->setup.context);
    }
}

void gk_journal_close(struct gk_journal *journal)
{
    if (!journal) {
        return;
    }
    journal->closing = true;
    journal->threads_open = 3; /* and this call, or the first to end could be the last */
    if (journal->log_thread) {
        gk_compute_close(journal->log_thread, thread_closed);
    } else {
        thread_closed(journal);
    }
    if (journal->fold_thread) {
        gk_compute_close(journal->fold_thread, thread_closed);
    } else {
        thread_closed(journal);
    }
    thread_closed(journal);
}

void gk_journal_free(struct gk_journal *journal)
{
    if (journal) {
        gk_store_close(journal->store);
        free(journal);
    }
}

void gk_journal_stats(const struct gk_journal *journal, struct gk_store_stats *ret)
{
    gk_store_stats(journal->store, ret);
}
