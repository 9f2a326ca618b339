/* The shell of a worker core: its timer, its computations, its slot.
 *
 * The slot holds the residual and, in the core's ring, the encoded pushes of the steps below
 * slot_step.  A step makes the next residual beside it; both change places when PERSIST ends, and
 * not before.  So a kill at any moment finds a residual and pushes that belong together.
 *
 * A power failure that finds pages unwritten damages what they hold: then the slot says LOST, and
 * its identity is the last one, or the one before. */
#include "common/assert.h"
#include "common/exit.h"
#include "common/limits.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const addresses[GK_SIM_SHARDS_MAX] = {"host-0:1", "host-1:1", "host-2:1",
                                                         "host-3:1"};

static uint32_t index_of(const struct gk_sim *sim, const struct gk_sim_proc *proc)
{
    return (uint32_t)(proc - sim->procs);
}

static void core_new(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    enum gk_err err;

    proc->config.seed = gk_sim_next(&sim->rng);
    err = gk_worker_new(&proc->config, &proc->core);
    GK_ASSERT(!err);
    proc->phase = gk_worker_phase(proc->core);
}

uint32_t gk_sim_proc_new(struct gk_sim *sim, uint32_t rank)
{
    uint32_t index = sim->procs_count++;
    struct gk_sim_proc *proc = &sim->procs[index];
    uint64_t d = sim->options.params_count;

    GK_ASSERT(index < GK_SIM_PROCS_MAX);
    proc->rank = sim->options.any_rank ? GK_RANK_ANY : rank;
    proc->config = (struct gk_worker_config){
        .job = GK_SIM_JOB,
        .addresses = addresses,
        .servers = sim->options.servers,
        .workers = sim->options.workers,
        .rank = sim->options.any_rank ? GK_RANK_ANY : rank,
        .spec = &sim->job.spec,
        .spec_hash = sim->job.spec_hash,
        .model_signature = sim->job.model_signature,
        .deadline_us = sim->options.deadline_us,
        .eval_every = sim->options.eval_every,
        .sums = sim->options.sums,
        .evaluates = true,
        .chunk_floats = sim->options.worker_chunk,
        .plant = sim->options.plants.worker,
    };
    proc->params = calloc(d, sizeof(float));
    proc->gradient = calloc(d, sizeof(float));
    proc->residual = calloc(d, sizeof(float));
    proc->next = calloc(d, sizeof(float));
    proc->versions = calloc(d, sizeof(uint64_t));
    proc->sums = calloc(d, sizeof(float));
    proc->kept = calloc(d, sizeof(float));
    GK_ASSERT(proc->params && proc->gradient && proc->residual && proc->next && proc->versions &&
              proc->sums && proc->kept);
    proc->lineage = gk_sim_ledger_lineage(sim);
    core_new(sim, proc);
    return index;
}

void gk_sim_proc_free(struct gk_sim *sim, uint32_t index)
{
    struct gk_sim_proc *proc = &sim->procs[index];

    gk_worker_free(proc->core);
    free(proc->params);
    free(proc->gradient);
    free(proc->residual);
    free(proc->next);
    free(proc->versions);
    free(proc->sums);
    free(proc->kept);
    memset(proc, 0, sizeof(*proc));
}

/* What this memory has pushed and no shard has committed is lost whole. */
static void lose_memory(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    gk_sim_ledger_lose(sim, proc->lineage);
    proc->lineage = gk_sim_ledger_lineage(sim);
    proc->slot_step = 0;
    memset(proc->residual, 0, sim->options.params_count * sizeof(float));
}

static void put_work(struct gk_sim *sim, const struct gk_sim_proc *proc, enum gk_sim_work work,
                     uint64_t step, uint64_t work_us)
{
    uint32_t node = gk_sim_proc_node(index_of(sim, proc));
    struct gk_sim_event event = {
        .kind = GK_SIM_WORK,
        .at_us = sim->now_us + work_us,
        .node = node,
        .life = sim->nodes[node].life,
        .number = step,
        .work = work,
    };

    gk_sim_queue_push(&sim->queue, &event);
}

