/* Exact top-k in a fixed number of launches, with all decisions on the device and one wait by the
 * host.
 *
 *   pilot      the least key that is a candidate, per segment: from the last step, or from a sample
 *   pass       u over g, candidates of each tile behind a run that one atomic reserves, counts of
 * their first 11 bits collect    twice: again over u, where the candidates were too few (a lower
 * floor) or too many (a higher one) narrow     twice: 10 more bits of the k-th key, from the
 * candidates, or from u where they did not fit count      how many entries each tile has above the
 * k-th key and of its key; prefix sums over the tiles write      the entries, in index order
 *
 * Each kernel ends, per segment, with the block that came last to it: that one reads the counts and
 * decides what the next kernel does there.  A kernel that has nothing to do returns at once.
 *
 * Candidates are all entries with key >= floor, whatever the floor is.  So the floor decides the
 * speed and never the result. */
#include "cuda/select.cuh"

extern "C" {
#include "common/assert.h"
}

#include <stdlib.h>

/* ---- Narrow ---- */

/* 10 more bits of the k-th key, in segments that are in `phase`; `shift`: what lies below them. */
static __global__ void __launch_bounds__(BLOCK)
    select_narrow(selection s, uint32_t phase, uint32_t shift)
{
    GK_SHARED_ARRAY(uint32_t, counts, NEXT_BINS);
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);
    GK_SHARED_ARRAY(uint32_t, last, 1);
    const uint32_t end = share_begin(s.t, blockIdx.x + 1);

    if (refused(s)) {
        return;
    }
    clear(counts, NEXT_BINS);
    __syncthreads();
    for (uint32_t from = share_begin(s.t, blockIdx.x); from < end;) {
        const piece piece = piece_at(s.t, from, end);
        tile_progress *progress = &s.t.progress[piece.segment];
        uint32_t *bins = s.bins + static_cast<uint64_t>(piece.segment) * FIRST_BINS;

        from = piece.to;
        if (progress->phase != phase) {
            continue;
        }
        for (uint32_t tile = piece.from + warp_id(); tile < piece.to; tile += WARPS) {
            const tile_entries entries =
                entries_of(s.t, s.t.segments[piece.segment], progress->source, tile);

            for (uint32_t i = lane_id(); i < entries.count; i += LANES) {
                const uint32_t key = key_of(entries.val[i]);

                if (key >> shift >> NEXT_BITS == progress->key) {
                    atomicAdd(&counts[key >> shift & (NEXT_BINS - 1)], 1u);
                }
            }
        }
        __syncthreads();
        flush(counts, NEXT_BINS, bins);
        if (last_of_segment(s, piece, last)) {
            uint32_t total;
            const digit digit = find_digit(bins, NEXT_BINS, progress->rank, sums, &total);

            if (digit.found) {
                progress->key = progress->key << NEXT_BITS | digit.digit;
                progress->rank = digit.rank;
                progress->phase = phase == PHASE_MIDDLE ? PHASE_LOW : PHASE_KNOWN;
            }
        }
    }
}

/* ---- Count and write ---- */

static __device__ inline void learn(struct gk_select_state *state, const tile_segment &segment,
                                    const tile_progress &progress)
{
    const float n = static_cast<float>(segment.hi - segment.lo);
    const float k = static_cast<float>(segment.k);
    const float loose = 1.5f * k;
    const float budget = k + 0.004f * n > loose ? k + 0.004f * n : loose;
    float margin = margin_of(*state);

    if (progress.appended < segment.k) {
        margin = 1.6f * margin + 0.02f;
    } else if (static_cast<float>(progress.appended) > budget) {
        margin = 0.93f * margin;
    } else {
        margin = 1.02f * margin;
    }
    state->margin = margin < 0.6f ? margin : 0.6f;
}

/* One thread a segment: what the next step may guess from. */
static __device__ inline void end_segments(const selection &s)
{
    for (uint32_t i = threadIdx.x; i < s.t.segments_count; i += BLOCK) {
        const tile_segment &segment = s.t.segments[i];
        const tile_progress &progress = s.t.progress[i];

        if (segment.tiles == 0) {
            continue;
        }
        atomicAdd(&s.found->appended, static_cast<unsigned long long>(progress.appended));
        atomicMax(&s.found->passes, progress.passes);
        if (!s.state || segment.k == 0) {
            continue;
        }
        if (progress.warm) {
            learn(&s.state[i], segment, progress);
        }
        s.state[i].t = __uint_as_float(progress.key); /* 0 where there are fewer than k: cold */
        s.state[i].kp = segment.k;
    }
}

