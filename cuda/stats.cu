/* Moments in the specified order (common/backend.h): a warp a tile of 2048, where a lane adds its
 * elements one by one and a fixed tree joins the lanes; then one thread a segment adds the tiles in
 * order.  Counts are integers, whose order does not matter. */
#include "cuda/queue.cuh"

extern "C" {
#include "common/assert.h"
}

#include <stdlib.h>

enum {
    STATS_TILE = 2048,
    JOIN_CHUNK = BLOCK,
    BLOCKS_PER_PROCESSOR = 8,
    COUNTS = 3 + GK_STATS_THRESHOLDS_MAX
};

struct moments {
    double sum, squares, abs;
};

struct stats_segment {
    uint64_t lo, hi;
    uint64_t first_tile;
    uint32_t tiles;
    float lo_value;
};

struct stats_call {
    const float *u;
    const stats_segment *segments;
    uint32_t segments_count;
    uint32_t t_count;
    uint64_t tiles_count;
    float t[GK_STATS_THRESHOLDS_MAX];
    moments *tiles;         /* of each tile */
    struct gk_stats *stats; /* of each segment; counts are added to */
};

/* Of one lane, of one tile. */
struct tally {
    moments sums;
    uint32_t counts[COUNTS]; /* above lo, bad, non-zero, above each threshold */
    uint32_t key_max;
};

static __device__ inline uint32_t stats_segment_of(const stats_call &call, uint64_t tile)
{
    uint32_t lo = 0;
    uint32_t hi = call.segments_count;

    while (hi - lo > 1) {
        uint32_t middle = lo + (hi - lo) / 2;

        if (call.segments[middle].first_tile <= tile) {
            lo = middle;
        } else {
            hi = middle;
        }
    }
    return lo;
}

static __device__ inline void look_at(const stats_call &call, float x, float lo, tally *tally)
{
    const uint32_t key = key_of(x);
    const float magnitude = __uint_as_float(key);
    const double wide = x;

    if (key >= GK_KEY_NONFINITE) {
        tally->counts[1]++;
        return;
    }
    tally->key_max = max_u32(tally->key_max, key);
    tally->counts[2] += key > 0;
#pragma unroll
    for (uint32_t j = 0; j < GK_STATS_THRESHOLDS_MAX; j++) {
        tally->counts[3 + j] += j < call.t_count && magnitude > call.t[j];
    }
    if (!(magnitude >= lo)) {
        return;
    }
    tally->counts[0]++;
    tally->sums.sum = __dadd_rn(tally->sums.sum, wide);
    tally->sums.squares = __dadd_rn(tally->sums.squares, __dmul_rn(wide, wide));
    tally->sums.abs = __dadd_rn(tally->sums.abs, static_cast<double>(magnitude));
}

/* Lane l += lane l + 16, then 8, 4, 2, 1: lane 0 has the sum. */
static __device__ inline double join_lanes(double x)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        x = __dadd_rn(x, __shfl_down_sync(ALL_LANES, x, half));
    }
    return x;
}

static __device__ inline uint32_t add_lanes(uint32_t x)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        x += __shfl_down_sync(ALL_LANES, x, half);
    }
    return x;
}

static __device__ inline uint32_t max_lanes(uint32_t x)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        x = max_u32(x, __shfl_down_sync(ALL_LANES, x, half));
    }
    return x;
}

/* Lane 0 adds the warp's counts to the segment's. */
static __device__ inline void add_counts(const stats_call &call, const tally &tally,
                                         struct gk_stats *stats)
{
    static_assert(sizeof(stats->count) == sizeof(unsigned long long), "atomics on the counts");

#pragma unroll
    for (uint32_t j = 0; j < COUNTS; j++) {
        const unsigned long long count = add_lanes(tally.counts[j]);
        uint64_t *to = j == 0   ? &stats->count
                       : j == 1 ? &stats->bad
                       : j == 2 ? &stats->nonzeros
                                : &stats->above[j - 3];

        if (lane_id() == 0 && count > 0) {
            atomicAdd(reinterpret_cast<unsigned long long *>(to), count);
        }
    }
    const uint32_t key_max = max_lanes(tally.key_max);

    if (lane_id() == 0) {
        atomicMax(&stats->key_max, key_max);
    }
    (void)call;
}

