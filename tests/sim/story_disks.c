/* Stories of servers whose disks are full, fail, or forget what was not synced. */
#include "common/assert.h"
#include "common/exit.h"
#include "tests/sim/story.h"

#include <string.h>

void gk_story_with_disks(struct gk_sim_options *options)
{
    options->store = (struct gk_sim_store_options){
        .disks = true,
        .sync = GK_SYNC_ALWAYS,
        .fold_every = 20,
        .log_bytes_max = GK_SIM_LOG_BYTES,
        .block_floats = 7,
        .loss = GK_SIM_LOSS_SOME,
    };
}

static struct gk_disk *disk_of(const struct gk_sim *sim, uint32_t shard)
{
    return sim->shards[shard].disk;
}

static void until_next_life(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_shard_node(shard)];
    uint64_t life = node->life;

    while (node->life == life && gk_story_turn(sim)) {
    }
    while (node->state != GK_SIM_ALIVE && gk_story_turn(sim)) {
    }
}

static void power_off(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_shard_node(shard)];

    gk_sim_shard_power_off(sim, shard, 1000);
    while (node->state != GK_SIM_ALIVE && gk_story_turn(sim)) {
    }
}

/* Half a record is written and taken back; then comes a life that finds no room either. */
void gk_story_full_disk(struct gk_sim *sim)
{
    struct gk_sim_shard *shard = &sim->shards[0];
    struct gk_server_view view;

    gk_story_until_version(sim, 0, 2);
    shard->full_until_us = GK_SIM_NEVER;
    while (shard->disk->refused == 0 && gk_story_turn(sim)) {
    }
    gk_server_view(shard->core, &view);
    gk_story_expect(sim, view.disk_full, "the shard knows that its disk is full");
    gk_story_pass_us(sim, 3 * GK_SIM_SECOND);
    gk_sim_shard_kill(sim, 0, 1000);
    gk_story_pass_us(sim, 3 * GK_SIM_SECOND);
    gk_sim_shard_power_off(sim, 0, 1000);
    gk_story_pass_us(sim, GK_SIM_SECOND);
    shard->full_until_us = 0;
    gk_story_end(sim);
}

/* The shard ends rather than to sync again what the disk has forgotten. */
void gk_story_sync_fails(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 2);
    disk_of(sim, 0)->fail_at = disk_of(sim, 0)->syncs + 1;
    until_next_life(sim, 0);
    gk_story_expect(sim, sim->stats.syncs_failed == 1, "a sync has failed");
    gk_story_until_version(sim, 0, 3);
    power_off(sim, 0);
    gk_story_end(sim);
}

/* Records of several pages: else the first one of the next life would write the lost one again. */
void gk_story_large_records(struct gk_sim_options *options)
{
    gk_story_with_disks(options);
    options->params_count = 2000;
    options->k = 600;
    options->worker_chunk = options->server_chunk = 4096;
}

/* It dies between write and sync, the next life's sync fails, and the one after that finds all in
 * the page cache, where it is lost with the power. */
void gk_story_sync_fails_at_start(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 2);
    gk_sim_storage_die(sim, 0, 2, false);
    disk_of(sim, 0)->fail_at = disk_of(sim, 0)->syncs + 1;
    until_next_life(sim, 0);
    gk_story_expect(sim, sim->stats.syncs_failed == 1, "the first sync of the next life fails");
    gk_story_until_session(sim, 0, 0);
    disk_of(sim, 0)->fail_at = 0;
    sim->options.store.loss = GK_SIM_LOSS_ALL;
    power_off(sim, 0);
    gk_story_end(sim);
}

void gk_story_interval(struct gk_sim_options *options)
{
    gk_story_with_disks(options);
    options->store.sync = GK_SYNC_INTERVAL;
    options->store.loss = GK_SIM_LOSS_ALL;
    options->steps = 12;
}

/* What a restart serves, the power may not take: it is made safe before anybody sees it. */
void gk_story_page_cache(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 3);
    gk_story_expect(sim, gk_story_delay(sim, 0, GK_SIM_SYNC, 10 * GK_SIM_SECOND),
                    "version 3 is not synced");
    gk_sim_shard_kill(sim, 0, 1000);
    gk_story_until_session(sim, 0, 0);
    power_off(sim, 0);
    gk_story_expect(sim, sim->ledger.shadows[0].version >= 3, "version 3 is still there");
    gk_story_end(sim);
}

void gk_story_torn_tail(struct gk_sim *sim)
{
    for (uint64_t t = 1; t < sim->options.steps; t++) {
        gk_story_until_version(sim, 0, t);
        gk_sim_storage_die(sim, 0, 1, true);
        until_next_life(sim, 0);
    }
    gk_story_end(sim);
}

