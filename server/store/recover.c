/* Opening a directory: who it belongs to, the newest snapshot that is whole, the records behind it,
 * and the torn tail of the log cut off.
 *
 * Nothing is written before the lock is held and the directory is known to be ours, and nothing is
 * skipped: a file that is damaged is an error, but for the end of the newest segment, which a crash
 * may tear, and for a snapshot whose place an older one and the whole log behind it can take. */
#include "common/assert.h"
#include "common/bits.h"
#include "server/store/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct recovery {
    struct gk_store *store;
    const struct gk_store_setup *setup;
    struct gk_recovered *recovered;
    struct gk_walk walk;
    struct gk_batch *batch;
    struct gk_snapreader snapshot;
    uint64_t snapshot_version, snapshot_hash;
    uint64_t
        last_hashed; /* record: a hash is a pass over all planes, and one at the end is enough */
};

static enum gk_err no_memory(struct gk_words *words)
{
    gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
    return GK_E_NOMEM;
}

/* Lower epochs are void, and removed once this one has proved to be whole. */
static void keep_epoch(struct gk_known_list *known, uint32_t epoch)
{
    while (known->count > 0 && known->list[0].epoch < epoch) {
        gk_known_drop_first(known);
    }
}

static void told_cut(struct gk_recovered *recovered, uint64_t bytes, const char *why)
{
    if (recovered->cut.text[0]) {
        gk_words_prefix(&recovered->cut, "%" PRIu64 " bytes were cut: %s; ", bytes, why);
    } else {
        gk_words_set(&recovered->cut, "%" PRIu64 " bytes were cut: %s", bytes, why);
    }
    recovered->cut_bytes += bytes;
}

static void told_replaced(struct gk_recovered *recovered, uint64_t version, const char *why)
{
    bool more = recovered->cut.text[0] != '\0';

    gk_words_prefix(&recovered->cut,
                    "the snapshot of version %" PRIu64 " and the log were used: %s%s", version, why,
                    more ? "; " : "");
}

/* The newest segment has no header. */
static enum gk_err drop_headless(struct recovery *recovery, const struct gk_known *known,
                                 const struct gk_words *why, struct gk_words *words)
{
    const struct gk_place *place = &recovery->store->place;
    struct gk_name name = gk_name_segment(known->epoch, known->version);
    struct gk_rest rest = {0};
    enum gk_err err = gk_reader_headless(place, known->epoch, known->version, &rest, words);

    if (!err && rest.marked) {
        *words = *why;
        err = GK_E_CORRUPT;
    }
    err = err ? err : gk_place_remove(place, name.text, words);
    if (!err && rest.bytes > 0) {
        told_cut(recovery->recovered, rest.bytes, why->text);
    }
    return err;
}

static enum gk_err read_segments(struct recovery *recovery, struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_known_list *known = &store->shared->segments;

    for (uint32_t i = 0; i < known->count; i++) {
        struct gk_known *segment = &known->list[i];
        struct gk_reader reader;
        struct gk_words why = {""};
        enum gk_err err =
            gk_reader_open(&store->place, segment->epoch, segment->version, &reader, &why);

        if (err == GK_E_CORRUPT && i + 1 == known->count) {
            err = drop_headless(recovery, segment, &why, words);
            known->count--;
            return err;
        }
        if (err) {
            *words = why;
            return err == GK_E_INVALID ? GK_E_CORRUPT : err;
        }
        segment->number = reader.header.first_number;
        segment->bytes = reader.size;
        err = gk_store_check_owner(store, reader.name.text, &reader.header, words);
        gk_reader_close(&store->place, &reader);
        if (!err && i > 0 && segment->number < segment[-1].number) {
            gk_words_set(words,
                         "the file begins with record %" PRIu64 ", an older one with %" PRIu64,
                         segment->number, segment[-1].number);
            gk_place_at(&store->place, reader.name.text, 0, words);
            err = GK_E_CORRUPT;
        }
        if (err) {
            return err;
        }
    }
    return GK_OK;
}

static enum gk_err open_snapshot(struct recovery *recovery, struct gk_known *known,
                                 struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_wal_segment owner;
    enum gk_err err =
        gk_snapreader_open(&store->place, known->epoch, known->version, &recovery->snapshot, words);

    if (err) {
        return err;
    }
    known->number = recovery->snapshot.head.facts.next_number;
    known->bytes = recovery->snapshot.head.layout.bytes;
    owner = (struct gk_wal_segment){
        .shard = recovery->snapshot.head.shard,
        .servers = recovery->snapshot.head.servers,
        .workers = recovery->snapshot.head.workers,
    };
    memcpy(owner.job, recovery->snapshot.head.facts.job, sizeof(owner.job));
    err = gk_store_check_owner(store, recovery->snapshot.name.text, &owner, words);
    if (err) {
        gk_snapreader_close(&store->place, &recovery->snapshot);
    }
    return err;
}

