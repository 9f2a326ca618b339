#include "worker/lib/flat_internal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/net/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which they lie in the vector. */
enum group { GROUP_COMMON, GROUP_OWN, GROUP_DENSE, GROUP_FROZEN, GROUPS_COUNT };

static enum group group_of(const struct gk_flat_tensor *tensor)
{
    return tensor->flags & GK_TENSOR_FROZEN  ? GROUP_FROZEN
           : tensor->flags & GK_TENSOR_DENSE ? GROUP_DENSE
           : tensor->density > 0             ? GROUP_OWN
                                             : GROUP_COMMON;
}

/* One tensor more at the end of the vector. */
static void place(struct gk_flat *flat, uint32_t at, uint32_t i)
{
    struct gk_flat_tensor *tensor = &flat->tensors[i];
    struct gk_tensor *row = &flat->table[at];

    tensor->offset = flat->spec.params_count;
    flat->order[at] = i;
    memcpy(row->name, tensor->name, sizeof(row->name));
    row->offset = tensor->offset;
    row->count = tensor->count;
    memcpy(row->dims, tensor->dims, sizeof(row->dims));
    row->dims_count = tensor->dims_count;
    row->flags = tensor->flags;
    flat->spec.params_count += tensor->count;
}

/* Its range is a unit of selection of its own, or belongs to the one before. */
static void add_segment(struct gk_flat *flat, const struct gk_flat_tensor *tensor)
{
    static const double densities[GROUPS_COUNT] = {
        [GROUP_COMMON] = 0, [GROUP_DENSE] = 1, [GROUP_FROZEN] = -1};
    enum group group = group_of(tensor);
    double density = group == GROUP_OWN ? tensor->density : densities[group];
    uint32_t last = flat->segments_count - 1;

    if (flat->segments_count > 0 && group != GROUP_OWN && flat->densities[last] == density) {
        flat->segments[last].hi += tensor->count;
        return;
    }
    flat->segments[flat->segments_count] =
        (struct gk_range){.lo = tensor->offset, .hi = tensor->offset + tensor->count};
    flat->densities[flat->segments_count] = density;
    flat->segments_count++;
}

static enum gk_err lay_out(struct gk_flat *flat)
{
    uint32_t at = 0;

    flat->order = calloc(flat->tensors_count, sizeof(*flat->order));
    flat->table = calloc(flat->tensors_count, sizeof(*flat->table));
    flat->segments = calloc(flat->tensors_count, sizeof(*flat->segments));
    flat->densities = calloc(flat->tensors_count, sizeof(*flat->densities));
    if (!flat->order || !flat->table || !flat->segments || !flat->densities) {
        return GK_E_NOMEM;
    }
    for (uint32_t group = 0; group < GROUPS_COUNT; group++) {
        for (uint32_t i = 0; i < flat->tensors_count; i++) {
            if (group_of(&flat->tensors[i]) == (enum group)group) {
                place(flat, at++, i);
                add_segment(flat, &flat->tensors[i]);
            }
        }
    }
    flat->spec.tensors = flat->table;
    flat->spec.tensors_count = flat->tensors_count;
    return GK_OK;
}

static struct gk_select_setup select_setup(const struct gk_flat *flat)
{
    return (struct gk_select_setup){.ops = flat->ops,
                                    .queue = flat->queue,
                                    .params_count = flat->spec.params_count,
                                    .segments = flat->segments,
                                    .segments_count = flat->segments_count,
                                    .densities = flat->densities,
                                    .seed = flat->settings->seed,
                                    .rank = flat->rank,
                                    .policy = GK_NONFINITE_ABORT};
}

/* The largest number of entries that one step of this operator may push. */
static uint64_t push_max(const struct gk_flat *flat)
{
    const struct gk_select_setup setup = select_setup(flat);
    uint32_t count;
    const struct gk_operator *const *operators = gk_operators(&count);

    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(operators[i]->name, flat->settings->compressor) == 0 &&
            (operators[i]->unbounded || operators[i]->whole)) {
            return flat->spec.params_count;
        }
    }
    return gk_select_k_all(&setup, flat->settings->density);
}

