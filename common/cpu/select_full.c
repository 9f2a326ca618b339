/* Full selection: count the digits of all keys, then one walk that takes what is above the k-th key
 * and the first of its ties.  Slow and simple: what the one-pass selection is compared with. */
#include "common/cpu/select.h"

enum { FULL_TILE = 4096 };

static void add_and_count(struct gk_queue *queue, const struct gk_cpu_segment *segment)
{
    const struct gk_select_args *args = segment->args;
    const struct gk_range *range = &segment->range;

    gk_cpu_radix_clear(&queue->radix);
    for (uint64_t lo = range->lo; lo < range->hi; lo += FULL_TILE) {
        struct gk_range tile = {lo, gk_min_u64(lo + FULL_TILE, range->hi)};

        queue->loops->add(args->dst, args->g, args->e, tile);
        gk_cpu_radix_count(&queue->radix, args->dst + tile.lo, tile.hi - tile.lo);
    }
    gk_cpu_radix_join(&queue->radix);
}

/* Find the non-finite entries, and count the keys of what replaces them. */
static void settle_all(const struct gk_cpu_segment *segment, uint32_t *bins)
{
    float *u = segment->args->dst;

    for (uint64_t i = segment->range.lo; i < segment->range.hi; i++) {
        if (gk_cpu_key(u[i]) < GK_KEY_NONFINITE) {
            continue;
        }
        bins[gk_cpu_key(u[i]) >> GK_CPU_RADIX_SHIFT]--;
        bins[gk_cpu_key(gk_cpu_select_settle(segment->args, i, u[i])) >> GK_CPU_RADIX_SHIFT]++;
    }
}

/* The entries of one tile that are among the k largest, behind those of the tiles before. */
static void take_tile(const struct gk_cpu_list *tile, uint32_t kth, uint64_t *ties,
                      struct gk_cpu_list *out)
{
    for (uint64_t i = 0; i < tile->n; i++) {
        bool tie = gk_cpu_key(tile->val[i]) == kth;

        if (tie && *ties == 0) {
            continue;
        }
        *ties -= tie;
        out->idx[out->n] = tile->idx[i];
        out->val[out->n] = tile->val[i];
        out->n++;
    }
}

static bool take_largest(struct gk_queue *queue, struct gk_cpu_segment *segment,
                         struct gk_cpu_kth kth)
{
    const struct gk_range range = segment->range;
    /* A k-th key of 0: there are fewer than k non-zeros, and all of them are taken. */
    const float least = gk_cpu_magnitude(kth.key > 0 ? kth.key : 1);
    uint64_t ties = segment->k - kth.above;
    struct gk_cpu_list tile;

    tile.idx = gk_cpu_scratch(queue, GK_CPU_SCRATCH_TILE,
                              FULL_TILE * (sizeof(*tile.idx) + sizeof(*tile.val)));
    if (!tile.idx) {
        return false;
    }
    tile.val = (float *)(void *)(tile.idx + FULL_TILE);
    for (uint64_t lo = range.lo; lo < range.hi; lo += FULL_TILE) {
        tile.n = 0;
        queue->loops->append(segment->args->dst,
                             (struct gk_range){lo, gk_min_u64(lo + FULL_TILE, range.hi)}, least,
                             &tile);
        take_tile(&tile, kth.key, &ties, &segment->out);
    }
    return true;
}

bool gk_cpu_select_full(struct gk_queue *queue, struct gk_cpu_segment *segment)
{
    const struct gk_select_args *args = segment->args;
    const struct gk_range range = segment->range;
    uint32_t *bins = queue->radix.bins;
    struct gk_cpu_digit digit;
    struct gk_cpu_kth kth;
    uint32_t *spare;
    uint32_t bad = 0;

    add_and_count(queue, segment);
    for (uint32_t bin = GK_KEY_NONFINITE >> GK_CPU_RADIX_SHIFT; bin < GK_CPU_RADIX_BINS; bin++) {
        bad |= bins[bin];
    }
    if (bad > 0) {
        settle_all(segment, bins);
    }
    args->report->appended += range.hi - range.lo;
    if (gk_cpu_select_refuses(args) || segment->k == 0) {
        return true;
    }
    digit = gk_cpu_radix_digit(&queue->radix, segment->k);
    spare = gk_cpu_scratch(queue, GK_CPU_SCRATCH_KEYS, (digit.count + 1) * sizeof(*spare));
    if (!spare) {
        return false;
    }
    kth = gk_cpu_radix_kth(&queue->radix, args->dst + range.lo, range.hi - range.lo, digit, spare);
    if (!take_largest(queue, segment, kth)) {
        return false;
    }
    if (segment->state) {
        segment->state->t = gk_cpu_magnitude(kth.key); /* 0 where there are fewer than k: cold */
        segment->state->kp = segment->k;
    }
    return true;
}
