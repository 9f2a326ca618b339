/* The first half of exact selection (select.cu): what its kernels share, pilot, pass and collect.
 */
#ifndef GK_CUDA_SELECT_CUH
#define GK_CUDA_SELECT_CUH

#include "cuda/tiles.cuh"

enum {
    FIRST_BITS = 20, /* keys >> 20 are the first digit */
    FIRST_BINS = 2048,
    NEXT_BITS = 10,
    NEXT_BINS = 1024,
    PILOT_STRIDE = 1024, /* elements: every 64th cache line */
    PILOT_LINE = 16,
    PILOT_SHARE = PILOT_STRIDE / PILOT_LINE,
    PILOT_RANK_MIN = 16,
    UNROLL = 8,
};

/* What the kernels find out about the whole step. */
struct findings {
    unsigned long long n, appended;
    unsigned bad, bad_first;
    unsigned passes;
    unsigned unused;
};

struct selection {
    tiles t;
    float *dst;
    const float *g;
    const float *e; /* may be NULL */
    uint32_t *candidate_idx;
    float *candidate_val;
    uint32_t *bins;                /* FIRST_BINS a segment, zero between kernels */
    struct gk_select_state *state; /* may be NULL */
    findings *found;
    uint32_t policy;
};

static __device__ inline bool refused(const selection &s)
{
    return s.found->bad > 0 && s.policy != GK_NONFINITE_ZERO;
}

/* ---- The search for a digit ---- */

struct digit {
    bool found; /* in the one thread that holds it */
    uint32_t digit;
    uint32_t rank;    /* among those with this digit */
    uint32_t through; /* how many have this digit or a larger one */
};

/* The digit of the rank-th from the top; all threads of the block call it, and the bins are zero
 * afterwards. */
static __device__ inline digit find_digit(uint32_t *bins, uint32_t bins_count, uint32_t rank,
                                          GK_SHARED_POINTER(uint32_t) sums, uint32_t *ret_total)
{
    const uint32_t each = bins_count / BLOCK;
    const uint32_t top = bins_count - 1 - threadIdx.x * each;
    digit result = {false, 0, 0, 0};
    uint32_t sum = 0;
    uint32_t before;

    for (uint32_t i = 0; i < each; i++) {
        sum += __ldcg(&bins[top - i]);
    }
    before = block_scan(sum, sums, ret_total);
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t count = __ldcg(&bins[top - i]);

        if (before < rank && rank <= before + count) {
            result = digit{true, top - i, rank - before, before + count};
        }
        before += count;
        bins[top - i] = 0;
    }
    return result;
}

/* The counts of this block go to the segment's, and are zero again. */
static __device__ inline void flush(GK_SHARED_POINTER(uint32_t) counts, uint32_t bins_count,
                                    uint32_t *bins)
{
    for (uint32_t bin = threadIdx.x; bin < bins_count; bin += BLOCK) {
        const uint32_t count = counts[bin];

        if (count > 0) {
            atomicAdd(&bins[bin], count);
            counts[bin] = 0;
        }
    }
}

static __device__ inline void clear(GK_SHARED_POINTER(uint32_t) counts, uint32_t bins_count)
{
    for (uint32_t bin = threadIdx.x; bin < bins_count; bin += BLOCK) {
        counts[bin] = 0;
    }
}

/* True in all threads of the block that is the last to have done tiles of this segment in this
 * kernel. */
static __device__ inline bool last_of_segment(const selection &s, const piece &piece,
                                              GK_SHARED_POINTER(uint32_t) last)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        tile_progress *progress = &s.t.progress[piece.segment];
        const uint32_t tiles = piece.to - piece.from;

        __threadfence();
        last[0] =
            atomicAdd(&progress->tiles_done, tiles) + tiles == s.t.segments[piece.segment].tiles;
        __threadfence();
        if (last[0] != 0) {
            progress->tiles_done = 0;
        }
    }
    __syncthreads();
    if (last[0] == 0) {
        return false;
    }
    __threadfence(); /* what this thread reads is not older than what thread 0 saw */
    return true;
}

/* ---- Pilot ---- */

static __device__ inline bool is_warm(const struct gk_select_state &state)
{
    return state.t > 0.0f && key_of(state.t) < GK_KEY_NONFINITE;
}

static __device__ inline float margin_of(const struct gk_select_state &state)
{
    return state.margin > 0.0f && state.margin <= 0.6f ? state.margin : 0.1f;
}

