#include "server/store/owner.h"

enum gk_err gk_owner_read(const struct gk_place *place, struct gk_wal_segment *ret_owner,
                          struct gk_words *words)
{
    struct gk_wal_segment owner;
    uint8_t bytes[GK_WAL_SEGMENT_BYTES];
    struct gk_file *file;
    uint32_t crc;
    int number = 0;
    enum gk_err err = place->ops->open(place->disk, GK_STORE_JOB, false, false, &file, &number);

    if (err == GK_E_NOTFOUND) {
        gk_words_set(words, "%s holds no shard: there is no file %s", place->directory,
                     GK_STORE_JOB);
        return err;
    }
    if (err) {
        return gk_place_failed(place, GK_STORE_JOB, "open it", err, number, words);
    }
    err = place->ops->read(file, 0, bytes, sizeof(bytes), &number);
    place->ops->close_file(file);
    if (err) {
        return gk_place_failed(place, GK_STORE_JOB, "read it", err, number, words);
    }
    err = gk_wal_segment_decode(bytes, GK_WAL_FILE_JOB, &owner, &crc, words);
    if (err) {
        gk_place_at(place, GK_STORE_JOB, 0, words);
        return err;
    }
    *ret_owner = owner;
    return GK_OK;
}

enum gk_err gk_owner_none(const struct gk_place *place, const struct gk_known_list *snapshots,
                          struct gk_words *words)
{
    const struct gk_known *newest;

    if (snapshots->count == 0) {
        return GK_OK;
    }
    newest = &snapshots->list[snapshots->count - 1];
    gk_words_set(words,
                 "%s holds %s, but the file %s and the log behind that (%s) are missing: put them "
                 "back, or the whole folder from a copy",
                 place->directory, gk_name_snapshot(newest->epoch, newest->version).text,
                 GK_STORE_JOB, gk_name_segment(newest->epoch, newest->version).text);
    return GK_E_REFUSED;
}
