/* safetensors: eight bytes with the length of a header, the header as JSON, the values.  Offsets
 * count from the end of the header. */
#include "common/tensors_internal.h"

#include "common/bits.h"
#include "common/shown.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, HEADER_BYTES_MAX = 1024 * 1024, ALIGN = 8 };

#define METADATA "__metadata__"

static enum gk_err take_shape(const json_t *shape, struct gk_tensors_entry *entry,
                              struct gk_words *words)
{
    size_t count = json_array_size(shape);

    if (!json_is_array(shape) || count > GK_TENSORS_DIMS_MAX) {
        gk_words_set(words, "'%s' has no shape of at most %d dimensions", entry->name,
                     (int)GK_TENSORS_DIMS_MAX);
        return GK_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *dim = json_array_get(shape, i);
        json_int_t value = json_integer_value(dim);

        if (!json_is_integer(dim) || value < 0 || value > UINT32_MAX) {
            gk_words_set(words, "'%s' has a shape that cannot be", entry->name);
            return GK_E_CORRUPT;
        }
        entry->dims[i] = (uint32_t)value;
    }
    entry->dims_count = (uint32_t)count;
    return GK_OK;
}

static enum gk_err take_tensor(const struct gk_tensors_bytes *file, size_t data, const char *name,
                               const json_t *object, struct gk_tensors *ret, struct gk_words *words)
{
    const char *type = json_string_value(json_object_get(object, "dtype"));
    const json_t *offsets = json_object_get(object, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    struct gk_tensors_entry entry = {0};
    enum gk_err err;

    if (strlen(name) >= sizeof(entry.name) || !*name) {
        gk_words_set(words, "a name of %zu bytes, '%s'; at most %zu", strlen(name),
                     gk_shown(name).text, sizeof(entry.name) - 1);
        return GK_E_LIMIT;
    }
    memcpy(entry.name, name, strlen(name));
    if (!type || strcmp(type, "F32") != 0) {
        gk_words_set(words, "'%s' is of type %s; only F32 is read", name,
                     type ? gk_shown(type).text : "?");
        return GK_E_UNSUPPORTED;
    }
    err = take_shape(json_object_get(object, "shape"), &entry, words);
    if (err) {
        return err;
    }
    if (json_array_size(offsets) != 2 || begin < 0 || end < begin ||
        (uint64_t)end > file->size - data) {
        gk_words_set(words,
                     "'%s' lies at %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT
                     " of %zu bytes of values",
                     name, begin, end, file->size - data);
        return GK_E_CORRUPT;
    }
    return gk_tensors_add(ret, &entry, file->at + data + begin, (size_t)(end - begin), words);
}

enum gk_err gk_tensors_read_safe(const struct gk_tensors_bytes *file, struct gk_tensors *ret,
                                 struct gk_words *words)
{
    uint64_t length = file->size >= LENGTH_BYTES ? gk_get_u64(file->at) : 0;
    size_t data = LENGTH_BYTES + (size_t)length;
    json_error_t error;
    json_t *header, *object;
    const char *name;
    enum gk_err err = GK_OK;

    if (length < 2 || length > HEADER_BYTES_MAX || length > file->size - LENGTH_BYTES ||
        file->at[LENGTH_BYTES] != '{') {
        gk_words_set(words, "neither a safetensors nor an npz file");
        return GK_E_CORRUPT;
    }
    header = json_loadb((const char *)file->at + LENGTH_BYTES, (size_t)length,
                        JSON_REJECT_DUPLICATES, &error);
    if (!header) {
        gk_words_set(words, "the header, byte %d: %s", error.position, error.text);
        return GK_E_CORRUPT;
    }
    json_object_foreach(header, name, object)
    {
        if (strcmp(name, METADATA) != 0) {
            err = take_tensor(file, data, name, object, ret, words);
        }
        if (err) {
            break;
        }
    }
    json_decref(header);
    return err;
}

static json_t *tensor_json(const struct gk_tensors_entry *entry, uint64_t offset)
{
    uint64_t end = offset + entry->count * sizeof(float);
    json_t *shape = json_array();

    for (uint32_t i = 0; i < entry->dims_count; i++) {
        if (json_array_append_new(shape, json_integer(entry->dims[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                     (json_int_t)offset, (json_int_t)end);
}

static json_t *header_json(const struct gk_tensors *tensors, const struct gk_tensors_notes *notes)
{
    json_t *header = json_object(), *metadata = json_object();
    uint64_t offset = 0;
    bool whole = true;

    for (size_t i = 0; i < notes->count; i++) {
        whole = whole && json_object_set_new(metadata, notes->list[i].key,
                                             json_string(notes->list[i].value)) == 0;
    }
    /* Takes the metadata also when it fails. */
    whole = json_object_set_new(header, METADATA, metadata) == 0 && whole;
    for (uint32_t i = 0; i < tensors->count && whole; i++) {
        const struct gk_tensors_entry *entry = &tensors->list[i];

        whole = json_object_set_new(header, entry->name, tensor_json(entry, offset)) == 0;
        offset += entry->count * sizeof(float);
    }
    if (!whole) {
        json_decref(header);
        return NULL;
    }
    return header;
}

enum gk_err gk_tensors_write_safe(FILE *out, const struct gk_tensors *tensors,
                                  const struct gk_tensors_notes *notes, struct gk_words *words)
{
    json_t *header = header_json(tensors, notes);
    char *text = header ? json_dumps(header, JSON_COMPACT) : NULL;
    uint8_t length[LENGTH_BYTES];
    size_t bytes, padding;
    bool written;

    json_decref(header);
    if (!text) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    bytes = strlen(text);
    padding = (ALIGN - bytes % ALIGN) % ALIGN; /* blanks, so that the values are aligned */
    gk_put_u64(length, bytes + padding);
    written = fwrite(length, sizeof(length), 1, out) == 1 &&
              fprintf(out, "%s%*s", text, (int)padding, "") >= 0;
    free(text);
    for (uint32_t i = 0; i < tensors->count && written; i++) {
        const struct gk_tensors_entry *entry = &tensors->list[i];

        written = fwrite(entry->values, sizeof(float), (size_t)entry->count, out) == entry->count;
    }
    if (!written) {
        gk_words_set(words, "%s", strerror(errno));
        return GK_E_IO;
    }
    return GK_OK;
}
