/* Depth first over every choice of what happens next, by running again from the start: a core
 * cannot be copied, but a run is a function of its choices.
 *
 * Two events at different processes commute, so that most orders tell the same story.  Sleep sets
 * (Godefroid) leave one of each class: after all runs that begin with one event, its siblings do
 * not try it again until something else has happened at the same process.
 *
 * For more servers even that is too much; there the runs are those that differ from the order of
 * sending at one or two places, all of them.
 *
 * Enumeration begins when all workers have joined and compute their first step, and ends with the
 * last version; timers fire only when nothing else is under way. */
#include "tests/sim/enumerate.h"

#include "common/assert.h"
#include "common/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 512, WIDTH_MAX = 64 };

struct candidate {
    uint64_t id;   /* the same in every run in which the same things led to it */
    uint32_t node; /* whom it happens to */
    bool asleep;   /* tried already, or as good as tried */
};

struct choice {
    struct candidate candidates[WIDTH_MAX];
    uint32_t count, chosen;
};

struct search {
    struct choice *stack;
    uint32_t depth; /* of the stack */
    uint32_t at;    /* of the run */
    bool pruned;    /* all that may come next is asleep */
    bool begun;
    uint32_t detours_max; /* 0: any number */
    uint64_t runs, complete;
};

static uint64_t id_of(const struct gk_sim_event *event)
{
    const struct gk_sim_packet *packet = event->packet;
    uint64_t fields[8] = {event->kind, event->node, event->other, event->work, event->number};

    if (packet) {
        fields[5] = packet->proc;
        fields[6] = packet->shard;
        fields[7] = packet->serial;
    }
    return gk_hash64(fields, sizeof(fields));
}

static bool is_candidate(const struct gk_sim_event *event)
{
    return event->kind == GK_SIM_PACKET || event->kind == GK_SIM_WORK;
}

/* Until all workers have joined, everything comes in its time, but no gradient is ready. */
static bool joined(const struct gk_sim *sim)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        if (sim->procs[p].phase != GK_PHASE_COMPUTING) {
            return false;
        }
    }
    return true;
}

static bool finished(const struct gk_sim *sim)
{
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        if (sim->ledger.shadows[s].version < gk_sim_last_version(&sim->options)) {
            return false;
        }
    }
    return true;
}

static bool take_earliest(struct gk_sim *sim, bool no_step, struct gk_sim_event *ret_event)
{
    const struct gk_sim_queue *queue = &sim->queue;
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < queue->count; i++) {
        const struct gk_sim_event *event = &queue->events[i];

        if (no_step && event->kind == GK_SIM_WORK && event->work == GK_SIM_STEP) {
            continue;
        }
        if (best == UINT32_MAX || event->at_us < queue->events[best].at_us ||
            (event->at_us == queue->events[best].at_us && event->seq < queue->events[best].seq)) {
            best = i;
        }
    }
    if (best == UINT32_MAX) {
        return false;
    }
    gk_sim_queue_take(&sim->queue, best, ret_event);
    return true;
}

/* All candidates of this moment, by age. */
static uint32_t list(const struct gk_sim *sim, uint32_t *ret_places)
{
    const struct gk_sim_queue *queue = &sim->queue;
    uint32_t count = 0;

    for (uint32_t i = 0; i < queue->count; i++) {
        uint32_t at;

        if (!is_candidate(&queue->events[i])) {
            continue;
        }
        GK_ASSERT(count < WIDTH_MAX);
        for (at = count++; at > 0 && queue->events[ret_places[at - 1]].seq > queue->events[i].seq;
             at--) {
            ret_places[at] = ret_places[at - 1];
        }
        ret_places[at] = i;
    }
    return count;
}

/* What slept before the last event still sleeps unless that one happened at the same process. */
static bool sleeps(const struct choice *parent, const struct candidate *candidate)
{
    const struct candidate *last = &parent->candidates[parent->chosen];

    for (uint32_t i = 0; i < parent->count; i++) {
        if (parent->candidates[i].id == candidate->id) {
            return parent->candidates[i].asleep && candidate->node != last->node;
        }
    }
    return false;
}

static bool next_awake(struct choice *choice, uint32_t from)
{
    for (uint32_t i = from; i < choice->count; i++) {
        if (!choice->candidates[i].asleep) {
            choice->chosen = i;
            return true;
        }
    }
    return false;
}

