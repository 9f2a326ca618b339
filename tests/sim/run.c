/* One run: start, faults, calm, end. */
#include "common/assert.h"
#include "common/exit.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MAX = 4 * 1000 * 1000, FAULTS_MAX = 150, ROLLBACK_S = 20 };

static void put(struct gk_sim *sim, enum gk_sim_event_kind kind, uint32_t node, uint64_t at_us)
{
    struct gk_sim_event event = {
        .kind = kind, .node = node, .at_us = at_us, .life = sim->nodes[node].life};

    gk_sim_queue_push(&sim->queue, &event);
}

struct gk_sim *gk_sim_new(void)
{
    struct gk_sim *sim = calloc(1, sizeof(*sim));

    GK_ASSERT(sim);
    sim->server_actions = calloc(1, sizeof(*sim->server_actions));
    sim->server_dying = calloc(1, sizeof(*sim->server_dying));
    GK_ASSERT(sim->server_actions && sim->server_dying);
    return sim;
}

void gk_sim_free(struct gk_sim *sim)
{
    free(sim->server_actions);
    free(sim->server_dying);
    free(sim);
}

bool gk_sim_init(struct gk_sim *sim, const struct gk_sim_options *options)
{
    struct gk_server_actions *lists[] = {sim->server_actions, sim->server_dying};
    uint64_t within_us = options->start_us_max + 1;
    struct gk_words words;
    enum gk_err err;

    memset(sim, 0, sizeof(*sim));
    sim->server_actions = lists[0];
    sim->server_dying = lists[1];
    sim->options = *options;
    sim->rng.state = gk_mix64(options->seed ^ UINT64_C(0x72756e));
    sim->fault_budget = FAULTS_MAX;
    sim->ops = gk_vector_reference();
    err = sim->ops->open(&sim->vectors, &words);
    GK_ASSERT(!err);
    err = gk_worker_actions_new(options->servers, &sim->worker_actions);
    GK_ASSERT(!err);
    err = gk_worker_actions_new(options->servers, &sim->worker_dying);
    GK_ASSERT(!err);
    if (!gk_sim_job_init(sim)) {
        return false;
    }
    gk_sim_ledger_init(sim);
    gk_sim_oracle_init(sim, gk_sim_ledger_new_init(sim));
    for (uint32_t s = 0; s < options->servers; s++) {
        gk_sim_shard_new(sim, s);
        put(sim, GK_SIM_START, gk_sim_shard_node(s), gk_sim_below(&sim->rng, within_us));
    }
    for (uint32_t r = 0; r < options->workers; r++) {
        (void)gk_sim_proc_new(sim, r);
        put(sim, GK_SIM_START, gk_sim_proc_node(r), gk_sim_below(&sim->rng, within_us));
    }
    put(sim, GK_SIM_CALM, 0, options->safety_us);
    put(sim, GK_SIM_WATCH, 0, GK_SIM_SECOND);
    return true;
}

void gk_sim_fini(struct gk_sim *sim)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        gk_sim_proc_free(sim, p);
    }
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        gk_sim_shard_free(sim, s);
    }
    for (uint32_t i = 0; i < GK_SIM_HISTORY; i++) {
        gk_sim_packet_free(sim->history[i]);
    }
    while (sim->kept_count > 0) {
        gk_sim_packet_free(sim->kept[--sim->kept_count]);
    }
    gk_sim_queue_free(&sim->queue);
    gk_sim_ledger_fini(sim);
    gk_sim_oracle_fini(&sim->oracle);
    gk_worker_actions_free(sim->worker_actions);
    gk_worker_actions_free(sim->worker_dying);
    sim->ops->close(sim->vectors);
}

static bool rank_done(const struct gk_sim *sim, uint32_t rank)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        if (sim->procs[p].rank == rank && sim->procs[p].exit_code == GK_EXIT_OK &&
            sim->nodes[gk_sim_proc_node(p)].state == GK_SIM_ENDED) {
            return true;
        }
    }
    return false;
}

