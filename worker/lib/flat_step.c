#include "worker/lib/flat_internal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/net/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum gk_err gk_flat_settle(struct gk_flat *flat, void *stream, struct gk_words *words)
{
    enum gk_err err;

    flat->ops->settle(flat->queue, stream);
    err = flat->ops->wait(flat->queue, (struct gk_ticket){0});
    if (err) {
        gk_words_set(words, "waiting for what the program computes on %s: %s", gk_flat_table(flat),
                     gk_err_text(err));
    }
    return err;
}

enum gk_err gk_flat_install(struct gk_flat *flat, uint32_t plane, struct gk_range range,
                            const float *values, struct gk_words *words)
{
    struct gk_ticket copied = {0};
    enum gk_err err;

    GK_ASSERT(range.lo < range.hi && range.hi <= flat->spec.params_count);
    for (uint32_t at = 0; at < flat->tensors_count; at++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[flat->order[at]];
        uint64_t lo = gk_max_u64(range.lo, tensor->offset);
        uint64_t hi = gk_min_u64(range.hi, tensor->offset + tensor->count);
        float *target = plane == 0 ? tensor->params : tensor->gradient;

        if (lo < hi && target) {
            copied = flat->ops->copy(flat->queue, target + (lo - tensor->offset),
                                     values + (lo - range.lo), (hi - lo) * sizeof(float));
        }
    }
    err = flat->ops->wait(flat->queue, copied);
    if (err) {
        gk_words_set(words, "what was pulled cannot be copied to %s: %s", gk_flat_table(flat),
                     gk_err_text(err));
    }
    return err;
}

/* New memory is zero. */
static enum gk_err renew_residual(struct gk_flat *flat, struct gk_words *words)
{
    float *fresh = gk_flat_vector_new(flat);

    if (!fresh) {
        gk_words_set(words, "no memory for an empty residual");
        return GK_E_NOMEM;
    }
    gk_flat_vector_free(flat, flat->residual);
    flat->residual = fresh;
    return GK_OK;
}

enum gk_err gk_flat_reset(struct gk_flat *flat, struct gk_words *words)
{
    enum gk_err err = flat->slot ? gk_slot_void(flat->slot, words) : GK_OK;

    if (!err && !flat->on_host) {
        err = renew_residual(flat, words);
    } else if (!err && !flat->slot) {
        memset(flat->residual, 0, flat->spec.params_count * sizeof(float));
    }
    return err;
}

/* The bound gradient into the vector, as a sum over the samples.  An error of the queue sticks to
 * it, for the selection to find. */
static void gather(struct gk_flat *flat, const struct gk_flat_step *step)
{
    struct gk_accumulate_args scale = {.scale = step->mean ? (float)step->samples : 1};

    for (uint32_t i = 0; i < flat->tensors_count; i++) {
        const struct gk_flat_tensor *tensor = &flat->tensors[i];
        float *target = flat->gradient + tensor->offset;

        if (tensor->flags & GK_TENSOR_FROZEN) {
            if (flat->on_host) { /* other vectors are zero there and stay so */
                memset(target, 0, tensor->count * sizeof(float));
            }
        } else if (scale.scale == 1) {
            (void)flat->ops->copy(flat->queue, target, tensor->gradient,
                                  tensor->count * sizeof(float));
        } else {
            scale.dst = target;
            scale.g = tensor->gradient;
            scale.n = tensor->count;
            (void)flat->ops->accumulate(flat->queue, &scale);
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
                     "smaller learning rate may help, or the gradient was computed wrongly; "
                     "nothing was pushed and the residual is as it was",
                     step->step, ret->bad_first - tensor->offset, tensor->name, ret->bad);
    }
    return err;
}

/* Nothing of this step: the residual stays as it is. */
static enum gk_err select_nothing(struct gk_flat *flat, struct gk_flat_step *step,
                                  struct gk_selected *ret)
{
    static const uint32_t no_idx[1];
    static const float no_val[1];
    struct gk_ticket copied = flat->ops->copy(flat->queue, flat->gradient, flat->residual,
                                              flat->spec.params_count * sizeof(float));
    enum gk_err err = flat->ops->wait(flat->queue, copied);

    if (err) {
        gk_words_set(&step->words, "step %" PRIu64 ": copying the residual: %s", step->step,
                     gk_err_text(err));
    }
    *ret = (struct gk_selected){.idx = no_idx, .val = no_val};
    return err;
}

/* Each list fits its tensor, all together the spec: the caller has checked it. */
static enum gk_err select_lists(struct gk_flat *flat, struct gk_flat_step *step,
                                struct gk_selected *ret)
{
    uint64_t n = 0;
    enum gk_err err;

    if (!flat->sparse_idx) {
        flat->sparse_idx = calloc(flat->spec.push_max, sizeof(*flat->sparse_idx));
        flat->sparse_val = calloc(flat->spec.push_max, sizeof(*flat->sparse_val));
    }
    if (!flat->sparse_idx || !flat->sparse_val) {
        gk_words_set(&step->words, "no memory for %" PRIu64 " entries", flat->spec.push_max);
        return GK_E_NOMEM;
    }
    err = select_nothing(flat, step, ret);
    if (err) {
        return err;
    }
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

static void swap_vectors(struct gk_flat *flat)
{
    float *swap = flat->gradient; /* it holds the new residual */

    flat->gradient = flat->residual;
    flat->residual = swap;
}

/* Push and new residual into the slot, where they do not count yet. */
static enum gk_err put(struct gk_flat *flat, struct gk_flat_step *step)
{
    enum gk_err err = gk_slot_put(flat->slot, step->push, &step->words);

    if (err || flat->on_host) {
        return err;
    }
    err = flat->ops->wait(flat->queue,
                          flat->ops->copy(flat->queue, gk_slot_target(flat->slot), flat->gradient,
                                          flat->spec.params_count * sizeof(float)));
    if (err) {
        gk_words_set(&step->words, "step %" PRIu64 ": copying the residual into its file: %s",
                     step->step, gk_err_text(err));
    }
    return err;
}

void gk_flat_step(struct gk_flat *flat, struct gk_flat_step *step)
{
    struct gk_selected selected = {.n = 0};
    uint64_t start_us = gk_now_us();
    enum gk_err err;

    step->push = NULL;
    if (flat->slot) {
        gk_slot_begin(flat->slot, step->step);
        if (step->aux) {
            memcpy(gk_slot_aux_target(flat->slot), step->aux, step->aux_bytes);
        }
    }
    if (step->skip) {
        err = select_nothing(flat, step, &selected);
    } else {
        err = step->list ? select_lists(flat, step, &selected)
                         : select_entries(flat, step, &selected);
    }
    if (!err) {
        step->selected = selected.n;
        err = encode(flat, &selected, step);
    }
    if (!err && flat->slot) {
        err = put(flat, step);
    }
    step->select_us = gk_now_us() - start_us;
    if (err) {
        gk_push_free(step->push);
        step->push = NULL;
        step->exit_code = err == GK_E_NONFINITE ? GK_EXIT_DATA : GK_EXIT_INTERNAL;
        return;
    }
    if (!flat->slot) {
        swap_vectors(flat);
    }
}

enum gk_err gk_flat_persist(struct gk_flat *flat, const struct gk_worker_memory *memory,
                            struct gk_words *words)
{
    enum gk_err err = gk_slot_persist(flat->slot, memory, words);

    if (flat->on_host) {
        gk_flat_look_into_slot(flat);
    } else if (!err) {
        swap_vectors(flat);
    }
    return err;
}
