/* Segments cut into tiles, and the entries above a key taken out of them in index order: the part
 * that exact selection and selection by threshold share.
 *
 * A tile never crosses a segment.  Tiles are numbered in index order, so that what each has to
 * write follows from a prefix sum over the tiles: no sort.  Blocks walk over contiguous runs of
 * tiles, cut into pieces at the borders of segments. */
#ifndef GK_CUDA_TILES_CUH
#define GK_CUDA_TILES_CUH

#include "cuda/queue.cuh"

/* What the host says about a segment. */
struct tile_segment {
    uint32_t lo, hi; /* elements */
    uint32_t k;
    uint32_t first_tile, tiles;
    uint32_t guesses; /* 0: every entry is a candidate from the start */
    uint32_t cap;     /* candidates */
    uint32_t unused;
    uint64_t candidates; /* where they begin */
};

enum source { SOURCE_VECTOR, SOURCE_CANDIDATES };

/* How far a segment's selection has come. */
enum phase {
    PHASE_COLLECT, /* candidates are wanted, those at or above floor */
    PHASE_MIDDLE,  /* the first 11 bits of the k-th key are known, then 10 more, then all */
    PHASE_LOW,
    PHASE_KNOWN,
};

struct tile_progress {
    uint32_t phase;
    uint32_t floor;      /* the least key that is a candidate */
    uint32_t source;     /* what the search for the k-th key looks at */
    uint32_t stored;     /* candidates, also those above cap */
    uint32_t overflowed; /* some were not stored */
    uint32_t tiles_done; /* of the kernel that runs */
    uint32_t key;        /* the bits of the k-th key that are known; with PHASE_KNOWN: all */
    uint32_t rank; /* of the k-th among those with the same bits; with PHASE_KNOWN: ties to take */
    uint32_t appended; /* hits of the first pass */
    uint32_t passes;
    uint32_t warm;
};

/* Pointers to device memory, passed to every kernel by value. */
struct tiles {
    const tile_segment *segments;
    tile_progress *progress;
    uint32_t segments_count;
    uint32_t tiles_count;
    uint32_t tile; /* elements */
    const float *u;
    uint32_t *run_offset; /* per tile: where its candidates lie, and how many */
    uint32_t *run_count;
    uint32_t *above;       /* per tile: entries above the key, later: where its output begins */
    uint32_t *ties;        /* per tile: entries with the key, later: how many of them to take */
    uint32_t *ties_before; /* per tile: in all tiles before */
    const uint32_t *candidate_idx;
    const float *candidate_val;
    unsigned *blocks_done; /* of the kernel that counts */
};

/* A run of tiles of one segment. */
struct piece {
    uint32_t segment;
    uint32_t from, to; /* tiles */
};