/* The rank that a sample is looked at; 0: it would say nothing. */
static __device__ inline uint32_t pilot_rank(uint32_t k)
{
    const uint32_t expected = k / PILOT_SHARE;
    const float r = static_cast<float>(expected);

    return expected < PILOT_RANK_MIN ? 0 : static_cast<uint32_t>(r + 4.0f * __fsqrt_rn(r) + 4.0f);
}

static __device__ inline bool wants_pilot(const selection &s, uint32_t segment)
{
    return s.t.segments[segment].guesses && !is_warm(s.state[segment]) &&
           pilot_rank(s.t.segments[segment].k) > 0;
}

/* The keys of every 64th cache line of the piece. */
static __device__ inline void sample_piece(const selection &s, const piece &piece,
                                           GK_SHARED_POINTER(uint32_t) counts)
{
    const tile_segment &segment = s.t.segments[piece.segment];
    const uint64_t from = static_cast<uint64_t>(piece.from - segment.first_tile) * s.t.tile;
    const uint64_t to = static_cast<uint64_t>(piece.to - segment.first_tile) * s.t.tile;
    const uint64_t first = (from + PILOT_STRIDE - 1) / PILOT_STRIDE * PILOT_LINE;
    const uint64_t end = (to + PILOT_STRIDE - 1) / PILOT_STRIDE * PILOT_LINE;

    for (uint64_t q = first + threadIdx.x; q < end; q += BLOCK) {
        const uint64_t i = segment.lo + q / PILOT_LINE * PILOT_STRIDE + q % PILOT_LINE;

        if (i < segment.hi) {
            const uint32_t key = key_of(add_or_zero(s.g[i], s.e, i));

            if (key < GK_KEY_NONFINITE) {
                atomicAdd(&counts[key >> FIRST_BITS], 1u);
            }
        }
    }
}

static __device__ inline uint32_t warm_floor(const struct gk_select_state &state, uint32_t k)
{
    const float trend = static_cast<float>(state.kp) / static_cast<float>(k);
    const float t =
        __fmul_rn(__fmul_rn(state.t, 1.0f - margin_of(state)), trend < 1.0f ? trend : 1.0f);

    return max_u32(1, key_of(t));
}

/* Written by one thread. */
static __device__ inline void begin_segment(const selection &s, uint32_t segment,
                                            uint32_t sampled_floor)
{
    const tile_segment &of = s.t.segments[segment];
    tile_progress *progress = &s.t.progress[segment];

    progress->phase = PHASE_COLLECT;
    progress->source = SOURCE_CANDIDATES;
    progress->floor = 1;
    if (of.k == 0) {
        progress->floor = GK_KEY_NONFINITE; /* the pass still looks for what is not finite */
    } else if (of.guesses && is_warm(s.state[segment])) {
        progress->warm = 1;
        progress->floor = warm_floor(s.state[segment], of.k);
    } else if (of.guesses) {
        progress->floor = max_u32(1, sampled_floor);
    }
}

static __global__ void __launch_bounds__(BLOCK) select_pilot(selection s)
{
    GK_SHARED_ARRAY(uint32_t, counts, FIRST_BINS);
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);
    GK_SHARED_ARRAY(uint32_t, last, 1);
    const uint32_t end = share_begin(s.t, blockIdx.x + 1);

    clear(counts, FIRST_BINS);
    __syncthreads();
    for (uint32_t from = share_begin(s.t, blockIdx.x); from < end;) {
        const piece piece = piece_at(s.t, from, end);
        const bool pilot = wants_pilot(s, piece.segment);
        uint32_t *bins = s.bins + static_cast<uint64_t>(piece.segment) * FIRST_BINS;

        if (pilot) {
            sample_piece(s, piece, counts);
            __syncthreads();
            flush(counts, FIRST_BINS, bins);
        }
        if (last_of_segment(s, piece, last)) {
            digit digit = {false, 0, 0, 0};
            uint32_t total = 0;
            const uint32_t rank = pilot_rank(s.t.segments[piece.segment].k);

            if (pilot) {
                digit = find_digit(bins, FIRST_BINS, rank, sums, &total);
            }
            if (digit.found || (threadIdx.x == 0 && total < rank) || (threadIdx.x == 0 && !pilot)) {
                begin_segment(s, piece.segment, digit.digit << FIRST_BITS);
            }
        }
        from = piece.to;
    }
}

/* ---- Pass ---- */

/* What u holds instead of an entry that is not finite. */
static __device__ inline float settle(const selection &s, uint32_t i, float x)
{
    atomicAdd(&s.found->bad, 1u);
    atomicMin(&s.found->bad_first, i);
    if (s.policy != GK_NONFINITE_ZERO) {
        return x;
    }
    x = s.e ? s.e[i] : 0.0f;
    return key_of(x) >= GK_KEY_NONFINITE
               ? 0.0f
               : x; /* a residual that was damaged elsewhere is not pushed */
}

