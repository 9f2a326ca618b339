/* Goal: a full disk stops nothing for good, a disk that fails stops everything at once, and neither
 * harms what is there.
 * Method: each change of the disk in turn finds no room, or fails; the same call is made again, or
 * the next life begins; disks and logs that are too small for long.
 */
#include "store_script.h"

#include "server/core/wal.h"

static bool stopped_by_fault(struct script *script, struct gk_disk *disk, enum disk_call call,
                             enum disk_fault fault, uint64_t at)
{
    disk->fail_call = call;
    disk->fault = fault;
    disk->fail_at = at;
    return !script_run(script);
}

/* The next life, on what a dead process or a power failure leaves. */
static void next_life(struct script *script, const struct gk_disk *disk, enum disk_loss loss)
{
    struct gk_disk *left = disk_crash(disk, loss, 1);
    struct gk_store_setup setup = script->setup;
    struct rig_open open;

    setup.disk = left;
    rig_open(&open, setup);
    cr_assert(open.err == GK_OK, "%s", open.words.text);
    cr_assert(script_before_or_after(script, &open), "version %llu for %llu",
              (unsigned long long)open.recovered.image->version,
              (unsigned long long)script->job->image->version);
    rig_close(&open);
    disk_free(left);
}

/* Every change of the disk finds it full, once: the same call made again succeeds, and the rest of
 * the history is as if nothing had been. */
Test(store_faults, no_room_and_again)
{
    uint64_t changes, syncs, limits = 0;

    script_count(NULL, 21, &changes, &syncs);
    for (uint64_t at = 1; at <= changes; at += STRIDE) {
        struct gk_disk *disk = disk_new();
        struct script script;
        struct rig_open open;

        script_begin(&script, disk, 21);
        (void)stopped_by_fault(&script, disk, DISK_ANY_CHANGE, DISK_FULL, at);
        if (script.err == GK_E_LIMIT && script.pending && script.pending->type != GK_RECORD_LIFE) {
            cr_assert(strstr(script.words.text, "No space left"), "%s", script.words.text);
            limits++;
            rig_append(&script.open, script.job, script.pending);
            for (int i = 0; i < 3; i++) {
                rig_append(&script.open, script.job,
                           script.job->image->initialised ? job_next(script.job)
                                                          : job_member(script.job));
            }
            rig_close(&script.open);
            rig_open(&open, script.setup);
            cr_assert(rig_equals(&open, script.job), "%s", open.words.text);
            cr_assert(open.recovered.cut.text[0] == 0, "%s", open.recovered.cut.text);
            rig_close(&open);
        } else if (script.err != GK_OK) { /* at the start, in a fold, or a sync that failed */
            cr_assert(script.err == GK_E_LIMIT || script.err == GK_E_IO);
            disk->fail_at = 0;
            next_life(&script, disk, DISK_KILLED);
        }
        script_end(&script);
        disk_free(disk);
    }
    cr_assert(limits > 50 / STRIDE, "%llu", (unsigned long long)limits);
}

/* Half of a large record was written; a small one follows in its place, and nothing of the large
 * one is left behind it. */
Test(store_faults, half_a_record_leaves_nothing)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct job *job = script_job(seed);
        struct gk_disk *disk = disk_new();
        struct rig_open open;
        uint64_t durable;

        disk->draws = seed;
        rig_begin(&open, job, disk);
        while (gk_wal_bytes(job_round(job)) < 600) {
            rig_append(&open, job, &job->record);
        }
        disk->fail_call = DISK_WRITE;
        disk->fault = DISK_FULL;
        disk->fail_at = disk->writes + 1;
        cr_assert(gk_store_append(open.store, &job->record, &durable, NULL) == GK_E_LIMIT);
        rig_append(&open, job, job_life(job));
        rig_close(&open);
        rig_open(&open, rig_setup(job, disk));
        cr_assert(rig_equals(&open, job), "%s", open.words.text);
        cr_assert(open.recovered.cut.text[0] == 0, "%s", open.recovered.cut.text);
        rig_close(&open);
        disk_free(disk);
        job_free(job);
    }
}

/* After a sync that failed nothing succeeds any more, and the next life sees nothing that the power
 * might take. */
Test(store_faults, a_sync_fails)
{
    uint64_t changes, syncs, stopped = 0;

    script_count(NULL, 22, &changes, &syncs);
    for (uint64_t at = 1; at <= syncs; at += STRIDE) {
        struct gk_disk *disk = disk_new();
        struct script script;

        script_begin(&script, disk, 22);
        cr_assert(stopped_by_fault(&script, disk, DISK_SYNC, DISK_EIO, at));
        cr_assert(script.err == GK_E_IO, "%s", gk_err_name(script.err));
        cr_assert(strstr(script.words.text, "sync"), "%s", script.words.text);
        if (script.open.store && script.pending) {
            struct gk_words words = {""};
            uint64_t durable = 77;

            stopped++;
            cr_assert(gk_store_append(script.open.store, script.pending, &durable, &words) ==
                      GK_E_IO);
            cr_assert(gk_store_sync(script.open.store, &durable, NULL) == GK_E_IO);
            cr_assert(durable == 77 && strcmp(words.text, script.words.text) == 0);
        }
        next_life(&script, disk, at % 2 ? DISK_KILLED : DISK_POWER);
        script_end(&script);
        disk_free(disk);
    }
    cr_assert(stopped > 40 / STRIDE);
}

