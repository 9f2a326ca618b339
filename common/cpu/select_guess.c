/* Exact top-k in one pass over memory.
 *
 * The pass writes u = g + e and appends every entry at or above a guessed threshold to a candidate
 * list.  A full list is pruned to its k largest and the threshold rises to what an entry must beat.
 * Non-finite entries are candidates at any threshold (an unordered compare), so the check for them
 * costs nothing.  A guess that was too high leaves fewer than k candidates; then one or two
 * read-only passes over the bands below it find the rest.  At the end the list is pruned to exactly
 * k.  It is in index order all the time, so there is no sort.
 *
 * Invariant, per partition: the list holds every entry seen so far with key >= floor, plus the ties
 * that the last prune kept.  Where nothing was pruned the floor is the guess itself, which is what
 * the rescue relies on; after a prune there are k candidates and no rescue is needed.  The guess
 * decides the speed and never the result. */
#include "common/cpu/select.h"

#include "common/assert.h"

#include <math.h>
#include <string.h>

enum {
    PILOT_STRIDE = 1024, /* elements: every 64th cache line */
    PILOT_LINE = 16,
    PILOT_SHARE = PILOT_STRIDE / PILOT_LINE, /* one element of so many is looked at */
    PILOT_RANK_MIN = 16,                     /* fewer expected samples than that say nothing */
};

static const float margin_first = 0.10f;
static const float margin_max = 0.6f;

struct pass {
    struct gk_queue *queue;
    uint32_t *spare;
    const struct gk_cpu_segment *segment;
    uint64_t cap; /* entries a list holds before it is pruned */
    uint32_t floor;
    uint64_t settled; /* entries of the list that are known to be finite */
};

static void list_new(void *memory, uint64_t capacity, struct gk_cpu_list *ret_list)
{
    ret_list->idx = memory;
    ret_list->val = (float *)(void *)(ret_list->idx + capacity);
    ret_list->n = 0;
}

static size_t list_bytes(uint64_t capacity)
{
    return capacity * (sizeof(uint32_t) + sizeof(float));
}

/* For the search of a list: one key more than it may hold. */
static size_t spare_bytes(uint64_t capacity)
{
    return (capacity + 1) * sizeof(uint32_t);
}

/* ---- The guess ---- */

/* A lower bound, very probably, of the k-th key, from a sample of u. */
static bool pilot(struct gk_queue *queue, const struct gk_cpu_segment *segment, uint32_t *ret_floor)
{
    const struct gk_select_args *args = segment->args;
    const struct gk_range range = segment->range;
    double r = (double)segment->k / PILOT_SHARE;
    uint64_t rank = (uint64_t)(r + 4 * sqrt(r) + 4);
    uint64_t room = ((range.hi - range.lo) / PILOT_STRIDE + 1) * PILOT_LINE;
    uint64_t n = 0;
    float *sample;

    *ret_floor = 1;
    if (r < PILOT_RANK_MIN) {
        return true;
    }
    sample =
        gk_cpu_scratch(queue, GK_CPU_SCRATCH_PILOT, room * sizeof(*sample) + spare_bytes(room));
    if (!sample) {
        return false;
    }
    for (uint64_t line = range.lo; line < range.hi; line += PILOT_STRIDE) {
        for (uint64_t i = line; i < gk_min_u64(line + PILOT_LINE, range.hi); i++) {
            sample[n] = args->g[i] + (args->e ? args->e[i] : 0.0f);
            n += gk_cpu_key(sample[n]) < GK_KEY_NONFINITE;
        }
    }
    if (rank <= n) {
        uint32_t *spare = (uint32_t *)(void *)(sample + room);

        *ret_floor =
            (uint32_t)gk_max_u64(1, gk_cpu_radix_find(&queue->radix, sample, n, rank, spare).key);
    }
    return true;
}

static bool is_warm(const struct gk_select_state *state)
{
    return state->t > 0.0f && isfinite(state->t);
}

static float margin_of(const struct gk_select_state *state)
{
    return state->margin > 0.0f && state->margin <= margin_max ? state->margin : margin_first;
}

static bool guess(struct gk_queue *queue, const struct gk_cpu_segment *segment, uint32_t *ret_floor)
{
    const struct gk_select_state *state = segment->state;
    float trend = fminf(1.0f, (float)state->kp / (float)segment->k);

    if (!is_warm(state)) {
        return pilot(queue, segment, ret_floor);
    }
    *ret_floor = (uint32_t)gk_max_u64(1, gk_cpu_key(state->t * (1.0f - margin_of(state)) * trend));
    return true;
}

/* ---- The pass ---- */