static void send_init(struct gk_sim *sim, struct gk_sim_proc *proc, struct gk_worker_action *action)
{
    const struct gk_header *h = &action->msg.h;
    struct gk_buf **frame = action->msg.frame;
    float *initial = calloc(sim->options.params_count, sizeof(float));

    GK_ASSERT(initial);
    gk_sim_toy_initial(&sim->job, proc->init, initial);
    if (h->chunk == 0) {
        frame[action->msg.frames_count++] =
            gk_buf_copy(sim->job.spec_bytes, sim->job.spec_bytes_count);
    }
    frame[action->msg.frames_count++] =
        gk_buf_copy(initial + h->lo, (h->hi - h->lo) * sizeof(float));
    free(initial);
    gk_sim_send(sim, index_of(sim, proc), action->shard, true, &action->msg);
}

static void install(struct gk_sim *sim, struct gk_sim_proc *proc,
                    const struct gk_worker_action *action)
{
    bool moves = sim->options.sums && action->step > 0;

    if (action->plane != (moves ? 1u : 0u)) {
        gk_sim_fail(sim, "P5", "rank %u gets plane %u of version %" PRIu64, proc->rank,
                    action->plane, action->step);
    }
    memcpy((moves ? proc->sums : proc->params) + action->lo, action->buf->data,
           (action->hi - action->lo) * sizeof(float));
    proc->sum_samples = gk_max_u64(proc->sum_samples, action->samples);
    for (uint64_t i = action->lo; i < action->hi; i++) {
        proc->versions[i] = action->step;
    }
    sim->nodes[gk_sim_proc_node(index_of(sim, proc))].progress_us = sim->now_us;
}

/* All of a version is here: the worker's own optimizer, once. */
static void move(struct gk_sim *sim, struct gk_sim_proc *proc, uint64_t version)
{
    if (!sim->options.sums || proc->moved == version) {
        return;
    }
    if (proc->moved + 1 != version) {
        gk_sim_fail(sim, "P5",
                    "rank %u has parameters of version %" PRIu64 ", and goes to %" PRIu64,
                    proc->rank, proc->moved, version);
    }
    gk_sim_own_step(sim, proc->sum_samples, proc->sums, proc->params);
    proc->sum_samples = 0;
    proc->moved = version;
}

static void reset(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    if (sim->losses[proc->rank] == 0) {
        gk_sim_fail(sim, "P2", "rank %u gives its residual up, though its memory was never lost",
                    proc->rank);
    }
    lose_memory(sim, proc);
}

/* Shard 0 gives a rank away whose holder it has not heard for long: then there are two. */
static void take_rank(struct gk_sim *sim, struct gk_sim_proc *proc, uint32_t rank)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        struct gk_sim_proc *other = &sim->procs[p];

        if (other != proc && other->rank == rank) {
            other->twin = proc->twin = true;
            sim->losses[rank]++;
            sim->losses_count++;
        }
    }
    proc->rank = rank;
}

/* A slice that a shard made its version without is lost by name. */
static void note_lost(struct gk_sim *sim, const struct gk_sim_proc *proc,
                      const struct gk_worker_action *action)
{
    unsigned long long step;
    unsigned shard;

    if (strcmp(action->id, "WORKER-PUSH-LOST") == 0 &&
        sscanf(action->words.text, "shard %u committed step %llu", &shard, &step) == 2) {
        gk_sim_ledger_named(sim, proc, shard, step);
    }
}

static void ended(struct gk_sim *sim, struct gk_sim_proc *proc,
                  const struct gk_worker_action *action)
{
    uint32_t index = index_of(sim, proc);
    struct gk_sim_node *node = &sim->nodes[gk_sim_proc_node(index)];

    (void)snprintf(sim->last_words[gk_sim_proc_node(index)], GK_WORDS_BYTES, "%s",
                   action->words.text);
    gk_sim_say(sim, gk_sim_proc_node(index), "exits with %d: %s", action->exit_code,
               action->words.text);
    proc->exit_code = action->exit_code;
    if (node->stopping) {
        gk_sim_proc_kill(sim, index, false, gk_sim_below(&sim->rng, node->down_us + 1));
        return;
    }
    gk_sim_check_exit(sim, index);
    if (proc->exit_code != GK_EXIT_OK && sim->options.any_rank &&
        gk_sim_may_be_fenced(sim, index)) {
        gk_sim_proc_kill(sim, index, true, GK_SIM_SECOND); /* and it asks for another rank */
        proc->rank = GK_RANK_ANY;
    } else if (gk_sim_fenced_by_the_dead(sim, index)) {
        gk_sim_proc_kill(sim, index, false, GK_SIM_SECOND / 10);
    } else {
        gk_sim_proc_kill(sim, index, false, GK_SIM_NEVER);
    }
}

