/* A disk in memory, with what real disks do to programs: calls that fail, processes that die
 * between two calls, and power that goes off, which keeps what was synced and of the rest what it
 * likes.
 *
 * A disk may be copied at any moment (disk_crash); the copy is what the next process finds.  Calls
 * that change something are counted, so that a test can stop at each of them in turn. */
#ifndef GK_TESTS_UNIT_STORE_DISK_H
#define GK_TESTS_UNIT_STORE_DISK_H

#include "common/bits.h"
#include "server/store/disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DISK_FILES_MAX = 32, DISK_NAME_BYTES = 64, DISK_SECTOR = 512 };

struct disk_inode {
    int links; /* names and open files, of both views */
    uint8_t *now;
    uint64_t now_size;
    uint8_t *safe; /* what the last sync saw */
    bool *lost;    /* sectors of `now` that a sync has failed to write: the next one passes over */
    uint64_t lost_count;
    uint64_t safe_size;
    bool once_synced;
};

struct disk_name {
    char text[DISK_NAME_BYTES];
    struct disk_inode *inode; /* NULL: free */
};

struct gk_file {
    struct gk_disk *disk;
    struct disk_inode *inode;
};

enum disk_fault { DISK_NONE, DISK_FULL, DISK_EIO };
enum disk_call { DISK_ANY_CHANGE, DISK_SYNC, DISK_WRITE, DISK_READ };
enum disk_loss {
    DISK_KILLED,   /* kill -9: everything that was written is there */
    DISK_POWER,    /* only what was synced is there */
    DISK_POWER_MIX /* sectors and names that were not synced are there or not, by chance */
};

struct gk_disk {
    struct disk_name names[DISK_FILES_MAX];
    struct disk_name safe_names[DISK_FILES_MAX]; /* as of the last directory sync */
    bool *locked;                                /* shared by the copies: one machine */
    bool holds_lock;
    bool frozen; /* dead: every call fails */
    uint64_t changes, syncs, reads, writes;
    uint64_t fail_at; /* 1-based count of `fail_call`; 0: never */
    enum disk_call fail_call;
    enum disk_fault fault;
    uint64_t freeze_at; /* no change from this one on takes effect; half of a write does */
    uint64_t room;      /* bytes of all files; 0: no limit */
    uint64_t draws;
};

static inline void disk_unlink_inode(struct disk_inode *inode)
{
    if (inode && --inode->links == 0) {
        free(inode->now);
        free(inode->safe);
        free(inode->lost);
        free(inode);
    }
}

static inline struct gk_disk *disk_new(void)
{
    struct gk_disk *disk = calloc(1, sizeof(*disk));

    disk->locked = calloc(1, sizeof(*disk->locked));
    return disk;
}

static inline void disk_free(struct gk_disk *disk)
{
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        disk_unlink_inode(disk->names[i].inode);
        disk_unlink_inode(disk->safe_names[i].inode);
    }
    free(disk->locked);
    free(disk);
}

static inline struct disk_name *disk_find(struct disk_name *names, const char *text)
{
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        if (names[i].inode && strcmp(names[i].text, text) == 0) {
            return &names[i];
        }
    }
    return NULL;
}

static inline struct disk_name *disk_free_name(struct disk_name *names)
{
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        if (!names[i].inode) {
            return &names[i];
        }
    }
    abort();
}

static inline uint64_t disk_used(const struct gk_disk *disk)
{
    uint64_t used = 0;

    for (int i = 0; i < DISK_FILES_MAX; i++) {
        used += disk->names[i].inode ? disk->names[i].inode->now_size : 0;
    }
    return used;
}

static inline enum gk_err disk_fault(struct gk_disk *disk, int *ret_errno)
{
    *ret_errno = disk->fault == DISK_FULL ? ENOSPC : EIO;
    return disk->fault == DISK_FULL ? GK_E_LIMIT : GK_E_IO;
}