bool gk_sim_done(const struct gk_sim *sim)
{
    for (uint32_t r = 0; r < sim->options.workers; r++) {
        if (!rank_done(sim, r)) {
            return false;
        }
    }
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        struct gk_server_view view;

        gk_server_view(sim->shards[s].core, &view);
        if (sim->nodes[gk_sim_shard_node(s)].state != GK_SIM_ENDED &&
            !(sim->ledger.shadows[s].excused &&
              view.version == gk_sim_last_version(&sim->options) &&
              view.round == GK_ROUND_COLLECTING)) {
            return false;
        }
    }
    return true;
}

uint64_t gk_sim_limit_us(const struct gk_sim *sim)
{
    const struct gk_sim_options *o = &sim->options;
    const struct gk_sim_faults *f = &o->faults;
    uint64_t step_us = 0;

    for (uint32_t r = 0; r < o->workers; r++) {
        step_us = gk_max_u64(step_us, 2 * o->step_us[r]);
    }
    step_us += 8 * o->op_us_max + 40 * o->latency_us_max;
    return sim->calm_us + 60 * GK_SIM_SECOND + f->down_us_max + f->pause_us_max +
           (f->freeze ? f->freeze_us_max : 0) + f->delay_us_max + f->slow_us_max + o->start_us_max +
           (f->twin ? 20 * GK_SIM_SECOND : 0) + o->steps * step_us +
           (o->early ? GK_DEADLINE_S * GK_SIM_SECOND : 0); /* for a server that has ended unheard */
}

static void tick(struct gk_sim *sim, uint32_t node)
{
    struct gk_server_event server = {.kind = GK_SERVER_TICK};
    struct gk_worker_event worker = {.kind = GK_WORKER_TICK};

    if (gk_sim_node_is_shard(node)) {
        gk_sim_shard_step(sim, node, &server);
    } else {
        gk_sim_proc_step(sim, node - GK_SIM_SHARDS_MAX, &worker);
    }
}

static void stop(struct gk_sim *sim, uint32_t node)
{
    struct gk_server_event server = {
        .kind = GK_SERVER_STOP, .exit_code = GK_EXIT_SIGTERM, .words = "stopped"};
    struct gk_worker_event worker = {
        .kind = GK_WORKER_STOP, .exit_code = GK_EXIT_SIGTERM, .words = "stopped"};

    if (sim->nodes[node].stopping ||
        (!gk_sim_node_is_shard(node) &&
         sim->procs[node - GK_SIM_SHARDS_MAX].phase == GK_PHASE_LEAVING)) {
        return;
    }
    gk_sim_say(sim, node, "gets SIGTERM");
    sim->stats.stops++;
    sim->nodes[node].stopping = true;
    sim->nodes[node].down_us = sim->options.faults.down_us_max;
    if (gk_sim_node_is_shard(node)) {
        gk_sim_shard_step(sim, node, &server);
    } else {
        gk_sim_proc_step(sim, node - GK_SIM_SHARDS_MAX, &worker);
    }
}

static void gone(struct gk_sim *sim, const struct gk_sim_event *event)
{
    struct gk_server_event server = {.kind = GK_SERVER_PEER_GONE, .route = event->number};

    gk_sim_shard_step(sim, event->node, &server);
}

static void down(struct gk_sim *sim, const struct gk_sim_event *event)
{
    uint32_t proc = event->node - GK_SIM_SHARDS_MAX;
    struct gk_worker_event worker = {.kind = GK_WORKER_PEER_DOWN, .shard = event->other};

    gk_sim_retry_connect(sim, proc, event->other);
    gk_sim_proc_step(sim, proc, &worker);
}

static void work(struct gk_sim *sim, const struct gk_sim_event *event)
{
    bool current = event->life == sim->nodes[event->node].life;

    if (!gk_sim_node_is_shard(event->node)) {
        gk_sim_proc_work(sim, event);
    } else if (current) {
        gk_sim_shard_work(sim, event);
    } else if (!sim->shards[event->node].disk) { /* else it was another process */
        gk_sim_shard_stale(sim, event);
    }
}

