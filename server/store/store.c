#include "server/store/store.h"

#include "common/assert.h"
#include "server/store/internal.h"

#include <stdlib.h>
#include <string.h>

static enum gk_err new_store(const struct gk_store_setup *setup, struct gk_store **ret_store)
{
    struct gk_store *store = calloc(1, sizeof(*store));

    if (!store) {
        setup->disk_ops->close(setup->disk);
        return GK_E_NOMEM;
    }
    GK_ASSERT(strlen(setup->job) < GK_JOB_NAME_BYTES);
    store->place = (struct gk_place){.ops = setup->disk_ops, .disk = setup->disk};
    strncpy(store->place.directory, setup->directory, sizeof(store->place.directory) - 1);
    memcpy(store->job, setup->job, strlen(setup->job));
    store->shard = setup->shard;
    store->servers = setup->servers;
    store->workers = setup->workers;
    store->sync = setup->sync;
    store->fold_every = setup->fold_every;
    store->log_bytes_max = setup->log_bytes_max;
    store->keep_versions = setup->keep_versions;
    store->block_floats = setup->block_floats ? setup->block_floats : GK_SNAPSHOT_BLOCK_FLOATS;
    store->batch_bytes = setup->batch_bytes ? setup->batch_bytes : GK_REPLAY_BATCH_BYTES;
    store->ops = setup->ops;
    store->scratch = malloc(gk_wal_scratch_bytes(setup->workers));
    store->shared = calloc(1, sizeof(*store->shared));
    if (store->shared && pthread_mutex_init(&store->shared->lock, NULL) != 0) {
        free(store->shared);
        store->shared = NULL;
    }
    if (!store->scratch || !store->shared ||
        gk_image_new(setup->shard, setup->servers, setup->workers, &store->image) != GK_OK ||
        gk_image_new(setup->shard, setup->servers, setup->workers, &store->recovered) != GK_OK) {
        gk_store_close(store);
        return GK_E_NOMEM;
    }
    *ret_store = store;
    return GK_OK;
}

void gk_store_close(struct gk_store *store)
{
    if (!store) {
        return;
    }
    gk_segment_close(&store->place, &store->segment);
    store->ops->close(store->queue);
    store->ops->close(store->fold_queue);
    store->place.ops->close(store->place.disk);
    gk_image_free(store->image);
    gk_image_free(store->recovered);
    if (store->shared) {
        (void)pthread_mutex_destroy(&store->shared->lock); /* nobody holds it any more */
    }
    free(store->shared);
    free(store->scratch);
    free(store);
}

static enum gk_err begin_life(struct gk_store *store, struct gk_words *words)
{
    const struct gk_record life = {
        .type = GK_RECORD_LIFE,
        .epoch = store->image->epoch,
        .job_uid = store->image->job_uid,
        .version = store->image->version,
        .incarnation = store->image->incarnation + 1,
    };
    enum gk_err err = gk_image_check(store->image, &life, words);

    return err ? err : gk_store_write(store, &life, true, words);
}

enum gk_err gk_store_open(const struct gk_store_setup *setup, struct gk_store **ret_store,
                          struct gk_recovered *ret_recovered, struct gk_words *words)
{
    struct gk_recovered recovered = {0};
    struct gk_store *store;
    struct gk_words own;
    enum gk_err err = new_store(setup, &store);

    words = words ? words : &own;
    if (err) {
        gk_words_set(words, "%s", gk_err_text(err));
        return err;
    }
    err = store->ops->open(&store->queue, words);
    err = err ? err : store->ops->open(&store->fold_queue, words);
    err = err ? err : gk_store_recover(store, setup, &recovered, words);
    if (!err) {
        gk_image_copy(store->recovered, store->image);
        recovered.image = store->recovered;
        err = begin_life(store, words);
    }
    if (err) {
        gk_store_close(store);
        return err;
    }
    *ret_store = store;
    *ret_recovered = recovered;
    return GK_OK;
}

bool gk_store_fold_due(const struct gk_store *store)
{
    struct gk_store_shared *shared = store->shared;
    bool due = false;

    pthread_mutex_lock(&shared->lock);
    if (store->fold_every > 0 && shared->snapshots.count > 0) {
        const struct gk_known *snapshot = &shared->snapshots.list[shared->snapshots.count - 1];
        const struct gk_known *newest = &shared->segments.list[shared->segments.count - 1];

        due = newest->number > snapshot->number && newest->hashed &&
              (shared->log_full || shared->version >= shared->fold_not_before);
    }
    pthread_mutex_unlock(&shared->lock);
    return due;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

void gk_store_stats(const struct gk_store *store, struct gk_store_stats *ret)
{
    struct gk_store_shared *shared = store->shared;
    uint64_t sorted[GK_STORE_SYNCS];
    uint64_t count;

    pthread_mutex_lock(&shared->lock);
    count = shared->syncs < GK_STORE_SYNCS ? shared->syncs : GK_STORE_SYNCS;
    memcpy(sorted, shared->sync_us, sizeof(sorted));
    *ret = (struct gk_store_stats){
        .snapshot_version = shared->snapshots.count > 0
                                ? shared->snapshots.list[shared->snapshots.count - 1].version
                                : 0,
        .log_first_version = shared->segments.list[0].version,
        .log_bytes = shared->log_bytes,
        .records = shared->numbers,
        .folds = shared->folds,
        .sync_us_last =
            shared->syncs > 0 ? shared->sync_us[(shared->syncs - 1) % GK_STORE_SYNCS] : 0,
    };
    pthread_mutex_unlock(&shared->lock);
    if (count > 0) {
        qsort(sorted, count, sizeof(sorted[0]), by_size);
        ret->sync_us_median = sorted[count / 2];
    }
}
