/* Goal: an archive gives the shard as it was at every version that the directory reaches, beside a
 * living store, and a rewind makes one of them the state that the next life finds.
 * Method: drawn histories on a real directory, their planes remembered version by version; damage
 * of one file at a time. */
#include "server/store/archive.h"
#include "server/store/rewind.h"
#include "store_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

enum { ROUNDS = 130 };

struct past { /* of one history */
    char path[64];
    struct job *job;
    struct rig_open open;
    float *planes[ROUNDS + 1][3];
};

static struct gk_store_setup setup_at(const struct past *past)
{
    struct gk_disk *disk = NULL;
    struct gk_store_setup setup;
    int number;

    cr_assert(gk_disk_open(past->path, true, &disk, &number) == GK_OK);
    setup = rig_setup(past->job, disk);
    setup.disk_ops = gk_disk_system();
    setup.directory = past->path;
    setup.sync = GK_SYNC_NEVER; /* nothing dies here */
    setup.keep_versions = 1000;
    return setup;
}

static void remember(struct past *past)
{
    uint64_t bytes = (past->job->hi - past->job->lo) * sizeof(float);

    for (int p = 0; p < 3; p++) {
        float **copy = &past->planes[past->job->image->version][p];

        *copy = *copy ? *copy : malloc(bytes);
        memcpy(*copy, past->job->planes[p], bytes);
    }
}

static void past_begin(struct past *past, uint64_t seed)
{
    memset(past, 0, sizeof(*past));
    (void)snprintf(past->path, sizeof(past->path), "/tmp/gkps-archive-XXXXXX");
    cr_assert(mkdtemp(past->path));
    past->job = job_new(&(struct job_options){
        .optimizer = seed % 2 ? GK_OPTIMIZER_MOMENTUM : GK_OPTIMIZER_SGD,
        .params = 96 + 16 * (seed % 3),
        .workers = 2,
        .servers = 1 + (uint32_t)(seed % 2),
        .shard = (uint32_t)(seed % 2),
        .seed = seed,
    });
    rig_open(&past->open, setup_at(past));
    cr_assert(past->open.err == GK_OK, "%s", past->open.words.text);
    rig_lived(past->job);
    rig_append(&past->open, past->job, job_member(past->job));
    rig_append(&past->open, past->job, job_init(past->job));
    remember(past);
    while (past->job->image->version < ROUNDS) {
        rig_append(&past->open, past->job, job_next(past->job));
        if (gk_store_fold_due(past->open.store)) {
            rig_fold(&past->open);
        }
        remember(past);
    }
}

static void past_end(struct past *past)
{
    DIR *folder = opendir(past->path);
    const struct dirent *entry;

    rig_close(&past->open);
    while (folder && (entry = readdir(folder))) {
        (void)unlinkat(dirfd(folder), entry->d_name, 0);
    }
    (void)closedir(folder);
    cr_assert(rmdir(past->path) == 0);
    for (int v = 0; v <= ROUNDS; v++) {
        for (int p = 0; p < 3; p++) {
            free(past->planes[v][p]);
        }
    }
    job_free(past->job);
}

static struct gk_archive *archive_of(const struct past *past, bool lock)
{
    struct gk_archive *archive = NULL;
    struct gk_words words = {""};

    cr_assert(gk_archive_open(past->path, lock, gk_vector_reference(), &archive, &words) == GK_OK,
              "%s", words.text);
    return archive;
}

static void expect_planes(const struct past *past, float *const planes[3], uint64_t version)
{
    for (uint32_t p = 0; p < gk_image_planes(past->job->image); p++) {
        cr_assert(memcmp(planes[p], past->planes[version][p],
                         (past->job->hi - past->job->lo) * sizeof(float)) == 0,
                  "plane %u of version %llu", p, (unsigned long long)version);
    }
}