/* A record whose sync failed is not there for the next life, though the page cache has it. */
Test(store_faults, what_was_not_synced_is_cut)
{
    struct gk_disk *disk = disk_new();
    struct script script;
    struct rig_open open;
    uint64_t durable;

    script_begin(&script, disk, 23);
    rig_begin(&script.open, script.job, disk);
    rig_append(&script.open, script.job, job_round(script.job));
    disk->fail_call = DISK_SYNC;
    disk->fault = DISK_EIO;
    disk->fail_at = disk->syncs + 1;
    cr_assert(gk_store_append(script.open.store, job_round(script.job), &durable, NULL) == GK_E_IO);
    rig_close(&script.open);
    rig_open(&open, script.setup);
    cr_assert(rig_equals(&open, script.job));
    rig_close(&open);
    script_end(&script);
    disk_free(disk);
}

/* A process is killed before a sync, the next one's sync fails, and the one after that still sees
 * in the page cache what the disk has lost: it makes it safe before it goes on. */
Test(store_faults, a_sync_fails_at_the_start)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct job *job = script_job(seed);
        struct gk_disk *disk = disk_new(), *left;
        struct gk_store_setup setup = rig_setup(job, disk);
        struct rig_open open;

        setup.sync = GK_SYNC_INTERVAL;
        rig_open(&open, setup);
        rig_lived(job);
        rig_append(&open, job, job_init(job));
        for (uint64_t i = 0; i < 3 * seed; i++) {
            rig_append(&open, job, job_round(job));
        }
        rig_close(&open);
        disk->fail_call = DISK_SYNC;
        disk->fault = DISK_EIO;
        disk->fail_at = disk->syncs + 1;
        rig_open(&open, setup);
        cr_assert(open.err == GK_E_IO, "%s", gk_err_name(open.err));
        rig_open(&open, setup);
        cr_assert(rig_equals(&open, job), "%s", open.words.text);
        rig_lived(job);
        rig_close(&open);
        left = disk_crash(disk, DISK_POWER, 1);
        setup.disk = left;
        rig_open(&open, setup);
        cr_assert(rig_equals(&open, job), "%s", open.words.text);
        rig_close(&open);
        disk_free(left);
        disk_free(disk);
        job_free(job);
    }
}

/* Any other call fails: an error, never a wrong state. */
Test(store_faults, a_change_fails)
{
    uint64_t changes, syncs;

    script_count(NULL, 24, &changes, &syncs);
    for (uint64_t at = 1; at <= changes; at += STRIDE) {
        struct gk_disk *disk = disk_new();
        struct script script;

        script_begin(&script, disk, 24);
        if (stopped_by_fault(&script, disk, DISK_ANY_CHANGE, DISK_EIO, at)) {
            cr_assert(script.err == GK_E_IO, "%s", gk_err_name(script.err));
        }
        next_life(&script, disk, at % 2 ? DISK_KILLED : DISK_POWER);
        script_end(&script);
        disk_free(disk);
    }
}

Test(store_faults, a_read_fails)
{
    struct gk_disk *disk = disk_new();
    struct script script;
    uint64_t reads;

    script_begin(&script, disk, 25);
    cr_assert(script_run(&script));
    rig_close(&script.open);
    reads = disk->reads;
    rig_open(&script.open, script.setup);
    rig_lived(script.job);
    reads = disk->reads - reads;
    rig_close(&script.open);
    disk->fail_call = DISK_READ;
    disk->fault = DISK_EIO;
    for (uint64_t at = 1; at <= reads; at += STRIDE) {
        struct rig_open open;

        disk->fail_at = disk->reads + at;
        rig_open(&open, script.setup);
        cr_assert(open.err == GK_E_IO || open.err == GK_OK, "%s", gk_err_name(open.err));
        if (open.err == GK_OK) { /* the header of a snapshot that nobody needs */
            cr_assert(rig_equals(&open, script.job));
            rig_lived(script.job);
        }
        rig_close(&open);
    }
    script_end(&script);
    disk_free(disk);
}