/* True: the call does not take effect, and *ret_err says what it gives. */
static inline bool disk_counts(struct gk_disk *disk, enum disk_call call, enum gk_err *ret_err,
                               int *ret_errno)
{
    uint64_t count = call == DISK_READ ? ++disk->reads : ++disk->changes;

    *ret_errno = EIO;
    *ret_err = GK_E_IO;
    if (call == DISK_SYNC) {
        disk->syncs++;
    }
    if (call == DISK_WRITE) {
        disk->writes++;
    }
    if (call != DISK_READ && disk->freeze_at > 0 && count >= disk->freeze_at) {
        disk->frozen = true;
    }
    if (disk->frozen) {
        return true;
    }
    if (disk->fail_at == 0 || (disk->fail_call == DISK_READ) != (call == DISK_READ) ||
        (disk->fail_call == DISK_SYNC && (call != DISK_SYNC || disk->syncs != disk->fail_at)) ||
        (disk->fail_call == DISK_WRITE && (call != DISK_WRITE || disk->writes != disk->fail_at)) ||
        (disk->fail_call == DISK_READ && count != disk->fail_at) ||
        (disk->fail_call == DISK_ANY_CHANGE && count != disk->fail_at)) {
        return false;
    }
    *ret_err = disk_fault(disk, ret_errno);
    return true;
}

/* What is written is to be synced again. */
static inline void disk_touch(struct disk_inode *inode, uint64_t lo, uint64_t hi)
{
    for (uint64_t i = lo / DISK_SECTOR; lo < hi && i <= (hi - 1) / DISK_SECTOR; i++) {
        if (i < inode->lost_count) {
            inode->lost[i] = false;
        }
    }
}

/* As Linux does: the pages count as written. */
static inline void disk_lose(struct disk_inode *inode)
{
    uint64_t count = (inode->now_size + DISK_SECTOR - 1) / DISK_SECTOR;

    inode->lost = realloc(inode->lost, count + 1);
    memset(inode->lost, 0, count + 1);
    inode->lost_count = count;
    for (uint64_t at = 0; at < inode->now_size; at++) {
        if (at >= inode->safe_size || inode->now[at] != inode->safe[at]) {
            inode->lost[at / DISK_SECTOR] = true;
        }
    }
}

static inline void disk_resize(struct disk_inode *inode, uint64_t size)
{
    disk_touch(inode, size, inode->now_size);
    inode->now = realloc(inode->now, size + 1);
    if (size > inode->now_size) {
        memset(inode->now + inode->now_size, 0, size - inode->now_size);
    }
    inode->now_size = size;
}

/* The process goes away; the disk stays with the test. */
static inline void disk_op_close(struct gk_disk *disk)
{
    if (disk && disk->holds_lock) {
        *disk->locked = false;
        disk->holds_lock = false;
    }
}

static inline enum gk_err disk_op_lock(struct gk_disk *disk, const char *path, int *ret_errno)
{
    (void)path;
    *ret_errno = EAGAIN;
    if (*disk->locked) {
        return GK_E_BUSY;
    }
    *disk->locked = true;
    disk->holds_lock = true;
    return GK_OK;
}

static inline enum gk_err disk_op_list(struct gk_disk *disk,
                                       bool (*each)(void *context, const char *name), void *context,
                                       int *ret_errno)
{
    (void)ret_errno;
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        if (disk->names[i].inode && !each(context, disk->names[i].text)) {
            break;
        }
    }
    return GK_OK;
}

static inline enum gk_err disk_op_open(struct gk_disk *disk, const char *path, bool create,
                                       bool writable, struct gk_file **ret_file, int *ret_errno)
{
    struct disk_name *name = disk_find(disk->names, path);
    struct gk_file *file;
    enum gk_err err;

    (void)writable;
    if (!name) {
        *ret_errno = ENOENT;
        if (!create) {
            return GK_E_NOTFOUND;
        }
        if (disk_counts(disk, DISK_ANY_CHANGE, &err, ret_errno)) {
            return err;
        }
        name = disk_free_name(disk->names);
        strncpy(name->text, path, DISK_NAME_BYTES - 1);
        name->inode = calloc(1, sizeof(*name->inode));
        name->inode->links = 1;
    }
    file = calloc(1, sizeof(*file));
    file->disk = disk;
    file->inode = name->inode;
    file->inode->links++;
    *ret_file = file;
    return GK_OK;
}

static inline void disk_op_close_file(struct gk_file *file)
{
    if (file) {
        disk_unlink_inode(file->inode);
        free(file);
    }
}

static inline enum gk_err disk_op_size(struct gk_file *file, uint64_t *ret_size, int *ret_errno)
{
    (void)ret_errno;
    *ret_size = file->inode->now_size;
    return GK_OK;
}

static inline enum gk_err disk_op_read(struct gk_file *file, uint64_t offset, void *target,
                                       size_t size, int *ret_errno)
{
    enum gk_err err;

    if (disk_counts(file->disk, DISK_READ, &err, ret_errno)) {
        return err;
    }
    if (offset > file->inode->now_size || size > file->inode->now_size - offset) {
        *ret_errno = 0;
        return GK_E_CORRUPT;
    }
    memcpy(target, file->inode->now + offset, size);
    return GK_OK;
}

