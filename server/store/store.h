/* The state directory of one shard: log, snapshots, lock (docs/state.md has the formats).
 *
 *   LOCK                          held by the living process
 *   JOB                           which shard of which job this is; written once
 *   wal-<epoch>-<version>.log     records behind that version
 *   snap-<epoch>-<version>        image and planes at that version
 *
 * A record is durable before anybody may see what it says; what a crash leaves is the last durable
 * record or a later one.  A snapshot is the fold of an older one and the log behind it, and a
 * restart is the same fold into memory.
 *
 * Threads: gk_store_open() and gk_store_close() on any one thread.  In between gk_store_append()
 * and gk_store_sync() on one thread (the log thread) and gk_store_fold() on another (the fold
 * thread); the store locks what they share. */
#ifndef GK_SERVER_STORE_STORE_H
#define GK_SERVER_STORE_STORE_H

#include "common/backend.h"
#include "server/core/image.h"
#include "server/core/server.h"
#include "server/store/disk.h"

enum gk_sync_policy {                   /* positions in the choices of the option "sync" */
                      GK_SYNC_ALWAYS,   /* every record is synced before it is confirmed */
                      GK_SYNC_INTERVAL, /* ROUND records are synced in the background, MEMBER and
                                           INIT as with ALWAYS */
                      GK_SYNC_NEVER,    /* ROUND records not by us: they are safe against kill -9
                                           only; the others as with ALWAYS */
};

struct gk_store_setup { /* borrowed during gk_store_open() only, but for disk, ops and queues */
    const struct gk_disk_ops *disk_ops;
    struct gk_disk *disk;  /* taken, also on failure */
    const char *directory; /* for words */
    const char *job;
    uint32_t shard, servers, workers;
    enum gk_sync_policy sync;
    uint64_t fold_every;    /* versions behind the snapshot that trigger a fold; 0: never */
    uint64_t log_bytes_max; /* of all segments, 0: no limit; a quarter of it ends a segment */
    uint64_t keep_versions; /* how far back a rewind must be possible */
    uint32_t block_floats;  /* of a snapshot, 0: GK_SNAPSHOT_BLOCK_FLOATS; smaller in tests */
    uint64_t batch_bytes;   /* of records that are replayed at once, 0: 128 MiB */
    const struct gk_vector_ops *ops;
    /* Allocates what a shard of this size needs (also the planes' memory of the running core);
     * called once at most, and what it gave stays the caller's when the open fails.  GK_E_NOMEM and
     * words. */
    enum gk_err (*allocate)(void *context, const struct gk_image *image,
                            struct gk_server_memory *ret_memory, struct gk_words *words);
    void *context;
};

struct gk_store;

struct gk_recovered {       /* what the directory held */
    struct gk_image *image; /* owned by the store until close; incarnation is the former life's */
    struct gk_server_memory memory; /* planes at image->version; all NULL when not initialised */
    uint64_t records;               /* that were replayed behind the snapshot */
    uint64_t cut_bytes;             /* of a torn tail */
    struct gk_words cut;            /* file, offset and why, also of a damaged snapshot that an
                                       older one replaced; empty: nothing was cut */
};

/* Lock the directory, recover, sync files and directory, and write down the new life
 * (image->incarnation + 1) durably.
 *
 * GK_E_BUSY: another process has it.  GK_E_REFUSED: it belongs to another job, shard, or count of
 * servers or workers.  GK_E_CORRUPT: a record before the tail, a snapshot or a hash is damaged:
 * file and offset.  GK_E_LIMIT: no room.  GK_E_IO, GK_E_NOMEM.  Words are one line for the
 * operator. */
enum gk_err gk_store_open(const struct gk_store_setup *setup, struct gk_store **ret_store,
                          struct gk_recovered *ret_recovered, struct gk_words *words);

/* Accepts NULL.  Nothing is synced that was not. */
void gk_store_close(struct gk_store *store);

/* Write one record and, when the policy says so, sync it.  INIT becomes a snapshot of version 0 and
 * a new log.  On return *ret_durable_version is the version up to which the log is safe.
 *
 * GK_E_LIMIT: the disk is full; nothing of the record counts, the same call may be made again.
 * GK_E_IO: the disk failed; the log was cut back to what is known to be safe if that was possible,
 * and the process must exit: pages whose sync failed are never trusted again. */
enum gk_err gk_store_append(struct gk_store *store, const struct gk_record *record,
                            uint64_t *ret_durable_version, struct gk_words *words);

/* INTERVAL: sync what was written since; as gk_store_append(). */
enum gk_err gk_store_sync(struct gk_store *store, uint64_t *ret_durable_version,
                          struct gk_words *words);

/* True when a fold should begin: looked at after each append, on any thread. */
bool gk_store_fold_due(const struct gk_store *store);

/* Write the next snapshot, check its hash against the one in the log, and remove what lies behind
 * the last two snapshots and keep_versions (or behind this one alone, when the log would else keep
 * more than half of its bytes).  *ret_version is that of the newest snapshot, also when there was
 * nothing to fold.  GK_E_LIMIT: no room now, the old snapshot stays and the fold is due again
 * later.  GK_E_CORRUPT: file, offset; the hashes differ.  GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_store_fold(struct gk_store *store, uint64_t *ret_version, struct gk_words *words);

struct gk_store_stats { /* for STATUS */
    uint64_t snapshot_version, log_first_version;
    uint64_t log_bytes, records, folds;
    uint64_t sync_us_last, sync_us_median; /* over the last 64 syncs; 0: none yet */
};

void gk_store_stats(const struct gk_store *store, struct gk_store_stats *ret); /* any thread */

#endif
