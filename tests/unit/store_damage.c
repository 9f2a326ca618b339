/* Goal: a torn tail is cut and told, any other damage is an error that names file and offset, and
 * nothing is ever skipped.
 * Method: a log whose last record ends at every byte; every byte of a log and of a snapshot with a
 * flipped bit; snapshots that are lost or damaged with and without an older one; headers of others.
 */
#include "store_rig.h"

#include "server/core/snapshot.h"
#include "server/core/wal.h"

static struct job *small_job(uint64_t seed)
{
    return job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 96, 2, 1, 0, seed});
}

/* A disk with so many versions, closed; the store has not folded. */
static struct gk_disk *prepared(struct job *job, uint64_t versions, struct gk_store_setup *setup)
{
    struct gk_disk *disk = disk_new();
    struct rig_open open;

    *setup = rig_setup(job, disk);
    rig_open(&open, *setup);
    cr_assert(open.err == GK_OK, "%s", open.words.text);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    while (job->image->version < versions) {
        rig_append(&open, job, job_round(job));
    }
    rig_close(&open);
    return disk;
}

/* Where the records of a segment begin, from its bytes. */
static uint32_t record_starts(const struct disk_inode *inode, uint64_t *starts, uint32_t most)
{
    uint64_t at = GK_WAL_SEGMENT_BYTES;
    uint32_t count = 0;

    while (at + GK_WAL_HEADER_BYTES <= inode->now_size && memcmp(inode->now + at, "GKPR", 4) == 0) {
        cr_assert(count < most);
        starts[count++] = at;
        at += gk_get_u64(inode->now + at + 8);
    }
    starts[count] = at;
    return count;
}

static bool names(const struct gk_words *words, const char *file, uint64_t offset)
{
    char text[128];

    (void)snprintf(text, sizeof(text), "DIR/%s, offset %llu: ", file, (unsigned long long)offset);
    return strstr(words->text, text) != NULL;
}

Test(store_damage, torn_at_every_byte)
{
    struct job *job = small_job(1);
    struct gk_store_setup setup;
    struct gk_disk *disk = prepared(job, 6, &setup);
    struct disk_inode *log = rig_file(disk, "wal-0-0.log");
    uint64_t starts[64], last, end;
    uint32_t count = record_starts(log, starts, 63);
    struct job *before = small_job(1);

    cr_assert(count == 7);
    last = starts[count - 1];
    end = starts[count];
    job_take(before, job_life(before));
    job_take(before, job_init(before));
    while (before->image->version < 5) {
        job_take(before, job_round(before));
    }
    for (uint64_t keep = last; keep <= end; keep += STRIDE) {
        for (int zeros = 0; zeros < 2; zeros++) {
            struct gk_disk *copy = disk_crash(disk, DISK_KILLED, 1);
            struct disk_inode *torn = rig_file(copy, "wal-0-0.log");
            struct rig_open open;

            setup.disk = copy;
            if (zeros) {
                memset(torn->now + keep, 0, torn->now_size - keep);
            } else {
                disk_resize(torn, keep);
            }
            rig_open(&open, setup);
            cr_assert(open.err == GK_OK, "%s", open.words.text);
            if (rig_equals(&open, job)) { /* what is cut off may have been zeros */
                cr_assert(zeros ? memcmp(log->now, torn->now, end) == 0 : keep == end);
                cr_assert(open.recovered.cut_bytes == 0 && open.recovered.cut.text[0] == 0);
            } else {
                cr_assert(rig_equals(&open, before), "kept %llu", (unsigned long long)keep);
                cr_assert(zeros || open.recovered.cut_bytes <= keep - last);
                cr_assert((open.recovered.cut.text[0] != 0) == (keep > last));
                cr_assert(keep == last || names(&open.recovered.cut, "wal-0-0.log", last), "%s",
                          open.recovered.cut.text);
            }
            rig_close(&open);
            rig_open(&open, setup); /* nothing of it is left */
            cr_assert(open.err == GK_OK && open.recovered.cut.text[0] == 0, "%s",
                      open.recovered.cut.text);
            rig_close(&open);
            disk_free(copy);
        }
    }
    disk_free(disk);
    job_free(before);
    job_free(job);
}