static uint32_t detours(const struct search *search)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < search->depth; i++) {
        count += search->stack[i].chosen > 0;
    }
    return count;
}

static bool new_choice(struct gk_sim *sim, struct search *search, const uint32_t *places,
                       uint32_t count)
{
    struct choice *choice = &search->stack[search->depth];
    bool straight = search->detours_max > 0 && detours(search) == search->detours_max;

    GK_ASSERT(search->depth < DEPTH_MAX);
    choice->count = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct gk_sim_event *event = &sim->queue.events[places[i]];
        struct candidate *candidate = &choice->candidates[i];

        *candidate = (struct candidate){.id = id_of(event), .node = event->node};
        candidate->asleep = search->detours_max > 0
                                ? straight && i > 0
                                : search->depth > 0 && sleeps(choice - 1, candidate);
    }
    search->depth++;
    return next_awake(choice, 0);
}

static bool choose(struct gk_sim *sim, struct gk_sim_event *ret_event)
{
    struct search *search = sim->user;
    uint32_t places[WIDTH_MAX];
    uint32_t count;

    search->begun = search->begun || joined(sim);
    if (!search->begun || finished(sim)) {
        return take_earliest(sim, !search->begun, ret_event);
    }
    count = list(sim, places);
    if (count == 0) {
        return take_earliest(sim, false, ret_event);
    }
    if (search->at == search->depth && !new_choice(sim, search, places, count)) {
        search->pruned = true;
        return false;
    }
    GK_ASSERT(search->stack[search->at].count == count); /* or the run is no function of them */
    gk_sim_queue_take(&sim->queue, places[search->stack[search->at].chosen], ret_event);
    search->at++;
    return true;
}

/* The last choice that has another way to go; false: all have been gone. */
static bool go_back(struct search *search)
{
    while (search->depth > 0) {
        struct choice *top = &search->stack[search->depth - 1];

        if (top->chosen < top->count) {
            top->candidates[top->chosen].asleep = true;
        }
        if (next_awake(top, 0)) {
            return true;
        }
        search->depth--;
    }
    return false;
}

static bool run_once(struct gk_sim *sim, struct search *search,
                     const struct gk_sim_options *options, bool trace)
{
    bool passed;

    search->at = 0;
    search->begun = search->pruned = false;
    if (!gk_sim_init(sim, options)) {
        return false;
    }
    sim->trace = trace;
    sim->chooser = choose;
    sim->user = search;
    while (gk_sim_turn(sim)) {
        if (sim->now_us > 600 * GK_SIM_SECOND) {
            gk_sim_fail(sim, "liveness", "no end after ten minutes");
        }
    }
    search->runs++;
    if (!search->pruned && !gk_sim_failed(sim)) {
        search->complete++;
        gk_sim_check_end(sim);
    }
    passed = !gk_sim_failed(sim);
    if (!passed) {
        printf("FAIL in run %" PRIu64 ": %s: %s\n", search->runs, sim->failure.checker,
               sim->failure.words.text);
    }
    gk_sim_fini(sim);
    return passed;
}

static void options_of(const struct gk_sim_cluster *cluster, struct gk_sim_options *options)
{
    gk_sim_options_calm(options, cluster->workers, cluster->servers, cluster->steps);
    options->worker_chunk = options->server_chunk = 4096; /* one chunk each way */
    options->latency_us_min = options->latency_us_max = 100;
    options->params_count = 16 * cluster->servers;
    options->k = options->params_count / 2;
}

static bool enumerate_orders(struct gk_sim *sim, const struct gk_sim_cluster *cluster, bool trace)
{
    struct search search = {.stack = calloc(DEPTH_MAX, sizeof(struct choice)),
                            .detours_max = cluster->detours_max};
    struct gk_sim_options options;
    bool passed = true, more = true;

    GK_ASSERT(search.stack);
    options_of(cluster, &options);
    while (passed && more && (cluster->runs_max == 0 || search.runs < cluster->runs_max)) {
        passed = run_once(sim, &search, &options, trace);
        more = go_back(&search);
    }
    printf("%s: %" PRIu64 " orders in %" PRIu64 " runs; ", cluster->name, search.complete,
           search.runs);
    if (cluster->detours_max > 0) {
        printf("the order of sending but for %" PRIu32 " places, ", cluster->detours_max);
    }
    printf("%s\n", more ? "and there are more" : "all there are");
    free(search.stack);
    return passed;
}

