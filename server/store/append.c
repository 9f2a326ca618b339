/* Writing records: one segment that grows, synced as the policy says, and a new one behind versions
 * whose state hash the log knows, so that a fold can end there and check itself. */
#include "common/assert.h"
#include "common/bits.h"
#include "server/store/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    STEP_BYTES_MIN = 64 * 1024,
    STEP_BYTES_MAX = 8 * 1024 * 1024,
    STEP_SHARE = 64,   /* of log_bytes_max */
    SEGMENT_SHARE = 4, /* of log_bytes_max: two between snapshots and one that grows */
};

static uint64_t now_us(void)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_MONOTONIC, &at); /* cannot fail for this clock */
    return (uint64_t)at.tv_sec * 1000000 + (uint64_t)at.tv_nsec / 1000;
}

static uint64_t step_bytes(const struct gk_store *store)
{
    uint64_t share = store->log_bytes_max / STEP_SHARE;

    if (store->log_bytes_max == 0 || share > STEP_BYTES_MAX) {
        return STEP_BYTES_MAX;
    }
    return gk_max_u64(share / STEP_BYTES_MIN * STEP_BYTES_MIN, STEP_BYTES_MIN);
}

/* The disk cannot be trusted any more.  What is not known to be safe is cut off, so that the next
 * life does not read from the page cache what a power loss would take; without syncs nothing is
 * known, and all that was written stays. */
static enum gk_err fail(struct gk_store *store, const struct gk_words *words)
{
    struct gk_segment *segment = &store->segment;
    uint64_t safe = store->sync == GK_SYNC_NEVER ? segment->end : segment->synced;
    int ignored;

    store->failed = true;
    store->why_failed = *words;
    if (segment->file) {
        (void)store->place.ops->cut(segment->file, safe, &ignored); /* if that is possible */
    }
    return GK_E_IO;
}

static void remember_sync(struct gk_store *store, uint64_t us)
{
    struct gk_store_shared *shared = store->shared;

    pthread_mutex_lock(&shared->lock);
    shared->sync_us[shared->syncs++ % GK_STORE_SYNCS] = us;
    pthread_mutex_unlock(&shared->lock);
}

static enum gk_err sync_log(struct gk_store *store, struct gk_words *words)
{
    uint64_t from = now_us();
    enum gk_err err = gk_segment_sync(&store->place, &store->segment, words);

    if (err) {
        return fail(store, words);
    }
    remember_sync(store, now_us() - from);
    return GK_OK;
}

/* Behind the image's version.  The log so far is made safe first, whatever the policy: a torn tail
 * is allowed in the newest segment only. */
enum gk_err gk_store_new_segment(struct gk_store *store, struct gk_words *words)
{
    struct gk_store_shared *shared = store->shared;
    struct gk_wal_segment header = {
        .shard = store->shard,
        .servers = store->servers,
        .workers = store->workers,
        .epoch = store->image->epoch,
        .first_version = store->image->version,
        .first_number = store->number,
    };
    struct gk_segment segment;
    enum gk_err err = GK_OK;
    bool room;

    pthread_mutex_lock(&shared->lock);
    room = shared->segments.count < GK_STORE_FILES_MAX;
    pthread_mutex_unlock(&shared->lock);
    if (!room) {
        gk_words_set(words, "%s: more than %d segments; the log is not folded",
                     store->place.directory, (int)GK_STORE_FILES_MAX);
        return GK_E_LIMIT;
    }
    memcpy(header.job, store->job, sizeof(header.job));
    if (store->segment.file) {
        int number = 0;

        err = store->place.ops->cut(store->segment.file, store->segment.end, &number);
        if (err) {
            (void)gk_place_failed(&store->place, store->segment.name.text, "cut it", err, number,
                                  words);
            return fail(store, words);
        }
        store->segment.reserved = store->segment.end;
        err = sync_log(store, words);
    }
    err = err ? err : gk_segment_create(&store->place, &header, &segment, words);
    if (err) {
        return err == GK_E_IO && !store->failed ? fail(store, words) : err;
    }
    gk_segment_close(&store->place, &store->segment);
    store->segment = segment;
    pthread_mutex_lock(&shared->lock);
    shared->segments.list[shared->segments.count++] = (struct gk_known){
        .epoch = header.epoch,
        .version = header.first_version,
        .number = header.first_number,
        .bytes = segment.end,
    };
    shared->log_bytes += segment.end;
    pthread_mutex_unlock(&shared->lock);
    return GK_OK;
}