static __global__ void __launch_bounds__(BLOCK) stats_tiles(stats_call call)
{
    const uint64_t warps = static_cast<uint64_t>(gridDim.x) * WARPS;

    for (uint64_t tile = static_cast<uint64_t>(blockIdx.x) * WARPS + warp_id();
         tile < call.tiles_count; tile += warps) {
        const uint32_t s = stats_segment_of(call, tile);
        const stats_segment &segment = call.segments[s];
        const uint64_t lo = segment.lo + (tile - segment.first_tile) * STATS_TILE;
        const uint64_t hi = min_u64(lo + STATS_TILE, segment.hi);
        tally tally = {};

        for (uint64_t i = lo + lane_id(); i < hi; i += LANES) {
            look_at(call, call.u[i], segment.lo_value, &tally);
        }
        tally.sums.sum = join_lanes(tally.sums.sum);
        tally.sums.squares = join_lanes(tally.sums.squares);
        tally.sums.abs = join_lanes(tally.sums.abs);
        if (lane_id() == 0) {
            call.tiles[tile] = tally.sums;
        }
        add_counts(call, tally, &call.stats[s]);
    }
}

/* A block a segment: all threads fetch, three add, each its own sum, in the order of the tiles. */
static __global__ void __launch_bounds__(BLOCK) stats_join(stats_call call)
{
    GK_SHARED_ARRAY(double, fetched, 3 * JOIN_CHUNK);

    for (uint32_t s = blockIdx.x; s < call.segments_count; s += gridDim.x) {
        const stats_segment &segment = call.segments[s];
        double sum = 0.0;

        for (uint32_t base = 0; base < segment.tiles; base += JOIN_CHUNK) {
            const uint32_t count = min_u32(JOIN_CHUNK, segment.tiles - base);

            if (threadIdx.x < count) {
                const moments &tile = call.tiles[segment.first_tile + base + threadIdx.x];

                fetched[3 * threadIdx.x] = tile.sum;
                fetched[3 * threadIdx.x + 1] = tile.squares;
                fetched[3 * threadIdx.x + 2] = tile.abs;
            }
            __syncthreads();
            if (threadIdx.x < 3) {
                for (uint32_t i = 0; i < count; i++) {
                    sum = __dadd_rn(sum, fetched[3 * i + threadIdx.x]);
                }
            }
            __syncthreads();
        }
        if (threadIdx.x < 3) {
            double *to = threadIdx.x == 0   ? &call.stats[s].sum
                         : threadIdx.x == 1 ? &call.stats[s].sum_squares
                                            : &call.stats[s].sum_abs;

            *to = sum;
        }
    }
}

/* ---- Host ---- */

static void run(struct slot *slot, const struct gk_stats_args *args, stats_segment *segments)
{
    const size_t count = args->segments_count;
    stats_call call = {};
    uint64_t hi = 0;

    for (uint32_t s = 0; s < args->segments_count; s++) {
        const struct gk_range range = args->segments[s];

        segments[s].lo = range.lo;
        segments[s].hi = range.hi;
        segments[s].first_tile = call.tiles_count;
        segments[s].tiles =
            static_cast<uint32_t>((range.hi - range.lo + STATS_TILE - 1) / STATS_TILE);
        segments[s].lo_value = args->lo ? args->lo[s] : 0.0f;
        call.tiles_count += segments[s].tiles;
        hi = gk_max_u64(hi, range.hi);
    }
    call.segments_count = args->segments_count;
    call.t_count = args->t_count;
    for (uint32_t j = 0; j < args->t_count; j++) {
        call.t[j] = args->t[j];
    }
    call.u = static_cast<const float *>(gk_cuda_in(slot, args->u, hi * sizeof(float)));
    call.segments =
        static_cast<const stats_segment *>(gk_cuda_scratch(slot, count * sizeof(*segments)));
    call.tiles = static_cast<moments *>(gk_cuda_scratch(slot, call.tiles_count * sizeof(moments)));
    call.stats = static_cast<struct gk_stats *>(
        gk_cuda_out(slot, args->stats, count * sizeof(*args->stats)));
    gk_cuda_write(slot, const_cast<stats_segment *>(call.segments), segments,
                  count * sizeof(*segments));
    gk_cuda_zero(slot, call.stats, count * sizeof(*args->stats));
    if (call.tiles_count > 0) {
        gk_cuda_launch(
            slot, gk_cuda_grid(slot, (call.tiles_count + WARPS - 1) / WARPS, BLOCKS_PER_PROCESSOR),
            stats_tiles, call);
        gk_cuda_launch(slot, gk_cuda_grid(slot, count, BLOCKS_PER_PROCESSOR), stats_join, call);
    }
    gk_cuda_give_back(slot, args->stats, call.stats, count * sizeof(*args->stats));
}

struct gk_ticket gk_cuda_stats(struct gk_queue *queue, const struct gk_stats_args *args)
{
    stats_segment *segments;
    struct slot slot;

    GK_ASSERT(args->t_count <= GK_STATS_THRESHOLDS_MAX);
    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    segments =
        static_cast<stats_segment *>(calloc(args->segments_count + size_t(1), sizeof(*segments)));
    if (segments) {
        run(&slot, args, segments);
    } else {
        queue->err = GK_E_NOMEM;
    }
    free(segments);
    return gk_cuda_end(&slot);
}
