#include "worker/start.h"

#include "common/assert.h"
#include "common/shown.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct shape_text {
    char text[64];
};

/* "200 x 64" */
static struct shape_text shape_text(const uint32_t *dims, uint32_t count)
{
    struct shape_text shape = {"a single number"};

    for (uint32_t i = 0; i < count; i++) {
        size_t used = i > 0 ? strlen(shape.text) : 0;

        (void)snprintf(shape.text + used, sizeof(shape.text) - used, "%s%" PRIu32,
                       i > 0 ? " x " : "", dims[i]);
    }
    return shape;
}

static enum gk_err check_tensor(const struct gk_tensors_entry *entry,
                                const struct gk_tensor *tensor, struct gk_words *words)
{
    bool same = entry && entry->dims_count == tensor->dims_count && entry->count == tensor->count;

    if (!entry) {
        gk_words_set(words, "there is no tensor '%s' in it", tensor->name);
        return GK_E_CORRUPT;
    }
    for (uint32_t i = 0; same && i < tensor->dims_count; i++) {
        same = entry->dims[i] == tensor->dims[i];
    }
    if (!same) {
        gk_words_set(words, "'%s' is %s, in the model %s", tensor->name,
                     shape_text(entry->dims, entry->dims_count).text,
                     shape_text(tensor->dims, tensor->dims_count).text);
        return GK_E_CORRUPT;
    }
    for (uint64_t i = 0; i < entry->count; i++) {
        if (!isfinite(entry->values[i])) {
            gk_words_set(words, "element %" PRIu64 " of '%s' is not finite", i, tensor->name);
            return GK_E_CORRUPT;
        }
    }
    return GK_OK;
}

static bool is_in_model(const struct gk_spec *spec, const char *name)
{
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        if (strcmp(spec->tensors[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

enum gk_err gk_start_read(const char *path, const struct gk_spec *spec,
                          struct gk_tensors **ret_tensors, struct gk_words *words)
{
    struct gk_tensors *tensors;
    enum gk_err err = gk_tensors_read(path, &tensors, words);

    if (err) {
        return err;
    }
    for (uint32_t i = 0; i < spec->tensors_count && !err; i++) {
        err =
            check_tensor(gk_tensors_find(tensors, spec->tensors[i].name), &spec->tensors[i], words);
    }
    for (uint32_t i = 0; i < tensors->count && !err; i++) {
        if (!is_in_model(spec, tensors->list[i].name)) {
            gk_words_set(words, "the model %s has no tensor '%s'", spec->model,
                         gk_shown(tensors->list[i].name).text);
            err = GK_E_CORRUPT;
        }
    }
    if (err) {
        gk_words_prefix(words, "%.200s: ", path);
        gk_tensors_free(tensors);
        return err;
    }
    *ret_tensors = tensors;
    return GK_OK;
}

void gk_start_put(const struct gk_tensors *tensors, const struct gk_spec *spec, float *params)
{
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        const struct gk_tensor *tensor = &spec->tensors[i];
        const struct gk_tensors_entry *entry = gk_tensors_find(tensors, tensor->name);

        GK_ASSERT(entry && entry->count == tensor->count);
        memcpy(params + tensor->offset, entry->values, (size_t)entry->count * sizeof(float));
    }
}
