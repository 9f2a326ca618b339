/* Optimizer steps: a block takes a tile of parameters through all updates in order.
 *
 * A sparse update is spread over the tile in shared memory first, because an index that was not
 * pushed has a sum of +0 and still decays and coasts. */
#include "cuda/queue.cuh"

extern "C" {
#include "common/assert.h"
}

#include <stdlib.h>

enum { APPLY_TILE = 1024, BLOCKS_PER_PROCESSOR = 8 };

/* An update on the device, and its numbers as the formulas want them. */
struct apply_update {
    const uint32_t *idx; /* NULL: dense */
    const float *val;
    uint64_t n;
    float samples, minus_lr, momentum, weight_decay;
    float fresh1, beta2, fresh2, bias2, epsilon, minus_rate, minus_decay; /* AdamW */
};

struct apply_call {
    float *p, *m, *v;
    uint64_t len;
    uint32_t tiles_count;
    uint32_t optimizer;
    const struct gk_range *decay;
    uint32_t decay_count;
    uint32_t updates_count;
    const apply_update *updates;
};

/* The first entry at or above `at`. */
static __device__ inline uint64_t entry_at(const apply_update &update, uint64_t at)
{
    uint64_t lo = 0;
    uint64_t hi = update.n;

    while (lo < hi) {
        const uint64_t middle = lo + (hi - lo) / 2;

        if (update.idx[middle] < at) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

static __device__ inline bool decays(const apply_call &call, uint64_t i)
{
    uint32_t lo = 0;
    uint32_t hi = call.decay_count;

    while (lo < hi) { /* the first range that ends behind i */
        const uint32_t middle = lo + (hi - lo) / 2;

        if (call.decay[middle].hi <= i) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo < call.decay_count && call.decay[lo].lo <= i;
}

static __device__ inline float moment(float m, float g, float momentum)
{
    const float next = __fmaf_rn(momentum, m, g);

    return __uint_as_float(key_of(next)) < 0x1p-100f ? 0.0f : next;
}

static __device__ inline void step_adamw(const apply_call &call, const apply_update &update,
                                         float g, bool decay, uint64_t i)
{
    const float p = call.p[i];
    const float x = decay ? __fmaf_rn(update.minus_decay, p, p) : p;
    const float m = moment(call.m[i], __fmul_rn(update.fresh1, g), update.momentum);
    const float square =
        __fmaf_rn(update.beta2, call.v[i], __fmul_rn(__fmul_rn(update.fresh2, g), g));
    const float v = square < 0x1p-126f ? 0.0f : square;
    const float root = __fadd_rn(__fsqrt_rn(__fdiv_rn(v, update.bias2)), update.epsilon);

    call.m[i] = m;
    call.v[i] = v;
    call.p[i] = __fmaf_rn(update.minus_rate, __fdiv_rn(m, root), x);
}

/* One element, one update. */
static __device__ inline void step(const apply_call &call, const apply_update &update, float sum,
                                   bool decay, uint64_t i)
{
    float g = __fdiv_rn(sum, update.samples);
    float p;
    float m;

    if (call.optimizer == GK_OPTIMIZER_NONE) {
        call.m[i] = g;
        return;
    }
    if (call.optimizer == GK_OPTIMIZER_ADAMW) {
        step_adamw(call, update, g, decay, i);
        return;
    }
    p = call.p[i];
    if (decay) {
        g = __fmaf_rn(update.weight_decay, p, g);
    }
    if (call.optimizer == GK_OPTIMIZER_SGD) {
        call.p[i] = __fmaf_rn(update.minus_lr, g, p);
        return;
    }
    m = moment(call.m[i], g, update.momentum);
    call.m[i] = m;
    g = call.optimizer == GK_OPTIMIZER_NESTEROV ? __fmaf_rn(update.momentum, m, g) : m;
    call.p[i] = __fmaf_rn(update.minus_lr, g, p);
}

/* An entry of the update is the sum of its element; all others are +0. */
static __device__ inline void spread(const apply_update &update, uint64_t lo, uint64_t hi,
                                     GK_SHARED_POINTER(float) sums)
{
    const uint64_t end = entry_at(update, hi);

    for (uint64_t j = entry_at(update, lo) + threadIdx.x; j < end; j += BLOCK) {
        sums[update.idx[j] - lo] = update.val[j];
    }
}

static __device__ inline void apply_tile(const apply_call &call, uint64_t lo,
                                         GK_SHARED_POINTER(float) sums)
{
    const uint64_t hi = min_u64(lo + APPLY_TILE, call.len);

    for (uint32_t u = 0; u < call.updates_count; u++) {
        const apply_update &update = call.updates[u];

        if (update.idx) {
            for (uint64_t i = lo + threadIdx.x; i < hi; i += BLOCK) {
                sums[i - lo] = 0.0f;
            }
            __syncthreads();
            spread(update, lo, hi, sums);
            __syncthreads();
        }
        for (uint64_t i = lo + threadIdx.x; i < hi; i += BLOCK) {
            step(call, update, update.idx ? static_cast<float>(sums[i - lo]) : update.val[i],
                 decays(call, i), i);
        }
    }
}

static __global__ void __launch_bounds__(BLOCK) apply(apply_call call)
{
    GK_SHARED_ARRAY(float, sums, APPLY_TILE);

    for (uint32_t tile = blockIdx.x; tile < call.tiles_count; tile += gridDim.x) {
        apply_tile(call, static_cast<uint64_t>(tile) * APPLY_TILE, sums);
    }
}

/* ---- Host ---- */

static const void *to_device(struct slot *slot, const void *memory, size_t bytes)
{
    void *device;

    if (bytes == 0 || gk_cuda_on_device(memory)) {
        return memory;
    }
    device = gk_cuda_scratch(slot, bytes);
    gk_cuda_write(slot, device, memory, bytes);
    return device;
}

/* Those that make a step, or of the optimizer none the last; returns how many. */
static uint32_t collect_updates(struct slot *slot, const struct gk_apply_args *args,
                                apply_update *updates)
{
    uint32_t count = 0;

    for (uint32_t u = args->optimizer == GK_OPTIMIZER_NONE ? args->updates_count - 1 : 0;
         u < args->updates_count; u++) {
        const struct gk_update *update = &args->updates[u];

        GK_ASSERT(update->idx || update->samples == 0 || update->n == args->len);
        if (update->samples == 0) { /* a version without an optimizer step */
            continue;
        }
        updates[count].idx = static_cast<const uint32_t *>(
            update->idx ? to_device(slot, update->idx, update->n * sizeof(uint32_t)) : nullptr);
        updates[count].val =
            static_cast<const float *>(to_device(slot, update->val, update->n * sizeof(float)));
        updates[count].n = update->n;
        updates[count].samples = static_cast<float>(update->samples);
        updates[count].minus_lr = -update->hyper.lr;
        updates[count].momentum = update->hyper.momentum;
        updates[count].weight_decay = update->hyper.weight_decay;
        updates[count].fresh1 = 1.0f - update->hyper.momentum;
        updates[count].beta2 = update->hyper.beta2;
        updates[count].fresh2 = 1.0f - update->hyper.beta2;
        updates[count].bias2 = update->hyper.bias2;
        updates[count].epsilon = update->hyper.epsilon;
        updates[count].minus_rate = -(update->hyper.lr / update->hyper.bias1);
        updates[count].minus_decay = -(update->hyper.lr * update->hyper.weight_decay);
        count++;
    }
    return count;
}

static void run(struct slot *slot, const struct gk_apply_args *args, apply_update *updates)
{
    const bool with_moment = args->optimizer != GK_OPTIMIZER_SGD;
    const size_t bytes = args->len * sizeof(float);
    apply_call call = {};

    call.updates_count = collect_updates(slot, args, updates);
    call.m = static_cast<float *>(gk_cuda_inout(slot, with_moment ? args->m : nullptr, bytes));
    if (call.updates_count == 0 && args->optimizer == GK_OPTIMIZER_NONE) {
        gk_cuda_zero(slot, call.m, bytes);
    }
    if (call.updates_count == 0 || args->len == 0) {
        return;
    }
    call.len = args->len;
    call.tiles_count = static_cast<uint32_t>((args->len + APPLY_TILE - 1) / APPLY_TILE);
    call.optimizer = args->optimizer;
    call.decay_count = args->decay_count;
    call.p = static_cast<float *>(gk_cuda_inout(slot, args->p, bytes));
    call.v = static_cast<float *>(
        gk_cuda_inout(slot, args->optimizer == GK_OPTIMIZER_ADAMW ? args->v : nullptr, bytes));
    call.decay = static_cast<const struct gk_range *>(
        to_device(slot, args->decay, args->decay_count * sizeof(*args->decay)));
    call.updates = static_cast<const apply_update *>(
        to_device(slot, updates, call.updates_count * sizeof(*updates)));
    gk_cuda_launch(slot, gk_cuda_grid(slot, call.tiles_count, BLOCKS_PER_PROCESSOR), apply, call);
}

struct gk_ticket gk_cuda_apply(struct gk_queue *queue, const struct gk_apply_args *args)
{
    apply_update *updates;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || args->updates_count == 0) {
        return gk_ticket{0};
    }
    if (args->optimizer < GK_OPTIMIZER_NONE || args->optimizer > GK_OPTIMIZER_ADAMW) {
        queue->err = GK_E_UNSUPPORTED;
        return gk_ticket{0};
    }
    GK_ASSERT(args->m || args->optimizer == GK_OPTIMIZER_SGD);
    GK_ASSERT(args->v || args->optimizer != GK_OPTIMIZER_ADAMW);
    updates =
        static_cast<apply_update *>(calloc(args->updates_count + size_t(1), sizeof(*updates)));
    if (updates) {
        run(&slot, args, updates);
    } else {
        queue->err = GK_E_NOMEM;
    }
    free(updates);
    return gk_cuda_end(&slot);
}
