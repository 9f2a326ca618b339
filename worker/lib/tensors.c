#include "worker/lib/handle.h"

#include "common/exit.h"
#include "common/shown.h"
#include "cuda/backend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "tensor 3 ('fc1.weight')" in front of what is wrong. */
static int wrong(struct gkps *gkps, size_t i, const char *name, const char *what)
{
    return gk_handle_misuse(gkps, "gkps_tensors: tensor %zu%s%s%s: %s", i, name ? " ('" : "",
                            name ? gk_shown(name).text : "", name ? "')" : "", what);
}

static int take_dims(struct gkps *gkps, size_t i, const struct gkps_tensor *given,
                     struct gk_flat_tensor *ret)
{
    static const uint64_t one = 1;
    const uint64_t *dims = given->dims_count > 0 ? given->dims : &one;

    if (given->dims_count > GK_TENSOR_DIMS_MAX || !dims) {
        return wrong(gkps, i, given->name,
                     "0 to 4 dims are expected; join the leading ones of a larger shape");
    }
    ret->dims_count = given->dims_count > 0 ? given->dims_count : 1;
    ret->count = 1;
    for (uint32_t k = 0; k < ret->dims_count; k++) {
        if (dims[k] == 0 || dims[k] > UINT32_MAX || ret->count > UINT64_MAX / dims[k]) {
            return wrong(gkps, i, given->name, "a dim is 0, or 2^32 or more");
        }
        ret->dims[k] = (uint32_t)dims[k];
        ret->count *= dims[k];
    }
    return GKPS_OK;
}

static int take_tensor(struct gkps *gkps, size_t i, const struct gkps_tensor *given,
                       struct gk_flat_tensor *ret)
{
    const uint32_t known = GKPS_NO_DECAY | GKPS_FROZEN | GKPS_DENSE;

    if (!given->name || !given->name[0] || strlen(given->name) >= sizeof(ret->name)) {
        return wrong(gkps, i, given->name, "a name of 1 to 63 bytes is expected");
    }
    if (given->flags & ~known) {
        return wrong(gkps, i, given->name, "a flag that this library does not know");
    }
    if (!(given->density >= 0 && given->density <= 1)) {
        return wrong(gkps, i, given->name, "the density must lie within 0 and 1");
    }
    memset(ret, 0, sizeof(*ret));
    memcpy(ret->name, given->name, strlen(given->name));
    ret->flags = (given->flags & GKPS_NO_DECAY ? GK_TENSOR_NO_DECAY : 0) |
                 (given->flags & GKPS_FROZEN ? GK_TENSOR_FROZEN : 0) |
                 (given->flags & GKPS_DENSE ? GK_TENSOR_DENSE : 0);
    ret->density = given->density;
    ret->params = given->params;
    ret->gradient = given->gradient;
    return take_dims(gkps, i, given, ret);
}

static int compare_names(const void *left, const void *right)
{
    const struct gk_flat_tensor *const *a = left, *const *b = right;

    return strcmp((*a)->name, (*b)->name);
}

static int check_names(struct gkps *gkps, const struct gk_flat_tensor *tensors, size_t count)
{
    const struct gk_flat_tensor **sorted = calloc(count, sizeof(*sorted));
    int code = GKPS_OK;

    if (!sorted) {
        gk_words_set(&gkps->words, "no memory for a table of %zu tensors", count);
        return gk_handle_fail(gkps, GKPS_E_INTERNAL, GK_EXIT_INTERNAL);
    }
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &tensors[i];
    }
    qsort(sorted, count, sizeof(*sorted), compare_names);
    for (size_t i = 1; i < count && !code; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            code = wrong(gkps, (size_t)(sorted[i] - tensors), sorted[i]->name,
                         "another tensor has the same name");
        }
    }
    free(sorted);
    return code;
}

