/* The fold: the newest snapshot and the closed segments behind it become the next snapshot, block
 * by block, in constant memory, while the log goes on.
 *
 * It ends where a segment begins, because the first round of that segment carries the state hash of
 * the version before.  Records are read in batches; each batch is one pass over the planes, the
 * first from the old snapshot into the new file, the others within the new file. */
#include "common/bits.h"
#include "server/store/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct fold {
    struct gk_store *store;
    struct gk_known_list segments; /* as they were when it began; the last one is written to */
    struct gk_known from;          /* snapshot */
    struct gk_known until;         /* segment */
    struct gk_image *image;
    struct gk_snapreader reader;
    struct gk_snapwriter writer;
    struct gk_walk walk;
    struct gk_batch *batch;
    float *block;     /* for the file */
    float *planes[3]; /* one block each, where the arithmetic is */
    uint64_t hash;    /* of the last pass */
};

static enum gk_err no_memory(struct gk_words *words)
{
    gk_words_set(words, "no memory for a fold");
    return GK_E_NOMEM;
}

/* False: nothing to fold. */
static bool begin(struct fold *fold, uint64_t *ret_version)
{
    struct gk_store_shared *shared = fold->store->shared;
    bool any = false;

    pthread_mutex_lock(&shared->lock);
    *ret_version = 0;
    if (shared->snapshots.count > 0) {
        fold->from = shared->snapshots.list[shared->snapshots.count - 1];
        *ret_version = fold->from.version;
        fold->segments.count = shared->segments.count;
        memcpy(fold->segments.list, shared->segments.list,
               shared->segments.count * sizeof(shared->segments.list[0]));
        fold->until = fold->segments.list[fold->segments.count - 1];
        any = fold->until.hashed && fold->until.number > fold->from.number;
        shared->log_full = false;
    }
    pthread_mutex_unlock(&shared->lock);
    return any;
}

static enum gk_err prepare(struct fold *fold, struct gk_words *words)
{
    struct gk_store *store = fold->store;
    struct gk_snapshot_layout layout;
    enum gk_err err = gk_image_new(store->shard, store->servers, store->workers, &fold->image);

    if (err) {
        return no_memory(words);
    }
    err = gk_snapreader_open(&store->place, fold->from.epoch, fold->from.version, &fold->reader,
                             words);
    err = err ? err : gk_snapreader_image(&store->place, &fold->reader, fold->image, words);
    if (err) {
        return err;
    }
    /* The blocks of the old file decide, so that each is read once. */
    gk_snapshot_layout(fold->image, fold->reader.head.layout.block_floats, &layout);
    fold->block = store->ops->alloc(store->fold_queue, GK_MEMORY_PINNED,
                                    (size_t)layout.block_floats * sizeof(float));
    for (uint32_t p = 0; p < layout.planes; p++) {
        fold->planes[p] = store->ops->alloc(store->fold_queue, GK_MEMORY_DEVICE,
                                            (size_t)layout.block_floats * sizeof(float));
        if (!fold->planes[p] || !fold->block) {
            return no_memory(words);
        }
    }
    err = gk_batch_new(store->ops, store->fold_queue, fold->image, &fold->batch, words);
    if (err) {
        return err;
    }
    fold->walk = (struct gk_walk){.place = &store->place, .segments = &fold->segments};
    err = gk_walk_open(&fold->walk, fold->from.number, words);
    return err ? err
               : gk_snapwriter_open(&store->place, GK_STORE_FOLD_TEMPORARY, &layout, &fold->writer,
                                    words);
}

static void finish(struct fold *fold)
{
    struct gk_store *store = fold->store;

    if (fold->walk.rows) {
        gk_walk_close(&fold->walk);
    }
    gk_batch_free(fold->batch);
    gk_snapreader_close(&store->place, &fold->reader);
    gk_snapwriter_close(&store->place, &fold->writer);
    for (int p = 0; p < 3; p++) {
        store->ops->free(store->fold_queue, GK_MEMORY_DEVICE, fold->planes[p]);
    }
    store->ops->free(store->fold_queue, GK_MEMORY_PINNED, fold->block);
    gk_image_free(fold->image);
    free(fold);
}

/* Records until the batch is full or the fold's end. */
static enum gk_err fill(struct fold *fold, struct gk_words *words)
{
    struct gk_store *store = fold->store;
    struct gk_batch *batch = fold->batch;

