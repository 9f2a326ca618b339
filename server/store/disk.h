/* The few file operations that durable state needs, as a table: the daemons use the system's, the
 * simulator its own disk that tears writes and forgets what was not synced.
 *
 * Paths are relative to the directory that the disk was opened on.  All calls block.  Words are
 * given by the caller, who knows what the file is; these functions give the error and errno's
 * number in *ret_errno.  One thread at a time per file; different files may be used from different
 * threads. */
#ifndef GK_SERVER_STORE_DISK_H
#define GK_SERVER_STORE_DISK_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gk_disk; /* an open directory */
struct gk_file;

struct gk_piece_of_file { /* one part of a gathered write */
    const void *data;
    size_t size;
};

/* Every function gives GK_OK or an error: GK_E_NOTFOUND (ENOENT), GK_E_LIMIT (ENOSPC, EDQUOT: room
 * may come back), GK_E_BUSY (locked by a living process), GK_E_IO (all else). */
struct gk_disk_ops {
    void (*close)(struct gk_disk *disk); /* and the lock; accepts NULL */
    /* A lock that dies with the process. */
    enum gk_err (*lock)(struct gk_disk *disk, const char *path, int *ret_errno);
    /* Calls `each` for every name in the directory, in no order; stops when it returns false. */
    enum gk_err (*list)(struct gk_disk *disk, bool (*each)(void *context, const char *name),
                        void *context, int *ret_errno);
    enum gk_err (*open)(struct gk_disk *disk, const char *path, bool create, bool writable,
                        struct gk_file **ret_file, int *ret_errno);
    void (*close_file)(struct gk_file *file); /* accepts NULL */
    enum gk_err (*size)(struct gk_file *file, uint64_t *ret_size, int *ret_errno);
    /* Exactly `size` bytes; fewer in the file: GK_E_CORRUPT. */
    enum gk_err (*read)(struct gk_file *file, uint64_t offset, void *target, size_t size,
                        int *ret_errno);
    /* All pieces one behind the other, or an error; then some of it may have been written. */
    enum gk_err (*write)(struct gk_file *file, uint64_t offset,
                         const struct gk_piece_of_file *pieces, uint32_t pieces_count,
                         int *ret_errno);
    /* Room up to `size`, as zeros behind the end. */
    enum gk_err (*reserve)(struct gk_file *file, uint64_t size, int *ret_errno);
    enum gk_err (*cut)(struct gk_file *file, uint64_t size, int *ret_errno);
    enum gk_err (*sync)(struct gk_file *file, int *ret_errno);
    enum gk_err (*sync_directory)(struct gk_disk *disk, int *ret_errno);
    enum gk_err (*rename)(struct gk_disk *disk, const char *from, const char *to, int *ret_errno);
    enum gk_err (*remove)(struct gk_disk *disk, const char *path, int *ret_errno);
};

/* The system's files.  Opens the directory `path`, made if it is not there (its parent must be);
 * GK_E_NOTFOUND, GK_E_IO. */
const struct gk_disk_ops *gk_disk_system(void);
enum gk_err gk_disk_open(const char *path, bool create, struct gk_disk **ret_disk, int *ret_errno);

#endif
