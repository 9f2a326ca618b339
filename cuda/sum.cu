/* Sums of pushes in rank order.
 *
 * A block sums a tile: list after list adds what falls into it to an accumulator in shared memory,
 * all entries of one list at once, because a list names a coordinate at most once.  An accumulator
 * starts as -0, which marks it as untouched (common/cpu/sum.c says why that changes no bit).  The
 * tiles' sums and counts then tell the form of the result, and a second kernel writes it. */
#include "cuda/queue.cuh"

extern "C" {
#include "common/assert.h"
}

#include <stdlib.h>

enum { ROWS = 8, SUM_TILE = ROWS * BLOCK, BLOCKS_PER_PROCESSOR = 8, SCAN_ITEMS = 8 };

#define UNTOUCHED 0x80000000u

struct sum_call {
    const struct gk_list *lists; /* with device pointers */
    uint32_t lists_count;
    bool any_dense;
    uint64_t len;
    uint32_t tiles_count;
    float *sums;      /* of every coordinate, or UNTOUCHED */
    uint32_t *counts; /* per tile: touched; later: where its output begins */
    unsigned *spoilt; /* something is not finite */
    unsigned *blocks_done;
    uint32_t *idx; /* out */
    float *val;
    struct gk_sum_report *report;
};

/* The first entry of the list that is at or above `at`, a coordinate relative to the list's base.
 */