    while (fold->walk.number < fold->until.number && batch->count < GK_REPLAY_ROUNDS_MAX &&
           batch->bytes < store->batch_bytes) {
        struct gk_record record = {0};
        uint8_t *memory = NULL;
        enum gk_err err =
            gk_walk_next(&fold->walk, store->ops, store->fold_queue, &record, &memory, words);

        if (err) {
            return err == GK_E_NOTFOUND ? GK_E_CORRUPT : err;
        }
        err = gk_image_apply(fold->image, &record, words);
        if (!err && record.type == GK_RECORD_ROUND) {
            gk_batch_add(batch, &record, memory, gk_wal_bytes(&record));
        } else {
            store->ops->free(store->fold_queue, GK_MEMORY_PINNED, memory);
        }
        if (err) {
            gk_place_at(&store->place, fold->walk.reader.name.text, fold->walk.record_at, words);
            return err;
        }
    }
    return GK_OK;
}

static enum gk_err move_block(struct fold *fold, uint32_t plane, uint64_t bytes, bool in)
{
    const struct gk_vector_ops *ops = fold->store->ops;
    struct gk_queue *queue = fold->store->fold_queue;
    float *target = in ? fold->planes[plane] : fold->block;
    float *source = in ? fold->block : fold->planes[plane];

    return ops->wait(queue, ops->copy(queue, target, source, (size_t)bytes));
}

static enum gk_err read_block(struct fold *fold, uint64_t b, bool first_pass,
                              struct gk_words *words)
{
    const struct gk_place *place = &fold->store->place;
    uint64_t count;
    enum gk_err err = GK_OK;

    for (uint32_t p = 0; p < fold->writer.layout.planes && !err; p++) {
        (void)gk_snapshot_block(&fold->writer.layout, p, b, &count);
        err = first_pass ? gk_snapreader_get(place, &fold->reader, p, b, fold->block, words)
                         : gk_snapwriter_get(place, &fold->writer, p, b, fold->block, words);
        err = err ? err : move_block(fold, p, count * sizeof(float), true);
    }
    return err;
}

static enum gk_err write_block(struct fold *fold, uint64_t b, struct gk_words *words)
{
    uint64_t count;
    enum gk_err err = GK_OK;

    for (uint32_t p = 0; p < fold->writer.layout.planes && !err; p++) {
        (void)gk_snapshot_block(&fold->writer.layout, p, b, &count);
        err = move_block(fold, p, count * sizeof(float), false);
        err = err ? err
                  : gk_snapwriter_put(&fold->store->place, &fold->writer, p, b, fold->block, words);
    }
    return err;
}

/* All blocks once: what the batch says is done to them. */
static enum gk_err pass(struct fold *fold, bool first, bool last, struct gk_words *words)
{
    const struct gk_snapshot_layout *layout = &fold->writer.layout;
    const struct gk_store *store = fold->store;
    enum gk_err err = GK_OK;

    for (uint64_t b = 0; b < layout->blocks && !err; b++) {
        struct gk_range range = {.lo = b * layout->block_floats};
        uint64_t hash = 0;

        range.hi = gk_min_u64(range.lo + layout->block_floats, layout->length);
        err = read_block(fold, b, first, words);
        err = err ? err
                  : gk_batch_apply(fold->batch, fold->planes, range.lo, range.hi - range.lo, words);
        err = err ? err : write_block(fold, b, words);
        if (!err && last) {
            range.lo += fold->image->lo;
            range.hi += fold->image->lo;
            err = gk_replay_hash(store->ops, store->fold_queue, fold->planes, layout->planes,
                                 &range, &hash);
            fold->hash += hash;
        }
    }
    gk_batch_clear(fold->batch);
    return err;
}

static enum gk_err check_end(const struct fold *fold, struct gk_words *words)
{
    struct gk_name name = gk_name_segment(fold->until.epoch, fold->until.version);

    if (fold->image->version == fold->until.version && fold->hash == fold->until.hash) {
        return GK_OK;
    }
    gk_words_set(words,
                 "the state hash of version %" PRIu64 " is %016" PRIx64
                 ", the fold gives version %" PRIu64 " and %016" PRIx64,
                 fold->until.version, fold->until.hash, fold->image->version, fold->hash);
    gk_place_at(&fold->store->place, name.text, fold->until.hash_at, words);
    return GK_E_CORRUPT;
}

static enum gk_err run(struct fold *fold, struct gk_words *words)
{
    struct gk_snapshot_facts facts = {.next_number = fold->until.number};
    bool first = true;
    enum gk_err err = prepare(fold, words);

    for (bool last = false; !err && !last; first = false) {
        err = fill(fold, words);
        last = fold->walk.number >= fold->until.number;
        err = err ? err : pass(fold, first, last, words);
    }
    err = err ? err : check_end(fold, words);
    if (err) {
        return err;
    }
    memcpy(facts.job, fold->store->job, sizeof(facts.job));
    facts.state_hash = fold->hash;
    return gk_snapwriter_publish(&fold->store->place, &fold->writer, fold->image, &facts, words);
}

