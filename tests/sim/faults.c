/* Time and trouble: timers, clocks, how long work takes, and what happens to processes.
 *
 * A process meets its faults after its own steps, with a chance a step: so they come where
 * something has just happened, and a cluster that waits is left alone. */
#include "common/assert.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>

enum { PER_STEP = 100 * 1000 };

/* GK_SIM_NEVER: none.  By the node's own clock. */
void gk_sim_arm(struct gk_sim *sim, uint32_t index, uint64_t at_us)
{
    struct gk_sim_node *node = &sim->nodes[index];
    struct gk_sim_event event = {.kind = GK_SIM_TICK, .node = index, .life = node->life};

    node->timer_at_us = at_us;
    event.number = ++node->timer;
    if (at_us == GK_SIM_NEVER) {
        return;
    }
    event.at_us = gk_max_u64(sim->now_us, at_us - gk_min_u64(at_us, node->clock_us));
    gk_sim_queue_push(&sim->queue, &event);
}

uint64_t gk_sim_work_us(struct gk_sim *sim, uint64_t work_us_max)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    uint64_t work_us = gk_sim_below(&sim->rng, work_us_max + 1);

    if (!sim->calm && gk_sim_chance(&sim->rng, f->slow, 1000)) {
        work_us += gk_sim_below(&sim->rng, f->slow_us_max + 1);
    }
    return work_us;
}

void gk_sim_pause(struct gk_sim *sim, uint32_t index, uint64_t pause_us)
{
    gk_sim_say(sim, index, "is paused for %.3f s", (double)pause_us / 1e6);
    /* Never earlier than it was to wake up: what came meanwhile waits until then. */
    sim->nodes[index].paused_us = gk_max_u64(sim->nodes[index].paused_us, sim->now_us + pause_us);
    sim->stats.pauses++;
}

/* Not quite together: one wakes up earlier than another.  Nobody starts a process meanwhile. */
void gk_sim_freeze(struct gk_sim *sim, uint64_t length_us)
{
    for (uint32_t n = 0; n < GK_SIM_NODES_MAX; n++) {
        if (sim->nodes[n].state == GK_SIM_ALIVE) {
            gk_sim_pause(sim, n, length_us + gk_sim_below(&sim->rng, GK_SIM_SECOND / 2));
        }
    }
    sim->frozen_us = sim->now_us + length_us;
    sim->stats.freezes++;
}

static void jump(struct gk_sim *sim, uint32_t index)
{
    struct gk_sim_node *node = &sim->nodes[index];
    uint64_t jump_us = gk_sim_below(&sim->rng, sim->options.faults.jump_us_max + 1);

    gk_sim_say(sim, index, "its clock jumps by %.3f s", (double)jump_us / 1e6);
    node->clock_us += jump_us;
    gk_sim_arm(sim, index, node->timer_at_us);
    sim->stats.jumps++;
}

void gk_sim_partition(struct gk_sim *sim, uint32_t proc, uint32_t shard, uint64_t length_us)
{
    struct gk_sim_pair *pair = &sim->pairs[proc][shard];

    pair->block = (uint32_t)gk_sim_below(&sim->rng, GK_SIM_BLOCKS);
    pair->blocked_us = sim->now_us + length_us;
    sim->stats.partitions++;
    gk_sim_say(sim, gk_sim_shard_node(shard), "is cut off from worker %u for %.3f s (%s)", proc,
               (double)length_us / 1e6,
               pair->block == GK_SIM_BLOCK_LOSE   ? "messages are lost"
               : pair->block == GK_SIM_BLOCK_HOLD ? "messages are late"
                                                  : "no connection");
    if (pair->block == GK_SIM_BLOCK_CUT) {
        gk_sim_disconnect(sim, proc, shard);
    }
}

/* One pair, or all of one worker's or one shard's. */
static void partition(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    uint64_t length_us = gk_sim_below(&sim->rng, sim->options.faults.partition_us_max + 1);
    uint64_t how = gk_sim_below(&sim->rng, 3);

    for (uint32_t p = 0; p < sim->procs_count; p++) {
        for (uint32_t s = 0; s < sim->options.servers; s++) {
            if ((p == proc || how == 1) && (s == shard || how == 2)) {
                gk_sim_partition(sim, p, s, length_us);
            }
        }
    }
}

