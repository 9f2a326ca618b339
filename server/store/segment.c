/* Behind the last good record of the segment that is written lie zeros or nothing: what a failed
 * write has left is cut off at once.  So at the end of a log a reader finds zeros, or a tail that a
 * crash has torn, or damage; gk_reader_rest() tells the last two apart. */
#include "server/store/segment.h"

#include "common/assert.h"
#include "common/bits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { REST_BYTES = 256 * 1024 }; /* read at once */

enum gk_err gk_segment_create(const struct gk_place *place, const struct gk_wal_segment *header,
                              struct gk_segment *ret, struct gk_words *words)
{
    const struct gk_disk_ops *ops = place->ops;
    uint8_t bytes[GK_WAL_SEGMENT_BYTES];
    const struct gk_piece_of_file piece = {bytes, sizeof(bytes)};
    struct gk_segment segment = {
        .name = gk_name_segment(header->epoch, header->first_version),
        .first_version = header->first_version,
        .end = sizeof(bytes),
        .reserved = sizeof(bytes),
        .synced = sizeof(bytes),
    };
    const char *what = "make it";
    int number = 0;
    enum gk_err err = ops->open(place->disk, segment.name.text, true, true, &segment.file, &number);

    segment.crc = gk_wal_segment_encode(header, GK_WAL_FILE_LOG, bytes);
    if (!err) { /* an earlier attempt may have left something */
        err = ops->cut(segment.file, 0, &number);
    }
    if (!err) {
        what = "write its header";
        err = ops->write(segment.file, 0, &piece, 1, &number);
    }
    if (!err) {
        what = "sync its header";
        err = ops->sync(segment.file, &number);
        err = err ? GK_E_IO : GK_OK;
    }
    if (err) {
        err = gk_place_failed(place, segment.name.text, what, err, number, words);
    } else {
        err = gk_place_sync_directory(place, words);
    }
    if (err) {
        ops->close_file(segment.file);
        (void)gk_place_remove(place, segment.name.text, NULL); /* the first error is told */
        return err;
    }
    *ret = segment;
    return GK_OK;
}

void gk_segment_close(const struct gk_place *place, struct gk_segment *segment)
{
    place->ops->close_file(segment->file);
    memset(segment, 0, sizeof(*segment));
}

enum gk_err gk_segment_reserve(const struct gk_place *place, struct gk_segment *segment,
                               uint64_t bytes, uint64_t step, struct gk_words *words)
{
    uint64_t need = segment->end + bytes;
    uint64_t size = (need + step - 1) / step * step;
    int number = 0;
    enum gk_err err;

    if (need <= segment->reserved) {
        return GK_OK;
    }
    err = place->ops->reserve(segment->file, size, &number);
    if (err == GK_E_LIMIT && size > need) { /* the last bytes of a full disk */
        size = need;
        err = place->ops->reserve(segment->file, size, &number);
    }
    if (err) {
        enum gk_err told =
            gk_place_failed(place, segment->name.text, "get room for a record", err, number, words);

        /* Some of it may have been given. */
        return place->ops->cut(segment->file, segment->reserved, &number) ? GK_E_IO : told;
    }
    segment->reserved = size;
    return GK_OK;
}

enum gk_err gk_segment_append(const struct gk_place *place, struct gk_segment *segment,
                              const struct gk_record *record, uint64_t number, uint8_t *scratch,
                              struct gk_words *words)
{
    const struct gk_wal_place at = {segment->crc, number, segment->synced};
    struct gk_wal_piece pieces[GK_WAL_PIECES_MAX];
    struct gk_piece_of_file list[GK_WAL_PIECES_MAX];
    uint32_t count, crc = gk_wal_encode(record, &at, scratch, pieces, &count);
    int number_of_error = 0;
    enum gk_err err;

    for (uint32_t i = 0; i < count; i++) {
        list[i] = (struct gk_piece_of_file){pieces[i].data, pieces[i].size};
    }
    err = place->ops->write(segment->file, segment->end, list, count, &number_of_error);
    if (err) {
        int ignored;

        err = gk_place_failed(place, segment->name.text, "write a record", err, number_of_error,
                              words);
        if (place->ops->cut(segment->file, segment->end, &ignored) != GK_OK) {
            return GK_E_IO;
        }
        segment->reserved = segment->end;
        return err == GK_E_LIMIT ? err : GK_E_IO;
    }
    segment->end += gk_wal_bytes(record);
    segment->reserved = gk_max_u64(segment->reserved, segment->end);
    segment->crc = crc;
    return GK_OK;
}

