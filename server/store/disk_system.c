/* The system's files behind the table of disk.h.
 *
 * Nothing but regular files is opened and no link is followed: the directory may be shared, and a
 * fifo would block for ever.  Short reads and writes go on, interrupted calls are made again. */
#include "server/store/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct gk_disk {
    int directory;
    int lock; /* -1: none */
};

struct gk_file {
    int fd;
};

enum { PIECES_MAX = 16 };

static enum gk_err failed(int number, int *ret_errno)
{
    *ret_errno = number;
    switch (number) {
    case ENOENT:
        return GK_E_NOTFOUND;
    case ENOSPC:
    case EDQUOT:
        return GK_E_LIMIT;
    case EWOULDBLOCK:
        return GK_E_BUSY;
    default:
        return GK_E_IO;
    }
}

static void disk_close(struct gk_disk *disk)
{
    if (disk) {
        if (disk->lock >= 0) {
            (void)close(disk->lock); /* nothing was written to it */
        }
        (void)close(disk->directory);
        free(disk);
    }
}

static enum gk_err disk_lock(struct gk_disk *disk, const char *path, int *ret_errno)
{
    int fd = openat(disk->directory, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    int result;

    if (fd < 0) {
        return failed(errno, ret_errno);
    }
    do {
        result = flock(fd, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        enum gk_err err = failed(errno, ret_errno);

        (void)close(fd);
        return err;
    }
    disk->lock = fd;
    return GK_OK;
}

static enum gk_err disk_list(struct gk_disk *disk, bool (*each)(void *context, const char *name),
                             void *context, int *ret_errno)
{
    int fd = openat(disk->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    int number;

    if (!directory) {
        number = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return failed(number, ret_errno);
    }
    do {
        errno = 0;
        entry = readdir(directory);
        number = errno;
    } while (entry && each(context, entry->d_name));
    (void)closedir(directory);
    return !entry && number != 0 ? failed(number, ret_errno) : GK_OK;
}

static enum gk_err disk_open(struct gk_disk *disk, const char *path, bool create, bool writable,
                             struct gk_file **ret_file, int *ret_errno)
{
    int flags = (writable ? O_RDWR : O_RDONLY) | (create ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC |
                O_NONBLOCK;
    int fd = openat(disk->directory, path, flags, 0600);
    struct gk_file *file;
    struct stat stat;

    if (fd < 0) {
        return failed(errno, ret_errno);
    }
    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        (void)close(fd);
        return failed(EINVAL, ret_errno);
    }
    file = malloc(sizeof(*file));
    if (!file) {
        (void)close(fd);
        return failed(ENOMEM, ret_errno);
    }
    file->fd = fd;
    *ret_file = file;
    return GK_OK;
}

static void disk_close_file(struct gk_file *file)
{
    if (file) {
        (void)close(file->fd); /* whoever needs to know syncs first */
        free(file);
    }
}

static enum gk_err disk_size(struct gk_file *file, uint64_t *ret_size, int *ret_errno)
{
    struct stat stat;

    if (fstat(file->fd, &stat) != 0) {
        return failed(errno, ret_errno);
    }
    *ret_size = (uint64_t)stat.st_size;
    return GK_OK;
}

static enum gk_err disk_read(struct gk_file *file, uint64_t offset, void *target, size_t size,
                             int *ret_errno)
{
    uint8_t *at = target;

    while (size > 0) {
        ssize_t got = pread(file->fd, at, size, (off_t)offset);

        if (got < 0 && errno != EINTR) {
            return failed(errno, ret_errno);
        }
        if (got == 0) {
            *ret_errno = 0;
            return GK_E_CORRUPT;
        }
        if (got > 0) {
            at += got;
            offset += (uint64_t)got;
            size -= (size_t)got;
        }
    }
    return GK_OK;
}

/* Drop what was written from the front of the list. */
static void advance(struct iovec *list, int *first, int count, size_t written)
{
    while (*first < count && written >= list[*first].iov_len) {
        written -= list[*first].iov_len;
        (*first)++;
    }
    if (*first < count) {
        list[*first].iov_base = (uint8_t *)list[*first].iov_base + written;
        list[*first].iov_len -= written;
    }
}

static enum gk_err disk_write(struct gk_file *file, uint64_t offset,
                              const struct gk_piece_of_file *pieces, uint32_t pieces_count,
                              int *ret_errno)
{
    struct iovec list[PIECES_MAX];
    int count = (int)pieces_count, first = 0;

    if (pieces_count > PIECES_MAX) {
        return failed(EINVAL, ret_errno);
    }
    for (int i = 0; i < count; i++) {
        memcpy(&list[i].iov_base, &pieces[i].data, sizeof(list[i].iov_base)); /* const is kept */
        list[i].iov_len = pieces[i].size;
    }
    advance(list, &first, count, 0);
    while (first < count) {
        ssize_t written = pwritev(file->fd, list + first, count - first, (off_t)offset);

        if (written < 0 && errno != EINTR) {
            return failed(errno, ret_errno);
        }
        if (written == 0) {
            return failed(ENOSPC, ret_errno);
        }
        if (written > 0) {
            offset += (uint64_t)written;
            advance(list, &first, count, (size_t)written);
        }
    }
    return GK_OK;
}

static enum gk_err disk_reserve(struct gk_file *file, uint64_t size, int *ret_errno)
{
    int number;

    do {
        number = posix_fallocate(file->fd, 0, (off_t)size);
    } while (number == EINTR);
    return number == 0 ? GK_OK : failed(number, ret_errno);
}

static enum gk_err disk_cut(struct gk_file *file, uint64_t size, int *ret_errno)
{
    int result;

    do {
        result = ftruncate(file->fd, (off_t)size);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? GK_OK : failed(errno, ret_errno);
}

/* An interrupted sync is not repeated: nobody says what it did to the pages. */
static enum gk_err disk_sync(struct gk_file *file, int *ret_errno)
{
    return fdatasync(file->fd) == 0 ? GK_OK : failed(errno, ret_errno);
}

static enum gk_err disk_sync_directory(struct gk_disk *disk, int *ret_errno)
{
    return fsync(disk->directory) == 0 ? GK_OK : failed(errno, ret_errno);
}

static enum gk_err disk_rename(struct gk_disk *disk, const char *from, const char *to,
                               int *ret_errno)
{
    return renameat(disk->directory, from, disk->directory, to) == 0 ? GK_OK
                                                                     : failed(errno, ret_errno);
}

static enum gk_err disk_remove(struct gk_disk *disk, const char *path, int *ret_errno)
{
    return unlinkat(disk->directory, path, 0) == 0 ? GK_OK : failed(errno, ret_errno);
}

const struct gk_disk_ops *gk_disk_system(void)
{
    static const struct gk_disk_ops ops = {
        .close = disk_close,
        .lock = disk_lock,
        .list = disk_list,
        .open = disk_open,
        .close_file = disk_close_file,
        .size = disk_size,
        .read = disk_read,
        .write = disk_write,
        .reserve = disk_reserve,
        .cut = disk_cut,
        .sync = disk_sync,
        .sync_directory = disk_sync_directory,
        .rename = disk_rename,
        .remove = disk_remove,
    };

    return &ops;
}

enum gk_err gk_disk_open(const char *path, bool create, struct gk_disk **ret_disk, int *ret_errno)
{
    struct gk_disk *disk;
    int fd;

    if (create && mkdir(path, 0700) != 0 && errno != EEXIST) {
        return failed(errno, ret_errno);
    }
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return failed(errno, ret_errno);
    }
    disk = malloc(sizeof(*disk));
    if (!disk) {
        (void)close(fd);
        return failed(ENOMEM, ret_errno);
    }
    *disk = (struct gk_disk){.directory = fd, .lock = -1};
    *ret_disk = disk;
    return GK_OK;
}
