/* All orders in which the messages of a tiny cluster can arrive, and a fault at every place. */
#ifndef GK_TESTS_SIM_ENUMERATE_H
#define GK_TESTS_SIM_ENUMERATE_H

#include "tests/sim/sim.h"

struct gk_sim_cluster {
    const char *name;
    uint32_t workers, servers;
    uint64_t steps;
    uint32_t detours_max; /* from the order of sending; 0: any number */
    uint64_t runs_max;    /* 0: no limit */
};

const struct gk_sim_cluster *gk_sim_clusters(uint32_t *ret_count);

/* Prints how many runs it took, and whether that was all.  False: one failed, and has said so. */
bool gk_sim_enumerate(struct gk_sim *sim, const struct gk_sim_cluster *cluster, bool trace);

#endif
