/* The disk in memory for programs with threads: one call at a time, and at some of them a test can
 * hold the thread that makes it, and let it go on. */
#ifndef GK_TESTS_UNIT_STORE_HELD_H
#define GK_TESTS_UNIT_STORE_HELD_H

#include "store_disk.h"

#include <pthread.h>

enum gate {             /* who is held */
            GATE_OPEN,  /* nobody */
            GATE_WRITE, /* whoever writes next */
            GATE_FOLD   /* whoever begins a snapshot */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum gate gate;
    bool reached;
    struct gk_file *fold;  /* the snapshot in the making */
    enum gk_err fold_room; /* what it gets for asking for room */
} held = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static inline void lock_at(enum gate gate)
{
    (void)pthread_mutex_lock(&held.lock);
    while (gate != GATE_OPEN && held.gate == gate) {
        held.reached = true;
        (void)pthread_cond_broadcast(&held.changed);
        (void)pthread_cond_wait(&held.changed, &held.lock);
    }
}

static inline enum gk_err unlock(enum gk_err err)
{
    (void)pthread_mutex_unlock(&held.lock);
    return err;
}

static inline void gate_set(enum gate gate)
{
    lock_at(GATE_OPEN);
    held.gate = gate;
    held.reached = false;
    (void)pthread_cond_broadcast(&held.changed);
    (void)unlock(GK_OK);
}

static inline void gate_wait(void)
{
    lock_at(GATE_OPEN);
    while (!held.reached) {
        (void)pthread_cond_wait(&held.changed, &held.lock);
    }
    (void)unlock(GK_OK);
}

static inline void op_close(struct gk_disk *disk)
{
    lock_at(GATE_OPEN);
    disk_op_close(disk);
    (void)unlock(GK_OK);
}

static inline enum gk_err op_lock(struct gk_disk *disk, const char *path, int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_lock(disk, path, ret_errno));
}

static inline enum gk_err op_list(struct gk_disk *disk,
                                  bool (*each)(void *context, const char *name), void *context,
                                  int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_list(disk, each, context, ret_errno));
}

static inline enum gk_err op_open(struct gk_disk *disk, const char *path, bool create,
                                  bool writable, struct gk_file **ret_file, int *ret_errno)
{
    bool fold = strcmp(path, "fold.tmp") == 0;
    enum gk_err err;

    lock_at(fold ? GATE_FOLD : GATE_OPEN);
    err = disk_op_open(disk, path, create, writable, ret_file, ret_errno);
    held.fold = fold && !err ? *ret_file : held.fold;
    return unlock(err);
}

static inline void op_close_file(struct gk_file *file)
{
    lock_at(GATE_OPEN);
    held.fold = held.fold == file ? NULL : held.fold; /* its place may be that of another one */
    disk_op_close_file(file);
    (void)unlock(GK_OK);
}

static inline enum gk_err op_size(struct gk_file *file, uint64_t *ret_size, int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_size(file, ret_size, ret_errno));
}

static inline enum gk_err op_read(struct gk_file *file, uint64_t offset, void *target, size_t size,
                                  int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_read(file, offset, target, size, ret_errno));
}

static inline enum gk_err op_write(struct gk_file *file, uint64_t offset,
                                   const struct gk_piece_of_file *pieces, uint32_t pieces_count,
                                   int *ret_errno)
{
    lock_at(GATE_WRITE);
    return unlock(disk_op_write(file, offset, pieces, pieces_count, ret_errno));
}

static inline enum gk_err op_reserve(struct gk_file *file, uint64_t size, int *ret_errno)
{
    lock_at(GATE_OPEN);
    if (file == held.fold && held.fold_room) {
        *ret_errno = held.fold_room == GK_E_LIMIT ? ENOSPC : EIO;
        return unlock(held.fold_room);
    }
    return unlock(disk_op_reserve(file, size, ret_errno));
}

static inline enum gk_err op_cut(struct gk_file *file, uint64_t size, int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_cut(file, size, ret_errno));
}

static inline enum gk_err op_sync(struct gk_file *file, int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_sync(file, ret_errno));
}

static inline enum gk_err op_sync_directory(struct gk_disk *disk, int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_sync_directory(disk, ret_errno));
}

static inline enum gk_err op_rename(struct gk_disk *disk, const char *from, const char *to,
                                    int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_rename(disk, from, to, ret_errno));
}

static inline enum gk_err op_remove(struct gk_disk *disk, const char *path, int *ret_errno)
{
    lock_at(GATE_OPEN);
    return unlock(disk_op_remove(disk, path, ret_errno));
}

static const struct gk_disk_ops held_ops = {
    .close = op_close,
    .lock = op_lock,
    .list = op_list,
    .open = op_open,
    .close_file = op_close_file,
    .size = op_size,
    .read = op_read,
    .write = op_write,
    .reserve = op_reserve,
    .cut = op_cut,
    .sync = op_sync,
    .sync_directory = op_sync_directory,
    .rename = op_rename,
    .remove = op_remove,
};

#endif