static enum gk_err check_hash(const struct recovery *recovery, uint64_t expected, uint64_t version,
                              struct gk_words *words)
{
    const struct gk_store *store = recovery->store;
    const struct gk_range global = {store->image->lo, store->image->hi};
    uint64_t hash;
    enum gk_err err = gk_replay_hash(store->ops, store->queue, recovery->recovered->memory.planes,
                                     gk_image_planes(store->image), &global, &hash);

    if (err) {
        gk_words_set(words, "hashing the planes: %s", gk_err_text(err));
        return err;
    }
    if (hash != expected) {
        gk_words_set(words,
                     "the state hash of version %" PRIu64 " is %016" PRIx64
                     ", the planes give %016" PRIx64,
                     version, expected, hash);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

static enum gk_err load_planes(struct recovery *recovery, struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_snapreader *snapshot = &recovery->snapshot;
    const struct gk_snapshot_layout *layout = &snapshot->head.layout;
    float *block = store->ops->alloc(store->queue, GK_MEMORY_PINNED,
                                     (size_t)layout->block_floats * sizeof(float));
    uint64_t count;
    enum gk_err err = GK_OK;

    if (!block) {
        return no_memory(words);
    }
    for (uint32_t p = 0; p < layout->planes && !err; p++) {
        for (uint64_t b = 0; b < layout->blocks && !err; b++) {
            float *target = recovery->recovered->memory.planes[p] + b * layout->block_floats;

            (void)gk_snapshot_block(layout, p, b, &count);
            err = gk_snapreader_get(&store->place, snapshot, p, b, block, words);
            if (!err) {
                err =
                    store->ops->wait(store->queue, store->ops->copy(store->queue, target, block,
                                                                    (size_t)count * sizeof(float)));
            }
        }
    }
    store->ops->free(store->queue, GK_MEMORY_PINNED, block);
    recovery->snapshot_version = snapshot->head.version;
    recovery->snapshot_hash = snapshot->head.facts.state_hash;
    return err;
}

/* Image and planes of one snapshot. */
static enum gk_err load_snapshot(struct recovery *recovery, struct gk_known *known,
                                 struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_recovered *recovered = recovery->recovered;
    enum gk_err err = open_snapshot(recovery, known, words);

    if (err) {
        return err;
    }
    err = gk_snapreader_image(&store->place, &recovery->snapshot, store->image, words);
    if (!err && !recovered->memory.planes[0]) {
        err = recovery->setup->allocate(recovery->setup->context, store->image, &recovered->memory,
                                        words);
    }
    err = err ? err : load_planes(recovery, words);
    gk_snapreader_close(&store->place, &recovery->snapshot);
    return err;
}

static void reset_image(struct gk_store *store)
{
    struct gk_rank_row *rows = store->image->rows;

    memset(rows, 0, store->workers * sizeof(*rows));
    memset(store->image, 0, sizeof(*store->image));
    store->image->shard = store->shard;
    store->image->servers = store->servers;
    store->image->workers = store->workers;
    store->image->rows = rows;
}

static enum gk_err apply_batch(struct recovery *recovery, struct gk_words *words)
{
    const struct gk_image *image = recovery->store->image;
    enum gk_err err = gk_batch_apply(recovery->batch, recovery->recovered->memory.planes, 0,
                                     image->hi - image->lo, words);

    gk_batch_clear(recovery->batch);
    return err;
}

/* The hash of a version is in the record behind it.  That of the snapshot is known from the
 * snapshot, whose blocks have checksums. */
static enum gk_err check_round(struct recovery *recovery, const struct gk_record *record,
                               struct gk_words *words)
{
    enum gk_err err = GK_OK;

    if (record->hashed && record->version - 1 == recovery->snapshot_version &&
        record->state_hash != recovery->snapshot_hash) {
        gk_words_set(words,
                     "the state hash of version %" PRIu64 " is %016" PRIx64
                     ", the snapshot says %016" PRIx64,
                     record->version - 1, record->state_hash, recovery->snapshot_hash);
        err = GK_E_CORRUPT;
    } else if (record->hashed && recovery->walk.number - 1 == recovery->last_hashed) {
        err = apply_batch(recovery, words);
        err = err ? err : check_hash(recovery, record->state_hash, record->version - 1, words);
    }
    if (err == GK_E_CORRUPT) {
        gk_place_at(&recovery->store->place, recovery->walk.reader.name.text,
                    recovery->walk.record_at, words);
    }
    return err;
}

static enum gk_err replay_round(struct recovery *recovery, const struct gk_record *record,
                                uint8_t *memory, struct gk_words *words)
{
    enum gk_err err = check_round(recovery, record, words);

    gk_batch_add(recovery->batch, record, memory, gk_wal_bytes(record));
    if (!err && (recovery->batch->count == GK_REPLAY_ROUNDS_MAX ||
                 recovery->batch->bytes >= recovery->store->batch_bytes)) {
        err = apply_batch(recovery, words);
    }
    return err;
}

/* All records behind what the image holds. */
static enum gk_err replay(struct recovery *recovery, struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_walk *walk = &recovery->walk;
    struct gk_record record;
    uint8_t *memory;
    enum gk_err err = GK_OK;

    recovery->recovered->records = 0;
    while (!err) {
        err = gk_walk_next(walk, store->ops, store->queue, &record, &memory, words);
        if (err) {
            break;
        }
        err = gk_image_apply(store->image, &record, words);
        if (err) {
            gk_place_at(&store->place, walk->reader.name.text, walk->record_at, words);
        }
        recovery->recovered->records += !err;
        if (!err && record.type == GK_RECORD_ROUND) {
            err = replay_round(recovery, &record, memory, words);
        } else {
            store->ops->free(store->queue, GK_MEMORY_PINNED, memory);
        }
    }
    err = err == GK_E_NOTFOUND ? GK_OK : err;
    return err || !recovery->batch ? err : apply_batch(recovery, words);
}

/* From a snapshot (NULL: before version 0) to the end of the log. */
static enum gk_err try_from(struct recovery *recovery, struct gk_known *snapshot,
                            struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    enum gk_err err = GK_OK;

    reset_image(store);
    if (snapshot) {
        err = load_snapshot(recovery, snapshot, words);
        err = err ? err
                  : gk_batch_new(store->ops, store->queue, store->image, &recovery->batch, words);
    }
    if (err) {
        return err;
    }
    if (store->shared->segments.count == 0) { /* an operator has begun a new epoch; or nothing */
        store->number = snapshot ? snapshot->number : 0;
    } else {
        recovery->walk = (struct gk_walk){
            .place = &store->place,
            .segments = &store->shared->segments,
            .last_may_end = true,
        };
        err = gk_walk_open(&recovery->walk, snapshot ? snapshot->number : 0, words);
        if (!err) {
            recovery->last_hashed = gk_walk_last_hashed(&recovery->walk);
            err = replay(recovery, words);
            store->number = recovery->walk.reader.number;
            gk_walk_close(&recovery->walk); /* what it has learnt stays */
        }
    }
    gk_batch_free(recovery->batch);
    recovery->batch = NULL;
    return err;
}

/* It is out of the way, and still there for whoever wants to know. */
static enum gk_err set_aside(struct gk_store *store, const struct gk_known *known,
                             struct gk_words *words)
{
    struct gk_name name = gk_name_snapshot(known->epoch, known->version);
    char aside[2 * GK_STORE_NAME_BYTES];
    int number = 0;
    enum gk_err err;

    (void)snprintf(aside, sizeof(aside), "%s.damaged", name.text);
    err = store->place.ops->rename(store->place.disk, name.text, aside, &number);
    return err ? gk_place_failed(&store->place, name.text, "rename it", err, number, words) : GK_OK;
}

/* The newest snapshot that leads to the end of the log. */
static enum gk_err from_snapshots(struct recovery *recovery, struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_known_list *snapshots = &store->shared->snapshots;
    struct gk_words first = {""};
    uint32_t at = snapshots->count;
    enum gk_err err = GK_E_CORRUPT;

    while (at > 0 && err == GK_E_CORRUPT) {
        at--;
        err = try_from(recovery, &snapshots->list[at], words);
        if (err == GK_E_CORRUPT && !first.text[0]) {
            first = *words;
        }
    }
    if (err == GK_E_CORRUPT) {
        *words = first; /* of the newest: the older ones were but a way out */
        return err;
    }
    if (err) {
        return err;
    }
    for (uint32_t i = at + 1; i < snapshots->count && !err; i++) {
        err = set_aside(store, &snapshots->list[i], words);
    }
    if (first.text[0]) {
        told_replaced(recovery->recovered, snapshots->list[at].version, first.text);
    }
    snapshots->count = at + 1;
    return err;
}

/* Numbers of the snapshots that were not opened.  One that is damaged is out of the way, as a newer
 * one takes its place; the operator hears of it. */
static enum gk_err read_older(struct recovery *recovery, struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    struct gk_known_list *snapshots = &store->shared->snapshots;
    uint32_t kept = 0;
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i + 1 < snapshots->count && !err; i++) {
        err = open_snapshot(recovery, &snapshots->list[i], words);
        if (err == GK_OK) {
            gk_snapreader_close(&store->place, &recovery->snapshot);
            snapshots->list[kept++] = snapshots->list[i];
        } else if (err == GK_E_CORRUPT) {
            told_replaced(recovery->recovered, snapshots->list[snapshots->count - 1].version,
                          words->text);
            err = set_aside(store, &snapshots->list[i], words);
        }
    }
    if (!err && snapshots->count > 0) {
        snapshots->list[kept++] = snapshots->list[snapshots->count - 1];
        snapshots->count = kept;
    }
    return err;
}

/* Cut what is torn, make safe what is there, and go on behind it.  Where a former life's sync has
 * failed, pages may be lost that reads still show and that a sync passes over: what no record
 * proves to be on disk is written once more. */
static enum gk_err settle(struct recovery *recovery, struct gk_words *words)
{
    struct gk_store *store = recovery->store;
    const struct gk_disk_ops *ops = store->place.ops;
    struct gk_known_list *segments = &store->shared->segments;
    const struct gk_reader *reader = &recovery->walk.reader;
    struct gk_segment *segment = &store->segment;
    int number = 0;
    enum gk_err err;

