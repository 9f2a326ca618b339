/* The short slots: residual add, thresholds, samples, gathers, scatters, hash. */
#include "cuda/tiles.cuh"

extern "C" {
#include "common/assert.h"
}

#include <math.h>
#include <stdlib.h>

enum { BLOCKS_PER_PROCESSOR = 8 };

/* ---- Residual ---- */

static __global__ void __launch_bounds__(BLOCK) accumulate(struct gk_accumulate_args a)
{
    for (uint64_t i = thread_number(); i < a.n; i += threads_count()) {
        float x = __fmul_rn(a.g[i], a.scale);

        if (a.m) {
            x = __fmaf_rn(a.beta, a.m[i], x);
            a.m_out[i] = x;
        }
        a.dst[i] = add_or_zero(x, a.e, i);
    }
}

struct gk_ticket gk_cuda_accumulate(struct gk_queue *queue, const struct gk_accumulate_args *args)
{
    struct gk_accumulate_args a = *args;
    const size_t bytes = args->n * sizeof(float);
    struct slot slot;

    GK_ASSERT(!args->m || args->m_out);
    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    a.g = static_cast<const float *>(gk_cuda_in(&slot, args->g, bytes));
    a.e = static_cast<const float *>(gk_cuda_in(&slot, args->e, bytes));
    a.m = static_cast<const float *>(gk_cuda_in(&slot, args->m, bytes));
    a.m_out = static_cast<float *>(gk_cuda_inout(&slot, args->m ? args->m_out : nullptr, bytes));
    a.dst = static_cast<float *>(gk_cuda_inout(&slot, args->dst, bytes));
    if (args->n > 0) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->n), accumulate, a);
    }
    return gk_cuda_end(&slot);
}

/* ---- Thresholds ---- */

/* What select_ge wants is what is above a key. */
static uint32_t key_below(float t)
{
    if (isnan(t)) { /* nothing reaches what is not a number */
        return 0xffffffff;
    }
    return t > 0.0f ? gk_float_bits(t) - 1 : 0;
}

static __global__ void __launch_bounds__(BLOCK) count_above(tiles t, uint32_t *segment_ends)
{
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);
    GK_SHARED_ARRAY(uint32_t, last, 1);

    count_share(t);
    if (last_block(t.blocks_done, last)) {
        uint32_t n;

        scan_ties(t, sums);
        n = scan_outputs(t, sums);
        for (uint32_t s = threadIdx.x; s < t.segments_count; s += BLOCK) {
            const uint32_t next = t.segments[s].first_tile + t.segments[s].tiles;

            segment_ends[s] = next < t.tiles_count ? t.above[next] : n;
        }
    }
}

static __global__ void __launch_bounds__(BLOCK) write_above(tiles t, output out)
{
    write_share(t, out);
}

/* Host arrays of one call: freed by who made them. */
struct thresholds {
    tile_segment *segments;
    tile_progress *progress;
    uint32_t *ends;
    uint64_t hi;
    uint64_t tiles_count;
};

static bool lay_out(const struct gk_select_ge_args *args, struct thresholds *ret)
{
    const size_t count = args->segments_count + size_t(1);

    *ret = {};
    ret->segments = static_cast<tile_segment *>(calloc(count, sizeof(*ret->segments)));
    ret->progress = static_cast<tile_progress *>(calloc(count, sizeof(*ret->progress)));
    ret->ends = static_cast<uint32_t *>(calloc(count, sizeof(*ret->ends)));
    if (!ret->segments || !ret->progress || !ret->ends) {
        return false;
    }
    for (uint32_t s = 0; s < args->segments_count; s++) {
        const struct gk_range range = args->segments[s];

        ret->segments[s].lo = static_cast<uint32_t>(range.lo);
        ret->segments[s].hi = static_cast<uint32_t>(range.hi);
        ret->segments[s].first_tile = static_cast<uint32_t>(ret->tiles_count);
        ret->segments[s].tiles =
            static_cast<uint32_t>((range.hi - range.lo + TILE_MAX - 1) / TILE_MAX);
        ret->progress[s].phase = PHASE_KNOWN;
        ret->progress[s].source = SOURCE_VECTOR;
        ret->progress[s].key = key_below(args->t[s]);
        ret->tiles_count += ret->segments[s].tiles;
        ret->hi = gk_max_u64(ret->hi, range.hi);
    }
    return true;
}