/* A number that was used and forgotten could be used again. */
static void check_remembered(struct gk_sim *sim, const struct gk_sim_proc *proc,
                             const struct gk_header *h)
{
    if (h->incarnation != proc->incarnation) {
        gk_sim_fail(sim, "P2", "rank %u says %s as life %u, but has written down %u", proc->rank,
                    gk_kind_name(h->kind), h->incarnation, proc->incarnation);
    }
}

static void remember(struct gk_sim_proc *proc, const struct gk_worker_identity *identity)
{
    proc->incarnation = identity->incarnation;
    proc->identities[1] = proc->identities[0];
    proc->identities[0] = *identity;
}

static void perform(struct gk_sim *sim, uint32_t index, struct gk_worker_action *action)
{
    struct gk_sim_proc *proc = &sim->procs[index];
    uint32_t node = gk_sim_proc_node(index);
    uint64_t op_us_max = sim->options.op_us_max;

    switch (action->kind) {
    case GK_WORKER_SEND:
        check_remembered(sim, proc, &action->msg.h);
        gk_sim_send(sim, index, action->shard, true, &action->msg);
        break;
    case GK_WORKER_SEND_INIT:
        send_init(sim, proc, action);
        break;
    case GK_WORKER_MAKE_INIT:
        put_work(sim, proc, GK_SIM_MAKE_INIT, 0, gk_sim_work_us(sim, op_us_max));
        break;
    case GK_WORKER_STEP:
        proc->step = action->step;
        move(sim, proc, action->step);
        put_work(sim, proc, GK_SIM_STEP, action->step,
                 gk_sim_work_us(sim, 2 * sim->options.step_us[proc->rank]));
        break;
    case GK_WORKER_PERSIST:
        if (sim->options.plants.shell & GK_SIM_PLANT_SEND_BEFORE_FLIP) {
            put_work(sim, proc, GK_SIM_FLIP, action->step, 10 * sim->options.latency_us_max);
            put_work(sim, proc, GK_SIM_PERSIST, action->step, 0);
        } else {
            put_work(sim, proc, GK_SIM_PERSIST, action->step, gk_sim_work_us(sim, op_us_max));
        }
        break;
    case GK_WORKER_REMEMBER:
        remember(proc, &action->identity);
        break;
    case GK_WORKER_INSTALL:
        install(sim, proc, action);
        break;
    case GK_WORKER_EVALUATE:
        move(sim, proc, action->step);
        put_work(sim, proc, GK_SIM_EVALUATE, action->step, gk_sim_work_us(sim, op_us_max));
        break;
    case GK_WORKER_RESET:
        reset(sim, proc);
        break;
    case GK_WORKER_RANK:
        take_rank(sim, proc, action->rank);
        break;
    case GK_WORKER_ARM_TIMER:
        gk_sim_arm(sim, node, action->at_us);
        break;
    case GK_WORKER_TRACE:
        note_lost(sim, proc, action);
        gk_sim_say(sim, node, "%s %s", action->id, action->words.text);
        gk_sim_check_wait_line(sim, node, action->id, action->words.text);
        break;
    case GK_WORKER_EXIT:
        ended(sim, proc, action);
        break;
    }
}

void gk_sim_proc_step(struct gk_sim *sim, uint32_t index, struct gk_worker_event *event)
{
    struct gk_sim_proc *proc = &sim->procs[index];
    uint32_t node = gk_sim_proc_node(index);
    struct gk_worker_actions *actions = sim->worker_actions;

    event->now_us = gk_sim_clock(sim, node);
    gk_worker_step(proc->core, event, actions);
    for (uint32_t i = 0; i < actions->count; i++) {
        perform(sim, index, &actions->list[i]);
    }
    gk_worker_actions_clear(actions);
    if (gk_worker_phase(proc->core) != proc->phase) {
        proc->phase = gk_worker_phase(proc->core);
        sim->nodes[node].progress_us = sim->now_us;
        gk_sim_say(sim, node, "is %s, version %" PRIu64, gk_worker_phase_name(proc->phase),
                   gk_worker_version(proc->core));
    }
    gk_sim_faults_after(sim, node);
}

