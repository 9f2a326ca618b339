#include "server/store/snapfile.h"

#include "common/bits.h"
#include "common/hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum gk_err no_memory(struct gk_words *words)
{
    gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
    return GK_E_NOMEM;
}

enum gk_err gk_snapwriter_open(const struct gk_place *place, const char *temporary,
                               const struct gk_snapshot_layout *layout, struct gk_snapwriter *ret,
                               struct gk_words *words)
{
    const struct gk_disk_ops *ops = place->ops;
    struct gk_snapwriter writer = {.name = temporary, .layout = *layout};
    enum gk_err err;
    int number = 0;

    writer.sums = calloc((size_t)(layout->planes * layout->blocks) + 1, sizeof(*writer.sums));
    if (!writer.sums) {
        return no_memory(words);
    }
    err = ops->open(place->disk, temporary, true, true, &writer.file, &number);
    if (!err) {
        err = ops->cut(writer.file, 0, &number);
    }
    if (!err) {
        err = ops->reserve(writer.file, layout->bytes, &number);
    }
    if (err) {
        err = gk_place_failed(place, temporary, "get room for a snapshot", err, number, words);
        gk_snapwriter_close(place, &writer);
        return err;
    }
    *ret = writer;
    return GK_OK;
}

void gk_snapwriter_close(const struct gk_place *place, struct gk_snapwriter *writer)
{
    if (writer->file) {
        place->ops->close_file(writer->file);
        (void)gk_place_remove(place, writer->name, NULL); /* the next open removes it, too */
    }
    free(writer->sums);
    memset(writer, 0, sizeof(*writer));
}

enum gk_err gk_snapwriter_put(const struct gk_place *place, struct gk_snapwriter *writer,
                              uint32_t plane, uint64_t block, const float *values,
                              struct gk_words *words)
{
    uint64_t count, offset = gk_snapshot_block(&writer->layout, plane, block, &count);
    const struct gk_piece_of_file piece = {values, (size_t)count * sizeof(float)};
    int number = 0;
    enum gk_err err = place->ops->write(writer->file, offset, &piece, 1, &number);

    if (err) {
        return gk_place_failed(place, writer->name, "write a snapshot", err, number, words);
    }
    writer->sums[plane * writer->layout.blocks + block] = gk_crc32c(piece.data, piece.size);
    return GK_OK;
}

enum gk_err gk_snapwriter_get(const struct gk_place *place, struct gk_snapwriter *writer,
                              uint32_t plane, uint64_t block, float *ret, struct gk_words *words)
{
    uint64_t count, offset = gk_snapshot_block(&writer->layout, plane, block, &count);
    int number = 0;
    enum gk_err err =
        place->ops->read(writer->file, offset, ret, (size_t)count * sizeof(float), &number);

    return err ? gk_place_failed(place, writer->name, "read it", GK_E_IO, number, words) : GK_OK;
}

enum gk_err gk_snapwriter_publish(const struct gk_place *place, struct gk_snapwriter *writer,
                                  const struct gk_image *image,
                                  const struct gk_snapshot_facts *facts, struct gk_words *words)
{
    struct gk_name name = gk_name_snapshot(image->epoch, image->version);
    struct gk_piece_of_file piece = {.size = (size_t)writer->layout.planes_at};
    uint8_t *tables = malloc(piece.size);
    enum gk_err err;
    int number = 0;

    if (!tables) {
        return no_memory(words);
    }
    gk_snapshot_encode(image, &writer->layout, facts, writer->sums, tables);
    piece.data = tables;
    err = place->ops->write(writer->file, 0, &piece, 1, &number);
    if (err) {
        err = gk_place_failed(place, writer->name, "write a snapshot", err, number, words);
    } else if (place->ops->sync(writer->file, &number) != GK_OK) {
        err = gk_place_failed(place, writer->name, "sync it", GK_E_IO, number, words);
    }
    free(tables);
    if (!err) {
        err = gk_place_publish(place, writer->name, name.text, words);
    }
    if (!err) {
        place->ops->close_file(writer->file);
        writer->file = NULL; /* it has its name; nothing to remove */
    }
    return err;
}