/* Takes the non-finite entries out of the list, or puts their residual in their place. */
static void settle(struct pass *pass, struct gk_cpu_list *list)
{
    uint64_t kept = pass->settled;

    if (pass->queue->loops->finite(list->val + kept, list->n - kept)) {
        pass->settled = list->n;
        return;
    }
    for (uint64_t i = pass->settled; i < list->n; i++) {
        uint32_t at = list->idx[i];
        float x = list->val[i];

        if (gk_cpu_key(x) >= GK_KEY_NONFINITE) {
            x = gk_cpu_select_settle(pass->segment->args, at, x);
            if (gk_cpu_key(x) >= GK_KEY_NONFINITE || gk_cpu_key(x) < pass->floor) {
                continue;
            }
        }
        list->idx[kept] = at;
        list->val[kept] = x;
        kept++;
    }
    list->n = kept;
    pass->settled = kept;
}

/* Down to the k largest, if there are so many.  A later entry of the same key would lose the tie:
 * it must be larger. */
static void prune(struct pass *pass, struct gk_cpu_list *list, uint64_t k)
{
    struct gk_cpu_kth kth;

    if (k == 0 || list->n < k) {
        return;
    }
    kth = gk_cpu_radix_find(&pass->queue->radix, list->val, list->n, k, pass->spare);
    gk_cpu_radix_keep(list, kth, k, list);
    pass->floor = kth.key + 1;
    pass->settled = list->n;
    pass->segment->args->report->prunes++;
}

static void pass_partition(struct pass *pass, struct gk_range part, struct gk_cpu_list *list)
{
    const struct gk_select_args *args = pass->segment->args;
    const uint64_t tile = pass->segment->tune->tile;

    pass->settled = 0;
    for (uint64_t lo = part.lo; lo < part.hi; lo += tile) {
        uint64_t before;

        if (list->n + tile > pass->cap) {
            settle(pass, list);
            prune(pass, list, pass->segment->k);
        }
        before = list->n;
        pass->queue->loops->add_append(args->dst, args->g, args->e,
                                       (struct gk_range){lo, gk_min_u64(lo + tile, part.hi)},
                                       gk_cpu_magnitude(pass->floor), list);
        args->report->appended += list->n - before;
    }
    settle(pass, list);
}

/* All partitions, one after the other, and their lists made one.  A partition that was pruned
 * raises the threshold of the others to its k-th key, but not above it: they may hold a tie of a
 * lower index. */
static void pass_all(struct pass *pass, struct gk_cpu_list *ret_list)
{
    const struct gk_range range = pass->segment->range;
    const uint64_t tile = pass->segment->tune->tile;
    const uint64_t tiles = (range.hi - range.lo + tile - 1) / tile;
    const uint32_t parts = pass->segment->tune->partitions;
    uint32_t shared = pass->floor;

    for (uint32_t p = 0; p < parts; p++) {
        struct gk_range part = {range.lo + tiles * p / parts * tile,
                                gk_min_u64(range.lo + tiles * (p + 1) / parts * tile, range.hi)};
        struct gk_cpu_list list = {
            .idx = ret_list->idx + p * pass->cap, .val = ret_list->val + p * pass->cap, .n = 0};

        pass->floor = shared;
        pass_partition(pass, part, &list);
        if (pass->floor > shared) {
            shared = pass->floor - 1;
        }
        memmove(ret_list->idx + ret_list->n, list.idx, list.n * sizeof(*list.idx));
        memmove(ret_list->val + ret_list->n, list.val, list.n * sizeof(*list.val));
        ret_list->n += list.n;
    }
}

/* ---- The rescue ---- */

/* The `want` largest entries of u with lo <= key < hi. */
static void collect_band(struct pass *pass, uint32_t lo, uint32_t hi, uint64_t want,
                         struct gk_cpu_list *list)
{
    const struct gk_range range = pass->segment->range;
    const uint64_t tile = pass->segment->tune->tile;

    list->n = 0;
    pass->floor = lo;
    for (uint64_t at = range.lo; at < range.hi; at += tile) {
        if (list->n + tile > pass->cap) {
            prune(pass, list, want);
        }
        pass->queue->loops->append_band(pass->segment->args->dst,
                                        (struct gk_range){at, gk_min_u64(at + tile, range.hi)},
                                        gk_cpu_magnitude(pass->floor), gk_cpu_magnitude(hi), list);
    }
    if (list->n > want) {
        prune(pass, list, want);
    }
}