static void stop(struct gk_sim *sim, uint32_t index)
{
    struct gk_sim_event event = {
        .kind = GK_SIM_STOP, .at_us = sim->now_us, .node = index, .life = sim->nodes[index].life};

    gk_sim_queue_push(&sim->queue, &event);
}

/* The old process stands still, and somebody believes it dead and starts another one. */
static void twin(struct gk_sim *sim, uint32_t index)
{
    uint32_t rank = sim->procs[index].rank, second;
    struct gk_sim_event start = {.kind = GK_SIM_START};

    if (sim->procs_count == GK_SIM_PROCS_MAX) {
        return;
    }
    second = gk_sim_proc_new(sim, rank);
    sim->procs[second].config.takeover = gk_sim_chance(&sim->rng, 1, 2);
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        sim->procs[p].twin = sim->procs[p].twin || sim->procs[p].rank == rank;
    }
    sim->losses[rank]++;
    sim->losses_count++;
    sim->stats.twins++;
    gk_sim_pause(sim, gk_sim_proc_node(index), gk_sim_below(&sim->rng, 20 * GK_SIM_SECOND));
    start.at_us = sim->now_us + gk_sim_below(&sim->rng, GK_SIM_SECOND);
    start.node = gk_sim_proc_node(second);
    gk_sim_queue_push(&sim->queue, &start);
}

static bool strikes_of(struct gk_sim *sim, uint32_t chance, uint32_t of)
{
    if (!gk_sim_chance(&sim->rng, chance, of) || sim->fault_budget == 0) {
        return false;
    }
    sim->fault_budget--;
    return true;
}

static bool strikes(struct gk_sim *sim, uint32_t chance)
{
    return strikes_of(sim, chance, PER_STEP);
}

/* What happens to the disk of a shard while that goes on. */
static void after_disk(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    struct gk_sim_shard *s = &sim->shards[shard];
    bool may_lose = f->power_shard > 0 || sim->options.store.sync == GK_SYNC_ALWAYS;

    if (strikes(sim, f->die)) {
        sim->stats.crashes++;
        gk_sim_storage_die(sim, shard, gk_sim_between(&sim->rng, 1, 30),
                           may_lose && gk_sim_chance(&sim->rng, 1, 2));
        s->disk->die_again = /* while it recovers */
            gk_sim_chance(&sim->rng, 1, 3) ? gk_sim_between(&sim->rng, 1, 12) : 0;
    }
    if (strikes(sim, f->fail_sync)) {
        s->disk->fail_at = s->disk->syncs + gk_sim_between(&sim->rng, 1, 4);
    }
    if (strikes(sim, f->fail_sync / 2)) {
        s->disk->fail_write_at = s->disk->writes + gk_sim_between(&sim->rng, 1, 4);
    }
    if (strikes(sim, f->fill)) {
        gk_sim_say(sim, gk_sim_shard_node(shard), "has a full disk");
        s->full_until_us = sim->now_us + gk_sim_below(&sim->rng, f->full_us_max + 1);
    }
}

static void after_shard(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    bool disk = sim->shards[shard].disk != NULL;

    if (gk_sim_chance(&sim->rng, f->replay, 1000)) {
        gk_sim_replay(sim, shard);
    }
    if (gk_sim_chance(&sim->rng, f->stranger, 1000)) {
        gk_sim_stranger(sim, shard);
    }
    if (disk) {
        after_disk(sim, shard);
    }
    if (strikes(sim, f->kill_shard)) {
        sim->stats.kills++;
        gk_sim_shard_kill(sim, shard, gk_sim_below(&sim->rng, f->down_us_max + 1));
    } else if (disk && strikes(sim, f->power_shard)) {
        gk_sim_shard_power_off(sim, shard, gk_sim_below(&sim->rng, f->down_us_max + 1));
    } else if (strikes(sim, f->stop_shard)) {
        stop(sim, gk_sim_shard_node(shard));
    }
}

