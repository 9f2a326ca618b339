/* Opening, locking and mapping the file, and the records that make something count: identity and
 * residual, each written over the copy that does not count, so that one does at any instant.
 * layout.c has the seal, pushes.c the ring, load.c what a new life finds. */
#include "worker/state/slot.h"

#include "common/assert.h"
#include "common/hash.h"
#include "worker/state/format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum gk_err failed(const struct gk_slot *slot, const char *what, int error,
                          struct gk_words *words)
{
    gk_words_set(words, "%s: %s: %s", slot->path, what, strerror(error));
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? GK_E_LIMIT
           : error == ENOMEM                                    ? GK_E_NOMEM
                                                                : GK_E_IO;
}

static enum gk_err open_directory(struct gk_slot *slot, const char *directory,
                                  struct gk_words *words)
{
    if (mkdir(directory, 0700) && errno != EEXIST) {
        return failed(slot, "cannot make the directory", errno, words);
    }
    slot->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return slot->directory < 0 ? failed(slot, "cannot open the directory", errno, words) : GK_OK;
}

/* The lock dies with the process.  Its number is for words only. */
static enum gk_err lock_directory(struct gk_slot *slot, const char *directory,
                                  struct gk_words *words)
{
    char pid[32] = "";
    ssize_t size;

    slot->lock = openat(slot->directory, "LOCK", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (slot->lock < 0) {
        return failed(slot, "cannot open the lock beside it", errno, words);
    }
    if (flock(slot->lock, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK) {
            return failed(slot, "cannot lock the directory", errno, words);
        }
        size = pread(slot->lock, pid, sizeof(pid) - 1, 0);
        pid[size > 0 ? strspn(pid, "0123456789") : 0] = '\0';
        gk_words_set(words,
                     "the state directory %s is in use by process %s: one worker, one "
                     "directory",
                     directory, pid[0] ? pid : "?");
        return GK_E_BUSY;
    }
    (void)snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    if (ftruncate(slot->lock, 0) == 0) {
        (void)!pwrite(slot->lock, pid, strlen(pid), 0); /* on a full disk it stays unknown */
    }
    return GK_OK;
}

/* A hole in the file would be a SIGBUS at some store on a full disk. */
static enum gk_err reserve(const struct gk_slot *slot, int file, struct gk_words *words)
{
    uint64_t bytes = slot->header.file_bytes;
    int error;

    do {
        error = posix_fallocate(file, 0, (off_t)bytes);
    } while (error == EINTR);
    if (error) {
        enum gk_err err = failed(slot, "cannot reserve its room", error, words);

        gk_words_prefix(words, "%.1f MiB are needed: ", (double)bytes / (1 << 20));
        return err;
    }
    return GK_OK;
}

static enum gk_err map_file(struct gk_slot *slot, struct gk_words *words)
{
    void *map =
        mmap(NULL, slot->header.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slot->file, 0);

    if (map == MAP_FAILED) {
        return failed(slot, "cannot map it", errno, words);
    }
    slot->map = map;
    return GK_OK;
}

static enum gk_err sync_range(const struct gk_slot *slot, const void *at, uint64_t bytes,
                              struct gk_words *words)
{
    uintptr_t first = (uintptr_t)at / GK_SLOT_PAGE * GK_SLOT_PAGE;

    if (!slot->sync || msync((void *)first, (uintptr_t)at - first + bytes, MS_SYNC) == 0) {
        return GK_OK;
    }
    return failed(slot, "cannot sync it", errno, words);
}

/* The copy that does not count is written, so that one counts at any instant. */
static enum gk_err write_identity(struct gk_slot *slot, struct gk_slot_identity record,
                                  struct gk_words *words)
{
    uint32_t copy = 1 - slot->identity_copy;
    void *at = gk_slot_identity_at(slot, copy);

    record.seal.seq = slot->identity.seal.seq + 1;
    record.seal.kind = GK_SLOT_RECORD_IDENTITY;
    gk_slot_seal(slot, at, &record, sizeof(record));
    slot->identity = record;
    slot->identity_copy = copy;
    return sync_range(slot, at, sizeof(record), words);
}

/* A file without its name yet: a creation that is interrupted leaves no slot. */
static enum gk_err fill_new(struct gk_slot *slot, int file, uint32_t rank, struct gk_words *words)
{
    struct gk_slot_identity identity = {.rank = rank};
    enum gk_err err = reserve(slot, file, words);