static __global__ void __launch_bounds__(BLOCK) select_count(selection s)
{
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);
    GK_SHARED_ARRAY(uint32_t, last, 1);

    if (refused(s)) {
        return;
    }
    count_share(s.t);
    if (last_block(s.t.blocks_done, last)) {
        uint32_t n;

        scan_ties(s.t, sums);
        n = scan_outputs(s.t, sums);
        if (threadIdx.x == 0) {
            s.found->n = n;
        }
        end_segments(s);
    }
}

static __global__ void __launch_bounds__(BLOCK) select_write(selection s, output out)
{
    if (!refused(s)) {
        write_share(s.t, out);
    }
}

/* The findings, as the caller wants them. */
static __global__ void __launch_bounds__(BLOCK)
    select_report(selection s, struct gk_select_report *report)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const findings &found = *s.found;

        report->n = found.n;
        report->bad = found.bad;
        report->bad_first = found.bad > 0 ? found.bad_first : 0;
        report->appended = found.appended;
        report->passes = max_u32(1, found.passes);
        report->prunes = 0;
    }
}

/* ---- Host ---- */

static const struct gk_select_tune default_tune = {TILE_MAX, 4096, 1, 0};

struct layout {
    tile_segment *segments; /* heap */
    uint64_t tiles_count;
    uint64_t candidates;
    uint64_t chosen; /* at most */
    uint64_t hi;     /* the longest vector that the segments name */
};

static uint64_t cap_of(const struct gk_select_tune *tune, uint32_t tile, uint64_t n, uint64_t k)
{
    uint64_t cap = tune->cap > 0 ? tune->cap : 2 * k + n / 100 + 2 * static_cast<uint64_t>(tile);

    return gk_min_u64(n, gk_max_u64(cap, k + tile));
}

/* False: no memory. */
static bool lay_out(const struct gk_select_args *args, const struct gk_select_tune *tune,
                    uint32_t tile, struct layout *ret)
{
    tile_segment *segments =
        static_cast<tile_segment *>(calloc(args->segments_count + size_t(1), sizeof(*segments)));

    *ret = {};
    if (!segments) {
        return false;
    }
    for (uint32_t s = 0; s < args->segments_count; s++) {
        const struct gk_range range = args->segments[s];
        const uint64_t n = range.hi - range.lo;
        const uint64_t k = gk_min_u64(args->k[s], n);
        const bool all = !args->state || n <= tune->small_segment || 4 * k >= n;

        GK_ASSERT(range.lo <= range.hi && range.hi <= UINT32_MAX);
        segments[s].lo = static_cast<uint32_t>(range.lo);
        segments[s].hi = static_cast<uint32_t>(range.hi);
        segments[s].k = static_cast<uint32_t>(k);
        segments[s].first_tile = static_cast<uint32_t>(ret->tiles_count);
        segments[s].tiles = static_cast<uint32_t>((n + tile - 1) / tile);
        segments[s].guesses = !all;
        segments[s].cap = static_cast<uint32_t>(cap_of(tune, tile, n, k));
        segments[s].candidates = ret->candidates;
        ret->tiles_count += segments[s].tiles;
        ret->candidates += segments[s].cap;
        ret->chosen += k;
        ret->hi = gk_max_u64(ret->hi, range.hi);
    }
    ret->segments = segments;
    return true;
}