/* A full list loses its oldest but one: it was only kept for rewinds. */
static void add_snapshot(struct gk_store_shared *shared, const struct gk_known *known)
{
    struct gk_known_list *snapshots = &shared->snapshots;

    if (snapshots->count == GK_STORE_FILES_MAX) {
        gk_known_drop_first(snapshots);
    }
    snapshots->list[snapshots->count++] = *known;
    shared->folds++;
    shared->fold_not_before = 0;
}

/* Oldest snapshot that is needed: the last but one, and one that keep_versions reaches from; with a
 * log that has grown too large the last one alone. */
static uint32_t oldest_needed(const struct gk_store *store)
{
    const struct gk_store_shared *shared = store->shared;
    uint32_t last = shared->snapshots.count - 1;
    uint32_t needed = last > 0 ? last - 1 : 0;

    if (store->log_bytes_max > 0 && shared->log_bytes > store->log_bytes_max / 2) {
        return last;
    }
    while (needed > 0 &&
           shared->snapshots.list[needed].version + store->keep_versions > shared->version) {
        needed--;
    }
    return needed;
}

/* Which file goes next; false: none.  Snapshots before segments: a log without the snapshot before
 * it does no harm. */
static bool next_to_remove(const struct gk_store *store, struct gk_name *ret_name,
                           struct gk_known_list **ret_list)
{
    struct gk_store_shared *shared = store->shared;
    uint32_t needed = oldest_needed(store);
    uint64_t number = shared->snapshots.list[needed].number;
    const struct gk_known *segment = shared->segments.list;
    const struct gk_known *snapshot = shared->snapshots.list;

    if (needed > 0) {
        *ret_name = gk_name_snapshot(snapshot->epoch, snapshot->version);
        *ret_list = &shared->snapshots;
        return true;
    }
    if (shared->segments.count > 1 && segment[1].number <= number) {
        *ret_name = gk_name_segment(segment->epoch, segment->version);
        *ret_list = &shared->segments;
        return true;
    }
    return false;
}

/* Remove what nothing needs any more. */
static enum gk_err prune(struct gk_store *store, struct gk_words *words)
{
    struct gk_store_shared *shared = store->shared;
    struct gk_known_list *list;
    struct gk_name name;
    enum gk_err err = GK_OK;
    bool more;

    do {
        pthread_mutex_lock(&shared->lock);
        more = shared->snapshots.count > 0 && next_to_remove(store, &name, &list);
        pthread_mutex_unlock(&shared->lock);
        if (more) {
            err = gk_place_remove(&store->place, name.text, words);
        }
        if (more && !err) {
            pthread_mutex_lock(&shared->lock);
            if (list == &shared->segments) {
                shared->log_bytes -= list->list[0].bytes;
            }
            gk_known_drop_first(list);
            pthread_mutex_unlock(&shared->lock);
        }
    } while (more && !err);
    return err;
}

/* What a rewind has left behind is of lower epochs. */
static enum gk_err remove_void(struct gk_store *store, uint32_t epoch, struct gk_words *words)
{
    struct gk_known_list *lists = malloc(2 * sizeof(*lists));
    enum gk_err err =
        lists ? gk_place_list(&store->place, &lists[0], &lists[1], words) : no_memory(words);

    for (uint32_t kind = 0; kind < 2 && !err; kind++) {
        for (uint32_t i = 0; i < lists[kind].count && !err; i++) {
            const struct gk_known *known = &lists[kind].list[i];
            struct gk_name name = kind == 0 ? gk_name_segment(known->epoch, known->version)
                                            : gk_name_snapshot(known->epoch, known->version);

            err = known->epoch < epoch ? gk_place_remove(&store->place, name.text, words) : GK_OK;
        }
    }
    free(lists);
    return err;
}

enum gk_err gk_store_fold(struct gk_store *store, uint64_t *ret_version, struct gk_words *words)
{
    struct gk_store_shared *shared = store->shared;
    struct fold *fold = calloc(1, sizeof(*fold));
    struct gk_known known;
    struct gk_words own;
    uint64_t version;
    enum gk_err err;

    words = words ? words : &own;
    if (!fold) {
        return no_memory(words);
    }
    fold->store = store;
    if (!begin(fold, &version)) {
        free(fold);
        *ret_version = version;
        return GK_OK;
    }
    err = run(fold, words);
    known = (struct gk_known){
        .epoch = fold->until.epoch,
        .version = fold->until.version,
        .number = fold->until.number,
        .bytes = fold->writer.layout.bytes,
    };
    finish(fold);
    pthread_mutex_lock(&shared->lock);
    if (err) {
        shared->fold_not_before = shared->version + GK_HASH_EVERY;
    } else {
        add_snapshot(shared, &known);
    }
    pthread_mutex_unlock(&shared->lock);
    if (err) {
        return err;
    }
    *ret_version = known.version;
    err = prune(store, words);
    return err ? err : remove_void(store, known.epoch, words);
}