Test(store_archive, every_version_beside_a_living_store)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct gk_archive_wish wish = {.version = GK_ARCHIVE_NEWEST};
        struct past past;
        struct gk_archive *archive;
        struct gk_archived state;
        struct gk_words words = {""};

        past_begin(&past, seed);
        archive = archive_of(&past, false);
        cr_assert(archive->snapshots.count > 2);
        for (wish.version = 0; wish.version <= ROUNDS; wish.version++) {
            wish.from_oldest = wish.version % 16 == 3;
            cr_assert(gk_archive_read(archive, &wish, &state, &words) == GK_OK, "%s", words.text);
            cr_assert_eq(state.image->version, wish.version);
            expect_planes(&past, state.planes, wish.version);
            gk_archived_fini(archive, &state);
        }
        cr_assert_eq(gk_archive_read(archive, &wish, &state, &words), GK_E_NOTFOUND);
        cr_assert(strstr(words.text, "the log ends at version 130"), "%s", words.text);
        wish = (struct gk_archive_wish){.version = GK_ARCHIVE_NEWEST, .from_oldest = true};
        cr_assert(gk_archive_read(archive, &wish, &state, &words) == GK_OK, "%s", words.text);
        cr_assert(job_image_equals(state.image, past.job->image));
        cr_assert(state.hashes >= ROUNDS / GK_HASH_EVERY);
        gk_archived_fini(archive, &state);
        gk_archive_close(archive);
        cr_assert_eq(gk_archive_open(past.path, true, gk_vector_reference(), &archive, &words),
                     GK_E_BUSY);
        cr_assert(strstr(words.text, "running"), "%s", words.text);
        past_end(&past);
    }
}

static void rewind_to(const struct past *past, uint64_t version)
{
    const struct gk_archive_wish newest = {.version = GK_ARCHIVE_NEWEST, .without_planes = true};
    const struct gk_archive_wish wish = {.version = version};
    struct gk_archive *archive = archive_of(past, true);
    struct gk_archived state, end;
    struct gk_words words = {""};
    uint32_t counted, removed, epoch = archive->epoch + 1;

    cr_assert(gk_archive_read(archive, &newest, &end, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_archive_read(archive, &wish, &state, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_rewind_write(archive, &state, &end, epoch, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_rewind_cut(archive, epoch, true, &counted, &words) == GK_OK);
    if (version % 2) { /* cut short before that: the old files are void, and no harm */
        cr_assert(gk_rewind_cut(archive, epoch, false, &removed, &words) == GK_OK);
        cr_assert(counted == removed && counted > 2);
    }
    gk_archived_fini(archive, &end);
    gk_archived_fini(archive, &state);
    gk_archive_close(archive);
}

Test(store_archive, rewind_is_what_the_next_life_finds)
{
    static const uint64_t versions[] = {0, 1, 60, 75, 129, 130};

    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        uint32_t incarnation, fenced;
        struct past past;

        past_begin(&past, i);
        incarnation = past.job->image->incarnation;
        fenced = past.job->image->rows[1].incarnation;
        rig_close(&past.open);
        rewind_to(&past, versions[i]);
        for (uint32_t life = 0; life < 2; life++) {
            rig_open(&past.open, setup_at(&past));
            cr_assert(past.open.err == GK_OK, "%s", past.open.words.text);
            cr_assert_eq(past.open.recovered.image->version, versions[i]);
            cr_assert_eq(past.open.recovered.image->epoch, 1);
            cr_assert_eq(past.open.recovered.image->incarnation, incarnation + life);
            cr_assert_eq(past.open.recovered.image->rows[1].incarnation, fenced);
            expect_planes(&past, past.open.recovered.memory.planes, versions[i]);
            rig_close(&past.open);
        }
        past_end(&past);
    }
}

/* One bit of one file, where it counts. */
static void flip(const char *directory, const char *name, off_t at)
{
    char path[128];
    uint8_t byte;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1, "%s", path);
    byte ^= 16;
    cr_assert(pwrite(fd, &byte, 1, at) == 1);
    (void)close(fd);
}

Test(store_archive, damage_is_named)
{
    const struct gk_archive_wish wish = {.version = 80, .from_oldest = true};
    const struct gk_archive_wish nearest = {.version = 80};
    struct past past;
    struct gk_archive *archive;
    struct gk_archived state;
    struct gk_words words = {""};

    past_begin(&past, 1);
    flip(past.path, "snap-0-75", 4096 + 8);
    archive = archive_of(&past, false);
    /* An older snapshot and the log behind it lead there as well. */
    cr_assert(gk_archive_read(archive, &nearest, &state, &words) == GK_OK, "%s", words.text);
    expect_planes(&past, state.planes, 80);
    cr_assert(state.from_version < 75);
    gk_archived_fini(archive, &state);
    cr_assert_eq(gk_archive_snapshot(archive,
                                     &archive->snapshots.list[archive->snapshots.count - 3], &state,
                                     &words),
                 GK_E_CORRUPT);
    cr_assert(strstr(words.text, "snap-0-75, offset 4096"), "%s", words.text);
    flip(past.path, "wal-0-25.log", 128 + 300);
    cr_assert_eq(gk_archive_read(archive, &wish, &state, &words), GK_E_CORRUPT);
    cr_assert(strstr(words.text, "wal-0-25.log, offset 128"), "%s", words.text);
    gk_archive_close(archive);
    /* The log knows as well whose it is. */
    {
        char job[256], away[300];

        (void)snprintf(job, sizeof(job), "%s/JOB", past.path);
        (void)snprintf(away, sizeof(away), "%s.away", job);
        cr_assert_eq(rename(job, away), 0);
        cr_assert(gk_archive_open(past.path, false, gk_vector_reference(), &archive, &words) ==
                      GK_OK,
                  "%s", words.text);
        cr_assert(archive->jobless && archive->owner.servers > 0 && archive->owner.job[0]);
        gk_archive_close(archive);
        cr_assert_eq(rename(away, job), 0);
    }
    flip(past.path, "JOB", 50);
    cr_assert_eq(gk_archive_open(past.path, false, gk_vector_reference(), &archive, &words),
                 GK_E_CORRUPT);
    cr_assert(strstr(words.text, "/JOB, offset 0"), "%s", words.text);
    cr_assert_eq(gk_archive_open("/nowhere/at/all", false, gk_vector_reference(), &archive, &words),
                 GK_E_NOTFOUND);
    past_end(&past);
}

static void take_away(const struct past *past, struct gk_name name)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "%s/%s", past->path, name.text);
    cr_assert_eq(unlink(path), 0);
}

