/* Stories of workers that bring something of their own: a learning rate, an optimizer. */
#include "common/exit.h"
#include "tests/sim/story.h"

#include <string.h>

void gk_story_with_rates(struct gk_sim_options *options)
{
    options->rates = true;
}

void gk_story_with_sums(struct gk_sim_options *options)
{
    options->optimizer = GK_OPTIMIZER_NONE;
    options->momentum = 0;
    options->sums = true;
}

/* Nothing of the step is committed, and everybody hears why, also over a bad network. */
void gk_story_rates_differ(struct gk_sim *sim)
{
    struct gk_story_rule lost = {.kind = GK_KIND_NACK,
                                 .to_shard = false,
                                 .proc = 1,
                                 .shard = GK_STORY_ANY,
                                 .step = GK_STORY_ANY,
                                 .chunk = GK_STORY_ANY,
                                 .fate = GK_SIM_LOSE};
    struct gk_story_rule *rule = gk_story_rule(sim, &lost);

    gk_story_until_phase(sim, 1, GK_PHASE_COMPUTING, 2);
    sim->procs[1].wrong_rate = 0.5f;
    sim->expected_exit = GK_EXIT_DATA;
    gk_story_until_ended(sim, 0);
    gk_story_until_seen(sim, rule, 1);
    rule->fate = GK_SIM_PASS;
    gk_story_until_ended(sim, 1);
    for (uint32_t p = 0; p < sim->options.workers; p++) {
        const char *words = sim->last_words[gk_sim_proc_node(p)];

        gk_story_expect(sim, sim->procs[p].exit_code == GK_EXIT_DATA, "all workers give up");
        gk_story_expect(sim,
                        strstr(words, "RATES_DIFFER") && strstr(words, "step 2") &&
                            strstr(words, "rank 0") && strstr(words, "rank 1"),
                        "they name the step and two ranks");
    }
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        gk_story_expect(sim, sim->ledger.shadows[s].version <= 2, "no shard commits the step");
    }
    gk_story_pass_us(sim, 10 * GK_SIM_SECOND);
    gk_story_expect(sim, sim->nodes[gk_sim_shard_node(0)].state == GK_SIM_ENDED,
                    "a shard that knows ends too");
}

/* Whoever comes back without its parameters cannot have them; the others hear who is missing. */
void gk_story_parameters_lost(struct gk_sim *sim)
{
    const char *words = sim->last_words[gk_sim_proc_node(1)];

    gk_story_until_version(sim, 0, 3);
    gk_story_until_phase(sim, 1, GK_PHASE_COMPUTING, 3);
    gk_sim_proc_kill(sim, 1, true, 1000);
    sim->expected_exit = GK_EXIT_PEER;
    gk_story_until_ended(sim, 1);
    gk_story_expect(
        sim, strstr(words, "rank 1") && strstr(words, "version 3") && strstr(words, "checkpoint"),
        "it says who, where the job is, and what to do");
}
