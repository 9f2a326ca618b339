/* Full selection: count the digits of all keys, then one walk that takes what is above the k-th key
 * and the first of its ties.  Slow and simple: what the one-pass selection is compared with. */
#include "common/cpu/select.h"

#include <string.h>

static void add_and_count(const struct gk_cpu_loops *loops, const struct gk_cpu_segment *segment,
                          uint32_t *bins)
{
    const struct gk_select_args *args = segment->args;
    const struct gk_range *range = &segment->range;

    memset(bins, 0, GK_CPU_RADIX_BINS * sizeof(*bins));
    for (uint64_t lo = range->lo; lo < range->hi; lo += segment->tune->tile) {
        struct gk_range tile = {lo, gk_min_u64(lo + segment->tune->tile, range->hi)};

        loops->add(args->dst, args->g, args->e, tile);
        for (uint64_t i = tile.lo; i < tile.hi; i++)
            bins[gk_cpu_key(args->dst[i]) >> GK_CPU_RADIX_SHIFT]++;
    }
}

/* Find the non-finite entries, and count the keys of what replaces them. */
static void settle_all(const struct gk_cpu_segment *segment, uint32_t *bins)
{
    float *u = segment->args->dst;

    for (uint64_t i = segment->range.lo; i < segment->range.hi; i++) {
        if (gk_cpu_key(u[i]) < GK_KEY_NONFINITE)
            continue;
        bins[gk_cpu_key(u[i]) >> GK_CPU_RADIX_SHIFT]--;
        bins[gk_cpu_key(gk_cpu_select_settle(segment->args, i, u[i])) >> GK_CPU_RADIX_SHIFT]++;
    }
}

static void take_largest(const struct gk_cpu_segment *segment, struct gk_cpu_kth kth,
                         struct gk_cpu_list *out)
{
    const float *u = segment->args->dst;
    uint64_t ties = segment->k - kth.above;

    if (kth.key == 0) /* fewer than k non-zeros */
        ties = 0;
    for (uint64_t i = segment->range.lo; i < segment->range.hi; i++) {
        uint32_t key = gk_cpu_key(u[i]);

        if (key < kth.key || (key == kth.key && ties == 0))
            continue;
        ties -= key == kth.key;
        out->idx[out->n] = (uint32_t)i;
        out->val[out->n] = u[i];
        out->n++;
    }
}

void gk_cpu_select_full(struct gk_queue *queue, struct gk_cpu_segment *segment)
{
    const struct gk_select_args *args = segment->args;
    const struct gk_range range = segment->range;
    uint32_t *bins = queue->radix.bins;
    struct gk_cpu_kth kth;
    uint32_t bad = 0;

    add_and_count(queue->loops, segment, bins);
    for (uint32_t bin = GK_KEY_NONFINITE >> GK_CPU_RADIX_SHIFT; bin < GK_CPU_RADIX_BINS; bin++)
        bad |= bins[bin];
    if (bad > 0)
        settle_all(segment, bins);
    args->report->appended += range.hi - range.lo;
    if (gk_cpu_select_refuses(args) || segment->k == 0)
        return;
    kth = gk_cpu_radix_kth_counted(&queue->radix, args->dst + range.lo, range.hi - range.lo,
                                   segment->k);
    take_largest(segment, kth, &segment->out);
    if (segment->state) {
        segment->state->t = gk_cpu_magnitude(kth.key); /* 0 where there are fewer than k: cold */
        segment->state->kp = segment->k;
    }
}
