/* Whose directory it is: the file JOB, written once, and the header of every other file. */
#include "server/store/internal.h"
#include "server/store/owner.h"

#include <inttypes.h>
#include <string.h>

/* Of a file that is whole: does it belong to this shard? */
enum gk_err gk_store_check_owner(const struct gk_store *store, const char *name,
                                 const struct gk_wal_segment *owner, struct gk_words *words)
{
    if (owner->shard == store->shard && owner->servers == store->servers &&
        owner->workers == store->workers && strcmp(owner->job, store->job) == 0) {
        return GK_OK;
    }
    gk_words_set(words,
                 "%s/%s belongs to shard %" PRIu32 " of %" PRIu32 " of job '%s' with %" PRIu32
                 " workers, this is shard %" PRIu32 " of %" PRIu32 " of job '%s' with %" PRIu32
                 "; another --state-dir would help",
                 store->place.directory, name, owner->shard, owner->servers, owner->job,
                 owner->workers, store->shard, store->servers, store->job, store->workers);
    return GK_E_REFUSED;
}

static enum gk_err write_job(struct gk_store *store, struct gk_words *words)
{
    const struct gk_disk_ops *ops = store->place.ops;
    struct gk_wal_segment owner = {
        .shard = store->shard, .servers = store->servers, .workers = store->workers};
    uint8_t bytes[GK_WAL_SEGMENT_BYTES];
    const struct gk_piece_of_file piece = {bytes, sizeof(bytes)};
    struct gk_file *file = NULL;
    const char *what = "write it";
    int number = 0;
    enum gk_err err =
        ops->open(store->place.disk, GK_STORE_JOB_TEMPORARY, true, true, &file, &number);

    memcpy(owner.job, store->job, sizeof(owner.job));
    (void)gk_wal_segment_encode(&owner, GK_WAL_FILE_JOB, bytes);
    err = err ? err : ops->write(file, 0, &piece, 1, &number);
    if (!err && ops->sync(file, &number) != GK_OK) {
        what = "sync it";
        err = GK_E_IO;
    }
    ops->close_file(file);
    if (err) {
        err = gk_place_failed(&store->place, GK_STORE_JOB_TEMPORARY, what, err, number, words);
        (void)gk_place_remove(&store->place, GK_STORE_JOB_TEMPORARY, NULL); /* as the next open */
        return err;
    }
    return gk_place_publish(&store->place, GK_STORE_JOB_TEMPORARY, GK_STORE_JOB, words);
}

enum gk_err gk_store_check_job(struct gk_store *store, struct gk_words *words)
{
    struct gk_known_list *segments = &store->shared->segments;
    struct gk_known_list *snapshots = &store->shared->snapshots;
    struct gk_wal_segment owner;
    enum gk_err err = gk_owner_read(&store->place, &owner, words);

    if (err == GK_E_NOTFOUND) { /* the directory is new, or its log says whose it is */
        err = gk_place_list(&store->place, segments, snapshots, words);
        if (!err && segments->count == 0) {
            err = gk_owner_none(&store->place, snapshots, words);
        }
        return err ? err : write_job(store, words);
    }
    return err ? err : gk_store_check_owner(store, GK_STORE_JOB, &owner, words);
}
