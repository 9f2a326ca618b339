/* Taking the number of an element apart into its places along the sides of an array.
 *
 * A division costs as much as all the rest of such a kernel.  So the sides are divisors that the
 * host prepares: below NARROW_MAX numbers have 32 bits and a division is a multiplication and a
 * shift; above they have 64, and arrays of that size are so rare that the processor may divide.
 * Kernels are templates over `number`, uint32_t or uint64_t. */
#ifndef GK_CUDA_DIVIDE_CUH
#define GK_CUDA_DIVIDE_CUH

#include "cuda/device.cuh"

/* Room to go on by a stride, or to step back before zero, without meeting what is in use; the
 * emulation takes less, so that small arrays go both ways. */
#ifndef GK_CUDA_NARROW_MAX
#define GK_CUDA_NARROW_MAX 0x80000000u
#endif

static inline bool is_narrow(uint64_t elements)
{
    return elements < GK_CUDA_NARROW_MAX;
}

template <typename number> struct divisor;

template <> struct divisor<uint32_t> {
    uint32_t value, multiplier, shift;
};

template <> struct divisor<uint64_t> {
    uint64_t value;
};

/* With s = ceil(log2 d) and the multiplier m = floor(2^32 (2^s - d) / d) + 1 the quotient is
 * (n + floor(n m / 2^32)) / 2^s, for every n of 32 bits. */
static inline void set_divisor(divisor<uint32_t> *divisor, uint64_t value)
{
    uint32_t shift = 0;

    while (UINT64_C(1) << shift < value) {
        shift++;
    }
    divisor->value = static_cast<uint32_t>(value);
    divisor->multiplier =
        static_cast<uint32_t>((((UINT64_C(1) << shift) - value) << 32) / value + 1);
    divisor->shift = shift;
}

static inline void set_divisor(divisor<uint64_t> *divisor, uint64_t value)
{
    divisor->value = value;
}

static __device__ inline uint32_t divide(uint32_t n, const divisor<uint32_t> &by)
{
    const uint64_t high = static_cast<uint64_t>(n) * by.multiplier >> 32;

    return static_cast<uint32_t>((n + high) >> by.shift);
}

static __device__ inline uint64_t divide(uint64_t n, const divisor<uint64_t> &by)
{
    return n / by.value;
}

/* n becomes its remainder; returns the quotient. */
template <typename number>
static __device__ inline number split(number *n, const divisor<number> &by)
{
    const number quotient = divide(*n, by);

    *n -= quotient * by.value;
    return quotient;
}

#endif