/* A fault at one place of an otherwise calm run. */
enum fault { KILL_SHARD, KILL_WORKER, CUT, LOSE, DOUBLE, FAULTS_COUNT };

struct place {
    enum fault fault;
    uint32_t who;
    uint64_t at;   /* events or messages before it */
    uint64_t seen; /* messages so far */
};

static enum gk_sim_fate lose_one(struct gk_sim *sim, const struct gk_sim_packet *packet)
{
    struct place *place = sim->user;
    bool here = place->seen++ == place->at;

    (void)packet;
    return here && place->fault == LOSE     ? GK_SIM_LOSE
           : here && place->fault == DOUBLE ? GK_SIM_DOUBLE
                                            : GK_SIM_PASS;
}

static void strike(struct gk_sim *sim, const struct place *place)
{
    if (place->fault == KILL_SHARD) {
        gk_sim_shard_kill(sim, place->who, 5000);
    } else if (place->fault == KILL_WORKER && sim->procs[place->who].phase != GK_PHASE_LEAVING) {
        gk_sim_proc_kill(sim, place->who, false, 5000);
    } else if (place->fault == CUT) {
        gk_sim_disconnect(sim, place->who, 0);
    }
}

/* False: it failed.  *ret_over: the run has fewer places than that. */
static bool run_place(struct gk_sim *sim, const struct gk_sim_options *options, struct place *place,
                      bool *ret_over)
{
    bool of_messages = place->fault == LOSE || place->fault == DOUBLE;
    uint64_t turns = 0;
    bool passed;

    if (!gk_sim_init(sim, options)) {
        return false;
    }
    sim->filter = of_messages ? lose_one : NULL;
    sim->user = place;
    while (!of_messages && turns++ < place->at && gk_sim_turn(sim)) {
    }
    *ret_over = gk_sim_done(sim);
    if (!*ret_over && !of_messages) {
        strike(sim, place);
    }
    gk_sim_finish(sim);
    *ret_over = *ret_over || (of_messages && place->seen <= place->at);
    passed = !gk_sim_failed(sim);
    if (!passed) {
        printf("FAIL with fault %d of %u at place %" PRIu64 ": %s: %s\n", (int)place->fault,
               place->who, place->at, sim->failure.checker, sim->failure.words.text);
    }
    gk_sim_fini(sim);
    return passed;
}

static bool enumerate_faults(struct gk_sim *sim, const struct gk_sim_cluster *cluster)
{
    struct gk_sim_options options;
    uint64_t runs = 0;

    options_of(cluster, &options);
    options.worker_chunk = options.server_chunk = 8;
    for (uint32_t fault = 0; fault < FAULTS_COUNT; fault++) {
        bool of_worker = fault == KILL_WORKER || fault == CUT;
        uint32_t count = of_worker ? cluster->workers : fault == KILL_SHARD ? cluster->servers : 1;

        for (uint32_t who = 0; who < count; who++) {
            bool over = false;

            for (uint64_t at = 0; !over; at++, runs++) {
                struct place place = {.fault = (enum fault)fault, .who = who, .at = at};

                if (!run_place(sim, &options, &place, &over)) {
                    return false;
                }
            }
        }
    }
    printf("%s: %" PRIu64 " runs with one fault, at every place\n", cluster->name, runs);
    return true;
}

bool gk_sim_enumerate(struct gk_sim *sim, const struct gk_sim_cluster *cluster, bool trace)
{
    return enumerate_orders(sim, cluster, trace) && enumerate_faults(sim, cluster);
}

const struct gk_sim_cluster *gk_sim_clusters(uint32_t *ret_count)
{
    static const struct gk_sim_cluster clusters[] = {
        {"2 workers, 1 server, 1 step", 2, 1, 1, 0, 0},
        {"2 workers, 1 server, 2 steps", 2, 1, 2, 3, 0},
        {"3 workers, 1 server, 1 step", 3, 1, 1, 2, 0},
        {"2 workers, 2 servers, 1 step", 2, 2, 1, 2, 0},
        {"2 workers, 2 servers, 2 steps", 2, 2, 2, 2, 0},
    };

    *ret_count = sizeof(clusters) / sizeof(clusters[0]);
    return clusters;
}
