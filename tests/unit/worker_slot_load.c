/* Goal: a slot that belongs to something else is refused in words, damage is found and counts as
 * lost or is refused, never believed; and a file that has no room is an error at the start.
 * Method: one file, spoiled byte by byte in each of its parts, and setups that differ in one thing.
 */
#include "common/exit.h"
#include "common/hash.h"
#include "worker_slot_rig.h"

#include <signal.h>
#include <sys/resource.h>

enum { STEPS = 7 }; /* the newest residual is in slot 1 */

/* Offsets of docs/worker-state.md. */
enum { PAGE = 4096, IDENTITY_AT = PAGE, RESIDUAL_AT = 3 * PAGE, RING_AT = 5 * PAGE };

static void make(struct slot_rig *rig)
{
    slot_rig_init(rig);
    cr_assert(slot_rig_open(rig) == GK_OK, "%s", rig->words.text);
    slot_remember(rig, 1);
    slot_remember(rig, 2);
    for (uint64_t t = 0; t < STEPS; t++) {
        slot_step(rig, t, 0);
    }
    slot_rig_close(rig);
}

static int open_file(const struct slot_rig *rig)
{
    char path[2 * SLOT_PATH_BYTES];
    int file;

    slot_path(rig, "slot", path);
    file = open(path, O_RDWR);
    cr_assert(file >= 0);
    return file;
}

static uint64_t size_of(const struct slot_rig *rig)
{
    return gk_slot_bytes(&rig->setup);
}

/* The file as it was made, to be put back after each trial. */
static uint8_t *keep(const struct slot_rig *rig)
{
    uint8_t *bytes = malloc(size_of(rig));
    int file = open_file(rig);

    cr_assert(bytes && read(file, bytes, size_of(rig)) == (ssize_t)size_of(rig));
    (void)close(file);
    return bytes;
}

static void put_back(const struct slot_rig *rig, const uint8_t *bytes)
{
    int file = open_file(rig);

    cr_assert(ftruncate(file, 0) == 0);
    cr_assert(write(file, bytes, size_of(rig)) == (ssize_t)size_of(rig));
    (void)close(file);
}

static void flip(const struct slot_rig *rig, uint64_t at, uint32_t bit)
{
    int file = open_file(rig);
    uint8_t byte;

    cr_assert(pread(file, &byte, 1, (off_t)at) == 1);
    byte ^= (uint8_t)(1u << bit);
    cr_assert(pwrite(file, &byte, 1, (off_t)at) == 1);
    (void)close(file);
}

static void expect_whole(struct slot_rig *rig, const char *what)
{
    cr_assert(slot_rig_open(rig) == GK_OK, "%s: %s", what, rig->words.text);
    cr_assert(rig->found.slot.state == GK_SLOT_STEP, "%s", what);
    cr_assert_eq(rig->found.slot.memory.step, STEPS - 1);
    cr_assert_eq(rig->found.slot.pushes_count, GK_RING_ENTRIES);
    cr_assert_str_empty(rig->found.damage.text);
    slot_judge(rig);
    slot_rig_close(rig);
}

Test(slot_load, whole)
{
    struct slot_rig rig;

    make(&rig);
    expect_whole(&rig, "as it was left");
    expect_whole(&rig, "and again");
    slot_rig_fini(&rig);
}

/* A step that was begun and not ended leaves the state before it, without the oldest push. */
Test(slot_load, step_that_was_begun)
{
    struct slot_rig rig;
    struct gk_push *push = slot_push(STEPS);

    make(&rig);
    cr_assert(slot_rig_open(&rig) == GK_OK);
    gk_slot_begin(rig.slot, STEPS);
    gk_slot_target(rig.slot)[3] = 99;
    slot_rig_close(&rig);
    expect_whole(&rig, "the residual alone was begun");
    cr_assert(slot_rig_open(&rig) == GK_OK);
    gk_slot_begin(rig.slot, STEPS);
    cr_assert(gk_slot_put(rig.slot, push, &rig.words) == GK_OK);
    slot_rig_close(&rig);
    cr_assert(slot_rig_open(&rig) == GK_OK);
    cr_assert(rig.found.slot.memory.step == STEPS - 1);
    cr_assert_eq(rig.found.slot.pushes_count, GK_RING_ENTRIES - 1);
    slot_judge(&rig);
    gk_push_free(push);
    slot_rig_fini(&rig);
}