/* P5: all parameters are of the version that the step is computed on, and are those that the shards
 * committed. */
static void check_params(struct gk_sim *sim, const struct gk_sim_proc *proc, uint64_t version)
{
    const float *all = sim->options.sums ? sim->oracle.params : sim->ledger.params;
    const float *known = all + version * sim->options.params_count;

    for (uint64_t i = 0; i < sim->options.params_count; i++) {
        if (proc->versions[i] != version) {
            gk_sim_fail(sim, "P5",
                        "rank %u uses parameter %" PRIu64 " of version %" PRIu64
                        " as version %" PRIu64,
                        proc->rank, i, proc->versions[i], version);
            return;
        }
        if (gk_float_bits(proc->params[i]) != gk_float_bits(known[i])) {
            gk_sim_fail(sim, "P5",
                        "rank %u uses parameter %" PRIu64 " = %a, version %" PRIu64 " has %a",
                        proc->rank, i, (double)proc->params[i], version, (double)known[i]);
            return;
        }
    }
}

static void flip(struct gk_sim *sim, struct gk_sim_proc *proc, uint64_t step)
{
    float *old = proc->residual;

    proc->residual = proc->next;
    proc->next = old;
    proc->slot_step = step + 1;
    memcpy(proc->kept, proc->params, sim->options.params_count * sizeof(float));
    gk_sim_ledger_persisted(sim, proc, step);
}

void gk_sim_proc_work(struct gk_sim *sim, const struct gk_sim_event *event)
{
    uint32_t index = event->node - GK_SIM_SHARDS_MAX;
    struct gk_sim_proc *proc = &sim->procs[index];
    struct gk_worker_event done = {.kind = GK_WORKER_EVENTS_COUNT};

    switch (event->work) {
    case GK_SIM_MAKE_INIT:
        done.kind = GK_WORKER_INIT_MADE;
        done.init_id = sim->ledger.inits[proc->init];
        break;
    case GK_SIM_STEP:
        check_params(sim, proc, event->number);
        if (proc->step >= gk_sim_leave_at(&sim->options, proc->rank)) {
            done.kind = GK_WORKER_LEAVE;
            break;
        }
        gk_sim_toy_gradient(sim, proc->rank, proc->step, proc->params, proc->gradient);
        done.kind = GK_WORKER_STEP_DONE;
        done.push = gk_sim_toy_push(sim, proc);
        break;
    case GK_SIM_PERSIST:
        if ((sim->options.plants.shell & GK_SIM_PLANT_SEND_BEFORE_FLIP) == 0) {
            flip(sim, proc, event->number);
        }
        done.kind = GK_WORKER_PERSISTED;
        break;
    case GK_SIM_EVALUATE:
        check_params(sim, proc, event->number);
        done.kind = GK_WORKER_EVALUATED;
        break;
    case GK_SIM_FLIP:
        flip(sim, proc, event->number);
        return;
    case GK_SIM_SETUP:
    case GK_SIM_SUM:
    case GK_SIM_WRITE:
    case GK_SIM_APPLY:
    case GK_SIM_HASH:
    case GK_SIM_SYNC:
    case GK_SIM_FOLD:
        GK_ASSERT(false && "a shard's work");
    }
    gk_sim_proc_step(sim, index, &done);
}

/* The flip had happened, but the process died before its core knew: what that does with the news
 * dies with it. */
static void finish_persist(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    struct gk_worker_event done = {.kind = GK_WORKER_PERSISTED};
    uint32_t node = gk_sim_proc_node(index_of(sim, proc));

    if (gk_worker_phase(proc->core) != GK_PHASE_PERSISTING ||
        (sim->options.plants.shell & GK_SIM_PLANT_SEND_BEFORE_FLIP) != 0 ||
        !gk_sim_chance(&sim->rng, 1, 2)) {
        return;
    }
    flip(sim, proc, proc->step);
    done.now_us = gk_sim_clock(sim, node);
    gk_worker_step(proc->core, &done, sim->worker_dying);
    gk_worker_actions_clear(sim->worker_dying);
}