/* A memory that is lost while its push is under way is the worst: part of that may arrive. */
static uint32_t lose_chance(const struct gk_sim *sim, uint32_t proc)
{
    bool pushing = sim->procs[proc].phase == GK_PHASE_EXCHANGING &&
                   sim->procs[proc].slot_step > 0 &&
                   sim->nodes[gk_sim_proc_node(proc)].progress_us == sim->now_us;

    return sim->options.faults.lose_worker * (pushing ? 4 : 1);
}

/* A worker that leaves has nothing more to lose, and its servers may be gone before it is back. */
static void after_proc(struct gk_sim *sim, uint32_t proc)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    uint32_t shard = (uint32_t)gk_sim_below(&sim->rng, sim->options.servers);

    if (strikes(sim, f->disconnect)) {
        gk_sim_say(sim, gk_sim_proc_node(proc), "loses its connection to shard %u", shard);
        gk_sim_disconnect(sim, proc, shard);
        sim->stats.disconnects++;
    }
    if (strikes(sim, f->partition)) {
        partition(sim, proc, shard);
    }
    if (sim->procs[proc].phase == GK_PHASE_LEAVING) {
        return;
    }
    if (strikes(sim, f->kill_worker)) {
        sim->stats.kills++;
        gk_sim_proc_kill(sim, proc, false, gk_sim_below(&sim->rng, f->down_us_max + 1));
    } else if (strikes(sim, f->stop_worker)) {
        stop(sim, gk_sim_proc_node(proc));
    } else if (strikes(sim, lose_chance(sim, proc))) {
        gk_sim_proc_kill(sim, proc, true, gk_sim_below(&sim->rng, f->down_us_max + 1));
    } else if (strikes(sim, f->power_worker)) {
        gk_sim_proc_power_off(sim, proc, gk_sim_below(&sim->rng, f->down_us_max + 1));
    } else if (strikes(sim, f->twin)) {
        twin(sim, proc);
    }
}

void gk_sim_faults_after(struct gk_sim *sim, uint32_t index)
{
    const struct gk_sim_faults *f = &sim->options.faults;

    if (sim->calm || sim->nodes[index].state != GK_SIM_ALIVE) {
        return;
    }
    if (strikes(sim, f->pause)) {
        gk_sim_pause(sim, index, gk_sim_below(&sim->rng, f->pause_us_max + 1));
    }
    if (strikes(sim, f->jump)) {
        jump(sim, index);
    }
    if (strikes(sim, f->freeze)) {
        gk_sim_freeze(sim, gk_sim_below(&sim->rng, f->freeze_us_max + 1));
    }
    if (gk_sim_node_is_shard(index)) {
        after_shard(sim, index);
    } else {
        after_proc(sim, index - GK_SIM_SHARDS_MAX);
    }
}

/* A chunk has arrived, and of those behind it some never will: the next life of the rank makes
 * another push of the same step, and the two must not become one. */
void gk_sim_faults_chunk(struct gk_sim *sim, const struct gk_sim_packet *packet, uint32_t chunks)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    const struct gk_sim_node *node = &sim->nodes[gk_sim_proc_node(packet->proc)];

    if (sim->calm || packet->late || packet->chunk + 1 >= chunks || node->life != packet->life ||
        node->state != GK_SIM_ALIVE || sim->procs[packet->proc].phase == GK_PHASE_LEAVING ||
        !strikes_of(sim, f->halve, 1000)) {
        return;
    }
    gk_sim_proc_kill(sim, packet->proc, true, gk_sim_below(&sim->rng, f->down_us_max + 1));
}

void gk_sim_faults_end(struct gk_sim *sim)
{
    sim->calm = true;
    sim->calm_us = sim->now_us;
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        if (sim->shards[s].disk) {
            sim->shards[s].disk->die_at = sim->shards[s].disk->die_again = 0;
            sim->shards[s].disk->fail_at = sim->shards[s].disk->fail_write_at = 0;
            sim->shards[s].power_off = false;
        }
    }
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        for (uint32_t s = 0; s < sim->options.servers; s++) {
            sim->pairs[p][s].blocked_us = 0;
        }
    }
    if (sim->trace) {
        printf("%12.6f the faults end\n", (double)sim->now_us / 1e6);
    }
}