    if (segments->count == 0) {
        return gk_store_new_segment(store, words);
    }
    if (recovery->walk.torn.text[0]) {
        told_cut(recovery->recovered, recovery->walk.torn_bytes, recovery->walk.torn.text);
    }
    err = ops->open(store->place.disk, reader->name.text, false, true, &segment->file, &number);
    if (err) {
        return gk_place_failed(&store->place, reader->name.text, "open it", err, number, words);
    }
    segment->name = reader->name;
    segment->first_version = reader->header.first_version;
    segment->end = segment->reserved = segment->synced = reader->offset;
    segment->crc = reader->crc;
    err = ops->cut(segment->file, segment->end, &number);
    if (err) {
        return gk_place_failed(&store->place, reader->name.text, "cut it", err, number, words);
    }
    err = gk_segment_write_again(&store->place, segment, reader->proven, words);
    err = err ? err : gk_segment_sync(&store->place, segment, words);
    err = err ? err : gk_place_sync_directory(&store->place, words);
    segments->list[segments->count - 1].bytes = segment->end;
    for (uint32_t i = 0; i < segments->count; i++) {
        store->shared->log_bytes += segments->list[i].bytes;
    }
    return err;
}

static enum gk_err claim(struct gk_store *store, struct gk_words *words)
{
    static const char *const temporaries[] = {GK_STORE_JOB_TEMPORARY, GK_STORE_INIT_TEMPORARY,
                                              GK_STORE_FOLD_TEMPORARY};
    int number = 0;
    enum gk_err err = store->place.ops->lock(store->place.disk, GK_STORE_LOCK, &number);