/* Only right before the record that holds the hash of the version so far. */
static bool rotation_due(const struct gk_store *store, const struct gk_record *record)
{
    uint64_t versions = record->version - 1 - store->segment.first_version;
    bool large =
        store->log_bytes_max > 0 && store->segment.end >= store->log_bytes_max / SEGMENT_SHARE;

    return record->type == GK_RECORD_ROUND && record->hashed && store->fold_every > 0 &&
           versions > 0 && (versions >= store->fold_every || large);
}

static enum gk_err check_room(struct gk_store *store, uint64_t bytes, struct gk_words *words)
{
    struct gk_store_shared *shared = store->shared;
    bool full;

    pthread_mutex_lock(&shared->lock);
    full = store->log_bytes_max > 0 && shared->log_bytes + bytes > store->log_bytes_max;
    shared->log_full = shared->log_full || full;
    pthread_mutex_unlock(&shared->lock);
    if (!full) {
        return GK_OK;
    }
    gk_words_set(words,
                 "%s: the log may have %" PRIu64 " MiB, and a record of %" PRIu64
                 " KiB does not fit before the next fold; a larger --log-bytes would help",
                 store->place.directory, store->log_bytes_max >> 20, bytes >> 10);
    return GK_E_LIMIT;
}

static void written(struct gk_store *store, const struct gk_record *record, uint64_t at)
{
    struct gk_store_shared *shared = store->shared;
    struct gk_known *known;

    store->number++;
    pthread_mutex_lock(&shared->lock);
    known = &shared->segments.list[shared->segments.count - 1];
    shared->log_bytes += store->segment.end - at;
    known->bytes = store->segment.end;
    if (record->type == GK_RECORD_ROUND && record->hashed &&
        record->version == known->version + 1) {
        known->hashed = true;
        known->hash = record->state_hash;
        known->hash_at = at;
    }
    shared->version = record->version;
    shared->numbers = store->number;
    pthread_mutex_unlock(&shared->lock);
}

enum gk_err gk_store_write(struct gk_store *store, const struct gk_record *record, bool sync,
                           struct gk_words *words)
{
    uint64_t bytes = gk_wal_bytes(record), at = store->segment.end;
    enum gk_err err = GK_OK;

    if (rotation_due(store, record)) { /* also when the log is full: a fold needs an end */
        err = gk_store_new_segment(store, words);
    }
    err = err ? err : check_room(store, bytes, words);
    if (!err) {
        err = gk_segment_reserve(&store->place, &store->segment, bytes, step_bytes(store), words);
    }
    if (!err) {
        at = store->segment.end;
        err = gk_segment_append(&store->place, &store->segment, record, store->number,
                                store->scratch, words);
    }
    if (err) {
        return err == GK_E_IO && !store->failed ? fail(store, words) : err;
    }
    /* Who may join and who has left is relied on for ever: a shard that forgets it waits for a rank
     * that will not come again. */
    if (sync || store->sync == GK_SYNC_ALWAYS || record->type != GK_RECORD_ROUND) {
        err = sync_log(store, words);
        if (err) {
            return err;
        }
    }
    gk_image_take(store->image, record);
    written(store, record, at);
    if (store->sync == GK_SYNC_NEVER || store->segment.synced == store->segment.end) {
        store->durable_version = store->image->version;
    }
    return GK_OK;
}

/* Blocks of version 0: what the record says, and moments of zero. */
static enum gk_err write_planes(struct gk_store *store, const struct gk_record *record,
                                struct gk_snapwriter *writer, uint64_t *ret_hash,
                                struct gk_words *words)
{
    const struct gk_snapshot_layout *layout = &writer->layout;
    float *block = store->ops->alloc(store->queue, GK_MEMORY_PINNED,
                                     (size_t)layout->block_floats * sizeof(float));
    uint64_t sum = 0, count;
    enum gk_err err = block ? GK_OK : GK_E_NOMEM;

