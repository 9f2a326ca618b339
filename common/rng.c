/* Layout, frozen: key = (low, high half of the seed), counter = (index / 4, purpose, a, b); the
 * draw is word index mod 4 of that block.  The upper 24 bits of the purpose word stay 0, for
 * streams that one day need a longer index. */
#include "common/rng.h"

#include "common/assert.h"

#include <Random123/philox.h>

enum { RNG_WORDS = 4, RNG_PURPOSE_MAX = 255 };

static philox4x32_ctr_t block_of(const struct gk_rng *rng, uint64_t index)
{
    philox4x32_ctr_t counter;
    philox4x32_key_t key;
    uint64_t block = index / RNG_WORDS;

    GK_ASSERT(block <= UINT32_MAX);
    GK_ASSERT(rng->a <= UINT32_MAX && rng->b <= UINT32_MAX);
    GK_ASSERT(rng->purpose > 0 && rng->purpose <= RNG_PURPOSE_MAX);
    key.v[0] = (uint32_t)rng->seed;
    key.v[1] = (uint32_t)(rng->seed >> 32);
    counter.v[0] = (uint32_t)block;
    counter.v[1] = rng->purpose;
    counter.v[2] = (uint32_t)rng->a;
    counter.v[3] = (uint32_t)rng->b;
    return philox4x32_R(10, counter, key);
}

uint32_t gk_rng_u32(const struct gk_rng *rng, uint64_t index)
{
    return block_of(rng, index).v[index % RNG_WORDS];
}

float gk_rng_float(const struct gk_rng *rng, uint64_t index)
{
    return (float)(gk_rng_u32(rng, index) >> 8) * 0x1p-24f;
}

uint64_t gk_rng_below(const struct gk_rng *rng, uint64_t index, uint64_t bound)
{
    philox4x32_ctr_t block;
    uint64_t first = 2 * index;
    uint64_t draw, high, low;

    GK_ASSERT(bound > 0 && index <= UINT64_MAX / 2);
    block = block_of(rng, first);
    draw = block.v[first % RNG_WORDS] | (uint64_t)block.v[first % RNG_WORDS + 1] << 32;
    /* The upper half of the 128-bit product, from halves: no 128-bit type is in C11. */
    low = (draw & UINT32_MAX) * (bound & UINT32_MAX) >> 32;
    high = (draw >> 32) * (bound & UINT32_MAX);
    low += (draw & UINT32_MAX) * (bound >> 32) + (high & UINT32_MAX);
    return (draw >> 32) * (bound >> 32) + (high >> 32) + (low >> 32);
}

void gk_rng_permute(const struct gk_rng *rng, uint32_t *ret, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ret[i] = i;
    }
    for (uint32_t i = count; i-- > 1;) {
        uint32_t other = (uint32_t)gk_rng_below(rng, i, (uint64_t)i + 1);
        uint32_t kept = ret[i];

        ret[i] = ret[other];
        ret[other] = kept;
    }
}
