/* Counter-based random numbers: a draw is a function of (seed, purpose, a, b, index), never of how
 * many draws came before, so that a batch, a parameter or a fault is the same on every machine and
 * after every restart (P3).  Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11) from Random123. */
#ifndef GK_COMMON_RNG_H
#define GK_COMMON_RNG_H

#include <stdint.h>

/* Frozen: changing a number changes every trained model. */
enum gk_rng_purpose {
    GK_RNG_INIT = 1,     /* parameters: a = tensor */
    GK_RNG_BATCH = 2,    /* permutation of the training set: a = epoch */
    GK_RNG_RANDK = 3,    /* random selection: a = step, b = rank */
    GK_RNG_IDENTITY = 4, /* nonces and sessions: a, b = who */
    GK_RNG_FAULT = 5,    /* trouble on purpose: a, b = the pair, or the fault and its repetition */
    GK_RNG_AUGMENT = 6,  /* how training images are shown: a = step, b = rank */
    GK_RNG_DGC = 7,      /* the sample of a selection: a = step, b = rank */
};

struct gk_rng {
    uint64_t seed;
    uint32_t purpose; /* enum gk_rng_purpose */
    uint64_t a;
    uint64_t b;
};

/* 32 uniform bits, number `index` < 2^34 of this stream.  a and b count up to 2^32 - 1 each, the
 * purpose from 1 to 255.  Any thread, as all functions here. */
uint32_t gk_rng_u32(const struct gk_rng *rng, uint64_t index);

/* Uniform in [0, 1): the upper 24 bits of gk_rng_u32, exact in float. */
float gk_rng_float(const struct gk_rng *rng, uint64_t index);

/* Uniform in [0, bound), bound > 0: by multiplication of 64 bits, which are the draws 2 index and 2
 * index + 1 of the stream (so index < 2^33); the bias is below bound / 2^64. */
uint64_t gk_rng_below(const struct gk_rng *rng, uint64_t index, uint64_t bound);

/* Fisher-Yates permutation of 0..count-1 into `ret`: position i, from the last down to 1, changes
 * places with position gk_rng_below(i, i + 1). */
void gk_rng_permute(const struct gk_rng *rng, uint32_t *ret, uint32_t count);

#endif
