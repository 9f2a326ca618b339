#include "worker/lib/flat.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/net/clock.h"
#include "worker/select/select.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which they lie in the vector. */
enum group { GROUP_COMMON, GROUP_OWN, GROUP_DENSE, GROUP_FROZEN, GROUPS_COUNT };

struct gk_flat {
    const struct gk_settings *settings;
    struct gk_flat_tensor *tensors; /* of the program, in its order */
    uint32_t tensors_count;
    uint32_t *order;           /* of the vector: positions in `tensors` */
    struct gk_tensor *table;   /* of the spec, in the order of the vector */
    struct gk_range *segments; /* units of selection */
    double *densities;
    uint32_t segments_count;
    uint32_t rank, servers;
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_selector *selector;
    struct gk_slot *slot; /* NULL: gradient and residual are our own */
    struct gk_spec spec;
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t spec_hash;
    float *gradient, *residual, *initial; /* d floats each; the first two change places */
    uint32_t *sparse_idx;                 /* push_max entries each, of a selection that was given */
    float *sparse_val;
};

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

/* Pinned, because they are filled from bound memory of the host. */
static float *alloc_floats(struct gk_flat *flat, uint64_t count)
{
    return flat->ops->alloc(flat->queue, GK_MEMORY_PINNED, count * sizeof(float));
}

static enum gk_err alloc_memory(struct gk_flat *flat, struct gk_words *words)
{
    uint64_t d = flat->spec.params_count;

