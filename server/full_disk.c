#include "server/full_disk.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct gk_disk {
    const struct gk_disk_ops *ops;
    struct gk_disk *inner;
    atomic_bool full;
};

struct gk_file {
    struct gk_disk *disk;
    struct gk_file *inner;
};

static enum gk_err no_room(int *ret_errno)
{
    *ret_errno = ENOSPC;
    return GK_E_LIMIT;
}

static void close_disk(struct gk_disk *disk)
{
    if (disk) {
        disk->ops->close(disk->inner);
        free(disk);
    }
}

static enum gk_err lock(struct gk_disk *disk, const char *path, int *ret_errno)
{
    return disk->ops->lock(disk->inner, path, ret_errno);
}

static enum gk_err list(struct gk_disk *disk, bool (*each)(void *context, const char *name),
                        void *context, int *ret_errno)
{
    return disk->ops->list(disk->inner, each, context, ret_errno);
}

static enum gk_err open_file(struct gk_disk *disk, const char *path, bool create, bool writable,
                             struct gk_file **ret_file, int *ret_errno)
{
    struct gk_file *file = calloc(1, sizeof(*file));
    enum gk_err err;

    if (!file) {
        *ret_errno = ENOMEM;
        return GK_E_IO;
    }
    file->disk = disk;
    err = disk->ops->open(disk->inner, path, create, writable, &file->inner, ret_errno);
    if (err) {
        free(file);
        return err;
    }
    *ret_file = file;
    return GK_OK;
}

static void close_file(struct gk_file *file)
{
    if (file) {
        file->disk->ops->close_file(file->inner);
        free(file);
    }
}

static enum gk_err size(struct gk_file *file, uint64_t *ret_size, int *ret_errno)
{
    return file->disk->ops->size(file->inner, ret_size, ret_errno);
}

static enum gk_err read_file(struct gk_file *file, uint64_t offset, void *target, size_t bytes,
                             int *ret_errno)
{
    return file->disk->ops->read(file->inner, offset, target, bytes, ret_errno);
}

static enum gk_err write_file(struct gk_file *file, uint64_t offset,
                              const struct gk_piece_of_file *pieces, uint32_t pieces_count,
                              int *ret_errno)
{
    const struct gk_disk_ops *ops = file->disk->ops;
    struct gk_piece_of_file half;

    if (!atomic_load(&file->disk->full)) {
        return ops->write(file->inner, offset, pieces, pieces_count, ret_errno);
    }
    if (pieces_count > 0) {
        half = pieces[0];
        half.size /= 2;
        (void)ops->write(file->inner, offset, &half, 1, ret_errno); /* fails either way */
    }
    return no_room(ret_errno);
}

static enum gk_err reserve(struct gk_file *file, uint64_t bytes, int *ret_errno)
{
    return atomic_load(&file->disk->full) ? no_room(ret_errno)
                                          : file->disk->ops->reserve(file->inner, bytes, ret_errno);
}

static enum gk_err cut(struct gk_file *file, uint64_t bytes, int *ret_errno)
{
    return file->disk->ops->cut(file->inner, bytes, ret_errno);
}

static enum gk_err sync_file(struct gk_file *file, int *ret_errno)
{
    return file->disk->ops->sync(file->inner, ret_errno);
}

static enum gk_err sync_directory(struct gk_disk *disk, int *ret_errno)
{
    return disk->ops->sync_directory(disk->inner, ret_errno);
}

static enum gk_err rename_file(struct gk_disk *disk, const char *from, const char *to,
                               int *ret_errno)
{
    return disk->ops->rename(disk->inner, from, to, ret_errno);
}

static enum gk_err remove_file(struct gk_disk *disk, const char *path, int *ret_errno)
{
    return disk->ops->remove(disk->inner, path, ret_errno);
}

const struct gk_disk_ops *gk_full_disk_ops(void)
{
    static const struct gk_disk_ops ops = {
        .close = close_disk,
        .lock = lock,
        .list = list,
        .open = open_file,
        .close_file = close_file,
        .size = size,
        .read = read_file,
        .write = write_file,
        .reserve = reserve,
        .cut = cut,
        .sync = sync_file,
        .sync_directory = sync_directory,
        .rename = rename_file,
        .remove = remove_file,
    };

    return &ops;
}

struct gk_disk *gk_full_disk_new(const struct gk_disk_ops *ops, struct gk_disk *inner)
{
    struct gk_disk *disk = calloc(1, sizeof(*disk));

    if (!disk) {
        ops->close(inner);
        return NULL;
    }
    disk->ops = ops;
    disk->inner = inner;
    atomic_init(&disk->full, false);
    return disk;
}

void gk_full_disk_set(struct gk_disk *disk, bool full)
{
    atomic_store(&disk->full, full);
}
