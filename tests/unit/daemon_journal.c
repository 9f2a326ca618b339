/* Goal: what became of a record is told on the loop thread, in order and by the sync policy; folds
 * go on beside it; what the disk says is passed on; closing waits for what the threads are at.
 * Method: the journal over a disk in memory, behind a lock and a gate at which a test holds one of
 * its threads; the directory is opened again at the end and must equal the live side. */
#include "server/journal.h"

#include "common/exit.h"
#include "server/core/wal.h"
#include "store_held.h"
#include "store_rig.h"

#include <sched.h>
#include <uv.h>

enum { EVENTS_MAX = 512, TURNS_MAX = 100000 };

/* A journal and what it has told. */

struct told {
    uint32_t kind;
    uint64_t op, version;
    enum gk_err err;
    bool unsynced;
};

struct rig {
    struct job *job;
    struct gk_disk *disk;
    uv_loop_t loop;
    struct gk_server_options options;
    struct rig_memory memory;
    struct gk_journal *journal;
    pthread_t thread;
    uint64_t op;
    const struct gk_record *record;
    struct told events[EVENTS_MAX];
    uint32_t count;
    struct gk_words words; /* of the last error */
    uint64_t safe;         /* told to be */
    uint64_t stream;       /* records to write, one as soon as the other is told of */
    int failed;            /* exit code */
    struct gk_words why;
    uint32_t closed;
};

static enum gk_err allocate(void *context, const struct gk_image *image,
                            struct gk_server_memory *ret_memory, struct gk_words *words)
{
    struct rig *rig = context;

    return rig_allocate(&rig->memory, image, ret_memory, words);
}

static void put(struct rig *rig, const struct gk_record *record)
{
    rig->record = record;
    gk_journal_write(rig->journal, ++rig->op, record);
}

static void on_event(void *context, const struct gk_server_event *event)
{
    struct rig *rig = context;

    cr_assert(pthread_equal(pthread_self(), rig->thread), "not on the loop thread");
    cr_assert(rig->count < EVENTS_MAX && rig->closed == 0);
    rig->events[rig->count++] = (struct told){.kind = event->kind,
                                              .op = event->op,
                                              .version = event->version,
                                              .err = event->err,
                                              .unsynced = event->unsynced};
    if (event->kind == GK_SERVER_SYNCED) {
        cr_assert(event->version >= rig->safe && event->version <= rig->job->image->version);
        rig->safe = event->version;
        return;
    }
    cr_assert_eq(event->op, rig->op);
    if (event->err) {
        gk_words_set(&rig->words, "%s", event->words);
        return;
    }
    job_take(rig->job, rig->record);
    rig->record = NULL;
    if (rig->stream > 0) {
        rig->stream--;
        put(rig, job_next(rig->job));
    }
}

static void on_failed(void *context, int exit_code, const char *words)
{
    struct rig *rig = context;

    rig->failed = exit_code;
    gk_words_set(&rig->why, "%s", words);
}

static void on_closed(void *context)
{
    struct rig *rig = context;

    rig->closed++;
}

static bool is_told(const struct rig *rig)
{
    return !rig->record;
}

static bool is_answered(const struct rig *rig) /* whatever the answer is */
{
    return rig->count > 0 && rig->events[rig->count - 1].op == rig->op;
}

static bool is_safe(const struct rig *rig)
{
    return rig->safe == rig->job->image->version;
}

static bool has_failed(const struct rig *rig)
{
    return rig->failed != 0;
}

static bool is_closed(const struct rig *rig)
{
    return rig->closed > 0;
}

static void run_until(struct rig *rig, bool (*holds)(const struct rig *rig))
{
    for (int turns = 0; !holds(rig); turns++) {
        cr_assert(turns < TURNS_MAX, "nothing comes of it");
        (void)uv_run(&rig->loop, UV_RUN_ONCE);
    }
}

static void open_journal(struct rig *rig)
{
    const struct gk_journal_setup setup = {.options = &rig->options,
                                           .ops = gk_vector_reference(),
                                           .disk_ops = &held_ops,
                                           .disk = rig->disk,
                                           .allocate = allocate,
                                           .event = on_event,
                                           .failed = on_failed,
                                           .closed = on_closed,
                                           .context = rig};
    struct gk_recovered recovered;
    struct gk_words words = {""};

    cr_assert(gk_journal_open(&setup, &rig->journal, &recovered, &words) == GK_OK, "%s",
              words.text);
    rig_lived(rig->job);
}

