/* Stories of processes that die, come back with or without their memory, or twice. */
#include "common/assert.h"
#include "common/exit.h"
#include "tests/sim/story.h"

#include <string.h>

static void forget_shard(struct gk_sim *sim, uint32_t shard)
{
    sim->shards[shard].wiped = true;
    gk_sim_shard_kill(sim, shard, 2000);
}

/* At every step, at a moment when the gradient is in work. */
void gk_story_half_residual(struct gk_sim *sim)
{
    for (uint64_t t = 0; t < sim->options.steps; t++) {
        gk_story_until_phase(sim, 0, GK_PHASE_COMPUTING, t);
        gk_sim_proc_kill(sim, 0, false, 1000);
        gk_story_until_phase(sim, 1, GK_PHASE_COMPUTING, t);
        gk_sim_proc_kill(sim, 1, false, 1000);
    }
    gk_story_end(sim);
}

static uint64_t received(const struct gk_sim *sim, uint32_t shard)
{
    struct gk_server_view view;

    gk_server_view(sim->shards[shard].core, &view);
    return view.ledger.pushes;
}

/* The push exists, its slot is not complete: nobody may have seen it. */
void gk_story_before_flip(struct gk_sim *sim)
{
    for (uint64_t t = 0; t < sim->options.steps; t++) {
        gk_story_until_phase(sim, 0, GK_PHASE_PERSISTING, t);
        gk_sim_proc_kill(sim, 0, false, 20000); /* not back before the look below */
        gk_story_pass_us(sim, 5000);
        gk_story_expect(sim, received(sim, 0) <= 2 * t + 1, "a push is sent after the flip");
    }
    gk_story_end(sim);
}

void gk_story_lost_worker(struct gk_sim *sim)
{
    struct gk_story_rule slice = {.kind = GK_KIND_PUSH,
                                  .to_shard = true,
                                  .proc = 1,
                                  .shard = 1,
                                  .step = 2,
                                  .chunk = GK_STORY_ANY,
                                  .fate = GK_SIM_LOSE};

    (void)gk_story_rule(sim, &slice);
    gk_story_until_version(sim, 0, 3);
    gk_sim_proc_kill(sim, 1, true, 1000);
    gk_story_end(sim);
    gk_story_expect(sim, sim->ledger.shadows[0].lost == 0 && sim->ledger.shadows[1].lost == 1,
                    "shard 1 alone gets an empty push");
}

static void expect_lost_shard(struct gk_sim *sim)
{
    sim->expected_exit = GK_EXIT_PEER;
    for (uint32_t p = 0; p < sim->options.workers; p++) {
        const char *words = sim->last_words[gk_sim_proc_node(p)];

        gk_story_until_ended(sim, p);
        gk_story_expect(sim, sim->procs[p].exit_code == GK_EXIT_PEER, "all workers give up");
        gk_story_expect(sim, strstr(words, "LOST_SHARD") && strstr(words, "shard 1"),
                        "they name the shard");
    }
    gk_story_expect(sim, !sim->ledger.shadows[1].initialised, "nobody begins again from version 0");
}

void gk_story_lost_shard(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 2);
    gk_story_until_version(sim, 1, 2);
    forget_shard(sim, 1);
    expect_lost_shard(sim);
}

void gk_story_lost_shard_and_rank_0(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 2);
    gk_story_until_version(sim, 1, 2);
    gk_sim_proc_kill(sim, 0, true, 1000);
    forget_shard(sim, 1);
    expect_lost_shard(sim);
}

/* Everybody goes on with the second init, and the model is that of a job that began with it. */
void gk_story_init_dies(struct gk_sim *sim)
{
    struct gk_story_rule chunk = {.kind = GK_KIND_INIT,
                                  .to_shard = true,
                                  .proc = 0,
                                  .shard = 1,
                                  .step = GK_STORY_ANY,
                                  .chunk = 1,
                                  .fate = GK_SIM_KEEP};
    uint64_t last = sim->options.steps * sim->options.params_count;

    (void)gk_story_rule(sim, &chunk);
    gk_story_until_version(sim, 0, 0);
    gk_story_until_kept(sim, 1);
    gk_sim_proc_kill(sim, 0, true, 1000);
    gk_story_drop_all(sim);
    gk_story_end(sim);
    gk_sim_oracle_init(sim, 1);
    gk_story_expect(sim,
                    memcmp(sim->ledger.params + last, sim->oracle.params + last,
                           sim->options.params_count * sizeof(float)) == 0,
                    "the model is that of the second init");
}

