/* Bits: floats as integers, the mixing function of hashes and identifiers, little-endian bytes. */
#ifndef GK_COMMON_BITS_H
#define GK_COMMON_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gkps sends arrays as they lie in memory and supports little-endian machines only"
#endif

/* What kernels call too. */
#ifdef __CUDACC__
#define GK_ANYWHERE __host__ __device__
#else
#define GK_ANYWHERE
#endif

GK_ANYWHERE static inline uint32_t gk_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

GK_ANYWHERE static inline float gk_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014): its outputs pass as random. */
GK_ANYWHERE static inline uint64_t gk_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x;
}

/* One term of a state hash: the hash of a vector is the sum of its terms mod 2^64, so that it
 * depends neither on order nor on chunking.  `plane` 0 are parameters, 1 and 2 optimizer moments;
 * `index` is global. */
GK_ANYWHERE static inline uint64_t gk_hash_term(uint32_t plane, uint64_t index, uint32_t bits)
{
    return gk_mix64(gk_mix64(((uint64_t)plane << 56) + index + UINT64_C(0x9e3779b97f4a7c15)) +
                    bits);
}

static inline uint64_t gk_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t gk_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline void gk_put_u32(uint8_t *at, uint32_t x)
{
    memcpy(at, &x, sizeof(x));
}

static inline uint32_t gk_get_u32(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

static inline void gk_put_u64(uint8_t *at, uint64_t x)
{
    memcpy(at, &x, sizeof(x));
}

static inline uint64_t gk_get_u64(const uint8_t *at)
{
    uint64_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

#endif