enum gk_err gk_segment_sync(const struct gk_place *place, struct gk_segment *segment,
                            struct gk_words *words)
{
    int number = 0;
    enum gk_err err = place->ops->sync(segment->file, &number);

    if (err) {
        return gk_place_failed(place, segment->name.text, "sync it", GK_E_IO, number, words);
    }
    segment->synced = segment->end;
    return GK_OK;
}

enum gk_err gk_segment_write_again(const struct gk_place *place, struct gk_segment *segment,
                                   uint64_t offset, struct gk_words *words)
{
    uint8_t *bytes = malloc(REST_BYTES);
    struct gk_piece_of_file piece = {.data = bytes};
    enum gk_err err = bytes ? GK_OK : GK_E_NOMEM;
    int number = 0;

    if (err) {
        gk_words_set(words, "%s", gk_err_text(err));
    }
    for (; offset < segment->end && !err; offset += piece.size) {
        piece.size = (size_t)gk_min_u64(REST_BYTES, segment->end - offset);
        err = place->ops->read(segment->file, offset, bytes, piece.size, &number);
        err = err ? err : place->ops->write(segment->file, offset, &piece, 1, &number);
        if (err) {
            (void)gk_place_failed(place, segment->name.text, "write it again", err, number, words);
        }
    }
    free(bytes);
    return err;
}

enum gk_err gk_reader_open(const struct gk_place *place, uint32_t epoch, uint64_t version,
                           struct gk_reader *ret, struct gk_words *words)
{
    const struct gk_disk_ops *ops = place->ops;
    struct gk_reader reader = {.name = gk_name_segment(epoch, version),
                               .offset = GK_WAL_SEGMENT_BYTES};
    uint8_t bytes[GK_WAL_SEGMENT_BYTES];
    int number = 0;
    enum gk_err err = ops->open(place->disk, reader.name.text, false, false, &reader.file, &number);

    if (err) {
        return gk_place_unopened(place, reader.name.text, err, number, words);
    }
    err = ops->size(reader.file, &reader.size, &number);
    if (err) {
        err = gk_place_failed(place, reader.name.text, "look at it", err, number, words);
    } else if (reader.size < sizeof(bytes)) {
        gk_words_set(words, "the file ends within its header");
        gk_place_at(place, reader.name.text, reader.size, words);
        err = GK_E_CORRUPT;
    } else {
        err = ops->read(reader.file, 0, bytes, sizeof(bytes), &number);
        if (err) {
            err = gk_place_failed(place, reader.name.text, "read it", err, number, words);
        } else {
            err = gk_wal_segment_decode(bytes, GK_WAL_FILE_LOG, &reader.header, &reader.crc, words);
            if (!err && (reader.header.epoch != epoch || reader.header.first_version != version)) {
                gk_words_set(words,
                             "the file says that it begins behind version %" PRIu64
                             " of epoch %" PRIu32,
                             reader.header.first_version, reader.header.epoch);
                err = GK_E_INVALID;
            }
            if (err) {
                gk_place_at(place, reader.name.text, 0, words);
            }
        }
    }
    if (err) {
        ops->close_file(reader.file);
        return err;
    }
    reader.number = reader.header.first_number;
    reader.proven = sizeof(bytes); /* or the first record would not have been written */
    *ret = reader;
    return GK_OK;
}

void gk_reader_close(const struct gk_place *place, struct gk_reader *reader)
{
    place->ops->close_file(reader->file);
    reader->file = NULL;
}

