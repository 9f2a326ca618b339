/* The worker core's step function and its phases.
 *
 *   IDLE -> JOINING -> EXCHANGING -> COMPUTING -> PERSISTING -> EXCHANGING -> ...
 *                        |  ^  |       ^  |
 *                        v  |  |       |  |
 *                     EVALUATING ------+  |       (rank 0, now and then)
 *                        |     |          |       (or it leaves before the last step)
 *                        +-----+----------+-> LEAVING -> DONE
 *
 * Every event first changes what it is about, then progress() looks whether the phase can move on,
 * then pump() sends what is due and arms the timer.  worker/README.md has the invariants. */
#include "worker/core/internal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"
#include "common/pause.h"

#include <stdlib.h>
#include <string.h>

#define IN(phase) (1u << GK_PHASE_##phase)

enum { ALL_PHASES = (1u << GK_PHASE_COUNT) - 1, STARTED = ALL_PHASES & ~IN(IDLE), NEVER = 0 };

static const uint32_t phase_successors[GK_PHASE_COUNT] = {
    [GK_PHASE_IDLE] = IN(JOINING) | IN(LEAVING) | IN(DONE),
    [GK_PHASE_JOINING] = IN(EXCHANGING) | IN(DONE),
    [GK_PHASE_EXCHANGING] = IN(COMPUTING) | IN(EVALUATING) | IN(LEAVING) | IN(DONE),
    [GK_PHASE_COMPUTING] = IN(PERSISTING) | IN(EXCHANGING) | IN(LEAVING) | IN(DONE),
    [GK_PHASE_PERSISTING] = IN(EXCHANGING) | IN(DONE),
    [GK_PHASE_EVALUATING] = IN(EXCHANGING) | IN(COMPUTING) | IN(LEAVING) | IN(DONE),
    [GK_PHASE_LEAVING] = IN(JOINING) | IN(DONE), /* JOINING: gk_worker_rejoin() */
    [GK_PHASE_DONE] = NEVER,
};

/* In which phases an event may come.  Elsewhere it is the shell's mistake; in DONE everything is
 * ignored, because what was under way ends after the decision to exit. */
static const uint32_t event_phases[GK_WORKER_EVENTS_COUNT] = {
    [GK_WORKER_START] = IN(IDLE),           [GK_WORKER_TICK] = STARTED,
    [GK_WORKER_PEER_UP] = STARTED,          [GK_WORKER_PEER_DOWN] = STARTED,
    [GK_WORKER_MESSAGE] = STARTED,          [GK_WORKER_BAD_MESSAGE] = STARTED,
    [GK_WORKER_INIT_MADE] = STARTED, /* after MAKE_INIT, once */
    [GK_WORKER_STEP_DONE] = IN(COMPUTING),  [GK_WORKER_PERSISTED] = IN(PERSISTING),
    [GK_WORKER_EVALUATED] = IN(EVALUATING), [GK_WORKER_LEAVE] = IN(COMPUTING),
    [GK_WORKER_STOP] = ALL_PHASES,
};

static void set_phase(struct gk_worker *worker, enum gk_worker_phase to)
{
    GK_ASSERT(phase_successors[worker->phase] & 1u << to);
    worker->phase = to;
    gk_stall_progress(worker);
}

const char *gk_worker_phase_name(enum gk_worker_phase phase)
{
    static const char *const names[GK_PHASE_COUNT] = {
        "idle", "joining", "exchanging", "computing", "persisting", "evaluating", "leaving", "done",
    };

    return (unsigned)phase < GK_PHASE_COUNT ? names[phase] : "?";
}

enum gk_err gk_worker_new(const struct gk_worker_config *config, struct gk_worker **ret_worker)
{
    struct gk_worker *worker = calloc(1, sizeof(*worker));

    GK_ASSERT(config->servers > 0 && config->servers <= GK_SERVERS_MAX);
    GK_ASSERT(!config->sums || config->spec->optimizer == GK_OPTIMIZER_NONE);
    if (!worker) {
        return GK_E_NOMEM;
    }
    worker->config = config;
    worker->rank = config->rank;
    worker->chunk_floats = config->chunk_floats > 0 ? config->chunk_floats : GK_CHUNK_FLOATS;
    worker->shards = calloc(config->servers, sizeof(*worker->shards));
    if (!worker->shards) {
        goto out;
    }
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        worker->ring[i].decided = calloc(config->servers, sizeof(*worker->ring[i].decided));
        if (!worker->ring[i].decided) {
            goto out;
        }
    }
    for (uint32_t i = 0; i < config->servers; i++) {
        worker->shards[i].index = i;
        worker->shards[i].lo = gk_partition_lo(config->spec->params_count, config->servers, i);
        worker->shards[i].hi = gk_partition_lo(config->spec->params_count, config->servers, i + 1);
    }
    *ret_worker = worker;
    return GK_OK;