    for (uint32_t p = 0; p < layout->planes && !err; p++) {
        for (uint64_t b = 0; b < layout->blocks && !err; b++) {
            uint64_t first = b * layout->block_floats, hash = 0;

            (void)gk_snapshot_block(layout, p, b, &count);
            if (p == 0) { /* it may be on another device */
                err = store->ops->wait(store->queue,
                                       store->ops->copy(store->queue, block, record->params + first,
                                                        (size_t)count * sizeof(float)));
            } else {
                memset(block, 0, (size_t)count * sizeof(float));
            }
            err = err ? err : gk_snapwriter_put(&store->place, writer, p, b, block, words);
            for (uint64_t i = 0; i < count && !err; i++) {
                hash += gk_hash_term(p, record->lo + first + i, gk_float_bits(block[i]));
            }
            sum += hash;
        }
    }
    if (err == GK_E_NOMEM) {
        gk_words_set(words, "%s", gk_err_text(err));
    }
    store->ops->free(store->queue, GK_MEMORY_PINNED, block);
    *ret_hash = sum;
    return err;
}

/* Version 0 is a snapshot.  The log goes on as it is: the snapshot says which of its records are in
 * it, and an earlier version 0 is replaced by the rename. */
static enum gk_err write_init(struct gk_store *store, const struct gk_record *record,
                              struct gk_words *words)
{
    struct gk_snapshot_facts facts = {.next_number = store->number};
    struct gk_snapwriter writer = {0};
    struct gk_snapshot_layout layout;
    struct gk_image *image;
    enum gk_err err = gk_image_new(store->shard, store->servers, store->workers, &image);

    if (err) {
        gk_words_set(words, "%s", gk_err_text(err));
        return err;
    }
    gk_image_copy(image, store->image);
    gk_image_take(image, record);
    memcpy(facts.job, store->job, sizeof(facts.job));
    gk_snapshot_layout(image, store->block_floats, &layout);
    err = sync_log(store, words); /* its records are in the snapshot: they must not go missing */
    err = err ? err
              : gk_snapwriter_open(&store->place, GK_STORE_INIT_TEMPORARY, &layout, &writer, words);
    err = err ? err : write_planes(store, record, &writer, &facts.state_hash, words);
    err = err ? err : gk_snapwriter_publish(&store->place, &writer, image, &facts, words);
    gk_snapwriter_close(&store->place, &writer);
    if (err) {
        gk_image_free(image);
        return err == GK_E_IO && !store->failed ? fail(store, words) : err;
    }
    gk_image_copy(store->image, image);
    gk_image_free(image);
    store->durable_version = 0;
    pthread_mutex_lock(&store->shared->lock);
    store->shared->snapshots.count = 1;
    store->shared->snapshots.list[0] =
        (struct gk_known){.epoch = record->epoch, .number = store->number, .bytes = layout.bytes};
    pthread_mutex_unlock(&store->shared->lock);
    return GK_OK;
}

enum gk_err gk_store_append(struct gk_store *store, const struct gk_record *record,
                            uint64_t *ret_durable_version, struct gk_words *words)
{
    struct gk_words own;
    enum gk_err err;

    words = words ? words : &own;
    if (store->failed) {
        *words = store->why_failed;
        return GK_E_IO;
    }
    err = gk_image_check(store->image, record, words);
    if (err) {
        gk_words_prefix(words, "a record that does not follow was not written: ");
        return err;
    }
    err = record->type == GK_RECORD_INIT ? write_init(store, record, words)
                                         : gk_store_write(store, record, false, words);
    if (!err) {
        *ret_durable_version = store->durable_version;
    }
    return err;
}

enum gk_err gk_store_sync(struct gk_store *store, uint64_t *ret_durable_version,
                          struct gk_words *words)
{
    struct gk_words own;
    enum gk_err err = GK_OK;

    words = words ? words : &own;
    if (store->failed) {
        *words = store->why_failed;
        return GK_E_IO;
    }
    if (store->sync != GK_SYNC_NEVER && store->segment.synced < store->segment.end) {
        err = sync_log(store, words);
    }
    if (!err) {
        store->durable_version = store->image->version;
        *ret_durable_version = store->durable_version;
    }
    return err;
}
