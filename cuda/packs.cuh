/* Kernels over images and matrices, in four forms.
 *
 * A thread with one float on its way does not keep the memory of a device busy; with four that lie
 * together it does.  So where the innermost side is a multiple of four, such a kernel counts in
 * packs of four floats, and else in packs of one.  And its numbers have 32 bits where the arrays
 * allow it (divide.cuh), which most do. */
#ifndef GK_CUDA_PACKS_CUH
#define GK_CUDA_PACKS_CUH

#include "cuda/divide.cuh"

enum { PACK = 4 };

template <typename value, uint32_t width> struct alignas(width * sizeof(value)) pack {
    value at[width];
};

/* An array seen as one of packs. */
template <uint32_t width> static inline const pack<float, width> *in_packs(const float *x)
{
    return reinterpret_cast<const pack<float, width> *>(x);
}

template <uint32_t width> static inline pack<float, width> *in_packs(float *x)
{
    return reinterpret_cast<pack<float, width> *>(x);
}

template <uint32_t width>
static __device__ inline void add_pack(pack<float, width> *sum, const pack<float, width> &x)
{
#pragma unroll
    for (uint32_t w = 0; w < width; w++) {
        sum->at[w] = __fadd_rn(sum->at[w], x.at[w]);
    }
}

/* Whether an array may be seen as one of packs of PACK. */
static inline bool is_packed(const void *memory)
{
    return reinterpret_cast<uintptr_t>(memory) % (PACK * sizeof(float)) == 0;
}

/* start.launch<number, width>() in the form that fits. */
template <typename Start> static void launch_form(const Start &start, bool narrow, bool packed)
{
    if (narrow && packed) {
        start.template launch<uint32_t, PACK>();
    } else if (narrow) {
        start.template launch<uint32_t, 1>();
    } else if (packed) {
        start.template launch<uint64_t, PACK>();
    } else {
        start.template launch<uint64_t, 1>();
    }
}

template <typename number> static __device__ inline number first_element()
{
    return static_cast<number>(thread_number());
}

template <typename number> static __device__ inline number element_step()
{
    return static_cast<number>(threads_count());
}

#endif