enum gk_err gk_snapreader_open(const struct gk_place *place, uint32_t epoch, uint64_t version,
                               struct gk_snapreader *ret, struct gk_words *words)
{
    const struct gk_disk_ops *ops = place->ops;
    struct gk_snapreader reader = {.name = gk_name_snapshot(epoch, version)};
    uint8_t bytes[GK_SNAPSHOT_HEADER_BYTES];
    uint64_t size = 0;
    int number = 0;
    enum gk_err err = ops->open(place->disk, reader.name.text, false, false, &reader.file, &number);

    if (err) {
        return gk_place_unopened(place, reader.name.text, err, number, words);
    }
    err = ops->size(reader.file, &size, &number);
    err = err ? err : ops->read(reader.file, 0, bytes, sizeof(bytes), &number);
    if (err) {
        err = gk_place_failed(place, reader.name.text, "read it", err, number, words);
        goto out;
    }
    err = gk_snapshot_head_decode(bytes, &reader.head, words);
    if (!err && (reader.head.epoch != epoch || reader.head.version != version)) {
        gk_words_set(words, "the file says that it is version %" PRIu64 " of epoch %" PRIu32,
                     reader.head.version, reader.head.epoch);
        err = GK_E_CORRUPT;
    }
    if (!err && size != reader.head.layout.bytes) {
        gk_words_set(words, "the file has %" PRIu64 " bytes, expected %" PRIu64, size,
                     reader.head.layout.bytes);
        err = GK_E_CORRUPT;
    }
    if (err) {
        gk_place_at(place, reader.name.text, 0, words);
        goto out;
    }
    reader.head.bytes = NULL; /* of this frame */
    *ret = reader;
    return GK_OK;
out:
    ops->close_file(reader.file);
    return err;
}

enum gk_err gk_snapreader_image(const struct gk_place *place, struct gk_snapreader *reader,
                                struct gk_image *image, struct gk_words *words)
{
    size_t size = (size_t)reader->head.layout.planes_at;
    int number = 0;
    enum gk_err err;

    if (!reader->tables) {
        reader->tables = malloc(size);
    }
    if (!reader->tables) {
        return no_memory(words);
    }
    err = place->ops->read(reader->file, 0, reader->tables, size, &number);
    if (err) {
        return gk_place_failed(place, reader->name.text, "read it", err, number, words);
    }
    err = gk_snapshot_decode(&reader->head, reader->tables, image, &reader->sums, words);
    if (err) {
        gk_place_at(place, reader->name.text, GK_SNAPSHOT_HEADER_BYTES, words);
    }
    return err;
}

enum gk_err gk_snapreader_get(const struct gk_place *place, struct gk_snapreader *reader,
                              uint32_t plane, uint64_t block, float *ret, struct gk_words *words)
{
    const struct gk_snapshot_layout *layout = &reader->head.layout;
    uint64_t count, offset = gk_snapshot_block(layout, plane, block, &count);
    uint32_t sum = gk_get_u32(reader->sums + 4 * (plane * layout->blocks + block));
    int number = 0;
    enum gk_err err =
        place->ops->read(reader->file, offset, ret, (size_t)count * sizeof(float), &number);

    if (err) {
        return gk_place_failed(place, reader->name.text, "read it", err, number, words);
    }
    if (gk_crc32c(ret, (size_t)count * sizeof(float)) != sum) {
        gk_words_set(words, "the checksum of a block of plane %" PRIu32 " is wrong", plane);
        gk_place_at(place, reader->name.text, offset, words);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

void gk_snapreader_close(const struct gk_place *place, struct gk_snapreader *reader)
{
    place->ops->close_file(reader->file);
    free(reader->tables);
    memset(reader, 0, sizeof(*reader));
}