/* GK_SIM_NEVER: for good. */
void gk_sim_proc_kill(struct gk_sim *sim, uint32_t index, bool lose, uint64_t down_us)
{
    struct gk_sim_proc *proc = &sim->procs[index];
    struct gk_sim_node *node = &sim->nodes[gk_sim_proc_node(index)];
    struct gk_sim_event start = {.kind = GK_SIM_START, .node = gk_sim_proc_node(index)};

    if (node->state != GK_SIM_ALIVE) {
        return;
    }
    gk_sim_say(sim, start.node, "ends%s", lose ? ", and its slot is lost" : "");
    finish_persist(sim, proc);
    node->state = down_us == GK_SIM_NEVER ? GK_SIM_ENDED : GK_SIM_ABSENT;
    node->life++;
    node->timer++;
    node->stopping = false;
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        gk_sim_disconnect(sim, index, s);
    }
    proc->lost = lose;
    if (lose) {
        GK_ASSERT(proc->rank <
                  sim->options.workers); /* ranks are assigned only where none is lost */
        sim->losses[proc->rank]++;
        sim->losses_count++;
        sim->stats.losses++;
        lose_memory(sim, proc);
    }
    if (down_us != GK_SIM_NEVER) {
        start.at_us = sim->now_us + down_us;
        start.life = node->life;
        gk_sim_queue_push(&sim->queue, &start);
    }
}

/* Whether the pages of the slot had all been written is up to the system. */
void gk_sim_proc_power_off(struct gk_sim *sim, uint32_t index, uint64_t down_us)
{
    bool written = gk_sim_chance(&sim->rng, 1, 2);

    sim->stats.power_failures++;
    gk_sim_proc_kill(sim, index, !written, down_us);
    sim->procs[index].damaged = !written;
}

static void resume_damaged(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    struct gk_worker_slot slot = {.state = GK_SLOT_LOST};

    proc->damaged = false;
    slot.identity = proc->identities[gk_sim_below(&sim->rng, 2)];
    if (slot.identity.rank != proc->rank) { /* nothing of use was ever written down */
        return;
    }
    proc->incarnation = slot.identity.incarnation;
    gk_worker_resume(proc->core, &slot);
}

static void new_life(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    proc->config.takeover = gk_sim_chance(&sim->rng, 1, 2);
    if (!proc->lost) {
        gk_worker_restart(proc->core, proc->slot_step);
        memcpy(proc->params, proc->kept, sim->options.params_count * sizeof(float));
        proc->moved = proc->slot_step > 0 ? proc->slot_step - 1 : 0;
        proc->sum_samples = 0;
        if (proc->slot_step == 0) {
            proc->rank = proc->config.rank; /* or GK_RANK_ANY: the slot knew it */
        }
        return;
    }
    proc->lost = false;
    gk_worker_free(proc->core);
    core_new(sim, proc);
    if (proc->damaged) {
        resume_damaged(sim, proc);
        return;
    }
    if (proc->rank == 0 && sim->options.faults.reinit) {
        proc->init = gk_sim_ledger_new_init(sim);
    }
}

void gk_sim_proc_start(struct gk_sim *sim, uint32_t index)
{
    struct gk_sim_node *node = &sim->nodes[gk_sim_proc_node(index)];
    struct gk_worker_event start = {.kind = GK_WORKER_START};

    if (node->life > 0) {
        new_life(sim, &sim->procs[index]);
        sim->stats.restarts++;
    }
    node->state = GK_SIM_ALIVE;
    node->paused_us = 0;
    node->progress_us = sim->now_us;
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        struct gk_sim_event connect = {.kind = GK_SIM_CONNECT,
                                       .at_us = sim->now_us + 1,
                                       .node = gk_sim_proc_node(index),
                                       .other = s,
                                       .life = node->life};

        sim->pairs[index][s].down_us = sim->now_us;
        gk_sim_queue_push(&sim->queue, &connect);
    }
    gk_sim_say(sim, gk_sim_proc_node(index), "begins life %" PRIu64, node->life + 1);
    gk_sim_proc_step(sim, index, &start);
}