/* The servers and both ranks begin a new run; the old process of rank 1 sleeps through that. */
void gk_story_zombie(struct gk_sim *sim)
{
    struct gk_sim_event start = {.kind = GK_SIM_START};
    uint32_t second;

    gk_story_until_version(sim, 0, 2);
    gk_story_until_version(sim, 1, 2);
    gk_sim_pause(sim, gk_sim_proc_node(1), GK_SIM_SECOND);
    second = gk_sim_proc_new(sim, 1);
    sim->procs[1].twin = sim->procs[second].twin = true;
    sim->losses[1]++;
    forget_shard(sim, 0);
    forget_shard(sim, 1);
    gk_sim_proc_kill(sim, 0, true, 1000);
    start.node = gk_sim_proc_node(second);
    start.at_us = sim->now_us + 1000;
    gk_sim_queue_push(&sim->queue, &start);
    gk_story_end(sim);
    gk_story_until_ended(sim, 1);
    gk_story_expect(sim, sim->procs[1].exit_code == GK_EXIT_REFUSED, "the zombie is refused");
    gk_story_expect(sim, sim->procs[second].exit_code == GK_EXIT_OK, "the new run ends well");
}

void gk_story_no_disk(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 1);
    for (uint32_t i = 0; i < 6; i++) {
        gk_sim_proc_kill(sim, 1, false, 1000);
        gk_story_until_session(sim, 1, 0);
        gk_story_until_session(sim, 1, 1);
    }
    gk_story_expect(sim, sim->ledger.shadows[0].incarnation[1] == 7, "life 7 is known");
    gk_sim_proc_kill(sim, 1, true, 1000);
    gk_story_end(sim);
    gk_story_expect(sim, sim->ledger.shadows[0].incarnation[1] >= 8, "the new life is above it");
}

void gk_story_fenced(struct gk_sim *sim)
{
    struct gk_sim_event start = {.kind = GK_SIM_START};
    uint32_t second;

    gk_story_until_version(sim, 0, 2);
    gk_sim_pause(sim, gk_sim_proc_node(1), 8 * GK_SIM_SECOND);
    second = gk_sim_proc_new(sim, 1);
    sim->procs[1].twin = sim->procs[second].twin = true;
    sim->losses[1]++;
    sim->losses_count++;
    start.node = gk_sim_proc_node(second);
    start.at_us = sim->now_us + 1000;
    gk_sim_queue_push(&sim->queue, &start);
    gk_story_until_ended(sim, 1);
    gk_story_expect(sim, sim->procs[1].exit_code == GK_EXIT_FENCED, "the older process is fenced");
    gk_story_end(sim);
    gk_story_expect(sim, sim->procs[second].exit_code == GK_EXIT_OK, "the younger one ends well");
}

/* The commit in flight is finished first. */
void gk_story_stopped(struct gk_sim *sim)
{
    struct gk_sim_event stop = {.kind = GK_SIM_STOP};

    gk_story_until_version(sim, 0, 2);
    while (!gk_story_delay(sim, 0, GK_SIM_WRITE, 10 * 1000) && gk_story_turn(sim)) {
    }
    stop.at_us = sim->now_us;
    gk_sim_queue_push(&sim->queue, &stop);
    gk_story_until_version(sim, 0, 3);
    gk_story_end(sim);
}

/* A machine that sleeps, or virtual machines that are paused together: nobody is to blame. */
void gk_story_all_asleep(struct gk_sim *sim)
{
    uint64_t length_us = 2 * sim->options.deadline_us;

    gk_story_until_session(sim, 0, 0);
    gk_sim_freeze(sim, length_us);
    gk_story_until_version(sim, 0, 1);
    gk_sim_freeze(sim, length_us);
    gk_story_until_version(sim, 1, 3);
    gk_sim_freeze(sim, length_us);
    gk_story_until_phase(sim, 0, GK_PHASE_LEAVING, sim->options.steps);
    gk_sim_freeze(sim, length_us);
    gk_story_end(sim);
}

void gk_story_no_server(struct gk_sim *sim)
{
    for (uint32_t p = 0; p < sim->options.workers; p++) {
        sim->procs[p].config.deadline_us = 20 * GK_SIM_SECOND;
    }
    sim->nodes[gk_sim_shard_node(1)].state = GK_SIM_ENDED;
    sim->expected_exit = GK_EXIT_PEER;
    for (uint32_t p = 0; p < sim->options.workers; p++) {
        gk_story_until_ended(sim, p);
        gk_story_expect(sim, strstr(sim->last_words[gk_sim_proc_node(p)], "shard 1") != NULL,
                        "the deadline names the shard");
    }
    gk_story_expect(sim, sim->now_us < 25 * GK_SIM_SECOND, "it comes in time");
}
