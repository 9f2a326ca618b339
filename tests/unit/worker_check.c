/* Goal: gk_worker_check() sees each invariant broken, so that a test that ends without an abort has
 * shown something.
 * Method: a sound core in a fitting phase, one field spoiled at a time, in a process of its own. */
#include "worker_phases.h"

#include "worker/core/internal.h"

#include <criterion/criterion.h>

/* Each spoils one thing in a core that phases_open() has brought into `phase`. */
struct canary {
    enum gk_worker_phase phase;
    void (*spoil)(struct gk_worker *core);
    const char *words; /* of the assertion that must see it */
};

static void version_ahead(struct gk_worker *core)
{
    core->version = core->target + 1;
}

static void steps_reversed(struct gk_worker *core)
{
    core->first_step = core->next_step + 1;
}

static void init_unasked(struct gk_worker *core)
{
    core->init_made = true;
    core->init_asked = false;
}

static void init_unmade(struct gk_worker *core)
{
    gk_window_start(&core->shards[0].init, 2, 1);
}

static void durable_ahead(struct gk_worker *core)
{
    core->shards[1].durable_version = core->shards[1].version + 1;
}

static void no_session(struct gk_worker *core)
{
    core->shards[1].session = 0;
}

static void no_request_to_greet(struct gk_worker *core)
{
    core->shards[1].hello.req_id = 0;
}

static void more_answered_than_sent(struct gk_worker *core)
{
    core->shards[0].pull.done = core->shards[0].pull.next + 1;
}

static void answered_and_outstanding(struct gk_worker *core)
{
    core->shards[0].pull.done++;
}

static void more_sent_than_there_are(struct gk_worker *core)
{
    core->shards[0].pull.next = core->shards[0].pull.chunks + 1;
}

static void slot_beyond_the_limit(struct gk_worker *core)
{
    core->shards[0].pull.limit = 1;
}

static void two_slots_one_chunk(struct gk_worker *core)
{
    core->shards[0].pull.slots[1].chunk = core->shards[0].pull.slots[0].chunk;
}

static void push_of_another_version(struct gk_worker *core)
{
    core->shards[0].version++;
}

static void push_not_persisted(struct gk_worker *core)
{
    core->ring[0].persisted = false;
}

static void push_already_decided(struct gk_worker *core)
{
    core->ring[0].decided[0] = true;
}

static void push_called_lost(struct gk_worker *core)
{
    core->shards[0].push_lost = true;
}

static void push_not_in_the_ring(struct gk_worker *core)
{
    gk_ring_clear(core);
}

static void push_of_no_step_made(struct gk_worker *core)
{
    core->first_step = core->next_step;
}

static void persisted_nothing(struct gk_worker *core)
{
    core->ring[1].persisted = true;
}

static void decided_nothing(struct gk_worker *core)
{
    core->ring[1].decided[0] = true;
}

static void decided_and_kept(struct gk_worker *core)
{
    core->ring[0].decided[0] = core->ring[0].decided[1] = true;
    gk_window_stop(&core->shards[0].push);
    gk_window_stop(&core->shards[1].push);
}

static void one_step_twice(struct gk_worker *core)
{
    core->ring[1].push = calloc(1, sizeof(*core->ring[1].push));
    core->ring[1].push->step = core->ring[0].push->step;
    core->ring[1].persisted = true;
}

static void no_room(struct gk_worker *core)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        core->ring[i].push = calloc(1, sizeof(*core->ring[i].push));
        core->ring[i].push->step = i;
        core->ring[i].persisted = true;
    }
    core->next_step = core->target = core->version = GK_RING_ENTRIES;
    core->shards[0].pull_version = core->shards[1].pull_version = GK_RING_ENTRIES;
}

static void pull_unfinished(struct gk_worker *core)
{
    gk_window_start(&core->shards[0].pull, 2, 8);
}

static void pull_of_another_version(struct gk_worker *core)
{
    core->shards[0].pull_version++;
}

static void pulls_while_joining(struct gk_worker *core)
{
    gk_window_start(&core->shards[0].pull, 2, 8);
}

static void not_all_welcomed(struct gk_worker *core)
{
    core->all_welcomed = false;
}

static void works_on_another_version(struct gk_worker *core)
{
    core->version--;
}

static void leaves_early(struct gk_worker *core)
{
    core->shards[0].left = true;
}

static void leaves_before_the_end(struct gk_worker *core)
{
    core->phase = GK_PHASE_LEAVING;
}

static void persists_without_a_step(struct gk_worker *core)
{
    core->next_step = core->target;
    gk_ring_clear(core);
}

static void computes_a_made_step(struct gk_worker *core)
{
    core->next_step++;
}

static void connected_before_the_start(struct gk_worker *core)
{
    core->shards[0].state = GK_SESSION_GREETING;
}

