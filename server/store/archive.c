/* Opening looks at what needs no arithmetic: owner, epoch, the header of every segment, and whether
 * the log behind the newest snapshot is there.  A read is an attempt from one snapshot: its planes,
 * then the records behind it, with every state hash on the way compared; from a damaged snapshot it
 * goes on to an older one, as the server's own start does. */
#include "server/store/archive.h"

#include "server/store/owner.h"
#include "server/store/replay.h"
#include "server/store/snapfile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LOOKS_MAX = 4, /* at a tail that a living server may be writing */
    LOOK_MS = 20,
};

static enum gk_err no_memory(struct gk_words *words)
{
    gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
    return GK_E_NOMEM;
}

static enum gk_err check_owner(const struct gk_archive *archive, struct gk_words *words)
{
    const struct gk_wal_segment *owner = &archive->owner;

    if (owner->workers < 1 || owner->workers > GK_WORKERS_MAX || owner->servers < 1 ||
        owner->servers > GK_SERVERS_MAX || owner->shard >= owner->servers) {
        gk_words_set(words, "a shard that cannot be");
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

static void split_epochs(struct gk_known_list *known, struct gk_known_list *older, uint32_t epoch)
{
    older->count = 0;
    while (known->count > 0 && known->list[0].epoch < epoch) {
        older->list[older->count++] = known->list[0];
        gk_known_drop_first(known);
    }
}

static enum gk_err same_owner(const struct gk_archive *archive, const char *name,
                              const struct gk_wal_segment *owner, struct gk_words *words)
{
    if (owner->shard == archive->owner.shard && owner->servers == archive->owner.servers &&
        owner->workers == archive->owner.workers &&
        memcmp(owner->job, archive->owner.job, sizeof(owner->job)) == 0) {
        return GK_OK;
    }
    gk_words_set(words, "it belongs to another shard or job than the file %s says", GK_STORE_JOB);
    gk_place_at(&archive->place, name, 0, words);
    return GK_E_CORRUPT;
}

/* The newest segment has no header. */
static enum gk_err leave_out_headless(struct gk_archive *archive, const struct gk_known *known,
                                      struct gk_words *words)
{
    struct gk_rest rest = {0};
    enum gk_err err =
        gk_reader_headless(&archive->place, known->epoch, known->version, &rest, words);

    if (!err && rest.marked) {
        *words = archive->headless;
        err = GK_E_CORRUPT;
    }
    archive->segments.count--;
    return err;
}

static enum gk_err read_segments(struct gk_archive *archive, struct gk_words *words)
{
    struct gk_known_list *known = &archive->segments;

    for (uint32_t i = 0; i < known->count; i++) {
        struct gk_reader reader;
        enum gk_err err = gk_reader_open(&archive->place, known->list[i].epoch,
                                         known->list[i].version, &reader, words);

        if (err == GK_E_CORRUPT && i + 1 == known->count) {
            archive->headless = *words;
            return leave_out_headless(archive, &known->list[i], words);
        }
        if (err) {
            return err == GK_E_INVALID ? GK_E_CORRUPT : err;
        }
        known->list[i].number = reader.header.first_number;
        known->list[i].bytes = reader.size;
        err = same_owner(archive, reader.name.text, &reader.header, words);
        gk_reader_close(&archive->place, &reader);
        if (err) {
            return err;
        }
    }
    return GK_OK;
}

/* Whose the log is, where the file JOB is gone: the server writes that anew at its next start. */
static enum gk_err adopt_owner(struct gk_archive *archive, struct gk_words *words)
{
    const struct gk_words missing = *words;
    const struct gk_known_list *known = &archive->segments;
    enum gk_err err =
        gk_place_list(&archive->place, &archive->segments, &archive->snapshots, words);

    for (uint32_t i = known->count; i > 0 && !err && !archive->jobless; i--) {
        struct gk_reader reader;

        if (gk_reader_open(&archive->place, known->list[i - 1].epoch, known->list[i - 1].version,
                           &reader, words) == GK_OK) {
            archive->owner = reader.header;
            archive->jobless = true;
            gk_reader_close(&archive->place, &reader);
        }
    }
    if (err || archive->jobless) {
        return err;
    }
    err = gk_owner_none(&archive->place, &archive->snapshots, words);
    if (!err) {
        *words = missing;
        err = GK_E_NOTFOUND;
    }
    return err;
}

static enum gk_err read_owner(struct gk_archive *archive, struct gk_words *words)
{
    enum gk_err err = gk_owner_read(&archive->place, &archive->owner, words);

    err = err == GK_E_NOTFOUND ? adopt_owner(archive, words) : err;
    if (!err) {
        err = check_owner(archive, words);
        if (err && !archive->jobless) {
            gk_place_at(&archive->place, GK_STORE_JOB, 0, words);
        }
    }
    return err;
}

static enum gk_err open_files(struct gk_archive *archive, struct gk_words *words)
{
    const struct gk_place *place = &archive->place;
    int number = 0;
    enum gk_err err = read_owner(archive, words);

    if (!err && archive->locked) {
        err = place->ops->lock(place->disk, GK_STORE_LOCK, &number);
        if (err == GK_E_BUSY) {
            gk_words_set(words, "%s is in use: its server is running", place->directory);
            return err;
        }
        if (err) {
            return gk_place_failed(place, GK_STORE_LOCK, "lock it", err, number, words);
        }
    }
    err = err ? err : gk_place_list(place, &archive->segments, &archive->snapshots, words);
    if (err) {
        return err;
    }
    if (archive->snapshots.count > 0) {
        archive->epoch = archive->snapshots.list[archive->snapshots.count - 1].epoch;
    }
    split_epochs(&archive->segments, &archive->void_segments, archive->epoch);
    split_epochs(&archive->snapshots, &archive->void_snapshots, archive->epoch);
    if (archive->segments.count > 0 &&
        archive->segments.list[archive->segments.count - 1].epoch != archive->epoch) {
        gk_words_set(words, "%s: a log of epoch %" PRIu32 " without a snapshot of it",
                     place->directory, archive->segments.list[archive->segments.count - 1].epoch);
        return GK_E_CORRUPT;
    }
    err = read_segments(archive, words);
    err = err ? err : gk_known_complete(place, &archive->segments, &archive->snapshots, words);
    return err ? err : archive->ops->open(&archive->queue, words);
}

enum gk_err gk_archive_open_place(const struct gk_place *place, bool lock,
                                  const struct gk_vector_ops *ops, struct gk_archive **ret_archive,
                                  struct gk_words *words)
{
    struct gk_archive *archive = calloc(1, sizeof(*archive));
    struct gk_words own;
    enum gk_err err;

    words = words ? words : &own;
    if (!archive) {
        place->ops->close(place->disk);
        return no_memory(words);
    }
    archive->ops = ops;
    archive->locked = lock;
    archive->place = *place;
    err = open_files(archive, words);
    if (err) {
        gk_archive_close(archive);
        return err;
    }
    *ret_archive = archive;
    return GK_OK;
}

enum gk_err gk_archive_open(const char *directory, bool lock, const struct gk_vector_ops *ops,
                            struct gk_archive **ret_archive, struct gk_words *words)
{
    struct gk_place place = {.ops = gk_disk_system()};
    int number = 0;
    enum gk_err err = gk_disk_open(directory, false, &place.disk, &number);

    strncpy(place.directory, directory, sizeof(place.directory) - 1);
    return err ? gk_place_failed(&place, ".", "open the directory", err, number, words)
               : gk_archive_open_place(&place, lock, ops, ret_archive, words);
}

void gk_archive_close(struct gk_archive *archive)
{
    if (archive) {
        archive->ops->close(archive->queue);
        archive->place.ops->close(archive->place.disk);
        free(archive);
    }
}

/* One attempt, from one snapshot. */
struct attempt {
    struct gk_archive *archive;
    const struct gk_archive_wish *wish;
    struct gk_archived state;
    struct gk_walk walk;
    struct gk_batch *batch;
};

static enum gk_err check_hash(struct attempt *attempt, uint64_t expected, struct gk_words *words)
{
    uint64_t hash;
    enum gk_err err = gk_archive_hash(attempt->archive, &attempt->state, true, &hash, words);

    if (err) {
        return err;
    }
    attempt->state.hashes++;
    if (hash != expected) {
        gk_words_set(words,
                     "the state hash of version %" PRIu64 " is %016" PRIx64
                     ", the planes give %016" PRIx64,
                     attempt->state.image->version, expected, hash);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

static enum gk_err load_planes(struct attempt *attempt, struct gk_snapreader *reader,
                               struct gk_words *words)
{
    const struct gk_archive *archive = attempt->archive;
    const struct gk_snapshot_layout *layout = &reader->head.layout;
    size_t block_bytes = (size_t)layout->block_floats * sizeof(float);
    float *block = archive->ops->alloc(archive->queue, GK_MEMORY_PINNED, block_bytes);
    uint64_t count;
    enum gk_err err = block ? GK_OK : no_memory(words);

    for (uint32_t p = 0; p < layout->planes && !err; p++) {
        attempt->state.planes[p] = archive->ops->alloc(archive->queue, GK_MEMORY_DEVICE,
                                                       (size_t)layout->length * sizeof(float));
        if (!attempt->state.planes[p]) {
            err = no_memory(words);
        }
        for (uint64_t b = 0; b < layout->blocks && !err; b++) {
            float *target = attempt->state.planes[p] + b * layout->block_floats;

            (void)gk_snapshot_block(layout, p, b, &count);
            err = gk_snapreader_get(&archive->place, reader, p, b, block, words);
            err = err ? err
                      : archive->ops->wait(archive->queue,
                                           archive->ops->copy(archive->queue, target, block,
                                                              (size_t)count * sizeof(float)));
        }
    }
    archive->ops->free(archive->queue, GK_MEMORY_PINNED, block);
    if (err) {
        return err;
    }
    err = check_hash(attempt, reader->head.facts.state_hash, words);
    if (err == GK_E_CORRUPT) {
        gk_place_at(&archive->place, reader->name.text, 0, words);
    }
    return err;
}

static enum gk_err load_snapshot(struct attempt *attempt, const struct gk_known *known,
                                 struct gk_words *words)
{
    struct gk_archive *archive = attempt->archive;
    struct gk_wal_segment owner;
    struct gk_snapreader reader;
    enum gk_err err =
        gk_snapreader_open(&archive->place, known->epoch, known->version, &reader, words);

    if (err) {
        return err;
    }
    owner = (struct gk_wal_segment){
        .shard = reader.head.shard, .servers = reader.head.servers, .workers = reader.head.workers};
    memcpy(owner.job, reader.head.facts.job, sizeof(owner.job));
    err = same_owner(archive, reader.name.text, &owner, words);
    err = err ? err : gk_snapreader_image(&archive->place, &reader, attempt->state.image, words);
    attempt->state.next_number = reader.head.facts.next_number;
    attempt->state.from_version = known->version;
    if (!err && !attempt->wish->without_planes) {
        err = load_planes(attempt, &reader, words);
        err = err ? err
                  : gk_batch_new(archive->ops, archive->queue, attempt->state.image,
                                 &attempt->batch, words);
    }
    gk_snapreader_close(&archive->place, &reader);
    return err;
}

static enum gk_err apply_batch(struct attempt *attempt, struct gk_words *words)
{
    const struct gk_image *image = attempt->state.image;
    enum gk_err err =
        gk_batch_apply(attempt->batch, attempt->state.planes, 0, image->hi - image->lo, words);

    gk_batch_clear(attempt->batch);
    return err;
}

/* Before the image takes the record: the hash in it is of the version so far. */
static enum gk_err check_record(struct attempt *attempt, const struct gk_record *record,
                                struct gk_words *words)
{
    enum gk_err err;

    if (!attempt->batch || record->type != GK_RECORD_ROUND || !record->hashed) {
        return GK_OK;
    }
    err = apply_batch(attempt, words);
    return err ? err : check_hash(attempt, record->state_hash, words);
}

/* A living server may be in the midst of writing what looks damaged: look again, also at where the
 * file ends by now. */
static enum gk_err next_record(struct attempt *attempt, struct gk_record *ret, uint8_t **ret_memory,
                               struct gk_words *words)
{
    const struct timespec wait = {.tv_nsec = LOOK_MS * 1000000L};
    const struct gk_archive *archive = attempt->archive;
    struct gk_walk *walk = &attempt->walk;
    enum gk_err err;
    int ignored;

    for (int looks = 1;; looks++) {
        walk->torn.text[0] = '\0';
        err = gk_walk_next(walk, archive->ops, archive->queue, ret, ret_memory, words);
        if (archive->locked || looks == LOOKS_MAX ||
            (err != GK_E_CORRUPT && err != GK_E_IO && /* IO: it became shorter */
             !(err == GK_E_NOTFOUND && walk->torn.text[0]))) {
            return err;
        }
        (void)nanosleep(&wait, NULL); /* sooner does no harm */
        (void)archive->place.ops->size(walk->reader.file, &walk->reader.size, &ignored);
    }
}

static enum gk_err take_record(struct attempt *attempt, const struct gk_record *record,
                               uint8_t *memory, struct gk_words *words)
{
    const struct gk_archive *archive = attempt->archive;
    enum gk_err err = check_record(attempt, record, words);

    err = err ? err : gk_image_apply(attempt->state.image, record, words);
    if (err == GK_E_CORRUPT) {
        gk_place_at(&archive->place, attempt->walk.reader.name.text, attempt->walk.record_at,
                    words);
    }
    if (err || !attempt->batch || record->type != GK_RECORD_ROUND) {
        archive->ops->free(archive->queue, GK_MEMORY_PINNED, memory);
        return err;
    }
    gk_batch_add(attempt->batch, record, memory, gk_wal_bytes(record));
    if (attempt->batch->count == GK_REPLAY_ROUNDS_MAX ||
        attempt->batch->bytes >= GK_REPLAY_BATCH_BYTES) {
        err = apply_batch(attempt, words);
    }
    return err;
}

static enum gk_err replay(struct attempt *attempt, struct gk_words *words)
{
    const struct gk_archive_wish *wish = attempt->wish;
    struct gk_archived *state = &attempt->state;
    struct gk_record record;
    uint8_t *memory;
    enum gk_err err = GK_OK;

    while (!err && (wish->version == GK_ARCHIVE_NEWEST || state->image->version < wish->version)) {
        err = next_record(attempt, &record, &memory, words);
        if (err == GK_E_NOTFOUND) {
            break;
        }
        err = err ? err : take_record(attempt, &record, memory, words);
        state->records += !err;
    }
    if (err == GK_E_NOTFOUND) {
        err = GK_OK;
        state->torn = attempt->walk.torn;
        state->torn_bytes = attempt->walk.torn_bytes;
    }
    err = err || !attempt->batch ? err : apply_batch(attempt, words);
    state->next_number = attempt->walk.reader.number;
    if (!err && wish->version != GK_ARCHIVE_NEWEST && state->image->version != wish->version) {
        gk_words_set(words,
                     "%s: version %" PRIu64 " is not there: the log ends at version %" PRIu64,
                     attempt->archive->place.directory, wish->version, state->image->version);
        err = GK_E_NOTFOUND;
    }
    return err;
}

/* From a snapshot (NULL: before version 0) on. */
static enum gk_err try_from(struct gk_archive *archive, const struct gk_archive_wish *wish,
                            const struct gk_known *snapshot, struct gk_archived *ret,
                            struct gk_words *words)
{
    struct attempt attempt = {.archive = archive, .wish = wish};
    enum gk_err err = gk_image_new(archive->owner.shard, archive->owner.servers,
                                   archive->owner.workers, &attempt.state.image);

    if (err) {
        return no_memory(words);
    }
    if (snapshot) {
        err = load_snapshot(&attempt, snapshot, words);
    }
    if (!err && archive->segments.count > 0) {
        attempt.walk = (struct gk_walk){
            .place = &archive->place, .segments = &archive->segments, .last_may_end = true};
        err = gk_walk_open(&attempt.walk, attempt.state.next_number, words);
        if (!err) {
            err = replay(&attempt, words);
            gk_walk_close(&attempt.walk);
        }
    } else if (!err && wish->version != GK_ARCHIVE_NEWEST &&
               wish->version != attempt.state.image->version) {
        gk_words_set(words, "%s: version %" PRIu64 " is not there: it ends at version %" PRIu64,
                     archive->place.directory, wish->version, attempt.state.image->version);
        err = GK_E_NOTFOUND;
    }
    gk_batch_free(attempt.batch);
    if (err) {
        gk_archived_fini(archive, &attempt.state);
        return err;
    }
    *ret = attempt.state;
    return GK_OK;
}

enum gk_err gk_archive_read(struct gk_archive *archive, const struct gk_archive_wish *wish,
                            struct gk_archived *ret, struct gk_words *words)
{
    const struct gk_known_list *snapshots = &archive->snapshots;
    struct gk_words first = {""}, own;
    uint32_t end = 0;
    enum gk_err err = GK_E_CORRUPT;

    words = words ? words : &own;
    if (snapshots->count == 0 && wish->version == GK_ARCHIVE_NEWEST) {
        return try_from(archive, wish, NULL, ret, words);
    }
    while (end < snapshots->count && snapshots->list[end].version <= wish->version) {
        end++;
    }
    if (end == 0) {
        if (snapshots->count == 0) {
            gk_words_set(words, "%s holds no version yet", archive->place.directory);
        } else {
            gk_words_set(words,
                         "%s: version %" PRIu64
                         " cannot be reached: the oldest snapshot is of version %" PRIu64,
                         archive->place.directory, wish->version, snapshots->list[0].version);
        }
        return GK_E_NOTFOUND;
    }
    if (wish->from_oldest) {
        return try_from(archive, wish, &snapshots->list[0], ret, words);
    }
    while (end > 0 && err == GK_E_CORRUPT) {
        err = try_from(archive, wish, &snapshots->list[--end], ret, words);
        if (err == GK_E_CORRUPT && !first.text[0]) {
            first = *words;
        }
    }
    if (err == GK_E_CORRUPT) {
        *words = first; /* of the newest: the older ones were but a way out */
    }
    return err;
}

enum gk_err gk_archive_snapshot(struct gk_archive *archive, const struct gk_known *known,
                                struct gk_archived *ret, struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = known->version};
    struct attempt attempt = {.archive = archive, .wish = &wish};
    enum gk_err err = gk_image_new(archive->owner.shard, archive->owner.servers,
                                   archive->owner.workers, &attempt.state.image);

    if (err) {
        return no_memory(words);
    }
    err = load_snapshot(&attempt, known, words);
    gk_batch_free(attempt.batch);
    if (err) {
        gk_archived_fini(archive, &attempt.state);
        return err;
    }
    *ret = attempt.state;
    return GK_OK;
}

void gk_archived_fini(const struct gk_archive *archive, struct gk_archived *archived)
{
    for (int p = 0; p < 3; p++) {
        archive->ops->free(archive->queue, GK_MEMORY_DEVICE, archived->planes[p]);
    }
    gk_image_free(archived->image);
    memset(archived, 0, sizeof(*archived));
}

enum gk_err gk_archive_hash(const struct gk_archive *archive, const struct gk_archived *archived,
                            bool all_planes, uint64_t *ret_hash, struct gk_words *words)
{
    const struct gk_range global = {archived->image->lo, archived->image->hi};
    enum gk_err err =
        gk_replay_hash(archive->ops, archive->queue, archived->planes,
                       all_planes ? gk_image_planes(archived->image) : 1, &global, ret_hash);

    if (err) {
        gk_words_set(words, "hashing the planes: %s", gk_err_text(err));
    }
    return err;
}
