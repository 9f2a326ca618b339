/* Takes the place of common/rng.c on machines without Random123: other numbers than gkps draws, but
 * also a function of (seed, purpose, a, b, index).  The sets that `dgc` and `randk` select with it
 * are not those of a real job; what is measured and compared here does not depend on that. */
#include "common/rng.h"

#include "common/bits.h"

static uint64_t draw(const struct gk_rng *rng, uint64_t index)
{
    const uint64_t parts[] = {rng->seed, rng->purpose, rng->a, rng->b, index};
    uint64_t x = 0;

    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        x = gk_mix64(x + parts[i] + UINT64_C(0x9e3779b97f4a7c15));
    }
    return x;
}

uint32_t gk_rng_u32(const struct gk_rng *rng, uint64_t index)
{
    return (uint32_t)(draw(rng, index) >> 32);
}

float gk_rng_float(const struct gk_rng *rng, uint64_t index)
{
    return (float)(gk_rng_u32(rng, index) >> 8) * 0x1p-24f;
}

uint64_t gk_rng_below(const struct gk_rng *rng, uint64_t index, uint64_t bound)
{
    return draw(rng, index) % bound;
}

void gk_rng_permute(const struct gk_rng *rng, uint32_t *ret, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ret[i] = i;
    }
    for (uint32_t i = count; i-- > 1;) {
        const uint32_t other = (uint32_t)gk_rng_below(rng, i, (uint64_t)i + 1);
        const uint32_t kept = ret[i];

        ret[i] = ret[other];
        ret[other] = kept;
    }
}