static enum gk_err make_spec(struct gk_flat *flat, const struct gk_flat_setup *setup, int *ret_exit,
                             struct gk_words *words)
{
    struct gk_spec *spec = &flat->spec;
    enum gk_err err = gk_settings_spec(setup->place, setup->servers, spec, ret_exit, words);

    if (err) {
        return err;
    }
    (void)snprintf(spec->model, sizeof(spec->model), "%s", setup->model);
    err = lay_out(flat);
    if (err) {
        *ret_exit = GK_EXIT_INTERNAL;
        gk_words_set(words, "no memory for a table of %" PRIu32 " tensors", flat->tensors_count);
        return err;
    }
    spec->push_max = push_max(flat);
    *ret_exit = GK_EXIT_USAGE; /* of values beside each other: no single one is to blame */
    err = gk_spec_check(spec, words);
    err = err ? err : gk_spec_encode(spec, flat->spec_bytes, &flat->spec_bytes_count, words);
    flat->spec_hash = gk_spec_hash(flat->spec_bytes, flat->spec_bytes_count);
    return err;
}

float *gk_flat_vector_new(struct gk_flat *flat)
{
    return flat->ops->alloc(flat->queue, GK_MEMORY_DEVICE, flat->spec.params_count * sizeof(float));
}

void gk_flat_vector_free(struct gk_flat *flat, float *vector)
{
    flat->ops->free(flat->queue, GK_MEMORY_DEVICE, vector);
}

/* What a slot lends must not be freed. */
static bool has_own_vectors(const struct gk_flat *flat)
{
    return !flat->settings->state_dir || !flat->on_host;
}

static enum gk_err alloc_memory(struct gk_flat *flat, struct gk_words *words)
{
    uint64_t d = flat->spec.params_count;

    if (!has_own_vectors(flat)) {
        return GK_OK;
    }
    flat->gradient = gk_flat_vector_new(flat);
    flat->residual = gk_flat_vector_new(flat);
    if (!flat->gradient || !flat->residual) {
        gk_words_set(words, "no memory for gradient and residual of %" PRIu64 " parameters", d);
        return GK_E_NOMEM;
    }
    return GK_OK;
}

enum gk_err gk_flat_open(const struct gk_flat_setup *setup, struct gk_flat **ret_flat,
                         int *ret_exit, struct gk_words *words)
{
    struct gk_flat *flat = calloc(1, sizeof(*flat));
    enum gk_err err;

    *ret_exit = GK_EXIT_INTERNAL;
    if (!flat) {
        gk_words_set(words, "no memory for the parameter vector");
        return GK_E_NOMEM;
    }
    flat->settings = setup->place->values;
    flat->tensors = setup->tensors;
    flat->tensors_count = setup->tensors_count;
    flat->servers = setup->servers;
    err = gk_settings_table(setup->place, &flat->ops, ret_exit, words);
    err = err ? err : flat->ops->open(&flat->queue, words);
    if (!err) {
        flat->on_host = flat->ops->caps(flat->queue)->on_host;
    }
    err = err ? err : make_spec(flat, setup, ret_exit, words);
    if (!err) {
        *ret_exit = GK_EXIT_INTERNAL;
        err = alloc_memory(flat, words);
    }
    if (err) {
        gk_flat_close(flat);
        return err;
    }
    *ret_flat = flat;
    return GK_OK;
}

void gk_flat_close(struct gk_flat *flat)
{
    if (!flat) {
        return;
    }
    gk_selector_free(flat->selector);
    if (flat->queue) {
        if (has_own_vectors(flat)) {
            gk_flat_vector_free(flat, flat->gradient);
            gk_flat_vector_free(flat, flat->residual);
        }
        gk_flat_drop_initial(flat);
        flat->ops->close(flat->queue);
    }
    free(flat->sparse_idx);
    free(flat->sparse_val);
    free(flat->order);
    free(flat->table);
    free(flat->segments);
    free(flat->densities);
    free(flat);
}