static const struct canary canaries[] = {
    {GK_PHASE_DONE, version_ahead, "worker->version <= worker->target"},
    {GK_PHASE_DONE, steps_reversed, "worker->first_step <= worker->next_step"},
    {GK_PHASE_JOINING, init_unasked, "worker->init_asked || !worker->init_made"},
    {GK_PHASE_JOINING, init_unmade, "shard->init.chunks == 0 ||"},
    {GK_PHASE_COMPUTING, durable_ahead, "shard->durable_version <= shard->version"},
    {GK_PHASE_COMPUTING, no_session, "!ready || (shard->session != 0"},
    {GK_PHASE_COMPUTING, no_request_to_greet, "!ready || (shard->session != 0"},
    {GK_PHASE_EXCHANGING, more_answered_than_sent, "window->done <= window->next"},
    {GK_PHASE_EXCHANGING, answered_and_outstanding, "window->done + outstanding == window->next"},
    {GK_PHASE_EXCHANGING, more_sent_than_there_are, "window->next <= window->chunks"},
    {GK_PHASE_EXCHANGING, slot_beyond_the_limit, "i < window->limit"},
    {GK_PHASE_EXCHANGING, two_slots_one_chunk, "window->slots[j].chunk != slot->chunk"},
    {GK_PHASE_EXCHANGING, push_of_another_version, "shard->push_step == shard->version"},
    {GK_PHASE_EXCHANGING, push_not_persisted, "entry->persisted || "},
    {GK_PHASE_EXCHANGING, push_already_decided, "!entry->decided[shard->index]"},
    {GK_PHASE_EXCHANGING, push_called_lost, "shard->push_lost != made"},
    {GK_PHASE_EXCHANGING, push_not_in_the_ring, "gk_ring_find(worker, shard->push_step"},
    {GK_PHASE_EXCHANGING, push_of_no_step_made, "entry->push->step >= worker->first_step"},
    {GK_PHASE_EXCHANGING, persisted_nothing, "!entry->persisted"},
    {GK_PHASE_EXCHANGING, decided_nothing, "entry->push || !entry->decided[s]"},
    {GK_PHASE_EXCHANGING, decided_and_kept, "decided < worker->config->servers"},
    {GK_PHASE_EXCHANGING, one_step_twice, "other->push->step != step"},
    {GK_PHASE_COMPUTING, no_room, "gk_ring_has_room(worker)"},
    {GK_PHASE_COMPUTING, pull_unfinished, "gk_window_complete(&shard->pull)"},
    {GK_PHASE_EVALUATING, pull_unfinished, "gk_window_complete(&shard->pull)"},
    {GK_PHASE_EXCHANGING, pull_of_another_version, "shard->pull_version == worker->target"},
    {GK_PHASE_JOINING, pulls_while_joining, "shard->pull.chunks == 0"},
    {GK_PHASE_COMPUTING, not_all_welcomed, "worker->all_welcomed"},
    {GK_PHASE_LEAVING, works_on_another_version, "worker->version == worker->target"},
    {GK_PHASE_EXCHANGING, leaves_early, "!shard->left"},
    {GK_PHASE_EVALUATING, leaves_before_the_end, "worker->left_at > 0"},
    {GK_PHASE_PERSISTING, persists_without_a_step, "worker->next_step == worker->target + 1"},
    {GK_PHASE_COMPUTING, computes_a_made_step, "worker->next_step == worker->target"},
    {GK_PHASE_IDLE, connected_before_the_start, "worker->phase != GK_PHASE_IDLE"},
};

struct trial {
    struct gk_worker *core;
    void (*spoil)(struct gk_worker *core);
};

static void try_one(void *context)
{
    struct trial *trial = context;

    if (trial->spoil) {
        trial->spoil(trial->core);
    }
    gk_worker_check(trial->core);
}

static void fly(enum gk_worker_phase phase)
{
    struct rig rig;
    struct toy toy;
    struct trial trial;
    uint32_t count = 0;
    char words[512];

    phases_open(&rig, &toy, phase);
    trial = (struct trial){.core = rig.core};
    cr_assert(!phases_aborts(try_one, &trial, words, sizeof(words)), "a sound core");
    for (uint32_t i = 0; i < sizeof(canaries) / sizeof(canaries[0]); i++) {
        if (canaries[i].phase == phase) {
            count++;
            trial.spoil = canaries[i].spoil;
            cr_assert(phases_aborts(try_one, &trial, words, sizeof(words)), "%s",
                      canaries[i].words);
            cr_assert(strstr(words, canaries[i].words), "%s, not %s", words, canaries[i].words);
        }
    }
    cr_assert_gt(count, 0);
    phases_close(&rig, &toy);
}

Test(check, before_the_job)
{
    fly(GK_PHASE_IDLE);
    fly(GK_PHASE_JOINING);
}

Test(check, exchanging)
{
    fly(GK_PHASE_EXCHANGING);
}

Test(check, own_work)
{
    fly(GK_PHASE_COMPUTING);
    fly(GK_PHASE_PERSISTING);
    fly(GK_PHASE_EVALUATING);
}

Test(check, the_end)
{
    fly(GK_PHASE_LEAVING);
    fly(GK_PHASE_DONE);
}