/* Shared memory of a block that stores hits. */
struct hit_arrays {
    GK_SHARED_POINTER(uint32_t) counts; /* FIRST_BINS */
    GK_SHARED_POINTER(uint32_t) sums;   /* WARPS */
    GK_SHARED_POINTER(uint32_t) base;   /* 1 */
};

/* The hits of a tile, one word of 32 elements a thread: reserves a run and stores them in index
 * order. */
static __device__ inline void store_hits(const selection &s, const piece &piece, uint32_t tile,
                                         uint32_t hits, const hit_arrays &shared)
{
    const tile_segment &segment = s.t.segments[piece.segment];
    tile_progress *progress = &s.t.progress[piece.segment];
    const uint32_t lo = tile_lo(s.t, segment, tile) + threadIdx.x * LANES;
    uint32_t total;
    uint32_t at = block_scan(static_cast<uint32_t>(__popc(hits)), shared.sums, &total);
    bool fits;

    if (threadIdx.x == 0) {
        shared.base[0] = total > 0 ? atomicAdd(&progress->stored, total) : 0;
        s.t.run_offset[tile] = shared.base[0];
        s.t.run_count[tile] = total;
    }
    __syncthreads();
    fits = static_cast<uint64_t>(shared.base[0]) + total <= segment.cap;
    if (threadIdx.x == 0 && !fits) {
        atomicOr(&progress->overflowed, 1u);
    }
    at += shared.base[0];
    for (; hits != 0; hits &= hits - 1) {
        const uint32_t i = lo + static_cast<uint32_t>(__ffs(static_cast<int>(hits))) - 1;
        const float x = s.dst[i];

        atomicAdd(&shared.counts[key_of(x) >> FIRST_BITS], 1u);
        if (fits) {
            s.candidate_idx[segment.candidates + at] = i;
            s.candidate_val[segment.candidates + at] = x;
        }
        at++;
    }
}

/* u over g, and which of its entries are candidates: bit b of word w is element 32 w + b of the
 * tile. */
static __device__ inline void add_tile(const selection &s, const piece &piece, uint32_t tile,
                                       uint32_t floor, GK_SHARED_POINTER(uint32_t) hits)
{
    const tile_segment &segment = s.t.segments[piece.segment];
    const uint32_t lo = tile_lo(s.t, segment, tile);
    const uint32_t length = tile_length(s.t, segment, tile);

    for (uint32_t base = 0; base < length; base += BLOCK * UNROLL) {
        float x[UNROLL];

#pragma unroll
        for (uint32_t j = 0; j < UNROLL; j++) {
            const uint32_t i = base + j * BLOCK + threadIdx.x;

            x[j] = i < length ? add_or_zero(s.g[lo + i], s.e, lo + i) : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < UNROLL; j++) {
            const uint32_t i = base + j * BLOCK + threadIdx.x;
            uint32_t mask;

            if (i < length) {
                if (key_of(x[j]) >= GK_KEY_NONFINITE) {
                    x[j] = settle(s, lo + i, x[j]);
                }
                s.dst[lo + i] = x[j];
            }
            mask = __ballot_sync(ALL_LANES, i < length && key_of(x[j]) >= floor);
            if (lane_id() == 0 && i < length) {
                hits[i / LANES] = mask;
            }
        }
    }
}

/* After all candidates were counted: what the next kernels do with the segment.  `digit` is that of
 * the k-th of `total` candidates; all threads call it, and one that knows decides. */
static __device__ inline void decide(const selection &s, uint32_t segment, const digit &digit,
                                     uint32_t total, bool again)
{
    const tile_segment &of = s.t.segments[segment];
    tile_progress *progress = &s.t.progress[segment];

    if (!digit.found && !(threadIdx.x == 0 && (total < of.k || of.k == 0))) {
        return;
    }
    progress->passes++;
    if (progress->passes == 1) {
        progress->appended = total;
    }
    if (of.k == 0) {
        progress->key = 0xffffffff;
        progress->rank = 0;
        progress->phase = PHASE_KNOWN;
        return;
    }
    progress->source = progress->overflowed ? SOURCE_VECTOR : SOURCE_CANDIDATES;
    if (total < of.k && progress->floor == 1) { /* all that are not zero */
        progress->key = 0;
        progress->rank = 0;
        progress->phase = PHASE_KNOWN;
        return;
    }
    if (total < of.k) {
        const uint32_t half = key_of(__fmul_rn(__uint_as_float(progress->floor), 0.5f));

        progress->floor = progress->passes == 1 ? max_u32(1, half) : 1;
    } else if (progress->overflowed && again && digit.through <= of.cap) {
        progress->floor = max_u32(1, digit.digit << FIRST_BITS);
    } else {
        progress->key = digit.digit;
        progress->rank = digit.rank;
        progress->phase = PHASE_MIDDLE;
        return;
    }
    progress->stored = 0;
    progress->overflowed = 0;
}