/* The segment of a tile: the last that begins at or before it. */
static __device__ inline uint32_t segment_of(const tiles &t, uint32_t tile)
{
    uint32_t lo = 0;
    uint32_t hi = t.segments_count;

    while (hi - lo > 1) {
        uint32_t middle = lo + (hi - lo) / 2;

        if (t.segments[middle].first_tile <= tile) {
            lo = middle;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/* This block's share of the tiles. */
static __device__ inline uint32_t share_begin(const tiles &t, uint32_t block)
{
    return static_cast<uint32_t>(static_cast<uint64_t>(t.tiles_count) * block / gridDim.x);
}

/* The piece that begins at tile `from`; the share ends at `end`. */
static __device__ inline piece piece_at(const tiles &t, uint32_t from, uint32_t end)
{
    const uint32_t s = segment_of(t, from);

    return piece{s, from, min_u32(end, t.segments[s].first_tile + t.segments[s].tiles)};
}

static __device__ inline uint32_t tile_lo(const tiles &t, const tile_segment &segment,
                                          uint32_t tile)
{
    return segment.lo + (tile - segment.first_tile) * t.tile;
}

static __device__ inline uint32_t tile_length(const tiles &t, const tile_segment &segment,
                                              uint32_t tile)
{
    return min_u32(t.tile, segment.hi - tile_lo(t, segment, tile));
}

/* Entries of one tile that a search looks at: its run of candidates, or all of it. */
struct tile_entries {
    const float *val;
    const uint32_t *idx; /* NULL: index0 and on */
    uint32_t index0;
    uint32_t count;
};

static __device__ inline tile_entries entries_of(const tiles &t, const tile_segment &segment,
                                                 uint32_t source, uint32_t tile)
{
    if (source == SOURCE_VECTOR) {
        const uint32_t lo = tile_lo(t, segment, tile);

        return tile_entries{t.u + lo, nullptr, lo, tile_length(t, segment, tile)};
    }
    const uint64_t at = segment.candidates + t.run_offset[tile];

    return tile_entries{t.candidate_val + at, t.candidate_idx + at, 0, t.run_count[tile]};
}

/* ---- Counting ---- */

/* One warp: how many entries of a tile have a larger key, and how many this one. */
static __device__ inline void count_tile(const tiles &t, const piece &piece, uint32_t tile)
{
    const tile_progress &progress = t.progress[piece.segment];
    const tile_entries entries = entries_of(t, t.segments[piece.segment], progress.source, tile);
    uint32_t above = 0;
    uint32_t ties = 0;

    for (uint32_t base = 0; base < entries.count; base += LANES) {
        const uint32_t i = base + lane_id();
        const uint32_t key = i < entries.count ? key_of(entries.val[i]) : 0;

        above += static_cast<uint32_t>(
            __popc(__ballot_sync(ALL_LANES, i < entries.count && key > progress.key)));
        ties += static_cast<uint32_t>(__popc(__ballot_sync(
            ALL_LANES, i < entries.count && key == progress.key && progress.rank > 0)));
    }
    if (lane_id() == 0) {
        t.above[tile] = above;
        t.ties[tile] = ties;
    }
}

/* All tiles of this block's share, a warp each. */
static __device__ inline void count_share(const tiles &t)
{
    const uint32_t end = share_begin(t, blockIdx.x + 1);

    for (uint32_t from = share_begin(t, blockIdx.x); from < end;) {
        const piece piece = piece_at(t, from, end);

        for (uint32_t tile = piece.from + warp_id(); tile < piece.to; tile += WARPS) {
            count_tile(t, piece, tile);
        }
        from = piece.to;
    }
}

/* True in all threads of the block that ends last; it sees what all others have written. */
static __device__ inline bool last_block(unsigned *blocks_done, GK_SHARED_POINTER(uint32_t) last)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last[0] = atomicAdd(blocks_done, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last[0] == 0) {
        return false;
    }
    __threadfence(); /* what this thread reads is not older than what thread 0 saw */
    return true;
}

enum { SCAN_ITEMS = 8 };

/* ties_before := exclusive prefix sum of ties. */
static __device__ inline void scan_ties(const tiles &t, GK_SHARED_POINTER(uint32_t) sums)
{
    uint32_t carry = 0;

    for (uint32_t base = 0; base < t.tiles_count; base += BLOCK * SCAN_ITEMS) {
        const uint32_t from = base + threadIdx.x * SCAN_ITEMS;
        uint32_t sum = 0;
        uint32_t total;

        for (uint32_t tile = from; tile < min_u32(from + SCAN_ITEMS, t.tiles_count); tile++) {
            sum += __ldcg(&t.ties[tile]);
        }
        sum = carry + block_scan(sum, sums, &total);
        for (uint32_t tile = from; tile < min_u32(from + SCAN_ITEMS, t.tiles_count); tile++) {
            t.ties_before[tile] = sum;
            sum += __ldcg(&t.ties[tile]);
        }
        carry += total;
        __syncthreads();
    }
}

/* Ties go to the lower indices: how many of a tile's are taken. */
static __device__ inline uint32_t ties_taken(const tiles &t, uint32_t tile)
{
    const uint32_t s = segment_of(t, tile);
    const uint32_t before = t.ties_before[tile] - t.ties_before[t.segments[s].first_tile];
    const uint32_t rank = t.progress[s].rank;

    return before < rank ? min_u32(rank - before, __ldcg(&t.ties[tile])) : 0;
}

/* above := where the tile's output begins, ties := how many are taken.  Returns the number of
 * entries. */
static __device__ inline uint32_t scan_outputs(const tiles &t, GK_SHARED_POINTER(uint32_t) sums)
{
    uint32_t carry = 0;

    for (uint32_t base = 0; base < t.tiles_count; base += BLOCK * SCAN_ITEMS) {
        const uint32_t from = base + threadIdx.x * SCAN_ITEMS;
        uint32_t sum = 0;
        uint32_t total;

        for (uint32_t tile = from; tile < min_u32(from + SCAN_ITEMS, t.tiles_count); tile++) {
            const uint32_t ties = ties_taken(t, tile);

            t.ties[tile] = ties;
            sum += __ldcg(&t.above[tile]) + ties;
        }
        sum = carry + block_scan(sum, sums, &total);
        for (uint32_t tile = from; tile < min_u32(from + SCAN_ITEMS, t.tiles_count); tile++) {
            const uint32_t count = __ldcg(&t.above[tile]) + __ldcg(&t.ties[tile]);

            t.above[tile] = sum;
            sum += count;
        }
        carry += total;
        __syncthreads();
    }
    return carry;
}

/* ---- Writing ---- */

struct output {
    uint32_t *idx;
    float *val;
    uint64_t room;
};

/* One warp: a tile's entries, behind those of the tiles before. */
static __device__ inline void write_tile(const tiles &t, const piece &piece, uint32_t tile,
                                         const output &out)
{
    const tile_progress &progress = t.progress[piece.segment];
    const tile_entries entries = entries_of(t, t.segments[piece.segment], progress.source, tile);
    uint64_t at = t.above[tile];
    uint32_t ties_left = t.ties[tile];

    for (uint32_t base = 0; base < entries.count; base += LANES) {
        const uint32_t i = base + lane_id();
        const float x = i < entries.count ? entries.val[i] : 0.0f;
        const bool tie = i < entries.count && key_of(x) == progress.key;
        const uint32_t ties = __ballot_sync(ALL_LANES, tie);
        const bool taken =
            (i < entries.count && key_of(x) > progress.key) || (tie && rank_in(ties) < ties_left);
        const uint32_t mask = __ballot_sync(ALL_LANES, taken);

        if (taken && at + rank_in(mask) < out.room) {
            out.idx[at + rank_in(mask)] = entries.idx ? entries.idx[i] : entries.index0 + i;
            out.val[at + rank_in(mask)] = x;
        }
        at += static_cast<uint32_t>(__popc(mask));
        ties_left -= min_u32(ties_left, static_cast<uint32_t>(__popc(ties)));
    }
}

static __device__ inline void write_share(const tiles &t, const output &out)
{
    const uint32_t end = share_begin(t, blockIdx.x + 1);

    for (uint32_t from = share_begin(t, blockIdx.x); from < end;) {
        const piece piece = piece_at(t, from, end);

        for (uint32_t tile = piece.from + warp_id(); tile < piece.to; tile += WARPS) {
            write_tile(t, piece, tile, out);
        }
        from = piece.to;
    }
}

/* ---- Host ---- */

/* Room on the device for the arrays per tile.  `tiles->segments_count`, `tiles_count` and `tile`
 * are set. */
static inline void alloc_tiles(struct slot *slot, tiles *tiles)
{
    const size_t bytes = (static_cast<size_t>(tiles->tiles_count) + 1) * sizeof(uint32_t);

    tiles->run_offset = static_cast<uint32_t *>(gk_cuda_scratch(slot, bytes));
    tiles->run_count = static_cast<uint32_t *>(gk_cuda_scratch(slot, bytes));
    tiles->above = static_cast<uint32_t *>(gk_cuda_scratch(slot, bytes));
    tiles->ties = static_cast<uint32_t *>(gk_cuda_scratch(slot, bytes));
    tiles->ties_before = static_cast<uint32_t *>(gk_cuda_scratch(slot, bytes));
    tiles->blocks_done =
        static_cast<unsigned *>(gk_cuda_scratch(slot, sizeof(*tiles->blocks_done)));
    gk_cuda_zero(slot, tiles->blocks_done, sizeof(*tiles->blocks_done));
}

#endif