/* Counts, waits for the numbers, and writes: what the caller has room for may be far more than
 * there is. */
static void run_select_ge(struct slot *slot, const struct gk_select_ge_args *args,
                          struct thresholds *host)
{
    const size_t count = args->segments_count;
    uint32_t *ends = static_cast<uint32_t *>(gk_cuda_scratch(slot, count * sizeof(uint32_t)));
    tiles t = {};
    uint32_t grid;
    output out;

    t.segments_count = args->segments_count;
    t.tiles_count = static_cast<uint32_t>(host->tiles_count);
    t.tile = TILE_MAX;
    t.u = static_cast<const float *>(gk_cuda_in(slot, args->u, host->hi * sizeof(float)));
    t.progress = static_cast<tile_progress *>(gk_cuda_scratch(slot, count * sizeof(tile_progress)));
    t.segments =
        static_cast<const tile_segment *>(gk_cuda_scratch(slot, count * sizeof(tile_segment)));
    alloc_tiles(slot, &t);
    gk_cuda_write(slot, t.progress, host->progress, count * sizeof(tile_progress));
    gk_cuda_write(slot, const_cast<tile_segment *>(t.segments), host->segments,
                  count * sizeof(tile_segment));
    grid = gk_cuda_grid(slot, t.tiles_count, BLOCKS_PER_PROCESSOR);
    gk_cuda_launch(slot, grid, count_above, t, ends);
    gk_cuda_read(slot, host->ends, ends, count * sizeof(uint32_t));
    if (slot->queue->err) {
        return;
    }
    for (size_t s = 0; s < count; s++) {
        args->n[s] = host->ends[s] - (s > 0 ? host->ends[s - 1] : 0);
    }
    out.room = gk_min_u64(args->room, host->ends[count - 1]);
    out.idx = static_cast<uint32_t *>(gk_cuda_out(slot, args->idx, out.room * sizeof(uint32_t)));
    out.val = static_cast<float *>(gk_cuda_out(slot, args->val, out.room * sizeof(float)));
    gk_cuda_launch(slot, grid, write_above, t, out);
    gk_cuda_give_back(slot, args->idx, out.idx, out.room * sizeof(uint32_t));
    gk_cuda_give_back(slot, args->val, out.val, out.room * sizeof(float));
}

struct gk_ticket gk_cuda_select_ge(struct gk_queue *queue, const struct gk_select_ge_args *args)
{
    struct thresholds host;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    if (!lay_out(args, &host)) {
        queue->err = GK_E_NOMEM;
    } else if (host.tiles_count > 0) {
        run_select_ge(&slot, args, &host);
    } else {
        for (uint32_t s = 0; s < args->segments_count; s++) {
            args->n[s] = 0;
        }
    }
    free(host.segments);
    free(host.progress);
    free(host.ends);
    return gk_cuda_end(&slot);
}

/* ---- Samples ---- */

static __global__ void __launch_bounds__(BLOCK) sample(struct gk_sample_args a, uint64_t count)
{
    for (uint64_t j = thread_number(); j < count; j += threads_count()) {
        const uint64_t i = a.phase + j * a.stride;

        a.keys[j] = key_of(add_or_zero(a.g[i], a.e, i));
    }
}

struct gk_ticket gk_cuda_sample(struct gk_queue *queue, const struct gk_sample_args *args)
{
    struct gk_sample_args a = *args;
    const size_t bytes = args->n * sizeof(float);
    uint64_t count = 0;
    struct slot slot;

    GK_ASSERT(args->stride > 0);
    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    if (args->phase < args->n) {
        count = gk_min_u64((args->n - args->phase - 1) / args->stride + 1, args->room);
    }
    a.g = static_cast<const float *>(gk_cuda_in(&slot, args->g, bytes));
    a.e = static_cast<const float *>(gk_cuda_in(&slot, args->e, bytes));
    a.keys = static_cast<uint32_t *>(gk_cuda_out(&slot, args->keys, count * sizeof(uint32_t)));
    if (count > 0) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, count), sample, a, count);
    }
    gk_cuda_give_back(&slot, args->keys, a.keys, count * sizeof(uint32_t));
    if (!queue->err) {
        *args->count = count;
    }
    return gk_cuda_end(&slot);
}

/* ---- Take and give ---- */