static __global__ void __launch_bounds__(BLOCK) select_pass(selection s)
{
    GK_SHARED_ARRAY(uint32_t, counts, FIRST_BINS);
    GK_SHARED_ARRAY(uint32_t, hits, BLOCK);
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);
    GK_SHARED_ARRAY(uint32_t, base, 1);
    GK_SHARED_ARRAY(uint32_t, last, 1);
    const hit_arrays shared = {counts, sums, base};
    const uint32_t end = share_begin(s.t, blockIdx.x + 1);

    clear(counts, FIRST_BINS);
    for (uint32_t from = share_begin(s.t, blockIdx.x); from < end;) {
        const piece piece = piece_at(s.t, from, end);
        const tile_segment &segment = s.t.segments[piece.segment];
        uint32_t *bins = s.bins + static_cast<uint64_t>(piece.segment) * FIRST_BINS;
        const uint32_t floor = s.t.progress[piece.segment].floor;

        for (uint32_t tile = piece.from; tile < piece.to; tile++) {
            add_tile(s, piece, tile, floor, hits);
            __syncthreads();
            store_hits(s, piece, tile,
                       threadIdx.x * LANES < tile_length(s.t, segment, tile) ? hits[threadIdx.x]
                                                                             : 0,
                       shared);
        }
        __syncthreads();
        flush(counts, FIRST_BINS, bins);
        if (last_of_segment(s, piece, last)) {
            uint32_t total;
            const digit digit = find_digit(bins, FIRST_BINS, segment.k, sums, &total);

            decide(s, piece.segment, digit, total, true);
        }
        from = piece.to;
    }
}

/* ---- Collect ---- */

static __device__ inline void scan_tile(const selection &s, const piece &piece, uint32_t tile,
                                        uint32_t floor, GK_SHARED_POINTER(uint32_t) hits)
{
    const tile_segment &segment = s.t.segments[piece.segment];
    const uint32_t lo = tile_lo(s.t, segment, tile);
    const uint32_t length = tile_length(s.t, segment, tile);

    for (uint32_t base = 0; base < length; base += BLOCK) {
        const uint32_t i = base + threadIdx.x;
        const uint32_t mask =
            __ballot_sync(ALL_LANES, i < length && key_of(i < length ? s.dst[lo + i] : 0) >= floor);

        if (lane_id() == 0 && i < length) {
            hits[i / LANES] = mask;
        }
    }
}

/* The candidates of the segments whose floor was wrong, again, from u. */
static __global__ void __launch_bounds__(BLOCK) select_collect(selection s, bool again)
{
    GK_SHARED_ARRAY(uint32_t, counts, FIRST_BINS);
    GK_SHARED_ARRAY(uint32_t, hits, BLOCK);
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);
    GK_SHARED_ARRAY(uint32_t, base, 1);
    GK_SHARED_ARRAY(uint32_t, last, 1);
    const hit_arrays shared = {counts, sums, base};
    const uint32_t end = share_begin(s.t, blockIdx.x + 1);

    if (refused(s)) {
        return;
    }
    clear(counts, FIRST_BINS);
    for (uint32_t from = share_begin(s.t, blockIdx.x); from < end;) {
        const piece piece = piece_at(s.t, from, end);
        const tile_segment &segment = s.t.segments[piece.segment];
        uint32_t *bins = s.bins + static_cast<uint64_t>(piece.segment) * FIRST_BINS;
        const uint32_t floor = s.t.progress[piece.segment].floor;

        from = piece.to;
        if (s.t.progress[piece.segment].phase != PHASE_COLLECT) {
            continue;
        }
        for (uint32_t tile = piece.from; tile < piece.to; tile++) {
            scan_tile(s, piece, tile, floor, hits);
            __syncthreads();
            store_hits(s, piece, tile,
                       threadIdx.x * LANES < tile_length(s.t, segment, tile) ? hits[threadIdx.x]
                                                                             : 0,
                       shared);
        }
        __syncthreads();
        flush(counts, FIRST_BINS, bins);
        if (last_of_segment(s, piece, last)) {
            uint32_t total;
            const digit digit = find_digit(bins, FIRST_BINS, segment.k, sums, &total);

            decide(s, piece.segment, digit, total, again);
        }
    }
}

#endif
