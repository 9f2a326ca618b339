/* The part of the CUDA runtime and of the device language that our kernels use, for a C++ compiler:
 * found before NVIDIA's header of the same name where the emulated library is built, and nowhere
 * else.
 *
 * What differs in the sources of the kernels is how shared arrays are declared (cuda/device.cuh).
 */
#ifndef GK_TESTS_SIMT_CUDA_RUNTIME_H
#define GK_TESTS_SIMT_CUDA_RUNTIME_H

#define GK_SIMT 1

#include "tests/simt/core.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

/* ---- Runtime ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
};

typedef gk_simt_dim uint3;

struct dim3 : gk_simt_dim {
    dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : gk_simt_dim{nx, ny, nz} {}
};

typedef struct gk_simt_stream *cudaStream_t;
typedef struct gk_simt_event *cudaEvent_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged,
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
enum { cudaHostAllocDefault = 0, cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor;
    int multiProcessorCount;
};
struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer);
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

namespace simt
{
/* Checks the limits and queues the launch. */
cudaError_t queue_launch(const cudaLaunchConfig_t &config, size_t arguments_bytes, const char *name,
                         std::function<void()> body);

/* For a library over the runtime: work of the stream that finds device memory open. */
void queue_work(cudaStream_t stream, std::function<void()> work);
bool lies_on_device(const void *memory, size_t bytes);
} // namespace simt

/* The arguments are copied at the call, as a real launch does.  The signature serves as the
 * kernel's name. */
template <typename... Parameters, typename... Arguments>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                      void (*kernel)(Parameters...), Arguments &&...arguments)
{
    std::tuple<Parameters...> copy(static_cast<Parameters>(arguments)...);

    return simt::queue_launch(*config, sizeof(copy), __PRETTY_FUNCTION__,
                              [kernel, copy]() { std::apply(kernel, copy); });
}

template <typename Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, Kernel, int, size_t)
{
    *count = 2;
    return cudaSuccess;
}

/* ---- Device ---- */

inline const gk_simt_dim &threadIdx = simt::current.thread;
inline const gk_simt_dim &blockIdx = simt::current.block;
inline const gk_simt_dim &blockDim = simt::current.block_dim;
inline const gk_simt_dim &gridDim = simt::current.grid_dim;

#define GK_SHARED_POINTER(type) simt::shared_array<type>
#define GK_SHARED_ARRAY(type, name, count)                                                         \
    const simt::shared_array<type> name = {                                                        \
        simt::shared_find(sizeof(type), (count), simt::site{__FILE__, __LINE__})}

#define GK_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(GK_SIMT_SITE)
{
    simt::barrier({file, line});
}

inline void __syncwarp(unsigned mask = 0xffffffff, GK_SIMT_SITE)
{
    simt::collective(simt::SYNC_WARP, mask, 0, 0, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, GK_SIMT_SITE)
{
    return static_cast<unsigned>(
        simt::collective(simt::BALLOT, mask, predicate != 0, 0, {file, line}));
}

template <typename T>
inline T gk_simt_shuffle(simt::operation op, unsigned mask, T value, unsigned argument,
                         simt::site site)
{
    uint64_t bits = 0;

    static_assert(sizeof(T) <= sizeof(bits), "a shuffle carries at most 64 bits");
    memcpy(&bits, &value, sizeof(value));
    bits = simt::collective(op, mask, bits, argument, site);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <typename T> inline T __shfl_sync(unsigned mask, T value, int lane, int = 32, GK_SIMT_SITE)
{
    return gk_simt_shuffle(simt::SHUFFLE, mask, value, static_cast<unsigned>(lane), {file, line});
}

template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int = 32, GK_SIMT_SITE)
{
    return gk_simt_shuffle(simt::SHUFFLE_UP, mask, value, by, {file, line});
}

template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int = 32, GK_SIMT_SITE)
{
    return gk_simt_shuffle(simt::SHUFFLE_DOWN, mask, value, by, {file, line});
}

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int by, int = 32, GK_SIMT_SITE)
{
    return gk_simt_shuffle(simt::SHUFFLE_XOR, mask, value, static_cast<unsigned>(by), {file, line});
}

inline void __threadfence() {}

/* Atomics on integers alone: a sum of floats in any order has no specified bits. */
template <typename T> inline T *gk_simt_atomic(T *at)
{
    simt::atomic_point();
    return at;
}

template <typename T> inline T *gk_simt_atomic(simt::shared_pointer<T> at)
{
    simt::atomic_point();
    return &at.touch(simt::ATOMIC);
}

#define GK_SIMT_ATOMIC(name, type, after)                                                          \
    inline type name(type *pointer, type value)                                                    \
    {                                                                                              \
        type *at = gk_simt_atomic(pointer);                                                        \
        type old = *at;                                                                            \
        *at = (after);                                                                             \
        return old;                                                                                \
    }                                                                                              \
    inline type name(simt::shared_pointer<type> pointer, type value)                               \
    {                                                                                              \
        type *at = gk_simt_atomic(pointer);                                                        \
        type old = *at;                                                                            \
        *at = (after);                                                                             \
        return old;                                                                                \
    }

GK_SIMT_ATOMIC(atomicAdd, unsigned, old + value)
GK_SIMT_ATOMIC(atomicAdd, unsigned long long, old + value)
GK_SIMT_ATOMIC(atomicMax, unsigned, old > value ? old : value)
GK_SIMT_ATOMIC(atomicMin, unsigned, old < value ? old : value)
GK_SIMT_ATOMIC(atomicOr, unsigned, old | value)

template <typename T> inline T __ldcg(const T *pointer)
{
    return *pointer;
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Compiled without contraction, so that these round once each, to nearest even. */
inline float __fadd_rn(float a, float b)
{
    return a + b;
}

inline float __fsub_rn(float a, float b)
{
    return a - b;
}

inline float __fmul_rn(float a, float b)
{
    return a * b;
}

inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}

inline double __dadd_rn(double a, double b)
{
    return a + b;
}

inline double __dsub_rn(double a, double b)
{
    return a - b;
}

inline double __dmul_rn(double a, double b)
{
    return a * b;
}

inline double __ddiv_rn(double a, double b)
{
    return a / b;
}

inline double __dsqrt_rn(double a)
{
    return sqrt(a);
}

#endif
