/* The shell of a server core: its timer, its arithmetic, its log.
 *
 * Work is done when it ends, not when it begins: whatever the core lends must stay as it is until
 * then.  A kill takes all that is not durable; of a record that is being written a coin decides
 * whether it had reached the disk.  Half of the runs have disks (storage.c); in the others what is
 * durable stays in the core, which is as good for everything else, and cheaper. */
#include "common/assert.h"
#include "common/exit.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct gk_server *core_of(const struct gk_sim *sim, uint32_t shard)
{
    return sim->shards[shard].core;
}

void gk_sim_shard_memory_free(struct gk_server_memory *memory)
{
    for (uint32_t i = 0; i < 3; i++) {
        free(memory->planes[i]);
    }
    free(memory->sum_idx);
    free(memory->sum_val);
    free(memory->tables);
    memset(memory, 0, sizeof(*memory));
}

void gk_sim_shard_memory(const struct gk_server_setup *setup, struct gk_server_memory *memory)
{
    for (uint32_t i = 0; i < setup->planes_count; i++) {
        memory->planes[i] = calloc(1, setup->plane_bytes);
        GK_ASSERT(memory->planes[i]);
    }
    memory->sum_idx = calloc(1, setup->sum_bytes);
    memory->sum_val = calloc(1, setup->sum_bytes);
    memory->tables = calloc(1, setup->tables_bytes);
    GK_ASSERT(memory->sum_idx && memory->sum_val && memory->tables);
}

void gk_sim_shard_new(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];
    enum gk_err err;

    s->config = (struct gk_server_config){
        .job = GK_SIM_JOB,
        .shard = shard,
        .servers = sim->options.servers,
        .workers = sim->options.workers,
        .chunk_floats = sim->options.server_chunk,
        .deadline_us = sim->options.deadline_us,
        .seed = gk_sim_next(&sim->rng),
        .plant = sim->options.plants.server,
    };
    err = gk_server_new(&s->config, &s->core);
    GK_ASSERT(!err);
    if (sim->options.store.disks) {
        gk_sim_storage_new(sim, shard);
    }
}

void gk_sim_shard_core(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];
    enum gk_err err;

    gk_server_free(s->core);
    s->config.seed = gk_sim_next(&sim->rng);
    err = gk_server_new(&s->config, &s->core);
    GK_ASSERT(!err);
}

void gk_sim_shard_free(struct gk_sim *sim, uint32_t shard)
{
    gk_sim_storage_free(sim, shard);
    gk_server_free(core_of(sim, shard));
    sim->shards[shard].core = NULL;
    gk_sim_shard_memory_free(&sim->shards[shard].memory);
}

/* Work that the core did not ask for. */
void gk_sim_shard_put(struct gk_sim *sim, uint32_t shard, enum gk_sim_work work)
{
    struct gk_sim_event event = {
        .kind = GK_SIM_WORK,
        .at_us = sim->now_us + gk_sim_work_us(sim, sim->options.op_us_max),
        .node = gk_sim_shard_node(shard),
        .life = sim->nodes[gk_sim_shard_node(shard)].life,
        .work = work,
    };

    gk_sim_queue_push(&sim->queue, &event);
}

static void put_work(struct gk_sim *sim, uint32_t shard, enum gk_sim_work work,
                     const struct gk_server_action *action)
{
    struct gk_sim_event event = {
        .kind = GK_SIM_WORK,
        .at_us = sim->now_us + gk_sim_work_us(sim, sim->options.op_us_max),
        .node = gk_sim_shard_node(shard),
        .life = sim->nodes[gk_sim_shard_node(shard)].life,
        .number = action->op,
        .work = work,
    };

    switch (work) {
    case GK_SIM_SETUP:
        event.setup = action->u.setup;
        break;
    case GK_SIM_SUM:
        event.args = action->u.sum;
        break;
    case GK_SIM_WRITE:
        event.args = action->u.record;
        event.digest = gk_sim_ledger_digest(action->u.record);
        break;
    case GK_SIM_APPLY:
        event.args = action->u.apply;
        break;
    case GK_SIM_HASH:
        event.args = action->u.hash;
        break;
    case GK_SIM_MAKE_INIT:
    case GK_SIM_STEP:
    case GK_SIM_PERSIST:
    case GK_SIM_EVALUATE:
    case GK_SIM_FLIP:
    case GK_SIM_SYNC:
    case GK_SIM_FOLD:
        GK_ASSERT(false && "no core asks for it");
    }
    gk_sim_queue_push(&sim->queue, &event);
}