    if (err) {
        return err;
    }
    slot->file = file;
    err = map_file(slot, words);
    if (err) {
        return err;
    }
    memcpy(slot->map + GK_SLOT_HEADER_AT, &slot->header, sizeof(slot->header));
    err = write_identity(slot, identity, words);
    if (!err && (fsync(file) || renameat(slot->directory, "slot.tmp", slot->directory, "slot") ||
                 fsync(slot->directory))) {
        err = failed(slot, "cannot create it", errno, words);
    }
    return err;
}

static enum gk_err create(struct gk_slot *slot, const struct gk_slot_setup *setup,
                          struct gk_slot_found *found, struct gk_words *words)
{
    int file = openat(slot->directory, "slot.tmp", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    enum gk_err err;

    if (file < 0) {
        return failed(slot, "cannot create it", errno, words);
    }
    gk_slot_layout(setup, &slot->header);
    err = fill_new(slot, file, setup->rank, words);
    if (err) {
        (void)unlinkat(slot->directory, "slot.tmp", 0); /* what cannot be removed is truncated */
        if (slot->file != file) {
            (void)close(file);
        }
        return err;
    }
    found->created = true;
    found->slot.identity.rank = setup->rank;
    return GK_OK;
}

static enum gk_err open_found(struct gk_slot *slot, const struct gk_slot_setup *setup,
                              struct gk_slot_found *found, struct gk_words *words)
{
    struct stat stat;
    ssize_t size = pread(slot->file, &slot->header, sizeof(slot->header), 0);
    enum gk_err err;

    if (size < 0 || fstat(slot->file, &stat)) {
        return failed(slot, "cannot read it", errno, words);
    }
    err = gk_slot_header_check(slot, setup, (uint64_t)stat.st_size, words);
    err = err ? err : reserve(slot, slot->file, words);
    err = err ? err : map_file(slot, words);
    err = err ? err : gk_slot_load(slot, setup, found, words);
    if (!err && !slot->remembers) {
        err = gk_slot_void(slot, words);
    }
    return err;
}

enum gk_err gk_slot_open(const struct gk_slot_setup *setup, struct gk_slot **ret_slot,
                         struct gk_slot_found *ret_found, struct gk_words *words)
{
    struct gk_slot *slot = calloc(1, sizeof(*slot));
    struct gk_slot_found found = {.created = false};
    size_t path_bytes = strlen(setup->directory) + sizeof("/slot");
    enum gk_err err = GK_E_NOMEM;

    gk_words_set(words, "no memory for the state in %s", setup->directory);
    if (!slot) {
        return err;
    }
    slot->directory = slot->lock = slot->file = -1;
    slot->path = malloc(path_bytes);
    if (!slot->path) {
        goto out;
    }
    (void)snprintf(slot->path, path_bytes, "%s/slot", setup->directory);
    slot->sync = setup->sync;
    slot->hook = setup->hook;
    slot->hook_context = setup->hook_context;
    err = open_directory(slot, setup->directory, words);
    err = err ? err : lock_directory(slot, setup->directory, words);
    if (err) {
        goto out;
    }
    slot->file = openat(slot->directory, "slot", O_RDWR | O_CLOEXEC);
    if (slot->file >= 0) {
        err = open_found(slot, setup, &found, words);
    } else if (errno == ENOENT) {
        err = create(slot, setup, &found, words);
    } else {
        err = failed(slot, "cannot open it", errno, words);
    }
    if (err) {
        goto out;
    }
    *ret_slot = slot;
    *ret_found = found;
    return GK_OK;
out:
    for (uint32_t i = 0; i < found.slot.pushes_count; i++) {
        gk_push_free(found.slot.pushes[i]);
    }
    gk_slot_close(slot);
    return err;
}

static void close_file(int file)
{
    if (file >= 0) {
        (void)close(file); /* nothing was written through it */
    }
}

void gk_slot_close(struct gk_slot *slot)
{
    if (!slot) {
        return;
    }
    if (slot->map) {
        (void)munmap(slot->map, slot->header.file_bytes);
    }
    close_file(slot->file);
    close_file(slot->lock);
    close_file(slot->directory);
    free(slot->path);
    free(slot);
}

void gk_slot_forget(struct gk_slot *slot)
{
    close_file(slot->lock); /* unlocks only where nobody else has it open */
    slot->lock = -1;
}

float *gk_slot_residual(struct gk_slot *slot)
{
    return gk_slot_floats_at(slot, slot->current);
}

float *gk_slot_target(struct gk_slot *slot)
{
    return gk_slot_floats_at(slot, 1 - slot->current);
}

static void *aux_at(const struct gk_slot *slot, uint32_t copy)
{
    return slot->header.aux_bytes > 0 ? gk_slot_floats_at(slot, copy) + slot->header.params_count
                                      : NULL;
}

void *gk_slot_aux(struct gk_slot *slot)
{
    return aux_at(slot, slot->current);
}

void *gk_slot_aux_target(struct gk_slot *slot)
{
    return aux_at(slot, 1 - slot->current);
}

void gk_slot_begin(struct gk_slot *slot, uint64_t step)
{
    /* Every shard has shown the version that the slot's push made, so nobody needs the residual
     * before it any more. */
    GK_ASSERT(!slot->remembers || step == slot->step + 1);
    slot->put = false;
    gk_slot_unseal(slot, gk_slot_residual_at(slot, 1 - slot->current));
}

enum gk_err gk_slot_put(struct gk_slot *slot, const struct gk_push *push, struct gk_words *words)
{
    uint8_t *at = gk_slot_entry_at(slot, push->step);
    enum gk_err err = GK_OK;