out:
    gk_worker_free(worker);
    return GK_E_NOMEM;
}

void gk_worker_free(struct gk_worker *worker)
{
    if (!worker) {
        return;
    }
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        gk_push_free(worker->ring[i].push);
        free(worker->ring[i].decided);
    }
    free(worker->shards);
    free(worker);
}

const struct gk_worker_stats *gk_worker_stats(const struct gk_worker *worker)
{
    return &worker->stats;
}

enum gk_worker_phase gk_worker_phase(const struct gk_worker *worker)
{
    return worker->phase;
}

uint64_t gk_worker_version(const struct gk_worker *worker)
{
    return worker->version;
}

bool gk_worker_left_before(const struct gk_worker *worker)
{
    return worker->left_before;
}

static uint64_t draw64(const struct gk_rng *rng, uint64_t index)
{
    return (uint64_t)gk_rng_u32(rng, 2 * index) << 32 | gk_rng_u32(rng, 2 * index + 1);
}

static void start(struct gk_worker *worker)
{
    struct gk_rng rng = {.seed = worker->config->seed,
                         .purpose = GK_RNG_IDENTITY,
                         .a = worker->rank,
                         .b = worker->incarnation};

    worker->started_us = worker->now_us;
    if (worker->incarnation == UINT32_MAX) {
        gk_worker_exit(worker, GK_EXIT_CONFIG,
                       "the slot has incarnation %u: no higher one is left, begin with an empty "
                       "state directory",
                       worker->incarnation);
        return;
    }
    worker->incarnation++;
    worker->born_incarnation = worker->incarnation;
    worker->life_nonce = draw64(&rng, 0) | 1;
    worker->minted_uid.hi = draw64(&rng, 1) | 1;
    worker->minted_uid.lo = draw64(&rng, 2);
    if (worker->left_before) {
        set_phase(worker, GK_PHASE_LEAVING);
        gk_leave_begin(worker);
    } else {
        set_phase(worker, GK_PHASE_JOINING);
    }
}

void gk_worker_rejoin(struct gk_worker *worker)
{
    GK_ASSERT(worker->phase == GK_PHASE_LEAVING && worker->left_before);
    worker->left_before = false;
    worker->left_at = 0;
    worker->version = worker->target = 0;
    worker->first_step = worker->next_step = 0;
    gk_ring_clear(worker);
    (void)gk_worker_emit(worker, GK_WORKER_RESET);
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        gk_retry_stop(&worker->shards[i].leave);
        worker->shards[i].left = false;
        worker->shards[i].gone = false;
    }
    set_phase(worker, GK_PHASE_JOINING);
}

/* No server has the parameters of a later version, only the newest sum. */
static void miss_sums(struct gk_worker *worker, uint64_t version)
{
    gk_worker_exit(worker, GK_EXIT_PEER,
                   "rank %u cannot have the parameters of version %llu, where the job is: with "
                   "optimizer none the servers hold the newest sum alone, and this worker has "
                   "nothing beyond version %llu. Stop all workers and servers, and begin a new job "
                   "from a checkpoint that all ranks share (gkps run: with --fresh where there is "
                   "a state directory)",
                   worker->rank, (unsigned long long)version, (unsigned long long)worker->version);
}

/* The residual and every push in the ring belong to a past that the job has left behind. */
static void lose_state(struct gk_worker *worker, uint64_t version)
{
    if (worker->config->sums) {
        miss_sums(worker, version);
        return;
    }
    gk_ring_clear(worker);
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        gk_window_stop(&worker->shards[i].push);
    }
    (void)gk_worker_emit(worker, GK_WORKER_RESET);
    worker->stats.residuals_lost++;
    gk_worker_trace(
        worker, GK_LOG_WARN, "WORKER-LOST",
        "the residual of rank %u is void: the job is at version %llu; going on with an empty one",
        worker->rank, (unsigned long long)version);
    worker->first_step = version;
    worker->next_step = version;
    worker->memory_incarnation = worker->incarnation;
}

static void join(struct gk_worker *worker)
{
    uint64_t highest = gk_exchange_highest(worker);

    worker->init_id = worker->shards[0].init_id;
    worker->job_uid = worker->shards[0].job_uid;
    gk_worker_trace(worker, GK_LOG_INFO, "WORKER-JOINED",
                    "joined job '%s' at version %llu as rank %u of %u, incarnation %u",
                    worker->config->job, (unsigned long long)highest, worker->rank,
                    worker->config->workers, worker->incarnation);
    if (gk_worker_resumes(worker, highest)) {
        highest = worker->next_step;
    } else if (highest > 0) {
        lose_state(worker, highest);
        if (worker->phase == GK_PHASE_DONE) {
            return;
        }
    } else {
        worker->memory_incarnation = worker->incarnation;
    }
    set_phase(worker, GK_PHASE_EXCHANGING);
    gk_exchange_begin(worker, highest);
}