/* What a chain of records demands. */
static enum gk_err check_place(const struct gk_reader *reader, const struct gk_wal_head *head,
                               struct gk_words *words)
{
    if (head->place.previous_crc != reader->crc) {
        gk_words_set(words, "a record that does not follow from the one before it");
        return GK_E_CORRUPT;
    }
    if (head->place.number != reader->number) {
        gk_words_set(words, "record number %" PRIu64 ", expected %" PRIu64, head->place.number,
                     reader->number);
        return GK_E_CORRUPT;
    }
    if (head->bytes > reader->size - reader->offset) {
        gk_words_set(words, "a record of %" PRIu64 " bytes, of which %" PRIu64 " are there",
                     head->bytes, reader->size - reader->offset);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

enum gk_err gk_reader_peek(const struct gk_place *place, struct gk_reader *reader,
                           struct gk_wal_head *ret, struct gk_words *words)
{
    uint8_t bytes[GK_WAL_HEADER_BYTES];
    int number = 0;
    enum gk_err err;

    if (reader->size - reader->offset < sizeof(bytes)) {
        gk_words_set(words, "the file ends here");
        err = GK_E_CORRUPT;
    } else {
        err = place->ops->read(reader->file, reader->offset, bytes, sizeof(bytes), &number);
        if (err) {
            return gk_place_failed(place, reader->name.text, "read it", GK_E_IO, number, words);
        }
        err = gk_wal_head_decode(bytes, ret, words);
    }
    err = err ? err : check_place(reader, ret, words);
    if (err) {
        gk_place_at(place, reader->name.text, reader->offset, words);
    }
    return err;
}

enum gk_err gk_reader_payload(const struct gk_place *place, struct gk_reader *reader,
                              const struct gk_wal_head *head, uint8_t *payload,
                              struct gk_words *words)
{
    int number = 0;
    enum gk_err err = place->ops->read(reader->file, reader->offset + GK_WAL_HEADER_BYTES, payload,
                                       (size_t)(head->bytes - GK_WAL_HEADER_BYTES), &number);

    return err ? gk_place_failed(place, reader->name.text, "read it", GK_E_IO, number, words)
               : GK_OK;
}

void gk_reader_next(struct gk_reader *reader, const struct gk_wal_head *head)
{
    reader->offset += head->bytes;
    reader->crc = head->crc;
    reader->number++;
    reader->proven =
        gk_max_u64(reader->proven, gk_min_u64(head->place.synced, reader->offset - head->bytes));
}

/* A header at `at` that was written later than what should be at the reader's offset, and when that
 * was on disk already. */
static bool marks(const struct gk_reader *reader, const uint8_t *at, uint64_t offset)
{
    struct gk_wal_head head;

    return gk_wal_head_decode(at, &head, NULL) == GK_OK &&
           head.record.epoch == reader->header.epoch && head.place.number >= reader->number &&
           head.place.synced > reader->offset && head.place.synced <= offset;
}

static void look_through(const struct gk_reader *reader, const uint8_t *bytes, uint64_t size,
                         uint64_t offset, struct gk_rest *rest)
{
    for (uint64_t i = size; i-- > 0;) {
        if (bytes[i] != 0) {
            rest->bytes = offset + i + 1 - reader->offset;
            break;
        }
    }
    for (uint64_t i = 0; i + GK_WAL_HEADER_BYTES <= size && !rest->marked; i += GK_WAL_ALIGN) {
        if (marks(reader, bytes + i, offset + i)) {
            rest->marked = true;
            rest->marked_by = offset + i;
        }
    }
}

enum gk_err gk_reader_rest(const struct gk_place *place, struct gk_reader *reader,
                           struct gk_rest *ret, struct gk_words *words)
{
    uint8_t *bytes = malloc(REST_BYTES);
    struct gk_rest rest = {0};
    enum gk_err err = GK_OK;
    int number = 0;

    if (!bytes) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    /* Pieces overlap by all but one step of a header, so that none is cut in two. */
    for (uint64_t at = reader->offset; at < reader->size && !err;
         at += REST_BYTES - GK_WAL_HEADER_BYTES + GK_WAL_ALIGN) {
        uint64_t size = gk_min_u64(REST_BYTES, reader->size - at);

        err = place->ops->read(reader->file, at, bytes, (size_t)size, &number);
        if (err) {
            err = gk_place_failed(place, reader->name.text, "read it", GK_E_IO, number, words);
        } else {
            look_through(reader, bytes, size, at, &rest);
        }
    }
    free(bytes);
    if (!err) {
        *ret = rest;
    }
    return err;
}

enum gk_err gk_reader_headless(const struct gk_place *place, uint32_t epoch, uint64_t version,
                               struct gk_rest *ret, struct gk_words *words)
{
    struct gk_reader reader = {.name = gk_name_segment(epoch, version), .header.epoch = epoch};
    int number = 0;
    enum gk_err err =
        place->ops->open(place->disk, reader.name.text, false, false, &reader.file, &number);

    if (err) {
        return gk_place_unopened(place, reader.name.text, err, number, words);
    }
    err = place->ops->size(reader.file, &reader.size, &number);
    err = err ? gk_place_failed(place, reader.name.text, "read it", err, number, words)
              : gk_reader_rest(place, &reader, ret, words);
    gk_reader_close(place, &reader);
    return err;
}