static void happen(struct gk_sim *sim, struct gk_sim_event *event)
{
    switch (event->kind) {
    case GK_SIM_PACKET:
        gk_sim_deliver(sim, event);
        break;
    case GK_SIM_CONNECT:
        gk_sim_connect(sim, event->node - GK_SIM_SHARDS_MAX, event->other);
        break;
    case GK_SIM_DOWN:
        down(sim, event);
        break;
    case GK_SIM_GONE:
        gone(sim, event);
        break;
    case GK_SIM_TICK:
        tick(sim, event->node);
        break;
    case GK_SIM_WORK:
        work(sim, event);
        break;
    case GK_SIM_START:
        if (gk_sim_node_is_shard(event->node)) {
            gk_sim_shard_start(sim, event->node);
        } else {
            gk_sim_proc_start(sim, event->node - GK_SIM_SHARDS_MAX);
        }
        break;
    case GK_SIM_STOP:
        stop(sim, event->node);
        break;
    case GK_SIM_CALM:
        gk_sim_faults_end(sim);
        break;
    case GK_SIM_WATCH:
        gk_sim_check_waits(sim);
        put(sim, GK_SIM_WATCH, 0, sim->now_us + GK_SIM_SECOND);
        break;
    }
}

/* What was meant for a life that has ended, or a timer that was armed anew. */
static bool is_void(const struct gk_sim *sim, const struct gk_sim_event *event)
{
    const struct gk_sim_node *node = &sim->nodes[event->node];

    switch (event->kind) {
    case GK_SIM_TICK:
        return event->number != node->timer || node->state != GK_SIM_ALIVE;
    case GK_SIM_WORK:
        return node->state != GK_SIM_ALIVE ||
               (event->life != node->life && !gk_sim_node_is_shard(event->node));
    case GK_SIM_CONNECT:
    case GK_SIM_DOWN:
    case GK_SIM_GONE:
    case GK_SIM_STOP:
        return event->life != node->life || node->state != GK_SIM_ALIVE;
    case GK_SIM_START:
        return event->life != node->life || node->state != GK_SIM_ABSENT;
    case GK_SIM_PACKET:
    case GK_SIM_CALM:
    case GK_SIM_WATCH:
        break;
    }
    return false;
}

static bool of_node(const struct gk_sim_event *event)
{
    return event->kind != GK_SIM_CALM && event->kind != GK_SIM_WATCH && event->kind != GK_SIM_START;
}

bool gk_sim_turn(struct gk_sim *sim)
{
    struct gk_sim_event event;
    bool any = sim->chooser ? sim->chooser(sim, &event) : gk_sim_queue_pop(&sim->queue, &event);

    if (!any) {
        return false;
    }
    sim->now_us = gk_max_u64(sim->now_us, event.at_us);
    if (is_void(sim, &event)) {
        return true;
    }
    if (of_node(&event) && sim->nodes[event.node].paused_us > sim->now_us &&
        sim->nodes[event.node].state == GK_SIM_ALIVE) {
        event.at_us = sim->nodes[event.node].paused_us;
        gk_sim_queue_push(&sim->queue, &event);
        return true;
    }
    if (event.kind == GK_SIM_START && sim->frozen_us > sim->now_us) {
        event.at_us = sim->frozen_us;
        gk_sim_queue_push(&sim->queue, &event);
        return true;
    }
    sim->stats.events++;
    gk_sim_note(sim, sim->now_us, (uint64_t)event.kind << 32 | event.node);
    happen(sim, &event);
    if (sim->stats.events > EVENTS_MAX) {
        gk_sim_fail(sim, "P6", "%d events, and no end", EVENTS_MAX);
    }
    if (sim->rollback_us > 0 && sim->now_us > sim->rollback_us + ROLLBACK_S * GK_SIM_SECOND) {
        sim->given_up = true; /* whoever has not said so waits for one who has, by name */
    }
    return !gk_sim_failed(sim) && !gk_sim_done(sim) && !sim->given_up;
}

