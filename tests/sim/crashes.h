/* A crash in every call of a disk, one a run. */
#ifndef GK_TESTS_SIM_CRASHES_H
#define GK_TESTS_SIM_CRASHES_H

#include "tests/sim/sim.h"

#define GK_SIM_CRASHES_ALL UINT64_MAX

struct gk_sim_crashes {
    uint64_t seed;
    uint64_t only; /* number of one run, as a failure prints it */
    bool all;      /* also the clusters that take longer */
    bool trace;
};

/* False: one failed, and has said so. */
bool gk_sim_crashes(struct gk_sim *sim, const struct gk_sim_crashes *which);

#endif