/* After a cut the log goes on, and nothing that was behind the cut comes back. */
Test(store_damage, goes_on_behind_a_cut)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct job *job = small_job(seed);
        struct gk_store_setup setup;
        struct gk_disk *disk = prepared(job, 5, &setup);
        struct disk_inode *log = rig_file(disk, "wal-0-0.log");
        struct job *live = small_job(seed);
        struct rig_open open;
        uint64_t starts[64];
        uint32_t count = record_starts(log, starts, 63);

        job_take(live, job_life(live));
        job_take(live, job_init(live));
        while (live->image->version < 4) {
            job_take(live, job_round(live));
        }
        disk_resize(log, starts[count] - 1 - job_draw(job, 60));
        rig_open(&open, setup);
        cr_assert(rig_equals(&open, live));
        rig_lived(live);
        for (int i = 0; i < 6; i++) {
            rig_append(&open, live, job_next(live));
        }
        rig_close(&open);
        rig_open(&open, setup);
        cr_assert(rig_equals(&open, live), "%s", open.words.text);
        cr_assert(open.recovered.cut.text[0] == 0);
        rig_close(&open);
        disk_free(disk);
        job_free(live);
        job_free(job);
    }
}

/* Whole records that lie behind the end of the log, as an old tail would, do not come back: they do
 * not follow from what is there now. */
Test(store_damage, stale_records_stay_dead)
{
    struct job *job[2] = {small_job(11), small_job(11)};
    struct gk_disk *disk[2];
    struct gk_store_setup setup;
    struct rig_open open;
    uint64_t starts[2][64], end;
    struct disk_inode *now, *old;

    for (int i = 0; i < 2; i++) {
        disk[i] = prepared(job[i], 3, &setup);
        rig_open(&open, (setup.disk = disk[i], setup));
        rig_lived(job[i]);
        job[i]->state += (uint64_t)i; /* another fourth round */
        rig_append(&open, job[i], job_round(job[i]));
        if (i == 1) {
            job_round(job[i]); /* the fifth, of the same image but for the fourth */
            rig_append(&open, job[i], &job[i]->record);
        }
        rig_close(&open);
    }
    now = rig_file(disk[0], "wal-0-0.log");
    old = rig_file(disk[1], "wal-0-0.log");
    end = starts[0][record_starts(now, starts[0], 63)];
    cr_assert(record_starts(old, starts[1], 63) == 7);
    disk_resize(now, end);
    disk_resize(now, end + starts[1][7] - starts[1][6]);
    memcpy(now->now + end, old->now + starts[1][6], starts[1][7] - starts[1][6]);
    rig_open(&open, (setup.disk = disk[0], setup));
    cr_assert(rig_equals(&open, job[0]), "%s", open.words.text);
    cr_assert(strstr(open.recovered.cut.text, "does not follow"), "%s", open.recovered.cut.text);
    rig_close(&open);
    for (int i = 0; i < 2; i++) {
        disk_free(disk[i]);
        job_free(job[i]);
    }
}

/* The record that a byte belongs to. */
static uint32_t record_of(const uint64_t *starts, uint32_t count, uint64_t byte)
{
    uint32_t record = 0;

    while (record + 1 < count && starts[record + 1] <= byte) {
        record++;
    }
    return record;
}

Test(store_damage, flipped_byte_of_a_log)
{
    struct job *job = small_job(2);
    struct gk_store_setup setup;
    struct gk_disk *disk = prepared(job, 4, &setup);
    struct disk_inode *log = rig_file(disk, "wal-0-0.log");
    uint64_t starts[64];
    uint32_t count = record_starts(log, starts, 63);

    for (uint64_t byte = 0; byte < starts[count]; byte += STRIDE) {
        struct gk_disk *copy = disk_crash(disk, DISK_KILLED, 1);
        uint32_t record = record_of(starts, count, byte);
        bool header = byte < GK_WAL_SEGMENT_BYTES;
        uint64_t at = header ? 0 : starts[record];
        struct rig_open open;

        setup.disk = copy;
        rig_file(copy, "wal-0-0.log")->now[byte] ^= (uint8_t)(1 << byte % 8);
        rig_open(&open, setup);
        if (!header && record + 1 == count) { /* nobody can tell it from a torn one */
            cr_assert(open.err == GK_OK && open.recovered.image->version == 3);
            cr_assert(open.recovered.cut_bytes > 0);
            cr_assert(names(&open.recovered.cut, "wal-0-0.log", at), "%s", open.recovered.cut.text);
        } else {
            cr_assert(open.err == GK_E_CORRUPT || open.err == GK_E_UNSUPPORTED, "byte %llu",
                      (unsigned long long)byte);
            cr_assert(names(&open.words, "wal-0-0.log", at), "byte %llu: %s",
                      (unsigned long long)byte, open.words.text);
        }
        rig_close(&open);
        disk_free(copy);
    }
    disk_free(disk);
    job_free(job);
}