static bool wants_evaluation(const struct gk_worker *worker)
{
    const struct gk_worker_config *config = worker->config;
    bool due =
        worker->version == config->spec->steps || (config->eval_every > 0 && worker->version > 0 &&
                                                   worker->version % config->eval_every == 0);

    return config->evaluates && due && worker->evaluated_version != worker->version + 1;
}

/* All parameters of `target` are here: evaluate, leave, or compute the next step when the ring has
 * room for its push. */
static void installed(struct gk_worker *worker)
{
    struct gk_worker_action *action;

    worker->version = worker->target;
    if (wants_evaluation(worker)) {
        set_phase(worker, GK_PHASE_EVALUATING);
        action = gk_worker_emit(worker, GK_WORKER_EVALUATE);
        action->step = worker->version;
    } else if (worker->version >= worker->config->spec->steps) {
        set_phase(worker, GK_PHASE_LEAVING);
        gk_leave_begin(worker);
    } else if (gk_ring_has_room(worker)) {
        set_phase(worker, GK_PHASE_COMPUTING);
        action = gk_worker_emit(worker, GK_WORKER_STEP);
        action->step = worker->version;
    } else if (worker->phase != GK_PHASE_EXCHANGING) {
        set_phase(worker,
                  GK_PHASE_EXCHANGING); /* the pulls are complete; a durable verdict makes room */
    }
}

static void account(struct gk_worker *worker)
{
    if (worker->first_params_us > 0) { /* once per exchange */
        worker->stats.push_us += worker->pushed_us - worker->exchange_us;
        worker->stats.wait_us += worker->first_params_us - worker->pushed_us;
        worker->stats.pull_us += worker->now_us - worker->first_params_us;
        worker->first_params_us = 0;
    }
}

static void progress(struct gk_worker *worker)
{
    switch (worker->phase) {
    case GK_PHASE_JOINING:
        if (gk_init_agreed(worker)) {
            join(worker);
        }
        break;
    case GK_PHASE_EXCHANGING:
        if (gk_exchange_highest(worker) > worker->target) {
            lose_state(worker, gk_exchange_highest(worker));
            if (worker->phase != GK_PHASE_DONE) {
                gk_exchange_begin(worker, gk_exchange_highest(worker));
            }
        } else if (gk_exchange_complete(worker)) {
            account(worker);
            installed(worker);
        }
        break;
    case GK_PHASE_LEAVING:
        gk_leave_progress(worker);
        break;
    case GK_PHASE_IDLE:
    case GK_PHASE_COMPUTING:
    case GK_PHASE_PERSISTING:
    case GK_PHASE_EVALUATING:
    case GK_PHASE_DONE:
    case GK_PHASE_COUNT:
        break;
    }
    if (worker->phase != GK_PHASE_DONE) {
        gk_init_pump(worker);
    }
}

static void step_done(struct gk_worker *worker, const struct gk_worker_event *event)
{
    struct gk_worker_action *action;

    if (!event->push) {
        gk_worker_exit(worker, event->exit_code, "%s", event->words);
        return;
    }
    GK_ASSERT(event->push->step == worker->target &&
              event->push->slices_count == worker->config->servers);
    if (gk_exchange_highest(worker) >
        worker->target) { /* LOST rule; progress() goes on from there */
        gk_push_free(event->push);
        set_phase(worker, GK_PHASE_EXCHANGING);
        return;
    }
    gk_ring_put(worker, event->push);
    worker->next_step = worker->target + 1;
    set_phase(worker, GK_PHASE_PERSISTING);
    action = gk_worker_emit(worker, GK_WORKER_PERSIST);
    action->step = worker->target;
    action->memory = (struct gk_worker_memory){.step = worker->target,
                                               .first_step = worker->first_step,
                                               .incarnation = worker->memory_incarnation,
                                               .epoch = worker->epoch};
}

static void persisted(struct gk_worker *worker)
{
    gk_ring_persisted(worker);
    worker->stats.steps++;
    set_phase(worker, GK_PHASE_EXCHANGING);
    gk_exchange_begin(worker, worker->target + 1);
}

