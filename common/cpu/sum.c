/* Sums of pushes in rank order.
 *
 * Tile by tile: every list adds what falls into the tile to one accumulator that stays in the
 * cache, and a cursor remembers how far it came.  As long as the result is sparse, an accumulator
 * starts as -0, which marks it as untouched: adding a value with its -0 made +0 gives exactly what
 * a start at +0 gives, and never -0 again.  When the union reaches half of the range, what was
 * written is spread out in place and the rest of the tiles are dense. */
#include "common/assert.h"
#include "common/cpu/queue.h"

#include <string.h>

enum { SUM_TILE = 64 * 1024 };

struct sum {
    const struct gk_cpu_loops *loops;
    const struct gk_sum_args *args;
    uint64_t *cursors;
    float *tile; /* accumulators of a sparse tile, all untouched between tiles */
    struct gk_cpu_list out;
    bool dense;
    bool finite;
};

/* One list's entries in the tile [lo, lo + n).  An index that does not rise stops the list, and is
 * found at the end. */
static uint64_t add_sparse(float *restrict sums, const struct gk_list *list, uint64_t cursor,
                           uint64_t lo, uint64_t n)
{
    const uint32_t *restrict idx = list->idx;
    const float *restrict val = list->val;
    const uint64_t shift = list->base - lo; /* may wrap, and wraps back */

    for (; cursor < list->n; cursor++) {
        uint64_t at = idx[cursor] + shift;

        if (at >= n) {
            break;
        }
        sums[at] += val[cursor] + 0.0f;
    }
    return cursor;
}

static uint64_t add_dense(const struct sum *sum, float *sums, const struct gk_list *list,
                          uint64_t cursor, struct gk_range tile)
{
    uint64_t from = gk_max_u64(tile.lo, list->base);
    uint64_t to = gk_min_u64(tile.hi, list->base + list->n);

    if (from >= to) {
        return cursor;
    }
    sum->loops->sum_dense(sums + (from - tile.lo), list->val + (from - list->base), to - from);
    return cursor + (to - from);
}

static void add_lists(struct sum *sum, float *sums, struct gk_range tile)
{
    const struct gk_sum_args *args = sum->args;

    for (uint32_t l = 0; l < args->lists_count; l++) {
        const struct gk_list *list = &args->lists[l];

        if (list->idx) {
            sum->cursors[l] = add_sparse(sums, list, sum->cursors[l], tile.lo, tile.hi - tile.lo);
        } else {
            sum->cursors[l] = add_dense(sum, sums, list, sum->cursors[l], tile);
        }
    }
}

/* Spread the entries over [0, hi), from the back: an entry never moves to the left. */
static void densify(struct sum *sum, uint64_t hi)
{
    float *val = sum->args->val;
    uint64_t end = hi;

    for (uint64_t j = sum->out.n; j > 0; j--) {
        uint32_t at = sum->args->idx[j - 1];

        val[at] = val[j - 1];
        memset(val + at + 1, 0, (end - at - 1) * sizeof(*val));
        end = at;
    }
    if (end > 0) {
        memset(val, 0, end * sizeof(*val));
    }
    sum->dense = true;
}

static void sum_tile(struct sum *sum, struct gk_range tile)
{
    const uint64_t n = tile.hi - tile.lo;
    float *sums = sum->dense ? sum->args->val + tile.lo : sum->tile;

    if (sum->dense) {
        memset(sums, 0, n * sizeof(*sums));
        add_lists(sum, sums, tile);
        sum->finite = sum->loops->finite(sums, n) && sum->finite;
        return;
    }
    add_lists(sum, sums, tile);
    sum->finite = sum->loops->sum_emit(sums, n, tile.lo, &sum->out) && sum->finite;
    if (2 * sum->out.n >= sum->args->len) {
        densify(sum, tile.hi);
    }
}

static bool any_dense(const struct gk_sum_args *args)
{
    for (uint32_t l = 0; l < args->lists_count; l++) {
        if (!args->lists[l].idx) {
            return true;
        }
    }
    return false;
}

struct gk_ticket gk_cpu_sum(struct gk_queue *queue, const struct gk_sum_args *args)
{
    const struct gk_ticket done = {0};
    struct sum sum = {.loops = queue->loops,
                      .args = args,
                      .finite = true,
                      .dense = args->len == 0 || any_dense(args)};

    if (queue->err) {
        return done;
    }
    GK_ASSERT(args->len <= UINT32_MAX);
    sum.cursors =
        gk_cpu_scratch(queue, GK_CPU_SCRATCH_CURSORS, args->lists_count * sizeof(*sum.cursors));
    sum.tile = gk_cpu_scratch(queue, GK_CPU_SCRATCH_TILE, SUM_TILE * sizeof(*sum.tile));
    if (!sum.cursors || !sum.tile) {
        return done;
    }
    memset(sum.cursors, 0, args->lists_count * sizeof(*sum.cursors));
    for (uint64_t i = 0; i < SUM_TILE; i++) {
        sum.tile[i] = gk_bits_float(GK_CPU_UNTOUCHED);
    }
    sum.out = (struct gk_cpu_list){.idx = args->idx, .val = args->val};
    for (uint64_t lo = 0; lo < args->len; lo += SUM_TILE) {
        sum_tile(&sum, (struct gk_range){lo, gk_min_u64(lo + SUM_TILE, args->len)});
    }
    for (uint32_t l = 0; l < args->lists_count; l++) { /* lists were validated when they arrived */
        GK_ASSERT(sum.cursors[l] == args->lists[l].n);
    }
    args->report->dense = sum.dense;
    args->report->n = sum.dense ? args->len : sum.out.n;
    args->report->finite = sum.finite;
    return done;
}