/* P5: what is served is the version that the header names. */
static void check_params(struct gk_sim *sim, uint32_t shard, const struct gk_server_action *action)
{
    const struct gk_header *h = &action->msg.h;
    const struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    const float *known = sim->ledger.params + h->version * sim->options.params_count + h->lo;

    if (h->plane == 1) {
        known = shadow->moments + h->lo;
    }
    if (h->samples != (h->plane == 1 ? shadow->samples : 0)) {
        gk_sim_fail(sim, "P5", "shard %u says %" PRIu64 " samples for plane %u of version %" PRIu64,
                    shard, h->samples, h->plane, h->version);
    }
    if (h->version > shadow->version || (h->plane == 1 && h->version != shadow->version) ||
        memcmp(known, action->u.params.values, action->u.params.count * sizeof(float)) != 0) {
        gk_sim_fail(sim, "P5", "shard %u serves wrong values as version %" PRIu64, shard,
                    h->version);
    }
}

static void send_frame(struct gk_sim *sim, uint32_t shard, struct gk_server_action *action,
                       const void *data, size_t bytes)
{
    action->msg.frame[0] = gk_buf_copy(data, bytes);
    GK_ASSERT(action->msg.frame[0]);
    action->msg.frames_count = 1;
    gk_sim_check_reply(sim, shard, &action->msg);
    gk_sim_tell_route(sim, shard, action->route, &action->msg);
    gk_msg_clear(&action->msg);
}

static void ended(struct gk_sim *sim, uint32_t shard, const struct gk_server_action *action)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_shard_node(shard)];
    bool disk_failed = sim->ledger.histories[shard].failed && action->u.exit.code == GK_EXIT_RETRY;
    uint64_t down_us = disk_failed ? sim->options.faults.down_us_max : node->down_us;

    gk_sim_say(sim, gk_sim_shard_node(shard), "exits with %d: %s", action->u.exit.code,
               action->words.text);
    if (!node->stopping && !disk_failed &&
        (sim->expected_exit == GK_EXIT_OK || action->u.exit.code != sim->expected_exit) &&
        (action->u.exit.code != GK_EXIT_OK || !sim->ledger.shadows[shard].finished)) {
        gk_sim_fail(sim, "exit", "shard %u exits with %d: %s", shard, action->u.exit.code,
                    action->words.text);
    }
    if (node->stopping || disk_failed) {
        gk_sim_shard_kill(sim, shard, gk_sim_below(&sim->rng, down_us + 1));
    } else {
        gk_sim_shard_kill(sim, shard, GK_SIM_NEVER);
    }
}

static void perform(struct gk_sim *sim, uint32_t shard, struct gk_server_action *action)
{
    switch (action->kind) {
    case GK_SERVER_SEND:
        gk_sim_check_reply(sim, shard, &action->msg);
        gk_sim_tell_route(sim, shard, action->route, &action->msg);
        break;
    case GK_SERVER_PARAMS:
        check_params(sim, shard, action);
        send_frame(sim, shard, action, action->u.params.values,
                   action->u.params.count * sizeof(float));
        break;
    case GK_SERVER_STATUS:
        send_frame(sim, shard, action, "{}", 2);
        break;
    case GK_SERVER_SETUP:
        gk_sim_shard_memory_free(&sim->shards[shard].memory);
        put_work(sim, shard, GK_SIM_SETUP, action);
        break;
    case GK_SERVER_SUM:
        put_work(sim, shard, GK_SIM_SUM, action);
        break;
    case GK_SERVER_WRITE:
        put_work(sim, shard, GK_SIM_WRITE, action);
        break;
    case GK_SERVER_APPLY:
        put_work(sim, shard, GK_SIM_APPLY, action);
        break;
    case GK_SERVER_HASH:
        put_work(sim, shard, GK_SIM_HASH, action);
        break;
    case GK_SERVER_FRAME:
    case GK_SERVER_PIN:
    case GK_SERVER_UNPIN:
        GK_ASSERT(false && "an answer to a request that no worker makes");
        break;
    case GK_SERVER_ARM_TIMER:
        gk_sim_arm(sim, gk_sim_shard_node(shard), action->u.at_us);
        break;
    case GK_SERVER_TRACE:
        gk_sim_say(sim, gk_sim_shard_node(shard), "%s %s", action->u.trace.id, action->words.text);
        gk_sim_check_wait_line(sim, gk_sim_shard_node(shard), action->u.trace.id,
                               action->words.text);
        break;
    case GK_SERVER_EXIT:
        ended(sim, shard, action);
        break;
    case GK_SERVER_ACTION_KINDS_COUNT:
        GK_ASSERT(false && "no action");
        break;
    }
}