Test(slot_load, header_damaged)
{
    struct slot_rig rig;

    make(&rig);
    for (uint64_t at = 0; at < 160; at++) {
        enum gk_err err;

        flip(&rig, at, at % 8);
        err = slot_rig_open(&rig);
        cr_assert(err == GK_E_CORRUPT || err == GK_E_CONFIG, "byte %llu", (unsigned long long)at);
        cr_assert(strstr(rig.words.text, rig.directory) && strstr(rig.words.text, "remove the"));
        cr_assert(rig.slot == NULL);
        flip(&rig, at, at % 8);
    }
    expect_whole(&rig, "mended");
    slot_rig_fini(&rig);
}

/* One copy of the identity may be damaged; both may not.  Copy 0 is the newer one here. */
Test(slot_load, identity_damaged)
{
    struct slot_rig rig;
    uint8_t *bytes;

    make(&rig);
    bytes = keep(&rig);
    for (uint64_t at = 0; at < 72; at++) {
        for (uint64_t copy = 0; copy < 2; copy++) {
            flip(&rig, IDENTITY_AT + copy * PAGE + at, at % 8);
            cr_assert(slot_rig_open(&rig) == GK_OK, "%s", rig.words.text);
            cr_assert(rig.found.slot.remembers);
            cr_assert_leq(rig.found.slot.identity.incarnation, 2);
            cr_assert_geq(rig.found.slot.identity.incarnation, 1);
            slot_judge(&rig);
            slot_rig_close(&rig);
            put_back(&rig, bytes);
        }
        flip(&rig, IDENTITY_AT + at, at % 8);
        flip(&rig, IDENTITY_AT + PAGE + at, at % 8);
        cr_assert(slot_rig_open(&rig) == GK_E_CORRUPT, "byte %llu", (unsigned long long)at);
        cr_assert(strstr(rig.words.text, "no copy of the identity is whole"));
        put_back(&rig, bytes);
    }
    flip(&rig, IDENTITY_AT + 40, 0);
    cr_assert(slot_rig_open(&rig) == GK_OK);
    cr_assert(strstr(rig.found.damage.text, "one of two copies"));
    free(bytes);
    slot_rig_fini(&rig);
}

/* Lost, with a line that says what; and the next life finds nothing. */
static void expect_lost(struct slot_rig *rig, uint64_t at, const char *words)
{
    flip(rig, at, at % 8);
    cr_assert(slot_rig_open(rig) == GK_OK, "%s", rig->words.text);
    cr_assert(rig->found.slot.state == GK_SLOT_LOST, "byte %llu", (unsigned long long)at);
    cr_assert(strstr(rig->found.damage.text, words) && strstr(rig->found.damage.text, "are lost"),
              "byte %llu: %s", (unsigned long long)at, rig->found.damage.text);
    cr_assert_eq(rig->found.slot.identity.incarnation, 2);
    slot_judge(rig);
    slot_rig_close(rig);
    cr_assert(slot_rig_open(rig) == GK_OK);
    cr_assert(rig->found.slot.state == GK_SLOT_NONE);
    slot_judge(rig);
    slot_rig_close(rig);
}

static uint64_t entry_bytes(const struct slot_rig *rig)
{
    return (size_of(rig) - RING_AT - 2 * PAGE) / GK_RING_ENTRIES;
}