static void begin(struct rig *rig, enum gk_sync_policy sync)
{
    struct gk_words words = {""};

    memset(rig, 0, sizeof(*rig));
    rig->thread = pthread_self();
    rig->job =
        job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 96, 2, 1, 0, 3 + (uint64_t)sync});
    rig->disk = disk_new();
    rig->options = (struct gk_server_options){.state_dir = "DIR",
                                              .job = "toy",
                                              .servers = 1,
                                              .workers = 2,
                                              .sync = sync,
                                              .fold_every = 25,
                                              .log_bytes = 16 << 20};
    cr_assert_eq(uv_loop_init(&rig->loop), 0);
    open_journal(rig);
    cr_assert(gk_journal_start(rig->journal, &rig->loop, &words) == GK_OK, "%s", words.text);
    put(rig, job_member(rig->job));
    run_until(rig, is_told);
    put(rig, job_init(rig->job));
    run_until(rig, is_told);
}

/* So many records, each as soon as the one before is told of. */
static void stream(struct rig *rig, uint64_t count)
{
    rig->stream = count - 1;
    put(rig, job_next(rig->job));
    run_until(rig, is_told);
}

static void until_version(struct rig *rig, uint64_t version)
{
    while (rig->job->image->version < version) {
        put(rig, job_round(rig->job));
        run_until(rig, is_told);
    }
}

static void close_journal(struct rig *rig)
{
    gk_journal_close(rig->journal);
    run_until(rig, is_closed);
    (void)uv_run(&rig->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&rig->loop), 0);
    cr_assert_eq(rig->closed, 1);
    gk_journal_free(rig->journal);
    rig->journal = NULL;
}

/* What the next life finds after a kill, or a power failure, must be the live side. */
static void end(struct rig *rig, enum disk_loss loss)
{
    struct gk_disk *left;
    struct rig_open open;

    if (rig->journal) {
        close_journal(rig);
    }
    left = disk_crash(rig->disk, loss, 1);
    rig_open(&open, rig_setup(rig->job, left));
    cr_assert(open.err == GK_OK, "%s", open.words.text);
    cr_assert(rig_equals(&open, rig->job), "version %llu, live %llu",
              (unsigned long long)open.recovered.image->version,
              (unsigned long long)rig->job->image->version);
    rig_close(&open);
    disk_free(left);
    disk_free(rig->disk);
    for (int p = 0; p < 3; p++) {
        free(rig->memory.memory.planes[p]);
    }
    job_free(rig->job);
}

Test(daemon_journal, always_is_safe_when_it_is_told)
{
    struct rig rig;

    begin(&rig, GK_SYNC_ALWAYS);
    stream(&rig, 60);
    cr_assert_eq(rig.count, 62); /* nothing else was told */
    for (uint32_t i = 0; i < rig.count; i++) {
        cr_assert(rig.events[i].kind == GK_SERVER_WRITE_DONE && rig.events[i].op == i + 1 &&
                      !rig.events[i].err && !rig.events[i].unsynced,
                  "event %u", i);
    }
    end(&rig, DISK_POWER);
}

Test(daemon_journal, interval_says_what_became_safe)
{
    uint32_t unsynced = 0, synced = 0;
    struct rig rig;

    begin(&rig, GK_SYNC_INTERVAL);
    for (int i = 0; i < 4; i++) {
        stream(&rig, 20);
    }
    run_until(&rig, is_safe);
    for (uint32_t i = 0; i < rig.count; i++) {
        unsynced += rig.events[i].unsynced;
        synced += rig.events[i].kind == GK_SERVER_SYNCED;
    }
    cr_assert(unsynced > 0 && synced > 0, "%u records, %u syncs", unsynced, synced);
    end(&rig, DISK_POWER);
}