/* How long a vector in host memory is, as far as these indices say. */
static uint64_t reach(const void *vector, const uint32_t *idx, uint64_t n)
{
    uint64_t length = 0;

    if (!vector || !idx || gk_cuda_on_device(vector)) {
        return 0; /* it is not copied */
    }
    GK_ASSERT(!gk_cuda_on_device(idx));
    for (uint64_t j = 0; j < n; j++) {
        length = gk_max_u64(length, uint64_t(idx[j]) + 1);
    }
    return length;
}

static __global__ void __launch_bounds__(BLOCK) take(struct gk_take_args a)
{
    float *val = static_cast<float *>(a.val);

    for (uint64_t j = thread_number(); j < a.n; j += threads_count()) {
        const uint32_t i = a.idx[j];
        const float x = a.u[i];

        val[j] = x;
        a.u[i] = __fsub_rn(x, x);
        if (a.m) {
            a.m[i] = 0.0f;
        }
    }
}

struct gk_ticket gk_cuda_take(struct gk_queue *queue, const struct gk_take_args *args)
{
    struct gk_take_args a = *args;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    if (args->encoding != GK_VALUE_F32) {
        queue->err = GK_E_UNSUPPORTED;
        return gk_ticket{0};
    }
    a.u = static_cast<float *>(
        gk_cuda_inout(&slot, args->u, reach(args->u, args->idx, args->n) * sizeof(float)));
    a.m = static_cast<float *>(
        gk_cuda_inout(&slot, args->m, reach(args->m, args->idx, args->n) * sizeof(float)));
    a.idx = static_cast<const uint32_t *>(gk_cuda_in(&slot, args->idx, args->n * sizeof(uint32_t)));
    a.val = gk_cuda_out(&slot, args->val, args->n * sizeof(float));
    if (args->n > 0) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->n), take, a);
    }
    gk_cuda_give_back(&slot, args->val, a.val, args->n * sizeof(float));
    return gk_cuda_end(&slot);
}

/* The indices of one slice are all different. */
static __global__ void __launch_bounds__(BLOCK) give(struct gk_give_args a)
{
    for (uint64_t j = thread_number(); j < a.n; j += threads_count()) {
        const uint64_t i = a.idx ? a.idx[j] : j;

        a.u[i] = __fadd_rn(a.u[i], a.val[j]);
    }
}

struct gk_ticket gk_cuda_give(struct gk_queue *queue, const struct gk_give_args *args)
{
    struct gk_give_args a = *args;
    const uint64_t length = args->idx ? reach(args->u, args->idx, args->n) : args->n;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    a.u = static_cast<float *>(gk_cuda_inout(&slot, args->u + args->base, length * sizeof(float)));
    a.idx = static_cast<const uint32_t *>(gk_cuda_in(&slot, args->idx, args->n * sizeof(uint32_t)));
    a.val = static_cast<const float *>(gk_cuda_in(&slot, args->val, args->n * sizeof(float)));
    if (args->n > 0) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->n), give, a);
    }
    return gk_cuda_end(&slot);
}

/* ---- Hash ---- */

static __global__ void __launch_bounds__(BLOCK)
    hash(struct gk_hash_args a, unsigned long long *result)
{
    unsigned long long sum = 0;

    for (uint64_t i = thread_number(); i < a.n; i += threads_count()) {
        sum += gk_hash_term(a.plane, a.index0 + i, __float_as_uint(a.x[i]));
    }
    for (unsigned by = LANES / 2; by > 0; by /= 2) {
        sum += __shfl_down_sync(ALL_LANES, sum, by);
    }
    if (lane_id() == 0) {
        atomicAdd(result, sum);
    }
}

struct gk_ticket gk_cuda_hash(struct gk_queue *queue, const struct gk_hash_args *args)
{
    struct gk_hash_args a = *args;
    unsigned long long *result;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    a.x = static_cast<const float *>(gk_cuda_in(&slot, args->x, args->n * sizeof(float)));
    result = static_cast<unsigned long long *>(gk_cuda_out(&slot, args->hash, sizeof(*result)));
    gk_cuda_zero(&slot, result, sizeof(*result));
    if (args->n > 0) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->n), hash, a, result);
    }
    gk_cuda_give_back(&slot, args->hash, result, sizeof(*result));
    return gk_cuda_end(&slot);
}