/* As far as the rings of the workers reach, and no farther. */
void gk_story_tail_again(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 3);
    gk_story_expect(sim, gk_story_delay(sim, 0, GK_SIM_SYNC, 60 * GK_SIM_SECOND),
                    "version 3 is not synced");
    gk_story_pass_us(sim, 3 * GK_SIM_SECOND);
    gk_story_expect(sim, sim->ledger.shadows[0].version == 2 + GK_RING_ENTRIES,
                    "workers go on until their rings are full");
    power_off(sim, 0);
    gk_story_expect(sim, sim->ledger.shadows[0].version == 2, "the shard goes back to version 2");
    gk_story_end(sim);
}

void gk_story_never(struct gk_sim_options *options)
{
    gk_story_interval(options);
    options->store.sync = GK_SYNC_NEVER;
}

/* Nobody can bring the versions again, and everybody says so. */
void gk_story_lost_tail(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 6);
    gk_story_until_version(sim, 1, 6);
    sim->expected_exit = GK_EXIT_PEER;
    power_off(sim, 0);
    gk_story_expect(sim, sim->ledger.shadows[0].version == 0, "the shard goes back to version 0");
    for (uint32_t p = 0; p < sim->options.workers; p++) {
        const char *words = sim->last_words[gk_sim_proc_node(p)];

        gk_story_until_ended(sim, p);
        gk_story_expect(sim, strstr(words, "ROLLBACK: shard 0") != NULL, "all workers name it");
    }
}

/* A log that nobody syncs is still safe from a kill. */
void gk_story_never_killed(struct gk_sim *sim)
{
    for (uint64_t t = 1; t < sim->options.steps; t++) {
        gk_story_until_version(sim, t % 2, t);
        gk_sim_shard_kill(sim, t % 2, 1000);
    }
    gk_story_end(sim);
}

/* As leave-not-logged, but what was not synced is lost. */
void gk_story_leave_synced(struct gk_sim *sim)
{
    struct gk_story_rule leave = {.kind = GK_KIND_LEAVE,
                                  .to_shard = true,
                                  .proc = 1,
                                  .shard = GK_STORY_ANY,
                                  .step = GK_STORY_ANY,
                                  .chunk = GK_STORY_ANY,
                                  .fate = GK_SIM_KEEP};

    (void)gk_story_rule(sim, &leave);
    gk_story_until_ended(sim, 0);
    power_off(sim, 0);
    power_off(sim, 1);
    gk_story_pass_us(sim, 10 * 1000);
    gk_story_end(sim);
}

void gk_story_long_with_disks(struct gk_sim_options *options)
{
    gk_story_with_disks(options);
    options->servers = 1; /* whose folds are counted */
    options->steps = 60;
    options->store.fold_every = 5;
}

/* The power fails in each call of a fold, one after the other. */
void gk_story_fold_dies(struct gk_sim *sim)
{
    for (uint32_t i = 1; sim->stats.folds == 0 && i < 60 && !gk_sim_failed(sim); i++) {
        while (!sim->shards[0].folding && gk_story_turn(sim)) {
        }
        (void)gk_story_delay(sim, 0, GK_SIM_WRITE, 2000); /* the fold goes first */
        gk_sim_storage_die(sim, 0, i, i % 2 == 0);
        while (sim->shards[0].folding && gk_story_turn(sim)) {
        }
    }
    gk_story_expect(sim, sim->stats.restarts > 20, "each call has had it");
    gk_story_end(sim);
}

void gk_story_twelve_steps(struct gk_sim_options *options)
{
    gk_story_with_disks(options);
    options->steps = 12;
}

/* It had exited for good, and is started again. */
static void start_again(struct gk_sim *sim, uint32_t proc)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_proc_node(proc)];
    struct gk_sim_event start = {.kind = GK_SIM_START,
                                 .node = gk_sim_proc_node(proc),
                                 .at_us = sim->now_us,
                                 .life = node->life};

    node->state = GK_SIM_ABSENT;
    gk_sim_queue_push(&sim->queue, &start);
}

/* The operator takes the job back to version 3 while a paused worker still has its push of step 5:
 * nobody takes that, and the next lives of all workers give up what they hold of the old epoch. */
void gk_story_half_rewind(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 5);
    gk_story_until_version(sim, 1, 5);
    gk_story_until_phase(sim, 1, GK_PHASE_EXCHANGING, 5);
    gk_sim_pause(sim, gk_sim_proc_node(1), GK_SIM_SECOND);
    gk_sim_proc_kill(sim, 0, false, GK_SIM_SECOND);
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        gk_sim_shard_power_off(sim, s, 1000);
        gk_sim_storage_rewind(sim, s, 3);
    }
    for (uint32_t r = 0; r < sim->options.workers; r++) {
        sim->losses[r]++;
        sim->losses_count++;
    }
    sim->expected_exit = GK_EXIT_REFUSED;
    gk_story_until_ended(sim, 1);
    gk_story_expect(sim, strstr(sim->last_words[gk_sim_proc_node(1)], "epoch 1") != NULL,
                    "the old life says why it ends");
    gk_story_expect(sim, sim->ledger.shadows[0].version == 3, "its push is not counted");
    sim->expected_exit = GK_EXIT_OK;
    start_again(sim, 1);
    gk_story_end(sim);
}