    if (flat->settings->state_dir) {
        return GK_OK;
    }
    flat->gradient = alloc_floats(flat, d);
    flat->residual = alloc_floats(flat, d);
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

static void free_floats(struct gk_flat *flat, float *memory)
{
    flat->ops->free(flat->queue, GK_MEMORY_PINNED, memory);
}

void gk_flat_close(struct gk_flat *flat)
{
    if (!flat) {
        return;
    }
    gk_selector_free(flat->selector);
    if (flat->queue) {
        if (!flat->settings->state_dir) {
            free_floats(flat, flat->gradient);
            free_floats(flat, flat->residual);
        }
        free_floats(flat, flat->initial);
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

static void look_into_slot(struct gk_flat *flat)
{
    flat->gradient = flat->slot ? gk_slot_target(flat->slot) : NULL;
    flat->residual = flat->slot ? gk_slot_residual(flat->slot) : NULL;
}

void gk_flat_use_slot(struct gk_flat *flat, struct gk_slot *slot)
{
    flat->slot = slot;
    look_into_slot(flat);
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

enum gk_err gk_flat_make_init(struct gk_flat *flat, uint64_t *ret_init_id, struct gk_words *words)
{
    uint64_t d = flat->spec.params_count;
    uint64_t id;

    GK_ASSERT(!flat->initial);
    flat->initial = alloc_floats(flat, d);
    if (!flat->initial) {
        gk_words_set(words, "no memory for the initial parameters");
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < flat->tensors_count; i++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[i];

        for (uint64_t k = 0; k < tensor->count; k++) {
            if (!isfinite(tensor->params[k])) {
                gk_words_set(words,
                             "element %" PRIu64 " of tensor '%s' is not finite, and rank 0 begins "
                             "the job with it",
                             k, tensor->name);
                return GK_E_NONFINITE;
            }
        }
        memcpy(flat->initial + tensor->offset, tensor->params, tensor->count * sizeof(float));
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
    free_floats(flat, flat->initial);
    flat->initial = NULL;
}

void gk_flat_install(struct gk_flat *flat, uint32_t plane, struct gk_range range,
                     const float *values)
{
    GK_ASSERT(range.lo < range.hi && range.hi <= flat->spec.params_count);
    for (uint32_t at = 0; at < flat->tensors_count; at++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[flat->order[at]];
        uint64_t lo = gk_max_u64(range.lo, tensor->offset);
        uint64_t hi = gk_min_u64(range.hi, tensor->offset + tensor->count);
        float *target = plane == 0 ? tensor->params : tensor->gradient;

        if (lo < hi && target) {
            memcpy(target + (lo - tensor->offset), values + (lo - range.lo),
                   (hi - lo) * sizeof(float));
        }
    }
}

enum gk_err gk_flat_reset(struct gk_flat *flat, struct gk_words *words)
{
    if (flat->slot) {
        return gk_slot_void(flat->slot, words);
    }
    memset(flat->residual, 0, flat->spec.params_count * sizeof(float));
    return GK_OK;
}

/* The bound gradient into the vector, as a sum over the samples. */
static void gather(struct gk_flat *flat, const struct gk_flat_step *step)
{
    float scale = step->mean ? (float)step->samples : 1;

    for (uint32_t i = 0; i < flat->tensors_count; i++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[i];
        float *target = flat->gradient + tensor->offset;

        if (tensor->flags & GK_TENSOR_FROZEN) {
            memset(target, 0, tensor->count * sizeof(float));
        } else if (scale == 1) {
            memcpy(target, tensor->gradient, tensor->count * sizeof(float));
        } else {
            for (uint64_t k = 0; k < tensor->count; k++) {
                target[k] = scale * tensor->gradient[k];
            }
        }
    }
}

/* The gradient is the sum over the samples; the bound is for that of their mean. */
static enum gk_err clip(const struct gk_flat *flat, uint64_t samples)
{
    const struct gk_range whole = {.hi = flat->spec.params_count};
    const double bound = flat->settings->clip * (double)samples;
    struct gk_stats stats;
    const struct gk_stats_args measure = {
        .u = flat->gradient, .segments = &whole, .segments_count = 1, .stats = &stats};
    struct gk_accumulate_args scale = {
        .dst = flat->gradient, .g = flat->gradient, .n = flat->spec.params_count};
    enum gk_err err = flat->ops->wait(flat->queue, flat->ops->stats(flat->queue, &measure));

    if (err || !(stats.sum_squares > bound * bound)) {
        return err;
    }
    scale.scale = (float)(bound / sqrt(stats.sum_squares));
    return flat->ops->wait(flat->queue, flat->ops->accumulate(flat->queue, &scale));
}

/* Whose element it is, for words about element `at` of the vector. */
static const struct gk_flat_tensor *tensor_at(const struct gk_flat *flat, uint64_t at)
{
    uint32_t i = 0;

    while (at - flat->tensors[flat->order[i]].offset >= flat->tensors[flat->order[i]].count) {
        i++;
    }
    return &flat->tensors[flat->order[i]];
}

static enum gk_err select_entries(struct gk_flat *flat, struct gk_flat_step *step,
                                  struct gk_selected *ret)
{
    struct gk_select_step select = {.step = step->step, .density = flat->settings->density};
    enum gk_err err = GK_OK;

    gather(flat, step);
    if (flat->settings->clip > 0) {
        err = clip(flat, step->samples);
    }
    if (err) {
        gk_words_set(&step->words, "step %" PRIu64 ": clipping: %s", step->step, gk_err_text(err));
        return err;
    }
    select.g = flat->gradient;
    select.e = flat->residual;
    err = gk_selector_step(flat->selector, &select, ret, &step->words);
    if (err == GK_E_NONFINITE) {
        const struct gk_flat_tensor *tensor = tensor_at(flat, ret->bad_first);

        gk_words_set(&step->words,
                     "step %" PRIu64 ": gradient + residual is not finite at element %" PRIu64
                     " of tensor '%s' (%" PRIu64 " such in all): the training has diverged, a "
                     "smaller learning rate may help; nothing was pushed and the residual is as it "
                     "was",
                     step->step, ret->bad_first - tensor->offset, tensor->name, ret->bad);
    }
    return err;
}

/* Nothing of this step: the residual stays as it is. */
static void select_nothing(struct gk_flat *flat, struct gk_selected *ret)
{
    static const uint32_t no_idx[1];
    static const float no_val[1];

    memcpy(flat->gradient, flat->residual, flat->spec.params_count * sizeof(float));
    *ret = (struct gk_selected){.idx = no_idx, .val = no_val};
}

/* Each list fits its tensor, all together the spec: the caller has checked it. */
static enum gk_err select_lists(struct gk_flat *flat, struct gk_flat_step *step,
                                struct gk_selected *ret)
{
    uint64_t n = 0;

    if (!flat->sparse_idx) {
        flat->sparse_idx = calloc(flat->spec.push_max, sizeof(*flat->sparse_idx));
        flat->sparse_val = calloc(flat->spec.push_max, sizeof(*flat->sparse_val));
    }
    if (!flat->sparse_idx || !flat->sparse_val) {
        gk_words_set(&step->words, "no memory for %" PRIu64 " entries", flat->spec.push_max);
        return GK_E_NOMEM;
    }
    select_nothing(flat, ret);
    for (uint32_t at = 0; at < flat->tensors_count; at++) {
        const struct gk_flat_list *list = &step->list[flat->order[at]];
        uint64_t offset = flat->tensors[flat->order[at]].offset;

        for (uint64_t k = 0; k < list->count; k++) {
            flat->sparse_idx[n] = (uint32_t)(offset + list->idx[k]);
            flat->sparse_val[n++] = list->val[k];
        }
    }
    *ret = (struct gk_selected){.idx = flat->sparse_idx, .val = flat->sparse_val, .n = n};
    return GK_OK;
}

static enum gk_err encode(const struct gk_flat *flat, const struct gk_selected *selected,
                          struct gk_flat_step *step)
{
    struct gk_push_source source = {.step = step->step,
                                    .samples = step->skip ? 0 : step->samples,
                                    .has_rate = step->lr_given,
                                    .lr = step->lr,
                                    .rank = flat->rank,
                                    .servers = flat->servers,
                                    .params_count = flat->spec.params_count,
                                    .idx = selected->idx,
                                    .val = selected->val,
                                    .n = selected->n,
                                    .chunk_floats = GK_CHUNK_FLOATS};

    return gk_push_encode(&source, &step->push, &step->words);
}

void gk_flat_step(struct gk_flat *flat, struct gk_flat_step *step)
{
    struct gk_selected selected = {.n = 0};
    uint64_t start_us = gk_now_us();
    enum gk_err err = GK_OK;

    step->push = NULL;
    if (flat->slot) {
        gk_slot_begin(flat->slot, step->step);
        if (step->aux) {
            memcpy(gk_slot_aux_target(flat->slot), step->aux, step->aux_bytes);
        }
    }
    if (step->skip) {
        select_nothing(flat, &selected);
    } else {
        err = step->list ? select_lists(flat, step, &selected)
                         : select_entries(flat, step, &selected);
    }
    if (!err) {
        step->selected = selected.n;
        err = encode(flat, &selected, step);
    }
    if (!err && flat->slot) {
        err = gk_slot_put(flat->slot, step->push, &step->words);
    }
    step->select_us = gk_now_us() - start_us;
    if (err) {
        gk_push_free(step->push);
        step->push = NULL;
        step->exit_code = err == GK_E_NONFINITE ? GK_EXIT_DATA : GK_EXIT_INTERNAL;
        return;
    }
    if (!flat->slot) {
        float *swap = flat->gradient; /* it holds the new residual now */

        flat->gradient = flat->residual;
        flat->residual = swap;
    }
}

enum gk_err gk_flat_persist(struct gk_flat *flat, const struct gk_worker_memory *memory,
                            struct gk_words *words)
{
    enum gk_err err = gk_slot_persist(flat->slot, memory, words);

    look_into_slot(flat);
    return err;
}