/* Device memory, and what of it must be zero or known before the first kernel. */
static selection prepare(struct slot *slot, const struct gk_select_args *args,
                         const struct layout *layout, uint32_t tile)
{
    const size_t segments_count = args->segments_count;
    const findings nothing = {0, 0, 0, 0xffffffff, 0, 0};
    selection s = {};
    void *segments = gk_cuda_scratch(slot, segments_count * sizeof(tile_segment));
    void *progress = gk_cuda_scratch(slot, segments_count * sizeof(tile_progress));

    s.t.segments = static_cast<const tile_segment *>(segments);
    s.t.progress = static_cast<tile_progress *>(progress);
    s.t.segments_count = args->segments_count;
    s.t.tiles_count = static_cast<uint32_t>(layout->tiles_count);
    s.t.tile = tile;
    alloc_tiles(slot, &s.t);
    s.candidate_idx =
        static_cast<uint32_t *>(gk_cuda_scratch(slot, layout->candidates * sizeof(uint32_t)));
    s.candidate_val =
        static_cast<float *>(gk_cuda_scratch(slot, layout->candidates * sizeof(float)));
    s.bins = static_cast<uint32_t *>(
        gk_cuda_scratch(slot, segments_count * FIRST_BINS * sizeof(uint32_t)));
    s.found = static_cast<findings *>(gk_cuda_scratch(slot, sizeof(findings)));
    s.t.candidate_idx = s.candidate_idx;
    s.t.candidate_val = s.candidate_val;
    s.g = static_cast<const float *>(gk_cuda_in(slot, args->g, layout->hi * sizeof(float)));
    s.e = static_cast<const float *>(gk_cuda_in(slot, args->e, layout->hi * sizeof(float)));
    s.dst = static_cast<float *>(gk_cuda_inout(slot, args->dst, layout->hi * sizeof(float)));
    s.state = static_cast<struct gk_select_state *>(
        gk_cuda_inout(slot, args->state, segments_count * sizeof(*args->state)));
    s.t.u = s.dst;
    s.policy = args->policy;
    gk_cuda_write(slot, segments, layout->segments, segments_count * sizeof(tile_segment));
    gk_cuda_write(slot, s.found, &nothing, sizeof(nothing));
    gk_cuda_zero(slot, progress, segments_count * sizeof(tile_progress));
    gk_cuda_zero(slot, s.bins, segments_count * FIRST_BINS * sizeof(uint32_t));
    return s;
}

static uint32_t blocks_per_processor()
{
    int blocks = 0;

    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, select_pass, BLOCK, 0) !=
        cudaSuccess) {
        (void)cudaGetLastError();
    }
    return blocks > 0 ? static_cast<uint32_t>(blocks) : 1;
}

/* `room` entries of it hold the result, or, where the caller has less than the device wrote to, all
 * that fits. */
static void launch_all(struct slot *slot, const selection &s, const output &out,
                       struct gk_select_report *report)
{
    const uint32_t grid = gk_cuda_grid(slot, s.t.tiles_count, blocks_per_processor());

    gk_cuda_launch(slot, grid, select_pilot, s);
    gk_cuda_launch(slot, grid, select_pass, s);
    gk_cuda_launch(slot, grid, select_collect, s, true);
    gk_cuda_launch(slot, grid, select_collect, s, false);
    gk_cuda_launch(slot, grid, select_narrow, s, uint32_t(PHASE_MIDDLE), uint32_t(NEXT_BITS));
    gk_cuda_launch(slot, grid, select_narrow, s, uint32_t(PHASE_LOW), uint32_t(0));
    gk_cuda_launch(slot, grid, select_count, s);
    gk_cuda_launch(slot, grid, select_write, s, out);
    gk_cuda_launch(slot, 1, select_report, s, report);
}

static void run(struct slot *slot, const struct gk_select_args *args, const struct layout *layout,
                uint32_t tile)
{
    const selection s = prepare(slot, args, layout, tile);
    output out;
    struct gk_select_report *report;

    out.room = layout->chosen;
    out.idx = static_cast<uint32_t *>(gk_cuda_out(slot, args->idx, out.room * sizeof(uint32_t)));
    out.val = static_cast<float *>(gk_cuda_out(slot, args->val, out.room * sizeof(float)));
    report =
        static_cast<struct gk_select_report *>(gk_cuda_out(slot, args->report, sizeof(*report)));
    launch_all(slot, s, out, report);
    gk_cuda_give_back(slot, args->report, report, sizeof(*report));
    gk_cuda_give_back(slot, args->idx, out.idx, out.room * sizeof(uint32_t));
    gk_cuda_give_back(slot, args->val, out.val, out.room * sizeof(float));
}

struct gk_ticket gk_cuda_select(struct gk_queue *queue, const struct gk_select_args *args)
{
    const struct gk_select_tune *tune = args->tune ? args->tune : &default_tune;
    const uint32_t tile = static_cast<uint32_t>(gk_min_u64(tune->tile, TILE_MAX));
    struct layout layout;
    struct slot slot;

    GK_ASSERT(tile > 0 && tile % LANES == 0);
    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    if (!lay_out(args, tune, tile, &layout)) {
        queue->err = GK_E_NOMEM;
        return gk_ticket{0};
    }
    GK_ASSERT(args->room >= layout.chosen);
    if (layout.tiles_count == 0) {
        *args->report = {};
        args->report->passes = 1;
        free(layout.segments);
        return gk_ticket{0};
    }
    run(&slot, args, &layout, tile);
    free(layout.segments);
    return gk_cuda_end(&slot);
}
