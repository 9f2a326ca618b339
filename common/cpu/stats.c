/* Moments in the specified order: tiles of 2048 from the segment's start, 32 lanes, a fixed tree,
 * tiles in order. */
#include "common/assert.h"
#include "common/cpu/queue.h"

#include <string.h>

static double join_lanes(const double *lanes)
{
    double joined[GK_CPU_STATS_LANES];

    memcpy(joined, lanes, sizeof(joined));
    for (unsigned half = GK_CPU_STATS_LANES / 2; half > 0; half /= 2) {
        for (unsigned lane = 0; lane < half; lane++) {
            joined[lane] += joined[lane + half];
        }
    }
    return joined[0];
}

static void stats_segment(const struct gk_cpu_loops *loops, const struct gk_stats_args *args,
                          uint32_t s, struct gk_stats *stats)
{
    const struct gk_range range = args->segments[s];
    const float lo = args->lo ? args->lo[s] : 0.0f;

    *stats = (struct gk_stats){0};
    for (uint64_t at = range.lo; at < range.hi; at += GK_CPU_STATS_TILE) {
        uint64_t n = gk_min_u64(GK_CPU_STATS_TILE, range.hi - at);
        struct gk_cpu_moments tile = {0};

        loops->moments(args->u + at, n, lo, &tile);
        stats->sum += join_lanes(tile.sum);
        stats->sum_squares += join_lanes(tile.squares);
        stats->sum_abs += join_lanes(tile.abs);
        stats->count += tile.count;
        stats->bad += tile.bad;
        stats->nonzeros += tile.nonzeros;
        if (tile.key_max > stats->key_max) {
            stats->key_max = tile.key_max;
        }
        for (uint32_t j = 0; j < args->t_count; j++) {
            stats->above[j] += loops->count_above(args->u + at, n, args->t[j]);
        }
    }
}

struct gk_ticket gk_cpu_stats(struct gk_queue *queue, const struct gk_stats_args *args)
{
    const struct gk_ticket done = {0};

    GK_ASSERT(args->t_count <= GK_STATS_THRESHOLDS_MAX);
    if (queue->err) {
        return done;
    }
    for (uint32_t s = 0; s < args->segments_count; s++) {
        stats_segment(queue->loops, args, s, &args->stats[s]);
    }
    return done;
}