Test(daemon_journal, never_syncs_no_round)
{
    uint64_t syncs;
    struct rig rig;

    begin(&rig, GK_SYNC_NEVER);
    syncs = rig.disk->syncs;
    until_version(&rig, 20);
    cr_assert_eq(rig.disk->syncs, syncs);
    for (uint32_t i = 0; i < rig.count; i++) {
        cr_assert(rig.events[i].kind == GK_SERVER_WRITE_DONE && !rig.events[i].unsynced);
    }
    end(&rig, DISK_KILLED);
}

/* A fold that stands still holds nobody up; what came meanwhile is folded behind it. */
Test(daemon_journal, a_fold_beside_appends)
{
    struct gk_store_stats stats;
    struct rig rig;

    begin(&rig, GK_SYNC_ALWAYS);
    gate_set(GATE_FOLD);
    until_version(&rig, 30);
    gate_wait();
    until_version(&rig, 90);
    gk_journal_stats(rig.journal, &stats);
    cr_assert(stats.folds == 0 && stats.snapshot_version == 0);
    gate_set(GATE_OPEN);
    while (stats.snapshot_version < 75) { /* each end of one begins the next */
        (void)uv_run(&rig.loop, UV_RUN_NOWAIT);
        gk_journal_stats(rig.journal, &stats);
    }
    cr_assert_eq(rig.failed, 0);
    end(&rig, DISK_POWER);
}

Test(daemon_journal, a_full_disk_is_passed_on)
{
    struct rig rig;
    const struct gk_record *record;

    begin(&rig, GK_SYNC_ALWAYS);
    until_version(&rig, 3);
    for (int i = 0; i < 3; i++) {
        lock_at(GATE_OPEN);
        rig.disk->fault = DISK_FULL;
        rig.disk->fail_call = DISK_WRITE;
        rig.disk->fail_at = rig.disk->writes + 1;
        (void)unlock(GK_OK);
        record = job_round(rig.job);
        put(&rig, record);
        run_until(&rig, is_answered);
        cr_assert_eq(rig.events[rig.count - 1].err, GK_E_LIMIT);
        cr_assert(strstr(rig.words.text, "DIR/wal-0-0.log: cannot write a record: No space"), "%s",
                  rig.words.text);
        put(&rig, record); /* the same, when there is room */
        run_until(&rig, is_told);
    }
    cr_assert(rig.job->image->version == 6 && rig.failed == 0);
    end(&rig, DISK_POWER);
}

/* No room for a snapshot is no reason to end: a later record tries again. */
Test(daemon_journal, a_fold_without_room_comes_later)
{
    struct gk_store_stats stats;
    struct rig rig;

    begin(&rig, GK_SYNC_ALWAYS);
    held.fold_room = GK_E_LIMIT;
    gate_set(GATE_FOLD);
    until_version(&rig, 30);
    gate_wait();
    gate_set(GATE_OPEN);
    until_version(&rig, 60);
    gk_journal_stats(rig.journal, &stats);
    cr_assert(stats.snapshot_version == 0 && rig.failed == 0, "%s", rig.why.text);
    lock_at(GATE_OPEN);
    held.fold_room = GK_OK;
    (void)unlock(GK_OK);
    for (int turns = 0; stats.snapshot_version == 0; turns++) {
        cr_assert(turns < TURNS_MAX, "no later record has made a fold begin");
        rig.count = 0; /* how many it takes is for the scheduler to say */
        put(&rig, job_round(rig.job));
        run_until(&rig, is_told);
        (void)sched_yield();
        gk_journal_stats(rig.journal, &stats);
    }
    end(&rig, DISK_POWER);
}

static void fail_next(struct rig *rig, enum disk_call call)
{
    lock_at(GATE_OPEN);
    rig->disk->fault = DISK_EIO;
    rig->disk->fail_call = call;
    rig->disk->fail_at = (call == DISK_SYNC ? rig->disk->syncs : rig->disk->writes) + 1;
    (void)unlock(GK_OK);
}

