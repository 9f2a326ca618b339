/* Named cases: short stories that hang or corrupt a design without the rule that each of them
 * needs (the protocol's list), each told with the fault at exactly the worst moment. */
#ifndef GK_TESTS_SIM_STORIES_H
#define GK_TESTS_SIM_STORIES_H

#include "tests/sim/sim.h"

struct gk_sim_story {
    const char *name;
    const char *what;
    void (*setup)(struct gk_sim_options *options); /* changes a calm job; NULL: it will do */
    void (*tell)(struct gk_sim *sim);
};

const struct gk_sim_story *gk_sim_stories(uint32_t *ret_count);

struct gk_sim_setup {
    struct gk_sim_plants plants;
    bool trace;
    bool disks; /* also in stories that need none */
};

/* False: it failed, see sim->failure.  The caller calls gk_sim_fini() either way. */
bool gk_sim_story_run(struct gk_sim *sim, const struct gk_sim_story *story,
                      const struct gk_sim_setup *setup);

#endif