void gk_flat_look_into_slot(struct gk_flat *flat)
{
    if (flat->on_host) {
        flat->gradient = flat->slot ? gk_slot_target(flat->slot) : NULL;
        flat->residual = flat->slot ? gk_slot_residual(flat->slot) : NULL;
    }
}

enum gk_err gk_flat_use_slot(struct gk_flat *flat, struct gk_slot *slot, struct gk_words *words)
{
    struct gk_ticket copied;
    enum gk_err err;

    flat->slot = slot;
    gk_flat_look_into_slot(flat);
    if (flat->on_host || !slot) {
        return GK_OK;
    }
    copied = flat->ops->copy(flat->queue, flat->residual, gk_slot_residual(slot),
                             flat->spec.params_count * sizeof(float));
    err = flat->ops->wait(flat->queue, copied);
    if (err) {
        gk_words_set(words, "the residual cannot be copied to %s: %s", gk_flat_table(flat),
                     gk_err_text(err));
    }
    return err;
}

enum gk_err gk_flat_set_rank(struct gk_flat *flat, uint32_t rank, struct gk_words *words)
{
    struct gk_select_setup setup;

    gk_selector_free(flat->selector); /* of a rank that shard 0 gave to somebody else since */
    flat->selector = NULL;
    flat->rank = rank;
    setup = select_setup(flat);
    return gk_selector_new(flat->settings->compressor, flat->settings->density, &setup,
                           &flat->selector, words);
}

const struct gk_spec *gk_flat_spec(const struct gk_flat *flat)
{
    return &flat->spec;
}

const uint8_t *gk_flat_spec_bytes(const struct gk_flat *flat, size_t *ret_bytes, uint64_t *ret_hash)
{
    *ret_bytes = flat->spec_bytes_count;
    *ret_hash = flat->spec_hash;
    return flat->spec_bytes;
}

const char *gk_flat_table(const struct gk_flat *flat)
{
    return flat->ops->caps(flat->queue)->name;
}

/* GK_E_NONFINITE: words name the first element that is not finite. */
static enum gk_err check_initial(const struct gk_flat *flat, struct gk_words *words)
{
    for (uint32_t i = 0; i < flat->tensors_count; i++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[i];

        for (uint64_t k = 0; k < tensor->count; k++) {
            if (!isfinite(flat->initial[tensor->offset + k])) {
                gk_words_set(words,
                             "element %" PRIu64 " of tensor '%s' is not finite, and rank 0 begins "
                             "the job with it",
                             k, tensor->name);
                return GK_E_NONFINITE;
            }
        }
    }
    return GK_OK;
}

enum gk_err gk_flat_make_init(struct gk_flat *flat, uint64_t *ret_init_id, struct gk_words *words)
{
    uint64_t d = flat->spec.params_count;
    struct gk_ticket copied = {0};
    enum gk_err err;
    uint64_t id;

    GK_ASSERT(!flat->initial);
    flat->initial = flat->ops->alloc(flat->queue, GK_MEMORY_PINNED, d * sizeof(float));
    if (!flat->initial) {
        gk_words_set(words, "no memory for the initial parameters");
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < flat->tensors_count; i++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[i];

        copied = flat->ops->copy(flat->queue, flat->initial + tensor->offset, tensor->params,
                                 tensor->count * sizeof(float));
    }
    err = flat->ops->wait(flat->queue, copied);
    if (err) {
        gk_words_set(words, "the initial parameters cannot be copied: %s", gk_err_text(err));
        return err;
    }
    err = check_initial(flat, words);
    if (err) {
        return err;
    }
    id = gk_hash64_more(0, flat->spec_bytes, flat->spec_bytes_count);
    id = gk_hash64_more(id, flat->initial, d * sizeof(float));
    *ret_init_id = id ? id : 1;
    return GK_OK;
}

const float *gk_flat_initial(const struct gk_flat *flat)
{
    return flat->initial;
}

void gk_flat_drop_initial(struct gk_flat *flat)
{
    flat->ops->free(flat->queue, GK_MEMORY_PINNED, flat->initial);
    flat->initial = NULL;
}