/* A page in the middle that reads as zeros is not the end of the log. */
Test(store_damage, zeros_in_the_middle)
{
    struct job *job = small_job(3);
    struct gk_store_setup setup;
    struct gk_disk *disk = prepared(job, 8, &setup);
    uint64_t starts[64];
    uint32_t count = record_starts(rig_file(disk, "wal-0-0.log"), starts, 63);

    for (uint32_t i = 0; i + 1 < count; i++) {
        struct gk_disk *copy = disk_crash(disk, DISK_KILLED, 1);
        struct rig_open open;

        setup.disk = copy;
        memset(rig_file(copy, "wal-0-0.log")->now + starts[i], 0, starts[i + 1] - starts[i]);
        rig_open(&open, setup);
        cr_assert(open.err == GK_E_CORRUPT && names(&open.words, "wal-0-0.log", starts[i]), "%s",
                  open.words.text);
        rig_close(&open);
        disk_free(copy);
    }
    disk_free(disk);
    job_free(job);
}

/* Versions, folded as often as due. */
static struct gk_disk *folded(struct job *job, uint64_t versions, struct gk_store_setup *setup)
{
    struct gk_disk *disk = disk_new();
    struct rig_open open;

    *setup = rig_setup(job, disk);
    rig_open(&open, *setup);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    while (job->image->version < versions) {
        rig_append(&open, job, job_round(job));
        if (gk_store_fold_due(open.store)) {
            rig_fold(&open);
        }
    }
    rig_close(&open);
    return disk;
}

/* Version 0 has no older one: every byte that differs is an error that names the file. */
Test(store_damage, flipped_byte_of_the_only_snapshot)
{
    struct job *job = small_job(4);
    struct gk_store_setup setup;
    struct gk_disk *disk = prepared(job, 3, &setup);
    uint64_t size = rig_file(disk, "snap-0-0")->now_size;
    uint32_t harmless = 0;

    for (uint64_t byte = 0; byte < size; byte += 1 + job_draw(job, 3)) {
        struct gk_disk *copy = disk_crash(disk, DISK_KILLED, 1);
        struct rig_open open;

        setup.disk = copy;
        rig_file(copy, "snap-0-0")->now[byte] ^= (uint8_t)(1 << byte % 8);
        rig_open(&open, setup);
        if (open.err == GK_OK) { /* a gap between two planes */
            cr_assert(rig_equals(&open, job));
            cr_assert(byte >= GK_SNAPSHOT_PAGE && (byte % GK_SNAPSHOT_PAGE) >= 96 * 4);
            harmless++;
        } else {
            cr_assert(open.err == GK_E_CORRUPT || open.err == GK_E_UNSUPPORTED);
            cr_assert(strstr(open.words.text, "DIR/snap-0-0, offset "), "%s", open.words.text);
        }
        rig_close(&open);
        disk_free(copy);
    }
    cr_assert(harmless > 0);
    disk_free(disk);
    job_free(job);
}