Test(slot_load, memory_damaged)
{
    struct slot_rig rig;
    uint8_t *bytes;
    uint64_t residuals_at;

    make(&rig);
    bytes = keep(&rig);
    residuals_at = RING_AT + GK_RING_ENTRIES * entry_bytes(&rig);
    for (uint64_t at = 0; at < 48; at++) {
        expect_lost(&rig, RESIDUAL_AT + at, "descriptor of residual 0");
        put_back(&rig, bytes);
        expect_lost(&rig, RESIDUAL_AT + PAGE + at, "descriptor of residual 1");
        put_back(&rig, bytes);
    }
    for (uint64_t at = 0; at < SLOT_PARAMS * sizeof(float); at += 37) {
        expect_lost(&rig, residuals_at + PAGE + at, "residual of step 6");
        put_back(&rig, bytes);
    }
    for (uint64_t step = STEPS - GK_RING_ENTRIES; step < STEPS; step++) {
        for (uint64_t at = 0; at < 64 + 32 + 11 * 32; at += 11) {
            expect_lost(&rig, RING_AT + step % GK_RING_ENTRIES * entry_bytes(&rig) + at, "push of");
            put_back(&rig, bytes);
        }
    }
    free(bytes);
    slot_rig_fini(&rig);
}

/* Where nothing lies nothing can be damaged; the residual that was replaced is nobody's either. */
Test(slot_load, room_damaged)
{
    struct slot_rig rig;
    uint64_t places[] = {160, IDENTITY_AT + 72, RESIDUAL_AT + 48, RESIDUAL_AT + PAGE + 48, 0, 0};

    make(&rig);
    places[4] = RING_AT + entry_bytes(&rig) - 1;
    places[5] = size_of(&rig) - 1;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        flip(&rig, places[i], 3);
        expect_whole(&rig, "room");
    }
    slot_rig_fini(&rig);
}

static void expect_refused(struct slot_rig *rig, enum gk_err err, const char *words)
{
    cr_assert(slot_rig_open(rig) == err, "%s: %s", words, rig->words.text);
    cr_assert(strstr(rig->words.text, words) && strstr(rig->words.text, rig->directory),
              "%s, not %s", rig->words.text, words);
    cr_assert(rig->slot == NULL && rig->found.slot.pushes_count == 0);
}

Test(slot_load, of_something_else)
{
    struct slot_rig rig;
    struct gk_slot_setup setup;

    make(&rig);
    setup = rig.setup;
    rig.setup.job = "slotted";
    expect_refused(&rig, GK_E_CONFIG, "is of job 'slots', this is job 'slotted'");
    rig.setup = setup;
    rig.setup.rank = 3;
    expect_refused(&rig, GK_E_CONFIG, "is of rank 1, this is rank 3");
    rig.setup = setup;
    rig.setup.workers = 5;
    expect_refused(&rig, GK_E_CONFIG, "4 workers and 2 servers, not 5 and 2");
    rig.setup = setup;
    rig.setup.servers = 1;
    expect_refused(&rig, GK_E_CONFIG, "4 workers and 2 servers, not 4 and 1");
    rig.setup = setup;
    rig.setup.model_signature++;
    expect_refused(&rig, GK_E_CONFIG, "is of another model");
    rig.setup = setup;
    rig.setup.params_count = 272;
    expect_refused(&rig, GK_E_CONFIG, "256 parameters");
    rig.setup = setup;
    rig.setup.spec_hash++;
    expect_refused(&rig, GK_E_CONFIG, "is of another job spec");
    rig.setup = setup;
    rig.setup.chunk_floats = 8;
    expect_refused(&rig, GK_E_CONFIG, "is of another layout");
    rig.setup = setup;
    rig.setup.rank = GK_RANK_ANY;
    expect_whole(&rig, "any rank is that of the slot");
    slot_rig_fini(&rig);
}

static void write_u32(const struct slot_rig *rig, uint64_t at, uint32_t value)
{
    int file = open_file(rig);

    cr_assert(pwrite(file, &value, sizeof(value), (off_t)at) == sizeof(value));
    (void)close(file);
}

