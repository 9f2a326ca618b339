/* The store's own state, private to server/store. */
#ifndef GK_SERVER_STORE_INTERNAL_H
#define GK_SERVER_STORE_INTERNAL_H

#include "server/core/snapshot.h"
#include "server/store/replay.h"
#include "server/store/segment.h"
#include "server/store/snapfile.h"
#include "server/store/store.h"

#include <pthread.h>

enum { GK_STORE_SYNCS = 64 };

struct gk_store_shared { /* of both threads, under the lock */
    pthread_mutex_t lock;
    struct gk_known_list segments; /* the last one is written to */
    struct gk_known_list snapshots;
    uint64_t version;   /* that was written */
    uint64_t numbers;   /* records ever written */
    uint64_t log_bytes; /* of all segments */
    uint64_t folds;
    bool log_full;            /* an append was refused: a fold may help */
    uint64_t fold_not_before; /* version, after a fold that failed */
    uint64_t syncs;
    uint64_t sync_us[GK_STORE_SYNCS];
};

struct gk_store {
    struct gk_place place;
    char job[GK_JOB_NAME_BYTES];
    uint32_t shard, servers, workers;
    enum gk_sync_policy sync;
    uint64_t fold_every, log_bytes_max, keep_versions;
    uint32_t block_floats;
    uint64_t batch_bytes;
    const struct gk_vector_ops *ops;
    struct gk_store_shared *shared;

    struct gk_image *recovered;

    /* Log thread. */
    struct gk_queue *queue;
    struct gk_image *image; /* what the log says */
    struct gk_segment segment;
    uint64_t number; /* of the next record */
    uint64_t durable_version;
    uint8_t *scratch;
    bool failed; /* the disk failed: no call succeeds any more */
    struct gk_words why_failed;

    struct gk_queue *fold_queue; /* fold thread */
};

/* append.c: write a record that follows; `sync` beyond what the policy asks for. */
enum gk_err gk_store_write(struct gk_store *store, const struct gk_record *record, bool sync,
                           struct gk_words *words);
enum gk_err gk_store_new_segment(struct gk_store *store, struct gk_words *words);

/* job.c: does a file that is whole belong to this shard; the same of the directory, which becomes
 * ours when it is new.  GK_E_REFUSED. */
enum gk_err gk_store_check_owner(const struct gk_store *store, const char *name,
                                 const struct gk_wal_segment *owner, struct gk_words *words);
enum gk_err gk_store_check_job(struct gk_store *store, struct gk_words *words);

/* recover.c: all but the new life. */
enum gk_err gk_store_recover(struct gk_store *store, const struct gk_store_setup *setup,
                             struct gk_recovered *recovered, struct gk_words *words);

#endif