/* With an older snapshot and the whole log behind it nothing is lost, and it is told. */
Test(store_damage, an_older_snapshot_takes_its_place)
{
    struct job *job = small_job(5);
    struct gk_store_setup setup;
    struct gk_disk *disk = folded(job, 80, &setup);
    uint64_t size = rig_file(disk, "snap-0-75")->now_size;

    cr_assert(disk_find(disk->names, "snap-0-50") && !disk_find(disk->names, "snap-0-25"));
    for (int i = 0; i < 60; i++) {
        struct gk_disk *copy = disk_crash(disk, DISK_KILLED, 1);
        uint64_t byte = job_draw(job, size);
        struct rig_open open;
        struct disk_inode *file = rig_file(copy, "snap-0-75");

        setup.disk = copy;
        if (i % 3 == 0) {
            disk_resize(file, byte);
        } else {
            file->now[byte % 300] ^= 4;
        }
        rig_open(&open, setup);
        cr_assert(rig_equals(&open, job), "%s", open.words.text);
        cr_assert(strstr(open.recovered.cut.text, "snap-0-75, offset "), "%s",
                  open.recovered.cut.text);
        cr_assert(disk_find(copy->names, "snap-0-75.damaged"));
        rig_close(&open);
        rig_open(&open, setup); /* a second time there is nothing to tell */
        cr_assert(open.err == GK_OK && open.recovered.cut.text[0] == 0);
        rig_close(&open);
        disk_free(copy);
    }
    disk_free(disk);
    job_free(job);
}

/* The older one that nobody needs now: told, and out of the way; but a disk that fails is no
 * damage. */
Test(store_damage, an_older_snapshot_is_damaged)
{
    struct job *job = small_job(5);
    struct gk_store_setup setup;
    struct gk_disk *disk = folded(job, 80, &setup);

    for (size_t byte = 0; byte < 200; byte += 7) {
        struct gk_disk *copy = disk_crash(disk, DISK_KILLED, 1);
        struct rig_open open;

        setup.disk = copy;
        rig_file(copy, "snap-0-50")->now[byte] ^= 4;
        rig_open(&open, setup);
        if (open.err == GK_E_UNSUPPORTED) { /* another format: not ours to touch */
            cr_assert(strstr(open.words.text, "snap-0-50"), "%s", open.words.text);
        } else {
            cr_assert(rig_equals(&open, job), "%s", open.words.text);
            cr_assert(strstr(open.recovered.cut.text, "snap-0-50, offset ") &&
                          strstr(open.recovered.cut.text, "version 75"),
                      "%s", open.recovered.cut.text);
            cr_assert(disk_find(copy->names, "snap-0-50.damaged"));
        }
        rig_close(&open);
        disk_free(copy);
    }
    disk_free(disk);
    job_free(job);
}

/* Removed or damaged files that nothing can replace. */
Test(store_damage, what_nothing_replaces)
{
    static const char *const lost[][2] = {
        {"wal-0-75.log", "snap-0-75"}, /* the newest log: version 75 would be the end */
        {"wal-0-50.log", "snap-0-75"}, /* with a damaged snapshot: not complete */
        {"snap-0-50", "snap-0-75"},    /* no snapshot is whole */
    };

    for (int i = 0; i < 3; i++) {
        struct job *job = small_job(6);
        struct gk_store_setup setup;
        struct gk_disk *disk = folded(job, 80, &setup);
        struct rig_open open;
        struct disk_name *name = disk_find(disk->names, lost[i][0]);

        rig_file(disk, lost[i][1])->now[40] ^= 1;
        disk_unlink_inode(name->inode);
        name->inode = NULL;
        rig_open(&open, setup);
        cr_assert(open.err == GK_E_CORRUPT, "%d", i);
        cr_assert(strstr(open.words.text, "snap-0-75"), "%s", open.words.text);
        rig_close(&open);
        disk_free(disk);
        job_free(job);
    }
}

