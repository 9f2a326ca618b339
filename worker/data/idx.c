#include "worker/data/data.h"

static uint32_t read_big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
}

static enum gk_err check_magic(uint32_t magic, struct gk_words *words)
{
    uint32_t type = magic >> 8;
    uint32_t dims_count = magic & 0xff;

    if (type > 0xff) {
        gk_words_set(
            words,
            "not an IDX file: it starts with %08x, expected 00000803 (images) or 00000801 (labels)",
            (unsigned)magic);
        return GK_E_CORRUPT;
    }
    if (type != 8) {
        gk_words_set(words, "IDX elements of type %02x, expected 08 (unsigned bytes)",
                     (unsigned)type);
        return GK_E_CORRUPT;
    }
    if (dims_count < 1 || dims_count > 3) {
        gk_words_set(words, "IDX array of %u dimensions, expected 1 to 3", (unsigned)dims_count);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

enum gk_err gk_idx_parse(const uint8_t *bytes, size_t bytes_count, struct gk_idx *ret_idx,
                         struct gk_words *words)
{
    struct gk_idx idx = {.dims = {1, 1, 1}, .count = 1};
    size_t head_bytes;
    uint32_t magic;
    enum gk_err err;

    if (bytes_count < 4) {
        gk_words_set(words, "truncated: %zu bytes, an IDX file starts with 4 bytes of magic",
                     bytes_count);
        return GK_E_CORRUPT;
    }
    magic = read_big_endian(bytes);
    err = check_magic(magic, words);
    if (err) {
        return err;
    }
    idx.dims_count = magic & 0xff;
    head_bytes = 4 + 4 * (size_t)idx.dims_count;
    if (bytes_count < head_bytes) {
        gk_words_set(words, "truncated: %zu bytes, the IDX header alone has %zu", bytes_count,
                     head_bytes);
        return GK_E_CORRUPT;
    }
    for (uint32_t i = 0; i < idx.dims_count; i++) {
        idx.dims[i] = read_big_endian(bytes + 4 + 4 * (size_t)i);
        if (idx.dims[i] == 0) {
            gk_words_set(words, "empty: IDX dimension %u of %u is 0", (unsigned)i + 1,
                         (unsigned)idx.dims_count);
            return GK_E_CORRUPT;
        }
        if (idx.dims[i] > (size_t)GK_DATA_BYTES_MAX / idx.count) {
            gk_words_set(words, "IDX dimension %u is %u: more than %d bytes in all",
                         (unsigned)i + 1, (unsigned)idx.dims[i], GK_DATA_BYTES_MAX);
            return GK_E_LIMIT;
        }
        idx.count *= idx.dims[i];
    }
    if (bytes_count - head_bytes < idx.count) {
        gk_words_set(words, "truncated: %zu bytes of data, its IDX header promises %zu",
                     bytes_count - head_bytes, idx.count);
        return GK_E_CORRUPT;
    }
    if (bytes_count - head_bytes > idx.count) {
        gk_words_set(words, "%zu bytes too many: its IDX header promises %zu bytes of data",
                     bytes_count - head_bytes - idx.count, idx.count);
        return GK_E_CORRUPT;
    }
    idx.data = bytes + head_bytes;
    *ret_idx = idx;
    return GK_OK;
}