static void message(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    bool of_session = shard->session != 0 && msg->h.session == shard->session;
    bool old_ack =
        msg->h.kind == GK_KIND_PUSH_OK && (worker->config->plant & GK_WORKER_PLANT_OLD_ACKS);

    switch (msg->h.kind) {
    case GK_KIND_WELCOME:
        gk_session_welcome(worker, shard, msg);
        return;
    case GK_KIND_REFUSE:
        gk_session_refuse(worker, shard, msg);
        return;
    case GK_KIND_NACK:
        /* It repeats the session of the request, known there or not; without one it answers HELLO.
         */
        if (of_session || msg->h.session == 0) {
            gk_session_nack(worker, shard, msg);
        } else {
            worker->stats.duplicates++;
        }
        return;
    default:
        break;
    }
    if (!of_session && !old_ack) {
        worker->stats.duplicates++; /* from a former life of the shard */
        return;
    }
    if (of_session) {
        gk_exchange_observe(worker, shard, &msg->h);
    }
    switch (msg->h.kind) {
    case GK_KIND_INIT_OK:
        gk_init_ok(worker, shard, msg);
        break;
    case GK_KIND_PUSH_OK:
        gk_exchange_push_ok(worker, shard, msg);
        break;
    case GK_KIND_PARAMS:
        gk_exchange_params(worker, shard, msg);
        break;
    case GK_KIND_GONE:
        gk_exchange_gone(worker, shard, msg);
        break;
    case GK_KIND_LEAVE_OK:
        gk_leave_ok(worker, shard, msg);
        break;
    case GK_KIND_PONG:
        shard->pong = msg->body.ping;
        break;
    default:
        worker->stats.bad_messages++; /* a worker's or a tool's kind */
        break;
    }
}

static void pump(struct gk_worker *worker)
{
    struct gk_worker_action *action;

    for (uint32_t i = 0; i < worker->config->servers && worker->phase != GK_PHASE_DONE; i++) {
        gk_session_pump(worker, &worker->shards[i]);
        gk_exchange_pump(worker, &worker->shards[i]);
        gk_leave_pump(worker, &worker->shards[i]);
    }
    if (worker->phase == GK_PHASE_DONE) {
        return;
    }
    action = gk_worker_emit(worker, GK_WORKER_ARM_TIMER);
    action->at_us = gk_watch_due_us(worker);
}

static void dispatch(struct gk_worker *worker, const struct gk_worker_event *event)
{
    struct gk_shard *shard = &worker->shards[event->shard];

    switch (event->kind) {
    case GK_WORKER_START:
        start(worker);
        break;
    case GK_WORKER_TICK:
        gk_watch_deadlines(worker);
        break;
    case GK_WORKER_PEER_UP:
        gk_session_up(worker, shard);
        break;
    case GK_WORKER_PEER_DOWN:
        gk_session_down(worker, shard);
        break;
    case GK_WORKER_MESSAGE:
        message(worker, shard, event->msg);
        break;
    case GK_WORKER_BAD_MESSAGE:
        worker->stats.bad_messages++;
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-BAD-MESSAGE", "from shard %u at %s: %s",
                        shard->index, worker->config->addresses[shard->index], event->words);
        break;
    case GK_WORKER_INIT_MADE:
        GK_ASSERT(worker->init_asked && !worker->init_made);
        worker->init_made = true;
        worker->made_init_id = event->init_id;
        break;
    case GK_WORKER_STEP_DONE:
        step_done(worker, event);
        break;
    case GK_WORKER_PERSISTED:
        persisted(worker);
        break;
    case GK_WORKER_EVALUATED:
        worker->evaluated_version = worker->version + 1;
        installed(worker);
        break;
    case GK_WORKER_LEAVE:
        set_phase(worker, GK_PHASE_LEAVING);
        gk_leave_begin(worker);
        break;
    case GK_WORKER_STOP:
        gk_worker_exit(worker, event->exit_code, "%s", event->words);
        break;
    case GK_WORKER_EVENTS_COUNT:
        break;
    }
}

void gk_worker_step(struct gk_worker *worker, const struct gk_worker_event *event,
                    struct gk_worker_actions *out)
{
    uint64_t pause_us;

    GK_ASSERT((unsigned)event->kind < GK_WORKER_EVENTS_COUNT &&
              event->shard < worker->config->servers);
    GK_ASSERT(event->now_us >= worker->now_us);
    pause_us = worker->phase == GK_PHASE_IDLE ? 0 : gk_pause_us(worker->now_us, event->now_us);
    worker->now_us = event->now_us;
    if (worker->phase == GK_PHASE_DONE) {
        gk_push_free(event->push);
        return;
    }
    GK_ASSERT(event_phases[event->kind] & 1u << worker->phase);
    worker->out = out;
    gk_watch_paused(worker, pause_us);
    dispatch(worker, event);
    progress(worker);
    if (worker->phase != GK_PHASE_DONE && worker->phase != GK_PHASE_IDLE) {
        gk_worker_remember(worker); /* before any message that relies on it */
        gk_stall_check(worker);
        pump(worker);
    }
    gk_worker_check(worker);
    worker->out = NULL;
}