/* The newest log alone is gone: the snapshot is whole, but what came behind it is not there. */
Test(store_damage, the_log_is_missing)
{
    struct job *job = small_job(6);
    struct gk_store_setup setup;
    struct gk_disk *disk = prepared(job, 5, &setup);
    struct disk_name *name = disk_find(disk->names, "wal-0-0.log");
    struct rig_open open;

    disk_unlink_inode(name->inode);
    name->inode = NULL;
    rig_open(&open, setup);
    cr_assert(open.err == GK_E_CORRUPT && strstr(open.words.text, "is missing"), "%s",
              open.words.text);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

/* A log that gives other planes than the hash in it says is found at the next hash. */
/* Not an empty directory: whoever took it for one would begin the shard anew. */
Test(store_damage, snapshots_without_log_and_job)
{
    for (int epoch = 0; epoch < 2; epoch++) {
        struct job *job = small_job(1);
        struct gk_store_setup setup;
        struct gk_disk *disk = folded(job, 80, &setup);
        struct rig_open open;

        for (int i = 0; i < DISK_FILES_MAX; i++) {
            struct disk_name *name = &disk->names[i];
            bool snapshot = name->inode && strncmp(name->text, "snap-", 5) == 0;

            if (name->inode && !snapshot) {
                disk_unlink_inode(name->inode);
                name->inode = NULL;
            } else if (snapshot && epoch > 0) { /* as a rewind leaves them, which have no log yet */
                name->text[5] = '1';
            }
        }
        rig_open(&open, setup);
        cr_assert(open.err == GK_E_REFUSED, "%s: %s", gk_err_name(open.err), open.words.text);
        cr_assert(strstr(open.words.text, epoch ? "JOB and the log behind that (wal-1-"
                                                : "JOB and the log behind that (wal-0-"),
                  "%s", open.words.text);
        cr_assert(!disk_find(disk->names, "JOB"), "nothing is written there");
        rig_close(&open);
        disk_free(disk);
        job_free(job);
    }
}

Test(store_damage, a_hash_that_differs)
{
    struct job *job = small_job(7);
    struct gk_disk *disk = disk_new();
    struct gk_store_setup setup = rig_setup(job, disk);
    struct rig_open open;
    struct gk_words words = {""};
    uint64_t version;

    rig_open(&open, setup);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    while (job->image->version < 25) {
        rig_append(&open, job, job_round(job));
    }
    job_round(job);
    job->record.state_hash ^= 1;
    rig_append(&open, job, &job->record);
    cr_assert(gk_store_fold_due(open.store));
    cr_assert(gk_store_fold(open.store, &version, &words) == GK_E_CORRUPT);
    cr_assert(strstr(words.text, "wal-0-25.log, offset 128: the state hash of version 25"), "%s",
              words.text);
    cr_assert(!disk_find(disk->names, "fold.tmp") && !disk_find(disk->names, "snap-0-25"));
    cr_assert(!gk_store_fold_due(open.store), "not at once again");
    rig_close(&open);
    rig_open(&open, setup);
    cr_assert(open.err == GK_E_CORRUPT);
    cr_assert(strstr(open.words.text, "wal-0-25.log, offset 128: the state hash of version 25"),
              "%s", open.words.text);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

Test(store_damage, belongs_to_another)
{
    struct job *job = job_new(&(struct job_options){GK_OPTIMIZER_SGD, 96, 2, 2, 1, 8});
    struct gk_store_setup setup;
    struct gk_disk *disk = prepared(job, 3, &setup);

    for (int job_file = 0; job_file < 2; job_file++) {
        for (int i = 0; i < 4; i++) {
            struct gk_store_setup other = setup;
            struct rig_open open;

            other.job = i == 0 ? "other" : setup.job;
            other.shard = i == 1 ? 0 : setup.shard;
            other.servers = i == 2 ? 3 : setup.servers;
            other.workers = i == 3 ? 3 : setup.workers;
            rig_open(&open, other);
            cr_assert(open.err == GK_E_REFUSED, "%d %s", i, open.words.text);
            cr_assert(strstr(open.words.text, "belongs to shard 1 of 2 of job 'toy'"), "%s",
                      open.words.text);
            rig_close(&open);
            if (job_file == 1) { /* the attempt has made it, for whoever it was */
                struct disk_name *name = disk_find(disk->names, "JOB");

                disk_unlink_inode(name->inode);
                name->inode = NULL;
            }
        }
        if (job_file == 0) {
            struct disk_name *name = disk_find(disk->names, "JOB");

            disk_unlink_inode(name->inode);
            name->inode = NULL;
        }
    }
    disk_free(disk);
    job_free(job);
}

Test(store_damage, one_process_at_a_time)
{
    struct job *job = small_job(9);
    struct gk_disk *disk = disk_new();
    struct gk_disk second = *disk; /* the same machine */
    struct rig_open open, again;

    rig_open(&open, rig_setup(job, disk));
    cr_assert(open.err == GK_OK);
    rig_open(&again, rig_setup(job, &second));
    cr_assert(again.err == GK_E_BUSY && strstr(again.words.text, "in use"), "%s", again.words.text);
    rig_close(&again);
    rig_close(&open);
    rig_open(&open, rig_setup(job, disk));
    cr_assert(open.err == GK_OK);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}