int gkps_tensors(struct gkps *gkps, const struct gkps_tensor *list, size_t count)
{
    struct gk_flat_tensor *tensors;
    int code = gk_handle_enter(gkps, "gkps_tensors", 1 << GK_STAGE_OPEN);
    const char *at = (const char *)list;

    if (code) {
        return code;
    }
    if (gkps->tensors) {
        return gk_handle_misuse(gkps, "gkps_tensors: the model was given already");
    }
    if (!list || count == 0 || count > UINT32_MAX) {
        return gk_handle_misuse(gkps, "gkps_tensors: a model has at least one tensor");
    }
    tensors = calloc(count, sizeof(*tensors));
    if (!tensors) {
        gk_words_set(&gkps->words, "no memory for a table of %zu tensors", count);
        return gk_handle_fail(gkps, GKPS_E_INTERNAL, GK_EXIT_INTERNAL);
    }
    for (size_t i = 0; i < count && !code; i++) {
        struct gkps_tensor given;

        if (!gk_handle_take(&given, sizeof(given), sizeof(given), at)) {
            code = wrong(gkps, i, NULL, "a struct gkps_tensor of an unknown size");
            break;
        }
        code = take_tensor(gkps, i, &given, &tensors[i]);
        at += given.size;
    }
    if (code) {
        free(tensors);
        return code;
    }
    code = check_names(gkps, tensors, count);
    if (code) {
        free(tensors);
        return code;
    }
    gkps->tensors = tensors;
    gkps->tensors_count = (uint32_t)count;
    return GKPS_OK;
}

int gk_handle_check_place(struct gkps *gkps, const char *call, const float *memory, uint32_t i)
{
    const struct gk_settings_place *settings = &gkps->place;
    uint32_t number;

    if (!memory) {
        return GKPS_OK;
    }
    if (!gkps->bound_on_device && gk_settings_device(settings, &number) &&
        gk_vector_cuda_hides(number,
                             memory)) { /* its queue would take it, and not wait for the stream */
        return gk_handle_misuse(gkps,
                                "%s: memory bound to tensor %" PRIu32
                                " ('%s') lies on a CUDA device, and gkps_open was told of none",
                                call, i, gkps->tensors[i].name);
    }
    if (gkps->bound_on_device && !gk_vector_cuda_owns(gkps->device, memory)) {
        return gk_handle_misuse(gkps,
                                "%s: memory bound to tensor %" PRIu32
                                " ('%s') does not lie on cuda:%" PRIu32 ", the device of gkps_open",
                                call, i, gkps->tensors[i].name, gkps->device);
    }
    return GKPS_OK;
}

int gk_handle_settle(struct gkps *gkps)
{
    struct gk_engine_view view;
    struct gk_words words;

    if (!gkps->bound_on_device || !gk_flat_settle(gkps->flat, gkps->stream, &words)) {
        return GKPS_OK;
    }
    gk_engine_fail(gkps->engine, GK_EXIT_INTERNAL, &words);
    (void)gk_engine_wait(gkps->engine, 0, false); /* it ends at once, and says why */
    gk_engine_view(gkps->engine, &view);
    return gk_handle_ended(gkps, &view);
}

int gkps_bind(struct gkps *gkps, size_t index, float *params, float *gradient, uint64_t count)
{
    int code = gk_handle_enter(gkps, "gkps_bind", 1 << GK_STAGE_OPEN | 1 << GK_STAGE_READY);
    struct gk_flat_tensor *tensor;

    if (code) {
        return code;
    }
    if (index >= gkps->tensors_count) {
        return gk_handle_misuse(gkps, "gkps_bind: there is no tensor %zu, the model has %" PRIu32,
                                index, gkps->tensors_count);
    }
    tensor = &gkps->tensors[index];
    if (count != tensor->count) {
        return gk_handle_misuse(gkps,
                                "gkps_bind: tensor %zu ('%s') has %" PRIu64
                                " elements in the model and %" PRIu64
                                " now: its shape must not change",
                                index, tensor->name, tensor->count, count);
    }
    code = gk_handle_check_place(gkps, "gkps_bind", params, (uint32_t)index);
    code = code ? code : gk_handle_check_place(gkps, "gkps_bind", gradient, (uint32_t)index);
    if (code) {
        return code;
    }
    tensor->params = params ? params : tensor->params;
    tensor->gradient = gradient ? gradient : tensor->gradient;
    return GKPS_OK;
}

int gkps_aux(struct gkps *gkps, void *memory, size_t bytes)
{
    int code = gk_handle_enter(gkps, "gkps_aux", 1 << GK_STAGE_OPEN);

    if (code) {
        return code;
    }
    if (gkps->aux) {
        return gk_handle_misuse(gkps, "gkps_aux: the memory was given already");
    }
    if (!memory || bytes == 0) {
        return gk_handle_misuse(gkps, "gkps_aux: no memory, or 0 bytes of it");
    }
    gkps->aux_copy = malloc(bytes);
    if (!gkps->aux_copy) {
        gk_words_set(&gkps->words, "no memory for %zu bytes of the program's state", bytes);
        return gk_handle_fail(gkps, GKPS_E_INTERNAL, GK_EXIT_INTERNAL);
    }
    gkps->aux = memory;
    gkps->aux_bytes = bytes;
    return GKPS_OK;
}