void gk_sim_shard_step(struct gk_sim *sim, uint32_t shard, struct gk_server_event *event)
{
    uint32_t node = gk_sim_shard_node(shard);
    struct gk_server_actions *actions = sim->server_actions;

    event->now_us = gk_sim_clock(sim, node);
    gk_server_step(core_of(sim, shard), event, actions);
    gk_server_check(core_of(sim, shard));
    for (uint32_t i = 0; i < actions->count; i++) {
        perform(sim, shard, &actions->list[i]);
    }
    actions->count = 0;
    gk_sim_faults_after(sim, node);
}

static enum gk_err compute(struct gk_sim *sim, const struct gk_sim_event *event)
{
    struct gk_ticket ticket = {0};

    if (event->work == GK_SIM_SUM) {
        ticket = sim->ops->sum(sim->vectors, event->args);
    } else if (event->work == GK_SIM_APPLY) {
        ticket = sim->ops->apply(sim->vectors, event->args);
    } else {
        ticket = sim->ops->hash(sim->vectors, event->args);
    }
    return sim->ops->wait(sim->vectors, ticket);
}

static void written(struct gk_sim *sim, uint32_t shard, const struct gk_sim_event *event)
{
    const struct gk_record *record = event->args;

    if (gk_sim_ledger_digest(record) != event->digest) {
        gk_sim_fail(sim, "P4", "shard %u: a record changed while it was written", shard);
    }
    gk_sim_say(sim, gk_sim_shard_node(shard),
               "record %" PRIu32 " of version %" PRIu64 " is durable", record->type,
               record->version);
    gk_sim_ledger_commit(sim, shard, record);
}

/* Work that a former life had asked for: its number is not awaited any more. */
void gk_sim_shard_stale(struct gk_sim *sim, const struct gk_sim_event *event)
{
    static const enum gk_server_event_kind kinds[] = {
        [GK_SIM_SETUP] = GK_SERVER_SETUP_DONE, [GK_SIM_SUM] = GK_SERVER_SUM_DONE,
        [GK_SIM_WRITE] = GK_SERVER_WRITE_DONE, [GK_SIM_APPLY] = GK_SERVER_APPLY_DONE,
        [GK_SIM_HASH] = GK_SERVER_HASH_DONE,
    };
    struct gk_server_event done = {.kind = kinds[event->work], .op = event->number};

    gk_sim_shard_step(sim, event->node, &done);
}

/* False: the process has ended in it, or there is nothing to tell the core. */
static bool write_or_sync(struct gk_sim *sim, const struct gk_sim_event *event,
                          struct gk_server_event *done)
{
    uint32_t shard = event->node;

    if (event->work == GK_SIM_SYNC) {
        done->kind = GK_SERVER_SYNCED;
        return gk_sim_storage_sync(sim, shard, done);
    }
    done->kind = GK_SERVER_WRITE_DONE;
    if (sim->shards[shard].disk) {
        return gk_sim_storage_write(sim, event, done);
    }
    written(sim, shard, event);
    return true;
}

void gk_sim_shard_work(struct gk_sim *sim, const struct gk_sim_event *event)
{
    uint32_t shard = event->node;
    struct gk_server_event done = {.op = event->number};

    switch (event->work) {
    case GK_SIM_SETUP:
        done.kind = GK_SERVER_SETUP_DONE;
        gk_sim_shard_memory(&event->setup, &sim->shards[shard].memory);
        done.memory = sim->shards[shard].memory;
        break;
    case GK_SIM_SUM:
        done.kind = GK_SERVER_SUM_DONE;
        done.err = compute(sim, event);
        break;
    case GK_SIM_WRITE:
    case GK_SIM_SYNC:
        if (!write_or_sync(sim, event, &done)) {
            return;
        }
        break;
    case GK_SIM_FOLD:
        if (gk_sim_storage_fold(sim, shard)) {
            gk_sim_storage_look(sim, shard);
        }
        return;
    case GK_SIM_APPLY:
        done.kind = GK_SERVER_APPLY_DONE;
        done.err = compute(sim, event);
        gk_sim_ledger_applied(sim, shard);
        break;
    case GK_SIM_HASH:
        done.kind = GK_SERVER_HASH_DONE;
        done.err = compute(sim, event);
        break;
    case GK_SIM_MAKE_INIT:
    case GK_SIM_STEP:
    case GK_SIM_PERSIST:
    case GK_SIM_EVALUATE:
    case GK_SIM_FLIP:
        GK_ASSERT(false && "a worker's work");
    }
    gk_sim_shard_step(sim, shard, &done);
    if (done.kind == GK_SERVER_WRITE_DONE || done.kind == GK_SERVER_SYNCED) {
        gk_sim_storage_look(sim, shard);
    }
}

