/* Random draws of the simulator: one sequence a purpose, all from the one seed that is printed. */
#ifndef GK_TESTS_SIM_RNG_H
#define GK_TESTS_SIM_RNG_H

#include "common/bits.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_sim_rng {
    uint64_t state;
};

static inline uint64_t gk_sim_next(struct gk_sim_rng *rng)
{
    rng->state += UINT64_C(0x9e3779b97f4a7c15);
    return gk_mix64(rng->state);
}

/* In [0, bound); bound > 0 and small against 2^64. */
static inline uint64_t gk_sim_below(struct gk_sim_rng *rng, uint64_t bound)
{
    return gk_sim_next(rng) % bound;
}

/* In [lo, hi]. */
static inline uint64_t gk_sim_between(struct gk_sim_rng *rng, uint64_t lo, uint64_t hi)
{
    return lo + gk_sim_below(rng, hi - lo + 1);
}

/* True `times` times out of `of`. */
static inline bool gk_sim_chance(struct gk_sim_rng *rng, uint64_t times, uint64_t of)
{
    return times > 0 && gk_sim_below(rng, of) < times;
}

#endif
