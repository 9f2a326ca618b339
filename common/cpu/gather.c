/* The short slots: residual add, gathers, scatters, hash. */
#include "common/assert.h"
#include "common/cpu/queue.h"

#include <math.h>
#include <string.h>

static const struct gk_ticket done = {0};

enum { GATHER_TILE = 4096 };

struct gk_ticket gk_cpu_accumulate(struct gk_queue *queue, const struct gk_accumulate_args *args)
{
    GK_ASSERT(!args->m || args->m_out);
    if (!queue->err) {
        queue->loops->accumulate(args);
    }
    return done;
}

/* The entries of one segment, tile by tile, behind the *at that are already out. */
static uint64_t select_ge_segment(const struct gk_queue *queue,
                                  const struct gk_select_ge_args *args, uint32_t s,
                                  struct gk_cpu_list *tile, uint64_t *at)
{
    const struct gk_range range = args->segments[s];
    /* The smallest denormal takes the non-zeros. */
    const float t = args->t[s] > 0.0f ? args->t[s] : gk_cpu_magnitude(1);
    uint64_t n = 0;

    if (isnan(args->t[s])) { /* nothing reaches what is not a number */
        return 0;
    }
    for (uint64_t lo = range.lo; lo < range.hi; lo += GATHER_TILE) {
        uint64_t fit;

        tile->n = 0;
        queue->loops->append(args->u, (struct gk_range){lo, gk_min_u64(lo + GATHER_TILE, range.hi)},
                             t, tile);
        fit = gk_min_u64(tile->n, args->room - *at);
        if (fit > 0) {
            memcpy(args->idx + *at, tile->idx, fit * sizeof(*args->idx));
            memcpy(args->val + *at, tile->val, fit * sizeof(*args->val));
        }
        *at += fit;
        n += tile->n;
    }
    return n;
}

struct gk_ticket gk_cpu_select_ge(struct gk_queue *queue, const struct gk_select_ge_args *args)
{
    struct gk_cpu_list tile;
    uint64_t at = 0;

    if (queue->err) {
        return done;
    }
    tile.idx = gk_cpu_scratch(queue, GK_CPU_SCRATCH_TILE,
                              GATHER_TILE * (sizeof(*tile.idx) + sizeof(*tile.val)));
    if (!tile.idx) {
        return done;
    }
    tile.val = (float *)(void *)(tile.idx + GATHER_TILE);
    for (uint32_t s = 0; s < args->segments_count; s++) {
        args->n[s] = select_ge_segment(queue, args, s, &tile, &at);
    }
    return done;
}

struct gk_ticket gk_cpu_sample(struct gk_queue *queue, const struct gk_sample_args *args)
{
    uint64_t count = 0;

    GK_ASSERT(args->stride > 0);
    if (queue->err) {
        return done;
    }
    for (uint64_t i = args->phase; i < args->n && count < args->room; i += args->stride) {
        args->keys[count++] = gk_cpu_key(args->g[i] + (args->e ? args->e[i] : 0.0f));
    }
    *args->count = count;
    return done;
}

struct gk_ticket gk_cpu_take(struct gk_queue *queue, const struct gk_take_args *args)
{
    float *u = args->u;
    float *val = args->val;

    if (queue->err) {
        return done;
    }
    if (args->encoding != GK_VALUE_F32) {
        queue->err = GK_E_UNSUPPORTED;
        return done;
    }
    for (uint64_t j = 0; j < args->n; j++) {
        uint32_t i = args->idx[j];

        val[j] = u[i];
        u[i] -= val[j];
        if (args->m) {
            args->m[i] = 0.0f;
        }
    }
    return done;
}

struct gk_ticket gk_cpu_give(struct gk_queue *queue, const struct gk_give_args *args)
{
    float *u = args->u;

    if (queue->err) {
        return done;
    }
    for (uint64_t j = 0; j < args->n; j++) {
        u[args->base + (args->idx ? args->idx[j] : j)] += args->val[j];
    }
    return done;
}

struct gk_ticket gk_cpu_hash(struct gk_queue *queue, const struct gk_hash_args *args)
{
    if (!queue->err) {
        *args->hash =
            queue->loops->hash(args->x, args->n, ((uint64_t)args->plane << 56) + args->index0);
    }
    return done;
}
