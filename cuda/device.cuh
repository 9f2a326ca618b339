/* What all kernels share: sizes, keys, exact arithmetic, the prefix sum of a block.
 *
 * Kernels are written for two compilers, nvcc and the C++ compiler of the emulation (tests/simt),
 * and differ for them in the declaration of shared arrays alone.  Rules that the emulation and the
 * determinism rest on: no atomics on floats, no waiting for another block, arithmetic that rounds
 * by explicit intrinsics, no lane ends before the last collective of its warp, and no thread before
 * the last barrier of its block. */
#ifndef GK_CUDA_DEVICE_CUH
#define GK_CUDA_DEVICE_CUH

#include <cuda_runtime.h>

#include <stdint.h>

extern "C" {
#include "common/backend.h"
#include "common/bits.h"
}

#ifndef GK_SIMT
#define GK_SHARED_POINTER(type) type *
#define GK_SHARED_ARRAY(type, name, count) __shared__ type name[count]
#endif

/* Threads of a block; the emulation also builds with fewer, where a thread costs the same whatever
 * it does. */
#ifndef GK_CUDA_BLOCK
#define GK_CUDA_BLOCK 256
#endif

enum {
    LANES = 32,
    BLOCK = GK_CUDA_BLOCK,
    WARPS = BLOCK / LANES,
    TILE_MAX = BLOCK * LANES, /* elements of a tile: one word of hits a thread */
};

#define ALL_LANES 0xffffffffu

static __device__ inline uint32_t lane_id()
{
    return threadIdx.x % LANES;
}

static __device__ inline uint32_t warp_id()
{
    return threadIdx.x / LANES;
}

/* Of a loop over elements: this thread's first one, and the distance to its next. */
static __device__ inline uint64_t thread_number()
{
    return static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
}

static __device__ inline uint64_t threads_count()
{
    return static_cast<uint64_t>(gridDim.x) * BLOCK;
}

static __device__ inline uint32_t key_of(float x)
{
    return __float_as_uint(x) & GK_KEY_MASK;
}

static __device__ inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static __device__ inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static __device__ inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static __device__ inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static __device__ inline float add_or_zero(float g, const float *e, uint64_t i)
{
    return __fadd_rn(g, e ? e[i] : 0.0f);
}

/* Which of the lanes before this one have their bit set. */
static __device__ inline uint32_t rank_in(uint32_t mask)
{
    return static_cast<uint32_t>(__popc(mask & ((1u << lane_id()) - 1)));
}

/* Exclusive prefix sum of one number a thread; all threads of the block call it.  `sums` has WARPS
 * elements, and there is a barrier between two calls with the same. */
static __device__ inline uint32_t block_scan(uint32_t value, GK_SHARED_POINTER(uint32_t) sums,
                                             uint32_t *ret_total)
{
    uint32_t inclusive = value;
    uint32_t before = 0;
    uint32_t total = 0;

    for (unsigned by = 1; by < LANES; by *= 2) {
        uint32_t below = __shfl_up_sync(ALL_LANES, inclusive, by);

        inclusive += lane_id() >= by ? below : 0;
    }
    if (lane_id() == LANES - 1) {
        sums[warp_id()] = inclusive;
    }
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++) {
        uint32_t sum = sums[w];

        before += w < warp_id() ? sum : 0;
        total += sum;
    }
    *ret_total = total;
    return before + inclusive - value;
}

#endif