static const struct gk_sim_event *find_write(const struct gk_sim *sim, uint32_t shard)
{
    for (uint32_t i = 0; i < sim->queue.count; i++) {
        const struct gk_sim_event *event = &sim->queue.events[i];

        if (event->kind == GK_SIM_WORK && event->work == GK_SIM_WRITE && event->node == shard &&
            event->life == sim->nodes[shard].life) {
            return event;
        }
    }
    return NULL;
}

/* The record had reached the disk, but the process died before it knew: what the core does with the
 * news dies with it. */
static void finish_write(struct gk_sim *sim, uint32_t shard, const struct gk_sim_event *event)
{
    struct gk_server_actions *actions = sim->server_dying;
    struct gk_server_event done = {.kind = GK_SERVER_WRITE_DONE,
                                   .op = event->number,
                                   .now_us = gk_sim_clock(sim, event->node)};

    written(sim, shard, event);
    gk_server_step(core_of(sim, shard), &done, actions);
    actions->count = 0;
}

static void end_of_life(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_event *writing = find_write(sim, shard);
    struct gk_server_view view;

    gk_server_view(core_of(sim, shard), &view);
    if (view.state == GK_SHARD_EXITED) {
        writing = NULL;
    }
    if (sim->shards[shard].disk) {
        gk_sim_storage_close(sim, shard, writing);
    } else if (writing && gk_sim_chance(&sim->rng, 1, 2)) {
        finish_write(sim, shard, writing);
    }
}

/* GK_SIM_NEVER: for good. */
void gk_sim_shard_kill(struct gk_sim *sim, uint32_t shard, uint64_t down_us)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_shard_node(shard)];
    struct gk_sim_event start = {.kind = GK_SIM_START, .node = gk_sim_shard_node(shard)};

    if (node->state != GK_SIM_ALIVE) {
        return;
    }
    gk_sim_say(sim, start.node, "ends");
    end_of_life(sim, shard);
    node->state = down_us == GK_SIM_NEVER ? GK_SIM_ENDED : GK_SIM_ABSENT;
    node->life++;
    node->stopping = false;
    node->timer++;
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        gk_sim_disconnect(sim, p, shard);
    }
    if (down_us != GK_SIM_NEVER) {
        start.at_us = sim->now_us + down_us;
        start.life = node->life;
        gk_sim_queue_push(&sim->queue, &start);
    }
}

/* Takes also what was written and not synced. */
void gk_sim_shard_power_off(struct gk_sim *sim, uint32_t shard, uint64_t down_us)
{
    if (sim->nodes[gk_sim_shard_node(shard)].state == GK_SIM_ALIVE) {
        sim->shards[shard].power_off = true;
        gk_sim_shard_kill(sim, shard, down_us);
    }
}

void gk_sim_shard_start(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_shard_node(shard)];
    struct gk_server_event start = {.kind = GK_SERVER_START};

    if (sim->shards[shard].wiped) {
        sim->shards[shard].wiped = false;
        gk_sim_shard_free(sim, shard);
        gk_sim_shard_new(sim, shard);
        gk_sim_ledger_forget(sim, shard);
    } else if (node->life > 0 && !sim->shards[shard].disk) {
        gk_server_restart(core_of(sim, shard));
    }
    sim->stats.restarts += node->life > 0;
    if (sim->shards[shard].disk && !gk_sim_storage_open(sim, shard)) {
        return;
    }
    node->state = GK_SIM_ALIVE;
    node->paused_us = 0;
    node->progress_us = sim->now_us;
    gk_sim_say(sim, gk_sim_shard_node(shard), "begins life %" PRIu64, node->life + 1);
    gk_sim_shard_step(sim, shard, &start);
}