/* Of a record: its own answer.  Of what the journal does by itself: the end, for another life. */
Test(daemon_journal, a_disk_that_fails)
{
    struct rig rig;

    begin(&rig, GK_SYNC_ALWAYS);
    until_version(&rig, 3);
    fail_next(&rig, DISK_SYNC);
    put(&rig, job_round(rig.job));
    run_until(&rig, is_answered);
    cr_assert(rig.events[rig.count - 1].err == GK_E_IO && rig.failed == 0);
    cr_assert(strstr(rig.words.text, "DIR/wal-0-0.log: cannot sync it: Input/output error"), "%s",
              rig.words.text);
    end(&rig, DISK_POWER);

    begin(&rig, GK_SYNC_INTERVAL);
    run_until(&rig, is_safe);
    fail_next(&rig, DISK_SYNC);
    put(&rig, job_round(rig.job));
    run_until(&rig, has_failed);
    cr_assert(rig.failed == GK_EXIT_RETRY && strstr(rig.why.text, "cannot sync it"), "%d: %s",
              rig.failed, rig.why.text);
    close_journal(&rig);
    disk_free(rig.disk);
    job_free(rig.job);

    begin(&rig, GK_SYNC_ALWAYS);
    held.fold_room = GK_E_IO;
    until_version(&rig, 30);
    run_until(&rig, has_failed);
    held.fold_room = GK_OK;
    cr_assert(rig.failed == GK_EXIT_RETRY && strstr(rig.why.text, "fold.tmp"), "%d: %s", rig.failed,
              rig.why.text);
    end(&rig, DISK_POWER);
}

/* Damage does not go away with the next life. */
Test(daemon_journal, a_damaged_log_is_another_end)
{
    struct rig rig;

    begin(&rig, GK_SYNC_ALWAYS);
    until_version(&rig, 20);
    lock_at(GATE_OPEN);
    rig_file(rig.disk, "wal-0-0.log")->now[GK_WAL_SEGMENT_BYTES + 4 * GK_WAL_HEADER_BYTES] ^= 1;
    (void)unlock(GK_OK);
    until_version(&rig, 30);
    run_until(&rig, has_failed);
    cr_assert(rig.failed == GK_EXIT_CONFIG && strstr(rig.why.text, "DIR/wal-0-0.log, offset "),
              "%d: %s", rig.failed, rig.why.text);
    close_journal(&rig);
    disk_free(rig.disk);
    job_free(rig.job);
}

/* Each thread in turn is held in the midst of a job; nothing is told once it is closed. */
Test(daemon_journal, closing_waits_for_the_threads)
{
    static const enum gate gates[] = {GATE_WRITE, GATE_FOLD};

    for (int i = 0; i < 2; i++) {
        uint32_t count;
        struct rig rig;

        begin(&rig, GK_SYNC_ALWAYS);
        if (gates[i] == GATE_WRITE) {
            gate_set(GATE_WRITE);
            put(&rig, job_round(rig.job));
        } else {
            gate_set(GATE_FOLD);
            until_version(&rig, 30);
        }
        gate_wait();
        count = rig.count;
        gk_journal_close(rig.journal);
        for (int turns = 0; turns < 20; turns++) {
            (void)uv_run(&rig.loop, UV_RUN_NOWAIT);
        }
        cr_assert_eq(rig.closed, 0, "gate %d: closed while a thread is at work", i);
        gate_set(GATE_OPEN);
        run_until(&rig, is_closed);
        (void)uv_run(&rig.loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(&rig.loop), 0);
        cr_assert(rig.count == count && rig.failed == 0);
        gk_journal_free(rig.journal);
        rig.journal = NULL;
        if (rig.record) { /* written, and told to nobody */
            job_take(rig.job, rig.record);
        }
        rig.closed = 0;
        end(&rig, DISK_POWER);
    }
}

Test(daemon_journal, closing_without_threads)
{
    struct rig rig = {.thread = pthread_self()};

    rig.job = job_new(&(struct job_options){GK_OPTIMIZER_SGD, 96, 2, 1, 0, 1});
    rig.disk = disk_new();
    rig.options = (struct gk_server_options){
        .state_dir = "DIR", .job = "toy", .servers = 1, .workers = 2, .log_bytes = 16 << 20};
    open_journal(&rig);
    gk_journal_close(rig.journal);
    cr_assert_eq(rig.closed, 1);
    gk_journal_free(rig.journal);
    gk_journal_close(NULL);
    gk_journal_free(NULL);
    disk_free(rig.disk);
    job_free(rig.job);
}