Test(slot_load, no_slot_at_all)
{
    struct slot_rig rig;
    int file;

    make(&rig);
    write_u32(&rig, 8, 3);
    expect_refused(&rig, GK_E_CONFIG, "has format 3, this version reads 2");
    write_u32(&rig, 0, 0);
    expect_refused(&rig, GK_E_CONFIG, "is no slot of a gkps worker");
    slot_rig_fini(&rig);

    make(&rig);
    for (uint64_t size = 0; size < size_of(&rig); size += 1 + size) {
        file = open_file(&rig);
        cr_assert(ftruncate(file, (off_t)size) == 0);
        (void)close(file);
        cr_assert(slot_rig_open(&rig) < 0);
        cr_assert(strstr(rig.words.text, "remove the directory to begin anew"));
        slot_rig_fini(&rig);
        make(&rig);
    }
    file = open_file(&rig);
    cr_assert(ftruncate(file, (off_t)size_of(&rig) + PAGE) == 0);
    (void)close(file);
    expect_refused(&rig, GK_E_CORRUPT, "is damaged");
    slot_rig_fini(&rig);
}

Test(slot_load, in_use)
{
    struct slot_rig rig, other;
    char pid[32];

    make(&rig);
    other = rig;
    cr_assert(slot_rig_open(&rig) == GK_OK);
    expect_refused(&other, GK_E_BUSY, "is in use by process");
    (void)snprintf(pid, sizeof(pid), "process %ld:", (long)getpid());
    cr_assert(strstr(other.words.text, pid), "%s", other.words.text);
    slot_rig_close(&rig);
    cr_assert(slot_rig_open(&other) == GK_OK);
    slot_rig_close(&other);
    slot_rig_fini(&rig);
}

/* No room: words, no file, and the directory is free again.  Then with room. */
Test(slot_load, no_room)
{
    struct slot_rig rig;
    struct rlimit limit, small;
    char path[2 * SLOT_PATH_BYTES];

    slot_rig_init(&rig);
    (void)signal(SIGXFSZ, SIG_IGN); /* as the programs do */
    cr_assert(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = limit;
    small.rlim_cur = 16384;
    cr_assert(setrlimit(RLIMIT_FSIZE, &small) == 0);
    expect_refused(&rig, GK_E_LIMIT, "MiB are needed");
    slot_path(&rig, "slot", path);
    cr_assert(access(path, F_OK) != 0 && errno == ENOENT);
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    cr_assert(slot_rig_open(&rig) == GK_OK);
    cr_assert(rig.found.created);
    slot_rig_fini(&rig);
}

Test(slot_load, no_directory)
{
    struct slot_rig rig;
    char path[2 * SLOT_PATH_BYTES];

    slot_rig_init(&rig);
    slot_path(&rig, "not/there", path);
    rig.setup.directory = path;
    cr_assert(slot_rig_open(&rig) == GK_E_IO);
    cr_assert(strstr(rig.words.text, "cannot make the directory"));
    slot_path(&rig, "slot", path);
    cr_assert(mkdir(path, 0700) == 0);
    rig.setup.directory = rig.directory;
    cr_assert(slot_rig_open(&rig) == GK_E_IO);
    cr_assert(rmdir(path) == 0);
    slot_rig_fini(&rig);
}

/* A push that the spec does not allow is an error, not a store behind the room. */
Test(slot_load, push_that_is_too_large)
{
    struct slot_rig rig;
    struct gk_push *push = slot_push(0);

    slot_rig_init(&rig);
    rig.setup.push_max = 1;
    rig.setup.params_count = 8192;
    cr_assert(slot_rig_open(&rig) == GK_OK);
    gk_slot_begin(rig.slot, 0);
    for (uint32_t s = 0; s < push->slices_count; s++) {
        push->slices[s].bytes += 8192;
    }
    cr_assert(gk_slot_put(rig.slot, push, &rig.words) == GK_E_LIMIT);
    cr_assert(strstr(rig.words.text, "the job spec allows 1 entries"));
    gk_push_free(push);
    slot_rig_fini(&rig);
}