    if (err == GK_E_BUSY) {
        gk_words_set(words, "%s is in use by another process", store->place.directory);
        return err;
    }
    if (err) {
        return gk_place_failed(&store->place, GK_STORE_LOCK, "lock it", err, number, words);
    }
    err = gk_store_check_job(store, words);
    for (size_t i = 0; i < sizeof(temporaries) / sizeof(temporaries[0]) && !err; i++) {
        err = gk_place_remove(&store->place, temporaries[i], words);
    }
    return err;
}

enum gk_err gk_store_recover(struct gk_store *store, const struct gk_store_setup *setup,
                             struct gk_recovered *recovered, struct gk_words *words)
{
    struct recovery recovery = {.store = store, .setup = setup, .recovered = recovered};
    struct gk_store_shared *shared = store->shared;
    uint32_t epoch;
    enum gk_err err = claim(store, words);

    err = err ? err : gk_place_list(&store->place, &shared->segments, &shared->snapshots, words);
    if (err) {
        return err;
    }
    epoch =
        shared->snapshots.count > 0 ? shared->snapshots.list[shared->snapshots.count - 1].epoch : 0;
    keep_epoch(&shared->snapshots, epoch);
    keep_epoch(&shared->segments, epoch);
    if (shared->segments.count > 0 &&
        shared->segments.list[shared->segments.count - 1].epoch != epoch) {
        gk_words_set(words, "%s: a log of epoch %" PRIu32 " without a snapshot of it",
                     store->place.directory,
                     shared->segments.list[shared->segments.count - 1].epoch);
        return GK_E_CORRUPT;
    }
    err = read_segments(&recovery, words);
    if (!err && shared->snapshots.count == 0) {
        err = try_from(&recovery, NULL, words);
    } else {
        err = err ? err
                  : gk_known_complete(&store->place, &shared->segments, &shared->snapshots, words);
        err = err ? err : from_snapshots(&recovery, words);
    }
    if (err) {
        return err;
    }
    err = read_older(&recovery, words);
    if (err) {
        return err;
    }
    store->durable_version = store->image->version;
    shared->version = store->image->version;
    shared->numbers = store->number;
    return settle(&recovery, words);
}