static inline void disk_copy_in(struct gk_file *file, uint64_t offset,
                                const struct gk_piece_of_file *pieces, uint32_t count,
                                uint64_t most)
{
    for (uint32_t i = 0; i < count && most > 0; i++) {
        uint64_t size = gk_min_u64(pieces[i].size, most);

        if (offset + size > file->inode->now_size) {
            disk_resize(file->inode, offset + size);
        }
        memcpy(file->inode->now + offset, pieces[i].data, size);
        disk_touch(file->inode, offset, offset + size);
        offset += size;
        most -= size;
    }
}

/* A write that fails, or during which the process dies, has written a part. */
static inline enum gk_err disk_op_write(struct gk_file *file, uint64_t offset,
                                        const struct gk_piece_of_file *pieces,
                                        uint32_t pieces_count, int *ret_errno)
{
    struct gk_disk *disk = file->disk;
    bool was_frozen = disk->frozen;
    uint64_t size = 0, more;
    enum gk_err err;

    for (uint32_t i = 0; i < pieces_count; i++) {
        size += pieces[i].size;
    }
    if (disk_counts(disk, DISK_WRITE, &err, ret_errno)) {
        if (!was_frozen) {
            disk_copy_in(file, offset, pieces, pieces_count, gk_mix64(++disk->draws) % (size + 1));
        }
        return err;
    }
    more = offset + size > file->inode->now_size ? offset + size - file->inode->now_size : 0;
    if (disk->room > 0 && more > 0 && disk_used(disk) + more > disk->room) {
        *ret_errno = ENOSPC;
        return GK_E_LIMIT;
    }
    disk_copy_in(file, offset, pieces, pieces_count, UINT64_MAX);
    return GK_OK;
}

static inline enum gk_err disk_op_reserve(struct gk_file *file, uint64_t size, int *ret_errno)
{
    struct gk_disk *disk = file->disk;
    enum gk_err err;

    if (disk_counts(disk, DISK_ANY_CHANGE, &err, ret_errno)) {
        return err;
    }
    if (size > file->inode->now_size) {
        if (disk->room > 0 && disk_used(disk) + size - file->inode->now_size > disk->room) {
            *ret_errno = ENOSPC;
            return GK_E_LIMIT;
        }
        disk_resize(file->inode, size);
    }
    return GK_OK;
}

static inline enum gk_err disk_op_cut(struct gk_file *file, uint64_t size, int *ret_errno)
{
    enum gk_err err;

    if (disk_counts(file->disk, DISK_ANY_CHANGE, &err, ret_errno)) {
        return err;
    }
    disk_resize(file->inode, size);
    return GK_OK;
}

static inline enum gk_err disk_op_sync(struct gk_file *file, int *ret_errno)
{
    struct disk_inode *inode = file->inode;
    enum gk_err err;

    if (disk_counts(file->disk, DISK_SYNC, &err, ret_errno)) {
        if (!file->disk->frozen && err == GK_E_IO) {
            disk_lose(inode);
        }
        return err;
    }
    inode->safe = realloc(inode->safe, inode->now_size + 1);
    if (inode->now_size > inode->safe_size) {
        memset(inode->safe + inode->safe_size, 0, inode->now_size - inode->safe_size);
    }
    for (uint64_t at = 0; at < inode->now_size; at++) {
        if (at / DISK_SECTOR >= inode->lost_count || !inode->lost[at / DISK_SECTOR]) {
            inode->safe[at] = inode->now[at];
        }
    }
    inode->safe_size = inode->now_size;
    inode->once_synced = true;
    return GK_OK;
}

static inline enum gk_err disk_op_sync_directory(struct gk_disk *disk, int *ret_errno)
{
    enum gk_err err;

    if (disk_counts(disk, DISK_SYNC, &err, ret_errno)) {
        return err;
    }
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        disk_unlink_inode(disk->safe_names[i].inode);
        disk->safe_names[i] = disk->names[i];
        if (disk->safe_names[i].inode) {
            disk->safe_names[i].inode->links++;
        }
    }
    return GK_OK;
}

static inline enum gk_err disk_op_remove(struct gk_disk *disk, const char *path, int *ret_errno)
{
    struct disk_name *name = disk_find(disk->names, path);
    enum gk_err err;

    *ret_errno = ENOENT;
    if (!name) {
        return GK_E_NOTFOUND;
    }
    if (disk_counts(disk, DISK_ANY_CHANGE, &err, ret_errno)) {
        return err;
    }
    disk_unlink_inode(name->inode);
    name->inode = NULL;
    return GK_OK;
}