/* Both in index order; list has room for both. */
static void merge(struct gk_cpu_list *list, const struct gk_cpu_list *more)
{
    uint64_t a = list->n;
    uint64_t b = more->n;

    list->n = a + b;
    for (uint64_t at = a + b; b > 0; at--) {
        if (a > 0 && list->idx[a - 1] > more->idx[b - 1]) {
            a--;
            list->idx[at - 1] = list->idx[a];
            list->val[at - 1] = list->val[a];
        } else {
            b--;
            list->idx[at - 1] = more->idx[b];
            list->val[at - 1] = more->val[b];
        }
    }
}

/* The guess `hi` was too high: take what is missing from the band below it, then from the rest. */
static bool rescue(struct pass *pass, uint32_t hi, struct gk_cpu_list *list)
{
    const uint64_t k = pass->segment->k;
    uint32_t lo = (uint32_t)gk_max_u64(1, gk_cpu_key(gk_cpu_magnitude(hi) / 2));
    void *memory = gk_cpu_scratch(pass->queue, GK_CPU_SCRATCH_RESCUE, list_bytes(pass->cap));
    struct gk_cpu_list band;
    uint32_t passes = 1;

    if (!memory) {
        return false;
    }
    list_new(memory, pass->cap, &band);
    while (list->n < k && hi > 1) {
        collect_band(pass, lo, hi, k - list->n, &band);
        merge(list, &band);
        passes++;
        hi = lo;
        lo = 1;
    }
    if (passes > pass->segment->args->report->passes) {
        pass->segment->args->report->passes = passes;
    }
    return true;
}

/* ---- The segment ---- */

static void learn(struct gk_select_state *state, const struct gk_cpu_segment *segment,
                  uint64_t appended, bool missed)
{
    double n = (double)(segment->range.hi - segment->range.lo);
    double k = (double)segment->k;
    double budget = fmax(1.5 * k, k + 0.004 * n); /* candidates that are worth a low guess */
    float margin = margin_of(state);

    if (missed) {
        margin = 1.6f * margin + 0.02f;
    } else if ((double)appended > budget) {
        margin = 0.93f * margin;
    } else {
        margin = 1.02f * margin;
    }
    state->margin = fminf(margin_max, margin);
}

static void finish(struct pass *pass, struct gk_cpu_segment *segment, struct gk_cpu_list *list)
{
    struct gk_select_state *state = segment->state;
    uint64_t k = segment->k;

    GK_ASSERT(k > 0);
    state->kp = k;
    if (list->n >= k) {
        struct gk_cpu_kth kth =
            gk_cpu_radix_find(&pass->queue->radix, list->val, list->n, k, pass->spare);

        gk_cpu_radix_keep(list, kth, k, &segment->out);
        state->t = gk_cpu_magnitude(kth.key);
    } else {
        memcpy(segment->out.idx, list->idx, list->n * sizeof(*list->idx));
        memcpy(segment->out.val, list->val, list->n * sizeof(*list->val));
        segment->out.n = list->n;
        state->t = 0.0f; /* fewer than k non-zeros: cold */
    }
}

static uint64_t capacity_of(const struct gk_cpu_segment *segment)
{
    uint64_t tile = segment->tune->tile;
    uint64_t n = segment->range.hi - segment->range.lo;
    uint64_t cap = segment->tune->cap;

    if (cap == 0) {
        cap = 2 * segment->k + n / 100 + 2 * tile;
    }
    return gk_max_u64(cap, segment->k + tile); /* a pruned list must have room for one more tile */
}

bool gk_cpu_select_guess(struct gk_queue *queue, struct gk_cpu_segment *segment)
{
    struct gk_select_report *report = segment->args->report;
    struct pass pass = {.queue = queue, .segment = segment, .cap = capacity_of(segment)};
    const uint64_t capacity = pass.cap * segment->tune->partitions;
    const uint64_t appended = report->appended;
    struct gk_cpu_list list;
    uint32_t floor = GK_KEY_NONFINITE; /* for k = 0: only what is not finite */
    bool missed;
    void *memory;

    if (segment->k > 0 && !guess(queue, segment, &floor)) {
        return false;
    }
    memory = gk_cpu_scratch(queue, GK_CPU_SCRATCH_CANDIDATES,
                            list_bytes(capacity) + spare_bytes(capacity));
    if (!memory) {
        return false;
    }
    list_new(memory, capacity, &list);
    pass.spare = (uint32_t *)(void *)(list.val + capacity);
    pass.floor = floor;
    pass_all(&pass, &list);
    if (gk_cpu_select_refuses(segment->args) || segment->k == 0) {
        return true;
    }
    missed = list.n < segment->k && floor > 1;
    if (missed && !rescue(&pass, floor, &list)) {
        return false;
    }
    if (is_warm(segment->state)) {
        learn(segment->state, segment, report->appended - appended, missed);
    }
    finish(&pass, segment, &list);
    return true;
}
