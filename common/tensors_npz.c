/* npz: a zip archive of npy files, one a tensor.  Written stored (the values are noise to a
 * packer), read stored or deflated.  Sizes are those of the central directory: local headers of
 * streams do not know them.  No zip64: beyond 4 GiB there is safetensors. */
#include "common/tensors_internal.h"

#include "common/bits.h"
#include "common/shown.h"

#define ZLIB_CONST
#include <zlib.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    COMMENT_BYTES_MAX = 65535,
    STORED = 0,
    DEFLATED = 8,
    DEFLATE_RATIO_MAX = 1040, /* a little more than is possible */
    FLAG_ENCRYPTED = 1,
    NPY_MAGIC_BYTES = 6,
    NPY_ALIGN = 64,
    NPY_HEADER_BYTES = 192, /* of ours, at most */
    ZIP_NEEDS = 20,
    DATE = 33, /* the first day that the format knows: the same bytes on every run */
};

static const uint8_t local_magic[4] = {'P', 'K', 3, 4};
static const uint8_t central_magic[4] = {'P', 'K', 1, 2};
static const uint8_t end_magic[4] = {'P', 'K', 5, 6};
static const uint8_t npy_magic[NPY_MAGIC_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

static uint16_t get_u16(const uint8_t *at)
{
    uint16_t x;

    memcpy(&x, at, sizeof(x));
    return x;
}

static void put_u16(uint8_t *at, uint32_t x)
{
    const uint16_t low = (uint16_t)x;

    memcpy(at, &low, sizeof(low));
}

struct member { /* of the archive, by its entry in the central directory */
    char name[GK_TENSOR_NAME_BYTES + 4];
    uint32_t method, crc;
    size_t packed, size;
    size_t local;
};

/* The text behind a key of the header's dictionary; NULL: it is not there. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);

    if (!at) {
        return NULL;
    }
    at += strlen(key);
    return at + strspn(at, " :");
}

static enum gk_err parse_shape(const char *at, struct gk_tensors_entry *entry,
                               struct gk_words *words)
{
    bool good = at && *at == '(';

    at = good ? at + 1 : at;
    while (good && *(at += strspn(at, " ,")) != ')') {
        unsigned long long dim;
        char *end;

        errno = 0;
        dim = strtoull(at, &end, 10);
        good = *at >= '0' && *at <= '9' && !errno && dim <= UINT32_MAX &&
               entry->dims_count < GK_TENSORS_DIMS_MAX;
        if (good) {
            entry->dims[entry->dims_count++] = (uint32_t)dim;
            at = end;
        }
    }
    if (!good) {
        gk_words_set(words, "'%s' has no shape of at most %d dimensions", entry->name,
                     (int)GK_TENSORS_DIMS_MAX);
        return GK_E_UNSUPPORTED;
    }
    return GK_OK;
}

static enum gk_err parse_header(const char *header, struct gk_tensors_entry *entry,
                                struct gk_words *words)
{
    const char *type = value_of(header, "'descr'");
    const char *order = value_of(header, "'fortran_order'");

    if (!type || strncmp(type, "'<f4'", 5) != 0) {
        gk_words_set(words, "'%s' is of type %s; only '<f4' is read", entry->name,
                     type ? gk_shown_part(type, strcspn(type, ",}")).text : "?");
        return GK_E_UNSUPPORTED;
    }
    if (!order || strncmp(order, "False", 5) != 0) {
        gk_words_set(words, "'%s' is not in C order", entry->name);
        return GK_E_UNSUPPORTED;
    }
    return parse_shape(value_of(header, "'shape'"), entry, words);
}

static enum gk_err take_npy(const struct member *member, const uint8_t *bytes,
                            struct gk_tensors *ret, struct gk_words *words)
{
    struct gk_tensors_entry entry = {0};
    size_t length_bytes, length, data;
    char *header;
    enum gk_err err;

    memcpy(entry.name, member->name, strlen(member->name) - 4);
    if (member->size < NPY_MAGIC_BYTES + 6 || memcmp(bytes, npy_magic, NPY_MAGIC_BYTES) != 0) {
        gk_words_set(words, "'%s' is no npy file", member->name);
        return GK_E_CORRUPT;
    }
    length_bytes = bytes[NPY_MAGIC_BYTES] == 1 ? 2 : 4;
    data = NPY_MAGIC_BYTES + 2 + length_bytes;
    length = length_bytes == 2 ? get_u16(bytes + NPY_MAGIC_BYTES + 2)
                               : gk_get_u32(bytes + NPY_MAGIC_BYTES + 2);
    if (length > member->size - data) {
        gk_words_set(words, "the header of '%s' has %zu bytes, of which %zu are there",
                     member->name, length, member->size - data);
        return GK_E_CORRUPT;
    }
    header = malloc(length + 1);
    if (!header) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    memcpy(header, bytes + data, length);
    header[length] = '\0';
    err = parse_header(header, &entry, words);
    free(header);
    data += length;
    return err ? err : gk_tensors_add(ret, &entry, bytes + data, member->size - data, words);
}

static enum gk_err inflate_member(const struct member *member, const uint8_t *packed, uint8_t *ret,
                                  struct gk_words *words)
{
    z_stream stream = {.next_in = packed,
                       .avail_in = (uInt)member->packed,
                       .next_out = ret,
                       .avail_out = (uInt)member->size};
    int result;

    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    result = inflate(&stream, Z_FINISH);
    (void)inflateEnd(&stream); /* only says that there was more */
    if (result != Z_STREAM_END || stream.avail_out != 0) {
        gk_words_set(words, "'%s' cannot be unpacked: %s", member->name,
                     stream.msg ? stream.msg : "another length than the archive says");
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

static enum gk_err take_member(const struct gk_tensors_bytes *file, const struct member *member,
                               struct gk_tensors *ret, struct gk_words *words)
{
    const uint8_t *local = file->at + member->local, *packed;
    uint8_t *bytes = NULL;
    size_t begin;
    enum gk_err err = GK_OK;

    if (member->local > file->size - LOCAL_BYTES || memcmp(local, local_magic, 4) != 0) {
        gk_words_set(words, "'%s' is not where the archive says, at byte %zu", member->name,
                     member->local);
        return GK_E_CORRUPT;
    }
    begin = member->local + LOCAL_BYTES + get_u16(local + 26) + get_u16(local + 28);
    if (begin > file->size || member->packed > file->size - begin) {
        gk_words_set(words, "'%s' ends behind the end of the file", member->name);
        return GK_E_CORRUPT;
    }
    packed = file->at + begin;
    if (member->method == DEFLATED) {
        bytes = malloc(member->size + 1);
        if (!bytes) {
            gk_words_set(words, "no memory for '%s' of %zu bytes", member->name, member->size);
            return GK_E_NOMEM;
        }
        err = inflate_member(member, packed, bytes, words);
        packed = bytes;
    } else if (member->method != STORED || member->packed != member->size) {
        gk_words_set(words, "'%s' is packed by method %" PRIu32 "; 0 and 8 are read", member->name,
                     member->method);
        err = GK_E_UNSUPPORTED;
    }
    if (!err && crc32(0, packed, (uInt)member->size) != member->crc) {
        gk_words_set(words, "the checksum of '%s' is wrong", member->name);
        err = GK_E_CORRUPT;
    }
    err = err ? err : take_npy(member, packed, ret, words);
    free(bytes);
    return err;
}

static enum gk_err parse_member(const uint8_t *at, const char *name, size_t length,
                                struct member *ret, struct gk_words *words)
{
    *ret = (struct member){
        .method = get_u16(at + 10),
        .crc = gk_get_u32(at + 16),
        .packed = gk_get_u32(at + 20),
        .size = gk_get_u32(at + 24),
        .local = gk_get_u32(at + 42),
    };
    if (length < 5 || length >= sizeof(ret->name) || memchr(name, '\0', length) ||
        memcmp(name + length - 4, ".npy", 4) != 0) {
        gk_words_set(words, "'%s' is no name of a tensor, 1 to %d bytes and .npy",
                     gk_shown_part(name, length).text, GK_TENSOR_NAME_BYTES - 1);
        return GK_E_UNSUPPORTED;
    }
    memcpy(ret->name, name, length);
    if (get_u16(at + 8) & FLAG_ENCRYPTED) {
        gk_words_set(words, "'%s' is encrypted", ret->name);
        return GK_E_UNSUPPORTED;
    }
    if (ret->method == DEFLATED && ret->size / DEFLATE_RATIO_MAX > ret->packed) {
        gk_words_set(words, "'%s' claims %zu bytes out of %zu", ret->name, ret->size, ret->packed);
        return GK_E_CORRUPT;
    }
    if (ret->packed == UINT32_MAX || ret->size == UINT32_MAX || ret->local == UINT32_MAX) {
        gk_words_set(words, "'%s' is beyond 4 GiB; safetensors would do", ret->name);
        return GK_E_UNSUPPORTED;
    }
    return GK_OK;
}

/* The record at the end of the archive, before a comment; NULL: there is none. */
static const uint8_t *find_end(const struct gk_tensors_bytes *file)
{
    for (size_t back = END_BYTES; back <= file->size && back <= END_BYTES + COMMENT_BYTES_MAX;
         back++) {
        const uint8_t *at = file->at + file->size - back;

        if (memcmp(at, end_magic, 4) == 0 && get_u16(at + 20) == back - END_BYTES) {
            return at;
        }
    }
    return NULL;
}

enum gk_err gk_tensors_read_npz(const struct gk_tensors_bytes *file, struct gk_tensors *ret,
                                struct gk_words *words)
{
    const uint8_t *end = find_end(file);
    size_t limit, at;
    uint32_t count;

    if (!end) {
        gk_words_set(words, "the end of the zip archive is missing: the file was cut off");
        return GK_E_CORRUPT;
    }
    limit = (size_t)(end - file->at);
    count = get_u16(end + 10);
    at = gk_get_u32(end + 16);
    for (uint32_t i = 0; i < count; i++) {
        struct member member;
        size_t length;
        enum gk_err err;

        if (at > limit || limit - at < CENTRAL_BYTES ||
            memcmp(file->at + at, central_magic, 4) != 0) {
            gk_words_set(words, "the directory of the archive is damaged at byte %zu", at);
            return GK_E_CORRUPT;
        }
        length = get_u16(file->at + at + 28);
        if (length > limit - at - CENTRAL_BYTES) {
            gk_words_set(words, "the directory of the archive is damaged at byte %zu", at);
            return GK_E_CORRUPT;
        }
        err = parse_member(file->at + at, (const char *)file->at + at + CENTRAL_BYTES, length,
                           &member, words);
        err = err ? err : take_member(file, &member, ret, words);
        if (err) {
            return err;
        }
        at += CENTRAL_BYTES + length + get_u16(file->at + at + 30) + get_u16(file->at + at + 32);
    }
    return GK_OK;
}

/* Magic, version 1.0, length, dictionary, blanks up to a multiple of 64 and a newline.  Bytes. */
static size_t npy_header(const struct gk_tensors_entry *entry, uint8_t ret[NPY_HEADER_BYTES])
{
    char text[NPY_HEADER_BYTES] = "", shape[64] = "";
    size_t used, total;

    for (uint32_t i = 0; i < entry->dims_count; i++) {
        used = strlen(shape);
        (void)snprintf(shape + used, sizeof(shape) - used, "%s%" PRIu32 "%s", i ? " " : "",
                       entry->dims[i], i + 1 < entry->dims_count || i == 0 ? "," : "");
    }
    (void)snprintf(text, sizeof(text), "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }",
                   shape);
    used = strlen(text);
    total = (NPY_MAGIC_BYTES + 4 + used + 1 + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN;
    memset(ret, ' ', total);
    memcpy(ret, npy_magic, NPY_MAGIC_BYTES);
    ret[NPY_MAGIC_BYTES] = 1;
    ret[NPY_MAGIC_BYTES + 1] = 0;
    put_u16(ret + NPY_MAGIC_BYTES + 2, (uint32_t)total - NPY_MAGIC_BYTES - 4);
    memcpy(ret + NPY_MAGIC_BYTES + 4, text, used);
    ret[total - 1] = '\n';
    return total;
}

struct written { /* what the directory has to say of a member */
    uint32_t crc, size, local;
};

/* From `method` on, what local header and directory have in common: 26 bytes with the lengths. */
static void put_common(const struct written *written, size_t name_bytes, uint8_t *at)
{
    put_u16(at, ZIP_NEEDS);
    put_u16(at + 8, DATE);
    gk_put_u32(at + 10, written->crc);
    gk_put_u32(at + 14, written->size);
    gk_put_u32(at + 18, written->size);
    put_u16(at + 22, (uint32_t)name_bytes);
}

static bool write_member(FILE *out, const struct gk_tensors_entry *entry, struct written *written)
{
    uint8_t local[LOCAL_BYTES] = {0}, header[NPY_HEADER_BYTES];
    size_t bytes = npy_header(entry, header);
    size_t name_bytes = strlen(entry->name) + 4;

    written->size = (uint32_t)(bytes + entry->count * sizeof(float));
    written->crc = (uint32_t)crc32(0, header, (uInt)bytes);
    written->crc = (uint32_t)crc32(written->crc, (const uint8_t *)entry->values,
                                   (uInt)(entry->count * sizeof(float)));
    memcpy(local, local_magic, 4);
    put_common(written, name_bytes, local + 4);
    return fwrite(local, sizeof(local), 1, out) == 1 && fprintf(out, "%s.npy", entry->name) > 0 &&
           fwrite(header, bytes, 1, out) == 1 &&
           fwrite(entry->values, sizeof(float), (size_t)entry->count, out) == entry->count;
}

static bool write_directory(FILE *out, const struct gk_tensors *tensors,
                            const struct written *written, uint32_t begin)
{
    uint8_t end[END_BYTES] = {0};
    uint32_t bytes = 0;

    for (uint32_t i = 0; i < tensors->count; i++) {
        uint8_t central[CENTRAL_BYTES] = {0};
        size_t name_bytes = strlen(tensors->list[i].name) + 4;

        memcpy(central, central_magic, 4);
        put_u16(central + 4, ZIP_NEEDS);
        put_common(&written[i], name_bytes, central + 6);
        gk_put_u32(central + 42, written[i].local);
        if (fwrite(central, sizeof(central), 1, out) != 1 ||
            fprintf(out, "%s.npy", tensors->list[i].name) < 0) {
            return false;
        }
        bytes += CENTRAL_BYTES + (uint32_t)name_bytes;
    }
    memcpy(end, end_magic, 4);
    put_u16(end + 8, tensors->count);
    put_u16(end + 10, tensors->count);
    gk_put_u32(end + 12, bytes);
    gk_put_u32(end + 16, begin);
    return fwrite(end, sizeof(end), 1, out) == 1;
}

enum gk_err gk_tensors_write_npz(FILE *out, const struct gk_tensors *tensors,
                                 struct gk_words *words)
{
    struct written *written = calloc(tensors->count + 1, sizeof(*written));
    uint64_t at = 0;
    bool good = written != NULL;
    enum gk_err err = GK_OK;

    if (!written) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < tensors->count && good && !err; i++) {
        const struct gk_tensors_entry *entry = &tensors->list[i];
        uint64_t bytes =
            LOCAL_BYTES + strlen(entry->name) + 4 + NPY_HEADER_BYTES + entry->count * sizeof(float);

        if (at + bytes + tensors->count * (CENTRAL_BYTES + sizeof(entry->name) + 4) > UINT32_MAX) {
            gk_words_set(words, "an npz file ends at 4 GiB; safetensors would do");
            err = GK_E_LIMIT;
        } else {
            written[i].local = (uint32_t)at;
            good = write_member(out, entry, &written[i]);
            at += LOCAL_BYTES + strlen(entry->name) + 4 + written[i].size;
        }
    }
    good = good && (err || write_directory(out, tensors, written, (uint32_t)at));
    free(written);
    if (!err && !good) {
        gk_words_set(words, "%s", strerror(errno));
        err = GK_E_IO;
    }
    return err;
}
