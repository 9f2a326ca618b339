/* Rounds of the log, applied to a range of the planes.  Learning rates and samples are those of the
 * records: nobody recomputes them. */
#include "common/assert.h"
#include "proto/spec.h"
#include "server/store/replay.h"

#include <stdlib.h>
#include <string.h>

enum gk_err gk_batch_new(const struct gk_vector_ops *ops, struct gk_queue *queue,
                         const struct gk_image *image, struct gk_batch **ret,
                         struct gk_words *words)
{
    struct gk_batch *batch = calloc(1, sizeof(*batch));
    enum gk_err err = GK_E_NOMEM;

    if (batch) {
        batch->spec = calloc(1, sizeof(*batch->spec));
        batch->decay = calloc(GK_TENSORS_MAX, sizeof(*batch->decay));
    }
    if (!batch || !batch->spec || !batch->decay) {
        gk_words_set(words, "%s", gk_err_text(err));
        gk_batch_free(batch);
        return err;
    }
    err = gk_spec_decode(image->spec, image->spec_bytes, batch->spec, words);
    if (err) {
        gk_batch_free(batch);
        return err;
    }
    batch->ops = ops;
    batch->queue = queue;
    batch->optimizer = image->optimizer;
    batch->lo = image->lo;
    batch->hi = image->hi;
    *ret = batch;
    return GK_OK;
}

void gk_batch_free(struct gk_batch *batch)
{
    if (batch) {
        gk_batch_clear(batch);
        if (batch->spec) {
            gk_spec_clear(batch->spec);
        }
        free(batch->spec);
        free(batch->decay);
        free(batch);
    }
}

void gk_batch_add(struct gk_batch *batch, const struct gk_record *record, uint8_t *memory,
                  uint64_t bytes)
{
    uint32_t i = batch->count++;

    GK_ASSERT(i < GK_REPLAY_ROUNDS_MAX);
    batch->memory[i] = memory;
    /* The record lies in our memory, which may be written to. */
    batch->idx[i] =
        record->idx ? (uint32_t *)(void *)(memory + ((const uint8_t *)record->idx - memory)) : NULL;
    batch->val[i] = record->val;
    batch->n[i] = record->count;
    batch->done[i] = 0;
    batch->updates[i] = (struct gk_update){.samples = record->samples, .hyper = record->hyper};
    batch->bytes += bytes;
}

/* The entries of the next range, their indices made relative to it. */
static void cut_out(struct gk_batch *batch, uint32_t i, uint64_t first, uint64_t length)
{
    struct gk_update *update = &batch->updates[i];
    uint32_t *idx = batch->idx[i];
    uint64_t end = batch->done[i];

    if (!idx) {
        update->val = batch->val[i] + first;
        update->n = length;
        return;
    }
    while (end < batch->n[i] && idx[end] < first + length) {
        idx[end] -= (uint32_t)first;
        end++;
    }
    update->idx = idx + batch->done[i];
    update->val = batch->val[i] + batch->done[i];
    update->n = end - batch->done[i];
    batch->done[i] = end;
}

enum gk_err gk_batch_apply(struct gk_batch *batch, float *const planes[3], uint64_t first,
                           uint64_t length, struct gk_words *words)
{
    struct gk_apply_args args = {
        .optimizer = (enum gk_optimizer)batch->optimizer,
        .p = planes[0],
        .m = planes[1],
        .v = planes[2],
        .len = length,
        .decay = batch->decay,
        .updates = batch->updates,
        .updates_count = batch->count,
    };
    enum gk_err err;

    if (batch->count == 0) {
        return GK_OK;
    }
    args.decay_count = gk_spec_decay_ranges(batch->spec, batch->lo + first,
                                            batch->lo + first + length, batch->decay);
    for (uint32_t i = 0; i < batch->count; i++) {
        cut_out(batch, i, first, length);
    }
    err = batch->ops->wait(batch->queue, batch->ops->apply(batch->queue, &args));
    if (err) {
        gk_words_set(words, "replaying the log: %s", gk_err_text(err));
    }
    return err;
}

void gk_batch_clear(struct gk_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        batch->ops->free(batch->queue, GK_MEMORY_PINNED, batch->memory[i]);
    }
    batch->count = 0;
    batch->bytes = 0;
}

enum gk_err gk_replay_hash(const struct gk_vector_ops *ops, struct gk_queue *queue,
                           float *const planes[3], uint32_t planes_count,
                           const struct gk_range *global, uint64_t *ret_hash)
{
    uint64_t sum = 0;

    for (uint32_t p = 0; p < planes_count; p++) {
        uint64_t hash = 0;
        struct gk_hash_args args = {
            .x = planes[p],
            .n = global->hi - global->lo,
            .index0 = global->lo,
            .plane = p,
            .hash = &hash,
        };
        enum gk_err err = ops->wait(queue, ops->hash(queue, &args));

        if (err) {
            return err;
        }
        sum += hash;
    }
    *ret_hash = sum;
    return GK_OK;
}