/* What everybody waits for, in words. */
static void fail_liveness(struct gk_sim *sim)
{
    struct gk_words words = {.text = ""};

    for (uint32_t n = 0; n < GK_SIM_NODES_MAX; n++) {
        bool shard = gk_sim_node_is_shard(n);
        struct gk_server_view view;
        char text[96];

        if (sim->nodes[n].state != GK_SIM_ALIVE) {
            continue;
        }
        if (shard) {
            gk_server_view(sim->shards[n].core, &view);
            (void)snprintf(text, sizeof(text), "; shard %u %s at %" PRIu64, n,
                           gk_shard_state_name(view.state), view.version);
        } else {
            const struct gk_sim_proc *proc = &sim->procs[n - GK_SIM_SHARDS_MAX];

            (void)snprintf(text, sizeof(text), "; rank %u %s at %" PRIu64, proc->rank,
                           gk_worker_phase_name(proc->phase), gk_worker_version(proc->core));
        }
        strncat(words.text, text, sizeof(words.text) - strlen(words.text) - 1);
    }
    gk_sim_fail(sim, "liveness", "no end %.0f s after the last fault%s",
                (double)(sim->now_us - sim->calm_us) / 1e6, words.text);
}

void gk_sim_finish(struct gk_sim *sim)
{
    while (gk_sim_turn(sim)) {
        if (sim->calm && sim->now_us > gk_sim_limit_us(sim)) {
            fail_liveness(sim);
            return;
        }
    }
    sim->stats.virtual_us = sim->now_us;
    for (uint32_t i = 0; i < sim->options.servers; i++) {
        sim->stats.lost_pushes += sim->ledger.shadows[i].lost;
    }
    if (!gk_sim_failed(sim) && !sim->given_up) {
        gk_sim_check_end(sim);
    }
}

void gk_sim_stats_add(struct gk_sim_stats *sum, const struct gk_sim_stats *one)
{
    uint64_t *into = (uint64_t *)(void *)sum;
    const uint64_t *from = (const uint64_t *)(const void *)one;
    uint64_t most = gk_max_u64(sum->in_flight_max, one->in_flight_max);

    for (size_t i = 0; i < sizeof(*sum) / sizeof(*into); i++) {
        into[i] += from[i];
    }
    sum->in_flight_max = most;
}

void gk_sim_stats_print(const struct gk_sim_stats *s)
{
    printf("  %" PRIu64 " events in %" PRIu64 " s; %" PRIu64 " messages: %" PRIu64 " lost, %" PRIu64
           " twice, %" PRIu64 " damaged, %" PRIu64 " late, %" PRIu64 " replayed, %" PRIu64
           " of strangers; at most %" PRIu64 " between two processes\n",
           s->events, s->virtual_us / GK_SIM_SECOND, s->packets, s->lost, s->duplicated,
           s->corrupted, s->late, s->replayed, s->strangers, s->in_flight_max);
    printf("  %" PRIu64 " kills, %" PRIu64 " stops, %" PRIu64 " restarts, %" PRIu64
           " memories lost, %" PRIu64 " twins, %" PRIu64 " pauses, %" PRIu64
           " disconnects, %" PRIu64 " partitions, %" PRIu64 " clock jumps, %" PRIu64
           " times all frozen, %" PRIu64 " LOST pushes, %" PRIu64 " lines about waits\n",
           s->kills, s->stops, s->restarts, s->losses, s->twins, s->pauses, s->disconnects,
           s->partitions, s->jumps, s->freezes, s->lost_pushes, s->stalls);
    printf("  %" PRIu64 " state directories opened, %" PRIu64 " folds, %" PRIu64
           " power failures, %" PRIu64 " deaths in a call of the disk, %" PRIu64
           " records lost, %" PRIu64 " failed syncs, %" PRIu64 " failed writes, %" PRIu64
           " records refused by a full disk, %" PRIu64 " ROLLBACKs, %" PRIu64
           " fenced by the dead\n",
           s->opens, s->folds, s->power_failures, s->crashes, s->records_lost, s->syncs_failed,
           s->writes_failed, s->full_refusals, s->rollbacks, s->fenced_by_dead);
}