static inline enum gk_err disk_op_rename(struct gk_disk *disk, const char *from, const char *to,
                                         int *ret_errno)
{
    struct disk_name *name = disk_find(disk->names, from);
    struct disk_name *old = disk_find(disk->names, to);
    enum gk_err err;

    *ret_errno = ENOENT;
    if (!name) {
        return GK_E_NOTFOUND;
    }
    if (disk_counts(disk, DISK_ANY_CHANGE, &err, ret_errno)) {
        return err;
    }
    if (old) {
        disk_unlink_inode(old->inode);
        old->inode = NULL;
    }
    memset(name->text, 0, sizeof(name->text));
    strncpy(name->text, to, DISK_NAME_BYTES - 1);
    return GK_OK;
}

static const struct gk_disk_ops disk_ops = {
    .close = disk_op_close,
    .lock = disk_op_lock,
    .list = disk_op_list,
    .open = disk_op_open,
    .close_file = disk_op_close_file,
    .size = disk_op_size,
    .read = disk_op_read,
    .write = disk_op_write,
    .reserve = disk_op_reserve,
    .cut = disk_op_cut,
    .sync = disk_op_sync,
    .sync_directory = disk_op_sync_directory,
    .rename = disk_op_rename,
    .remove = disk_op_remove,
};

static inline bool disk_toss(struct gk_disk *copy)
{
    return gk_mix64(++copy->draws) % 2 == 0;
}

/* What is left of one file. */
static inline struct disk_inode *disk_left(struct gk_disk *copy, const struct disk_inode *inode,
                                           enum disk_loss loss)
{
    struct disk_inode *left = calloc(1, sizeof(*left));
    bool now = loss == DISK_KILLED || (loss == DISK_POWER_MIX && disk_toss(copy));
    uint64_t size = now ? inode->now_size : inode->safe_size;

    left->links = 1;
    disk_resize(left, size);
    for (uint64_t at = 0; at < size; at += DISK_SECTOR) {
        uint64_t bytes = gk_min_u64(DISK_SECTOR, size - at);
        bool take_now = loss == DISK_KILLED || (loss == DISK_POWER_MIX && disk_toss(copy));
        const uint8_t *source = take_now ? inode->now : inode->safe;
        uint64_t there = take_now ? inode->now_size : inode->safe_size;

        if (at < there) {
            memcpy(left->now + at, source + at, gk_min_u64(bytes, there - at));
        }
    }
    left->safe = malloc(size + 1);
    memcpy(left->safe, left->now, size);
    left->safe_size = size;
    return left;
}

static inline void disk_keep_name(struct gk_disk *copy, const char text[DISK_NAME_BYTES],
                                  const struct disk_inode *inode, enum disk_loss loss)
{
    struct disk_name *name = disk_find(copy->names, text);

    if (name) { /* of both views: the later one wins */
        disk_unlink_inode(name->inode);
    } else {
        name = disk_free_name(copy->names);
    }
    memcpy(name->text, text, DISK_NAME_BYTES);
    name->inode = disk_left(copy, inode, loss);
}

/* The process is dead and the machine is not: all that was written is there for the next one, and
 * what was not synced may still be lost. */
static inline void disk_thaw(struct gk_disk *disk)
{
    disk->frozen = false;
    disk->freeze_at = 0;
    disk->fail_at = 0;
}

/* A new disk: what a process that died now, or a machine that lost power now, leaves. */
static inline struct gk_disk *disk_crash(const struct gk_disk *disk, enum disk_loss loss,
                                         uint64_t seed)
{
    struct gk_disk *copy = disk_new();
    /* Names are journalled in order: all of them, or those of the last directory sync. */
    bool now = loss == DISK_KILLED || (loss == DISK_POWER_MIX && gk_mix64(seed) % 2 == 0);
    const struct disk_name *names = now ? disk->names : disk->safe_names;

    copy->draws = seed * 1000000;
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        if (names[i].inode) {
            disk_keep_name(copy, names[i].text, names[i].inode, loss);
        }
    }
    for (int i = 0; i < DISK_FILES_MAX; i++) {
        copy->safe_names[i] = copy->names[i];
        if (copy->names[i].inode) {
            copy->names[i].inode->links++;
        }
    }
    copy->room = disk->room;
    return copy;
}

#endif