    if (slot->sync) { /* or a power failure could leave the old head before a part of the new body
                       */
        gk_slot_unseal(slot, at);
        err = sync_range(slot, at, sizeof(struct gk_slot_push), words);
    }
    err = err ? err : gk_slot_push_write(slot, push, slot->seq + 1, words);
    slot->put = !err;
    slot->put_step = push->step;
    return err;
}

enum gk_err gk_slot_persist(struct gk_slot *slot, const struct gk_worker_memory *memory,
                            struct gk_words *words)
{
    uint32_t copy = 1 - slot->current;
    void *at = gk_slot_residual_at(slot, copy);
    const float *floats = gk_slot_floats_at(slot, copy);
    uint64_t bytes = slot->header.params_count * sizeof(float) + slot->header.aux_bytes;
    struct gk_slot_residual record = {
        .seal = {.seq = slot->seq + 1, .kind = GK_SLOT_RECORD_RESIDUAL},
        .step = memory->step,
        .first_step = memory->first_step,
        .memory_incarnation = memory->incarnation,
        .epoch = memory->epoch,
        .residual_crc = gk_crc32c(floats, bytes)};
    enum gk_err err;

    GK_ASSERT(slot->put && slot->put_step == memory->step);
    err = sync_range(slot, floats, bytes, words);
    err = err ? err
              : sync_range(slot, gk_slot_entry_at(slot, memory->step), slot->header.entry_bytes,
                           words);
    if (err) {
        return err;
    }
    gk_slot_seal(slot, at, &record, sizeof(record));
    slot->current = copy;
    slot->seq = record.seal.seq;
    slot->step = memory->step;
    slot->remembers = true;
    slot->put = false;
    return sync_range(slot, at, sizeof(record), words);
}

enum gk_err gk_slot_remember(struct gk_slot *slot, const struct gk_worker_identity *identity,
                             struct gk_words *words)
{
    struct gk_slot_identity record = slot->identity;

    record.rank = identity->rank;
    record.incarnation = identity->incarnation;
    record.joined_incarnation = identity->joined_incarnation;
    record.epoch = identity->epoch;
    record.job_uid_hi = identity->job_uid.hi;
    record.job_uid_lo = identity->job_uid.lo;
    record.init_id = identity->init_id;
    record.left_at = identity->left_at;
    return write_identity(slot, record, words);
}

/* First the memory stops counting, whole, by one record; then it may be overwritten. */
enum gk_err gk_slot_void(struct gk_slot *slot, struct gk_words *words)
{
    struct gk_slot_identity record = slot->identity;
    enum gk_err err;

    record.void_seq = slot->seq;
    err = write_identity(slot, record, words);
    if (err) {
        return err;
    }
    slot->remembers = false;
    slot->put = false;
    for (uint32_t copy = 0; copy < GK_SLOT_COPIES; copy++) {
        gk_slot_unseal(slot, gk_slot_residual_at(slot, copy));
    }
    memset(gk_slot_residual(slot), 0, slot->header.residual_bytes);
    return GK_OK;
}
