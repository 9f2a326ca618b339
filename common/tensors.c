#include "common/tensors.h"

#include "common/regular.h"
#include "common/tensors_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const struct gk_tensors_entry *gk_tensors_find(const struct gk_tensors *tensors, const char *name)
{
    for (uint32_t i = 0; i < tensors->count; i++) {
        if (strcmp(tensors->list[i].name, name) == 0) {
            return &tensors->list[i];
        }
    }
    return NULL;
}

void gk_tensors_free(struct gk_tensors *tensors)
{
    if (tensors) {
        for (uint32_t i = 0; i < tensors->count; i++) {
            free(tensors->memory[i]);
        }
        free(tensors);
    }
}

enum gk_err gk_tensors_add(struct gk_tensors *tensors, const struct gk_tensors_entry *entry,
                           const uint8_t *values, size_t size, struct gk_words *words)
{
    struct gk_tensors_entry *added = &tensors->list[tensors->count];
    uint64_t count = 1;
    float *copy;

    if (tensors->count == GK_TENSORS_MAX) {
        gk_words_set(words, "more than %d tensors", (int)GK_TENSORS_MAX);
        return GK_E_LIMIT;
    }
    if (gk_tensors_find(tensors, entry->name)) {
        gk_words_set(words, "'%s' is there twice", entry->name);
        return GK_E_CORRUPT;
    }
    for (uint32_t i = 0; i < entry->dims_count; i++) {
        if (entry->dims[i] != 0 && count > SIZE_MAX / sizeof(float) / entry->dims[i]) {
            gk_words_set(words, "'%s' has a shape that cannot be", entry->name);
            return GK_E_CORRUPT;
        }
        count *= entry->dims[i];
    }
    if (count * sizeof(float) != size) {
        gk_words_set(words, "'%s' has %" PRIu64 " elements but %zu bytes", entry->name, count,
                     size);
        return GK_E_CORRUPT;
    }
    copy = malloc(size + 1);
    if (!copy) {
        gk_words_set(words, "no memory for '%s' of %zu bytes", entry->name, size);
        return GK_E_NOMEM;
    }
    memcpy(copy, values, size);
    *added = *entry;
    added->count = count;
    added->values = copy;
    tensors->memory[tensors->count] = copy;
    tensors->count++;
    return GK_OK;
}

static enum gk_err slurp(FILE *file, uint8_t **ret_bytes, size_t *ret_size, struct gk_words *words)
{
    uint8_t *bytes;
    long size;

    if (fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) {
        gk_words_set(words, "cannot be read: %s", strerror(errno));
        return GK_E_IO;
    }
    bytes = malloc((size_t)size + 1);
    if (!bytes) {
        gk_words_set(words, "no memory for its %ld bytes", size);
        return GK_E_NOMEM;
    }
    if (fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        gk_words_set(words, "cannot be read: %s", errno ? strerror(errno) : "it became shorter");
        free(bytes);
        return GK_E_IO;
    }
    *ret_bytes = bytes;
    *ret_size = (size_t)size;
    return GK_OK;
}

enum gk_err gk_tensors_read(const char *path, struct gk_tensors **ret_tensors,
                            struct gk_words *words)
{
    struct gk_tensors_bytes file = {.path = path};
    struct gk_tensors *tensors = NULL;
    uint8_t *bytes = NULL;
    struct gk_words own;
    FILE *stream = NULL;
    enum gk_err err;

    words = words ? words : &own;
    err = gk_regular_open(path, &stream, words);
    if (!err) {
        errno = 0;
        err = slurp(stream, &bytes, &file.size, words);
        (void)fclose(stream); /* only read */
    }
    if (err) {
        goto out;
    }
    file.at = bytes;
    tensors = calloc(1, sizeof(*tensors));
    if (!tensors) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        err = GK_E_NOMEM;
        goto out;
    }
    if (file.size >= 4 && memcmp(bytes, "PK", 2) == 0) {
        err = gk_tensors_read_npz(&file, tensors, words);
    } else {
        err = gk_tensors_read_safe(&file, tensors, words);
    }
    if (!err && tensors->count == 0) {
        gk_words_set(words, "there is no tensor in it");
        err = GK_E_CORRUPT;
    }
out:
    free(bytes);
    if (err) {
        gk_words_prefix(words, "%.200s: ", path);
        gk_tensors_free(tensors);
        return err;
    }
    *ret_tensors = tensors;
    return GK_OK;
}

enum gk_err gk_tensors_write(FILE *out, enum gk_tensors_format format,
                             const struct gk_tensors *tensors, const struct gk_tensors_notes *notes,
                             struct gk_words *words)
{
    return format == GK_TENSORS_NPZ ? gk_tensors_write_npz(out, tensors, words)
                                    : gk_tensors_write_safe(out, tensors, notes, words);
}
