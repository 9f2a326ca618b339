#include "worker/core/push.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"
#include "proto/msg.h"
#include "proto/spec.h"

#include <stdlib.h>
#include <string.h>

/* The part of the source that belongs to one shard. */
struct slice_source {
    uint64_t lo, hi;
    const uint32_t *idx;
    const float *val; /* sparse: parallel to idx; dense source: val[0] is element lo */
    uint64_t n;
    uint64_t chunk_floats;
};

static void chunk_fini(struct gk_push_chunk *chunk)
{
    gk_buf_unref(chunk->frame[0]);
    gk_buf_unref(chunk->frame[1]);
}

void gk_push_free(struct gk_push *push)
{
    if (!push) {
        return;
    }
    for (uint32_t s = 0; push->slices && s < push->slices_count; s++) {
        struct gk_push_slice *slice = &push->slices[s];

        for (uint32_t c = 0; slice->chunks && c < slice->chunks_count; c++) {
            chunk_fini(&slice->chunks[c]);
        }
        free(slice->chunks);
    }
    free(push->slices);
    free(push);
}

static uint64_t lower_bound(const uint32_t *idx, uint64_t n, uint64_t value)
{
    uint64_t first = 0, last = n;

    while (first < last) {
        uint64_t middle = first + (last - first) / 2;

        if (idx[middle] < value) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

static enum gk_err dense_chunk(const struct slice_source *source, struct gk_push_chunk *chunk)
{
    uint64_t n = chunk->hi - chunk->lo;
    float *out;

    chunk->index_encoding = GK_INDEX_DENSE;
    chunk->count = n;
    chunk->frame[0] = gk_buf_new(n * sizeof(float));
    if (!chunk->frame[0]) {
        return GK_E_NOMEM;
    }
    chunk->frames_count = 1;
    out = (float *)(void *)chunk->frame[0]->data;
    if (!source->idx) {
        memcpy(out, source->val + (chunk->lo - source->lo), n * sizeof(float));
        return GK_OK;
    }
    for (uint64_t i = lower_bound(source->idx, source->n, chunk->lo);
         i < source->n && source->idx[i] < chunk->hi; i++) {
        out[source->idx[i] - chunk->lo] = source->val[i];
    }
    return GK_OK;
}

static enum gk_err encode_dense(const struct slice_source *source, struct gk_push_slice *slice)
{
    uint64_t length = source->hi - source->lo;

    slice->chunks_count = (uint32_t)((length + source->chunk_floats - 1) / source->chunk_floats);
    slice->chunks = calloc(slice->chunks_count, sizeof(*slice->chunks));
    if (!slice->chunks) {
        return GK_E_NOMEM;
    }
    for (uint32_t c = 0; c < slice->chunks_count; c++) {
        struct gk_push_chunk *chunk = &slice->chunks[c];
        enum gk_err err;

        chunk->lo = source->lo + c * source->chunk_floats;
        chunk->hi = gk_min_u64(chunk->lo + source->chunk_floats, source->hi);
        err = dense_chunk(source, chunk);
        if (err) {
            return err;
        }
    }
    return GK_OK;
}

static enum gk_err sparse_chunk(const struct slice_source *source, uint64_t first,
                                struct gk_push_chunk *chunk)
{
    uint32_t *idx;

    chunk->index_encoding = GK_INDEX_RAW32;
    chunk->frame[0] = gk_buf_new(chunk->count * sizeof(uint32_t));
    chunk->frame[1] = gk_buf_copy(source->val + first, chunk->count * sizeof(float));
    if (!chunk->frame[0] || !chunk->frame[1]) {
        return GK_E_NOMEM;
    }
    chunk->frames_count = 2;
    idx = (uint32_t *)(void *)chunk->frame[0]->data;
    for (uint64_t i = 0; i < chunk->count; i++) {
        idx[i] = (uint32_t)(source->idx[first + i] - chunk->lo);
    }
    return GK_OK;
}

static enum gk_err encode_sparse(const struct slice_source *source, struct gk_push_slice *slice)
{
    uint64_t chunks = gk_max_u64(1, (source->n + source->chunk_floats - 1) / source->chunk_floats);

    slice->chunks_count = (uint32_t)chunks;
    slice->chunks = calloc(chunks, sizeof(*slice->chunks));
    if (!slice->chunks) {
        return GK_E_NOMEM;
    }
    if (source->n == 0) {
        slice->chunks[0].lo = source->lo;
        slice->chunks[0].hi = source->hi;
        return GK_OK;
    }
    for (uint64_t c = 0; c < chunks; c++) {
        struct gk_push_chunk *chunk = &slice->chunks[c];
        uint64_t first = c * source->chunk_floats;
        enum gk_err err;

        /* A chunk's range ends where the next one's first index is, so that the chunks tile the
         * shard. */
        chunk->count = gk_min_u64(source->chunk_floats, source->n - first);
        chunk->lo = c == 0 ? source->lo : source->idx[first];
        chunk->hi = c + 1 == chunks ? source->hi : source->idx[first + source->chunk_floats];
        err = sparse_chunk(source, first, chunk);
        if (err) {
            return err;
        }
    }
    return GK_OK;
}

/* XXH3 over everything that reaches the server, in the order of the chunks. */
uint64_t gk_push_slice_id(const struct gk_push *push, uint32_t shard, uint32_t rank)
{
    const struct gk_push_slice *slice = &push->slices[shard];
    uint64_t head[4] = {push->step, rank, push->samples,
                        (uint64_t)push->has_rate << 32 | push->lr_bits};
    uint64_t hash = gk_hash64_more(0, head, sizeof(head));

    for (uint32_t c = 0; c < slice->chunks_count; c++) {
        const struct gk_push_chunk *chunk = &slice->chunks[c];
        uint64_t range[4] = {chunk->lo, chunk->hi, chunk->index_encoding, chunk->count};

        hash = gk_hash64_more(hash, range, sizeof(range));
        for (uint32_t f = 0; f < chunk->frames_count; f++) {
            hash = gk_hash64_more(hash, chunk->frame[f]->data, chunk->frame[f]->size);
        }
    }
    return hash ? hash : 1; /* 0 means "no push" in HELLO */
}

static void seal_slice(const struct gk_push *push, uint32_t shard, uint32_t rank)
{
    struct gk_push_slice *slice = &push->slices[shard];

    slice->bytes = 0;
    for (uint32_t c = 0; c < slice->chunks_count; c++) {
        for (uint32_t f = 0; f < slice->chunks[c].frames_count; f++) {
            slice->bytes += slice->chunks[c].frame[f]->size;
        }
    }
    slice->id = gk_push_slice_id(push, shard, rank);
}

static enum gk_err encode_slice(const struct gk_push_source *source, uint32_t shard,
                                struct gk_push_slice *slice)
{
    struct slice_source part = {
        .lo = gk_partition_lo(source->params_count, source->servers, shard),
        .hi = gk_partition_lo(source->params_count, source->servers, shard + 1),
        .chunk_floats = source->chunk_floats};
    enum gk_err err;

    if (source->idx) {
        uint64_t first = lower_bound(source->idx, source->n, part.lo);

        part.idx = source->idx + first;
        part.val = source->val + first;
        part.n = lower_bound(source->idx, source->n, part.hi) - first;
    } else {
        part.val = source->val + part.lo;
        part.n = part.hi - part.lo;
    }
    if (!part.idx || 8 * part.n >= 4 * (part.hi - part.lo)) {
        err = encode_dense(&part, slice);
    } else {
        err = encode_sparse(&part, slice);
    }
    return err;
}

enum gk_err gk_push_encode(const struct gk_push_source *source, struct gk_push **ret_push,
                           struct gk_words *words)
{
    struct gk_push *push = calloc(1, sizeof(*push));
    enum gk_err err = GK_E_NOMEM;

    GK_ASSERT(source->chunk_floats > 0);
    GK_ASSERT(!source->has_rate || gk_rate_good(source->lr));
    if (!push) {
        goto out;
    }
    push->step = source->step;
    push->samples = source->samples;
    push->has_rate = source->has_rate;
    push->lr_bits = source->has_rate ? gk_float_bits(source->lr) : 0;
    push->slices_count = source->servers;
    push->slices = calloc(source->servers, sizeof(*push->slices));
    if (!push->slices) {
        goto out;
    }
    for (uint32_t s = 0; s < source->servers; s++) {
        err = encode_slice(source, s, &push->slices[s]);
        if (err) {
            goto out;
        }
        seal_slice(push, s, source->rank);
    }
    *ret_push = push;
    return GK_OK;
out:
    gk_words_set(words, "no memory for the push of step %llu", (unsigned long long)source->step);
    gk_push_free(push);
    return err;
}