static __device__ inline uint64_t first_at(const struct gk_list &list, uint64_t at)
{
    uint64_t lo = 0;
    uint64_t hi = list.n;

    while (lo < hi) {
        const uint64_t middle = lo + (hi - lo) / 2;

        if (list.idx[middle] < at) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

static __device__ inline void add_list(const struct gk_list &list, uint64_t lo, uint64_t hi,
                                       GK_SHARED_POINTER(float) sums)
{
    const uint64_t from = lo > list.base ? lo - list.base : 0;
    const uint64_t to = hi > list.base ? hi - list.base : 0;
    const uint64_t first = list.idx ? first_at(list, from) : min_u64(from, list.n);
    const uint64_t end = list.idx ? first_at(list, to) : min_u64(to, list.n);

    for (uint64_t j = first + threadIdx.x; j < end; j += BLOCK) {
        const uint64_t at = list.base + (list.idx ? list.idx[j] : j) - lo;

        sums[at] = __fadd_rn(sums[at], __fadd_rn(list.val[j], 0.0f));
    }
}

static __device__ inline bool is_touched(float x)
{
    return __float_as_uint(x) != UNTOUCHED;
}

/* The tile's sums go to global memory; its count is told by the first thread. */
static __device__ inline void sum_tile(const sum_call &call, uint32_t tile,
                                       GK_SHARED_POINTER(float) sums,
                                       GK_SHARED_POINTER(uint32_t) scan)
{
    const uint64_t lo = static_cast<uint64_t>(tile) * SUM_TILE;
    const uint64_t hi = min_u64(lo + SUM_TILE, call.len);
    uint32_t touched = 0;
    uint32_t total;

    for (uint32_t i = threadIdx.x; i < SUM_TILE; i += BLOCK) {
        sums[i] = __uint_as_float(UNTOUCHED);
    }
    for (uint32_t l = 0; l < call.lists_count; l++) {
        __syncthreads(); /* the lists before, or the marks */
        add_list(call.lists[l], lo, hi, sums);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < hi - lo; i += BLOCK) {
        const float x = sums[i];

        call.sums[lo + i] = x;
        touched += is_touched(x);
        if (key_of(x) >= GK_KEY_NONFINITE) {
            atomicOr(call.spoilt, 1u);
        }
    }
    (void)block_scan(touched, scan, &total);
    if (threadIdx.x == 0) {
        call.counts[tile] = total;
    }
}

/* counts := where each tile's output begins; returns the number of all. */
static __device__ inline uint32_t scan_counts(const sum_call &call,
                                              GK_SHARED_POINTER(uint32_t) scan)
{
    uint32_t carry = 0;

    for (uint32_t base = 0; base < call.tiles_count; base += BLOCK * SCAN_ITEMS) {
        const uint32_t from = base + threadIdx.x * SCAN_ITEMS;
        const uint32_t end = min_u32(from + SCAN_ITEMS, call.tiles_count);
        uint32_t sum = 0;
        uint32_t total;

        for (uint32_t tile = from; tile < end; tile++) {
            sum += __ldcg(&call.counts[tile]);
        }
        __syncthreads();
        sum = carry + block_scan(sum, scan, &total);
        for (uint32_t tile = from; tile < end; tile++) {
            const uint32_t count = __ldcg(&call.counts[tile]);

            call.counts[tile] = sum;
            sum += count;
        }
        carry += total;
    }
    return carry;
}

static __global__ void __launch_bounds__(BLOCK) sum_add(sum_call call)
{
    GK_SHARED_ARRAY(float, sums, SUM_TILE);
    GK_SHARED_ARRAY(uint32_t, scan, WARPS);
    GK_SHARED_ARRAY(uint32_t, last, 1);

    for (uint32_t tile = blockIdx.x; tile < call.tiles_count; tile += gridDim.x) {
        sum_tile(call, tile, sums, scan);
    }
    if (threadIdx.x == 0) { /* the others' part is done before the last barrier of a tile */
        __threadfence();
        last[0] = atomicAdd(call.blocks_done, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last[0] != 0) {
        uint32_t n;

        __threadfence();
        n = scan_counts(call, scan);
        if (threadIdx.x == 0) {
            call.report->dense = call.any_dense || 2 * static_cast<uint64_t>(n) >= call.len;
            call.report->n = call.report->dense ? call.len : n;
            call.report->finite = __ldcg(call.spoilt) == 0;
        }
    }
}

/* A warp a row of 32 within its tile, so that the order is that of the indices. */
static __device__ inline void write_sparse(const sum_call &call, uint32_t tile,
                                           GK_SHARED_POINTER(uint32_t) scan)
{
    const uint64_t lo = static_cast<uint64_t>(tile) * SUM_TILE;
    uint32_t at = call.counts[tile];

    for (uint32_t row = 0; row < ROWS; row++) {
        const uint64_t i = lo + row * BLOCK + threadIdx.x;
        const float x = i < call.len ? call.sums[i] : __uint_as_float(UNTOUCHED);
        uint32_t total;
        const uint32_t before = block_scan(is_touched(x), scan, &total);

        if (is_touched(x)) {
            call.idx[at + before] = static_cast<uint32_t>(i);
            call.val[at + before] = x;
        }
        at += total;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(BLOCK) sum_write(sum_call call)
{
    GK_SHARED_ARRAY(uint32_t, scan, WARPS);

    if (call.report->dense) {
        for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x; i < call.len;
             i += static_cast<uint64_t>(gridDim.x) * BLOCK) {
            call.val[i] = is_touched(call.sums[i]) ? call.sums[i] : 0.0f;
        }
        return;
    }
    for (uint32_t tile = blockIdx.x; tile < call.tiles_count; tile += gridDim.x) {
        write_sparse(call, tile, scan);
    }
}

/* ---- Host ---- */

/* A list's arrays on the device; every list has its own copy, because there may be thousands. */
static struct gk_list list_on_device(struct slot *slot, const struct gk_list *list)
{
    struct gk_list on_device = *list;
    const size_t val_bytes = list->n * sizeof(float);
    const size_t idx_bytes = list->n * sizeof(uint32_t);

    if (list->n > 0 && !gk_cuda_on_device(list->val)) {
        float *val = static_cast<float *>(gk_cuda_scratch(slot, val_bytes));

        gk_cuda_write(slot, val, list->val, val_bytes);
        on_device.val = val;
    }
    if (list->n > 0 && list->idx && !gk_cuda_on_device(list->idx)) {
        uint32_t *idx = static_cast<uint32_t *>(gk_cuda_scratch(slot, idx_bytes));

        gk_cuda_write(slot, idx, list->idx, idx_bytes);
        on_device.idx = idx;
    }
    return on_device;
}

static void give_back_sum(struct slot *slot, const struct gk_sum_args *args, const sum_call &call)
{
    struct gk_sum_report report = {};

    if (args->idx == call.idx && args->val == call.val) {
        gk_cuda_give_back(slot, args->report, call.report, sizeof(report));
        return;
    }
    gk_cuda_read(slot, &report, call.report, sizeof(report)); /* says how much there is to copy */
    if (slot->queue->err) {
        return;
    }
    if (!report.dense) {
        gk_cuda_give_back(slot, args->idx, call.idx, report.n * sizeof(uint32_t));
    }
    gk_cuda_give_back(slot, args->val, call.val, report.n * sizeof(float));
    gk_cuda_give_back(slot, args->report, call.report, sizeof(report));
}

static void run(struct slot *slot, const struct gk_sum_args *args, struct gk_list *lists)
{
    const size_t lists_bytes = args->lists_count * sizeof(*lists);
    sum_call call = {};
    uint32_t grid;

    call.lists_count = args->lists_count;
    call.len = args->len;
    call.tiles_count = static_cast<uint32_t>((args->len + SUM_TILE - 1) / SUM_TILE);
    for (uint32_t l = 0; l < args->lists_count; l++) {
        lists[l] = list_on_device(slot, &args->lists[l]);
        call.any_dense = call.any_dense || !lists[l].idx;
    }
    call.lists = static_cast<const struct gk_list *>(gk_cuda_scratch(slot, lists_bytes));
    call.sums = static_cast<float *>(gk_cuda_scratch(slot, args->len * sizeof(float)));
    call.counts = static_cast<uint32_t *>(
        gk_cuda_scratch(slot, (call.tiles_count + size_t(1)) * sizeof(uint32_t)));
    call.spoilt = static_cast<unsigned *>(gk_cuda_scratch(slot, sizeof(unsigned)));
    call.blocks_done = static_cast<unsigned *>(gk_cuda_scratch(slot, sizeof(unsigned)));
    call.idx = static_cast<uint32_t *>(gk_cuda_out(slot, args->idx, args->len * sizeof(uint32_t)));
    call.val = static_cast<float *>(gk_cuda_out(slot, args->val, args->len * sizeof(float)));
    call.report =
        static_cast<struct gk_sum_report *>(gk_cuda_out(slot, args->report, sizeof(*args->report)));
    gk_cuda_write(slot, const_cast<struct gk_list *>(call.lists), lists, lists_bytes);
    gk_cuda_zero(slot, call.spoilt, sizeof(unsigned));
    gk_cuda_zero(slot, call.blocks_done, sizeof(unsigned));
    grid = gk_cuda_grid(slot, call.tiles_count, BLOCKS_PER_PROCESSOR);
    gk_cuda_launch(slot, grid, sum_add, call);
    gk_cuda_launch(slot, grid, sum_write, call);
    give_back_sum(slot, args, call);
}

struct gk_ticket gk_cuda_sum(struct gk_queue *queue, const struct gk_sum_args *args)
{
    struct gk_list *lists;
    struct slot slot;

    GK_ASSERT(args->len <= UINT32_MAX);
    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    if (args->len == 0) {
        *args->report = {};
        args->report->dense = args->report->finite = true;
        return gk_ticket{0};
    }
    lists = static_cast<struct gk_list *>(calloc(args->lists_count + size_t(1), sizeof(*lists)));
    if (lists) {
        run(&slot, args, lists);
    } else {
        queue->err = GK_E_NOMEM;
    }
    free(lists);
    return gk_cuda_end(&slot);
}