static void expect_gone(enum gk_err err, const struct gk_words *words, struct gk_name name)
{
    cr_assert(err == GK_E_AGAIN, "%s: %s", gk_err_name(err), words->text);
    cr_assert(strstr(words->text, name.text), "%s", words->text);
}

/* Beside a living server it is gone between the list and the look; the log does not end there. */
Test(store_archive, a_file_that_was_listed_went_away)
{
    const struct gk_archive_wish oldest = {.version = GK_ARCHIVE_NEWEST, .from_oldest = true};
    const struct gk_archive_wish newest = {.version = GK_ARCHIVE_NEWEST};
    const struct gk_archive_wish never = {.version = ROUNDS + 1};
    struct past past;
    struct gk_archive *archive;
    struct gk_archived state;
    struct gk_words words = {""};
    struct gk_known known;

    past_begin(&past, 1);
    archive = archive_of(&past, false);
    cr_assert(archive->segments.count > 2 && archive->snapshots.count > 2);
    known = archive->segments.list[1];
    take_away(&past, gk_name_segment(known.epoch, known.version));
    expect_gone(gk_archive_read(archive, &oldest, &state, &words), &words,
                gk_name_segment(known.epoch, known.version));
    known = archive->snapshots.list[archive->snapshots.count - 1];
    take_away(&past, gk_name_snapshot(known.epoch, known.version));
    expect_gone(gk_archive_read(archive, &newest, &state, &words), &words,
                gk_name_snapshot(known.epoch, known.version));
    expect_gone(gk_archive_snapshot(archive, &known, &state, &words), &words,
                gk_name_snapshot(known.epoch, known.version));
    gk_archive_close(archive);
    /* A version that cannot be reached is another matter: nobody need look again. */
    archive = archive_of(&past, false);
    cr_assert_eq(gk_archive_read(archive, &never, &state, &words), GK_E_NOTFOUND);
    gk_archive_close(archive);
    past_end(&past);
}

Test(store_archive, snapshots_alone_are_no_empty_folder)
{
    struct past past;
    struct gk_archive *archive;
    struct gk_words words = {""};

    past_begin(&past, 1);
    archive = archive_of(&past, false);
    for (uint32_t i = 0; i < archive->segments.count; i++) {
        const struct gk_known *known = &archive->segments.list[i];

        take_away(&past, gk_name_segment(known->epoch, known->version));
    }
    gk_archive_close(archive);
    take_away(&past, (struct gk_name){GK_STORE_JOB});
    cr_assert_eq(gk_archive_open(past.path, false, gk_vector_reference(), &archive, &words),
                 GK_E_REFUSED);
    cr_assert(strstr(words.text, "the file JOB and the log behind that (wal-0-125.log)"), "%s",
              words.text);
    past_end(&past);
}