/* A disk that is full for long: versions stop, nothing is lost, and they go on when room comes. */
Test(store_faults, room_comes_back)
{
    struct job *job = script_job(26);
    struct gk_disk *disk = disk_new();
    struct gk_store_setup setup = rig_setup(job, disk);
    struct rig_open open;
    uint32_t refused = 0;

    rig_open(&open, setup);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    for (int i = 0; i < 200; i++) {
        const struct gk_record *record = job_next(job);
        uint64_t durable;

        disk->room = disk_used(disk) + job_draw(job, 1500);
        if (gk_store_append(open.store, record, &durable, NULL) == GK_E_LIMIT) {
            refused++;
            disk->room = disk_used(disk) + gk_wal_bytes(record) + 2 * GK_WAL_SEGMENT_BYTES;
            cr_assert(gk_store_append(open.store, record, &durable, NULL) == GK_OK);
        }
        job_take(job, record);
        cr_assert(durable == job->image->version);
    }
    cr_assert(refused > 10, "%u", refused);
    rig_close(&open);
    rig_open(&open, setup);
    cr_assert(rig_equals(&open, job), "%s", open.words.text);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

/* A log that may be only so large: refused in words until a fold has shortened it; a disk of that
 * size and three snapshots is enough for ever. */
Test(store_faults, a_small_log)
{
    struct job *job = script_job(27);
    struct gk_disk *disk = disk_new();
    struct gk_store_setup setup = rig_setup(job, disk);
    struct rig_open open;
    struct gk_words words;
    uint32_t refused = 0;

    setup.log_bytes_max = 128 * 1024;
    setup.fold_every = 1000;
    disk->room = 128 * 1024 + 3 * 32 * 1024;
    rig_open(&open, setup);
    cr_assert(open.err == GK_OK, "%s", open.words.text);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    while (job->image->version < 1200) {
        const struct gk_record *record = job_next(job);
        struct gk_store_stats stats;
        uint64_t durable;
        enum gk_err err = gk_store_append(open.store, record, &durable, &words);

        if (err == GK_E_LIMIT) {
            refused++;
            cr_assert(strstr(words.text, "the log may have"), "%s", words.text);
            cr_assert(gk_store_fold_due(open.store), "nothing would ever help");
            rig_fold(&open);
            err = gk_store_append(open.store, record, &durable, &words);
        }
        cr_assert(err == GK_OK, "%s", words.text);
        job_take(job, record);
        gk_store_stats(open.store, &stats);
        cr_assert(stats.log_bytes <= setup.log_bytes_max);
    }
    cr_assert(refused > 2);
    rig_close(&open);
    rig_open(&open, setup);
    cr_assert(rig_equals(&open, job), "%s", open.words.text);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

/* A fold without room leaves everything as it was, is not due at once again, and is after some
 * versions. */
Test(store_faults, a_fold_without_room)
{
    struct job *job = script_job(28);
    struct gk_disk *disk = disk_new();
    struct gk_store_setup setup = rig_setup(job, disk);
    struct rig_open open;
    uint64_t version;
    struct gk_words words;

    rig_open(&open, setup);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    while (!gk_store_fold_due(open.store)) {
        rig_append(&open, job, job_next(job));
    }
    disk->room = disk_used(disk) + 10;
    cr_assert(gk_store_fold(open.store, &version, &words) == GK_E_LIMIT, "%s", words.text);
    cr_assert(!disk_find(disk->names, "fold.tmp") && !gk_store_fold_due(open.store));
    disk->room = 0;
    while (!gk_store_fold_due(open.store)) {
        rig_append(&open, job, job_next(job));
        cr_assert(job->image->version < 80);
    }
    cr_assert(gk_store_fold(open.store, &version, &words) == GK_OK && version == 50);
    cr_assert(gk_store_fold(open.store, &version, &words) == GK_OK && version == 50, "nothing new");
    rig_close(&open);
    rig_open(&open, setup);
    cr_assert(rig_equals(&open, job));
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

/* keep_versions: the log reaches back so far, from a snapshot. */
Test(store_faults, versions_are_kept)
{
    struct job *job = script_job(29);
    struct gk_disk *disk = disk_new();
    struct gk_store_setup setup = rig_setup(job, disk);
    struct rig_open open;

    setup.keep_versions = 100;
    rig_open(&open, setup);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    for (int i = 0; i < 400; i++) {
        struct gk_store_stats stats;

        rig_append(&open, job, job_next(job));
        if (gk_store_fold_due(open.store)) {
            rig_fold(&open);
            gk_store_stats(open.store, &stats);
            cr_assert(stats.log_first_version + 100 <= gk_max_u64(job->image->version, 100));
            cr_assert(stats.log_first_version + 100 + 26 + 25 >= job->image->version);
            cr_assert(
                disk_find(disk->names, stats.log_first_version == 0 ? "snap-0-0" : "snap-0-25") ||
                stats.log_first_version > 25);
        }
    }
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

/* The store refuses to write what it could not read again. */
Test(store_faults, a_record_that_does_not_follow)
{
    struct job *job = script_job(30);
    struct gk_disk *disk = disk_new();
    struct rig_open open;
    struct gk_words words;
    uint64_t durable, changes;

    rig_begin(&open, job, disk);
    changes = disk->changes;
    job_round(job);
    job->record.version = 7;
    cr_assert(gk_store_append(open.store, &job->record, &durable, &words) == GK_E_CORRUPT);
    cr_assert(strstr(words.text, "version is 7, expected 1"), "%s", words.text);
    cr_assert(disk->changes == changes);
    rig_append(&open, job, job_round(job));
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}
