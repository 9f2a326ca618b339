/* What must hold between two events; worker/README.md says it in words. */
#include "worker/core/internal.h"

#include "common/assert.h"

static void check_window(const struct gk_window *window)
{
    uint32_t outstanding = 0;

    GK_ASSERT(window->done <= window->next && window->next <= window->chunks);
    GK_ASSERT(window->limit <= GK_PULL_WINDOW && (window->limit > 0) == (window->chunks > 0));
    for (uint32_t i = 0; i < GK_PULL_WINDOW; i++) {
        const struct gk_window_slot *slot = &window->slots[i];

        if (!slot->active) {
            continue;
        }
        outstanding++;
        GK_ASSERT(i < window->limit && slot->chunk < window->next && slot->req_id > 0);
        for (uint32_t j = 0; j < i; j++) {
            GK_ASSERT(!window->slots[j].active || window->slots[j].chunk != slot->chunk);
        }
    }
    GK_ASSERT(window->done + outstanding == window->next);
}

/* What is sent to a shard is what it may still count: the push of its own version, made by this
 * life and persisted, or an empty one for a step that this life has not made. */
static void check_push(const struct gk_worker *worker, const struct gk_shard *shard)
{
    const struct gk_ring_entry *entry;
    bool made = shard->push_step >= worker->first_step && shard->push_step < worker->next_step;

    if (shard->push.chunks == 0) {
        return;
    }
    GK_ASSERT(shard->push_step == shard->version && shard->push_lost != made);
    if (made) {
        GK_ASSERT(gk_ring_find(worker, shard->push_step, &entry) && entry->persisted &&
                  !entry->decided[shard->index]);
    }
}

static void check_shard(const struct gk_worker *worker, const struct gk_shard *shard)
{
    bool ready = shard->state == GK_SESSION_READY;

    GK_ASSERT(shard->state < GK_SESSION_COUNT);
    GK_ASSERT(shard->state == GK_SESSION_DOWN || worker->phase != GK_PHASE_IDLE);
    GK_ASSERT(!ready || (shard->session != 0 && shard->welcomed && shard->hello.req_id != 0));
    GK_ASSERT(shard->durable_version <= shard->version);
    check_window(&shard->init);
    check_window(&shard->push);
    check_window(&shard->pull);
    GK_ASSERT(shard->init.chunks == 0 || (worker->rank == 0 && worker->init_made));
    if (!(worker->config->plant & GK_WORKER_PLANT_OLD_ACKS)) {
        check_push(worker, shard);
    }
}

static void check_held(const struct gk_worker *worker, const struct gk_ring_entry *entry)
{
    uint64_t step = entry->push->step;
    bool under_way = worker->phase == GK_PHASE_PERSISTING && step == worker->target;

    GK_ASSERT(entry->push->step >= worker->first_step && step < worker->next_step);
    GK_ASSERT(entry->persisted || under_way || worker->phase == GK_PHASE_DONE);
    for (const struct gk_ring_entry *other = worker->ring; other < entry; other++) {
        GK_ASSERT(!other->push || other->push->step != step);
    }
}

/* Exactly the steps [next_step - pushes, next_step), the newest of them perhaps not yet persisted.
 */
static void check_ring(const struct gk_worker *worker)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        const struct gk_ring_entry *entry = &worker->ring[i];
        uint32_t decided = 0;

        for (uint32_t s = 0; s < worker->config->servers; s++) {
            GK_ASSERT(entry->push || !entry->decided[s]);
            decided += entry->decided[s] ? 1 : 0;
        }
        if (entry->push) {
            GK_ASSERT(decided < worker->config->servers);
            check_held(worker, entry);
        } else {
            GK_ASSERT(!entry->persisted);
        }
    }
}

static void check_phase_of(const struct gk_worker *worker, const struct gk_shard *shard,
                           bool settled)
{
    bool leaving = worker->phase == GK_PHASE_LEAVING;

    if (worker->phase == GK_PHASE_IDLE || worker->phase == GK_PHASE_JOINING) {
        GK_ASSERT(shard->push.chunks == 0 && shard->pull.chunks == 0);
    } else {
        GK_ASSERT(shard->pull.chunks > 0 && shard->pull_version == worker->target);
    }
    GK_ASSERT(!settled || gk_window_complete(&shard->pull));
    GK_ASSERT(leaving || (!shard->left && shard->leave.req_id == 0));
}

/* Outside EXCHANGING either nothing was fetched yet, or all of `target` is installed. */
static void check_phase(const struct gk_worker *worker)
{
    bool early = worker->phase == GK_PHASE_IDLE || worker->phase == GK_PHASE_JOINING;
    bool settled = !early && worker->phase != GK_PHASE_EXCHANGING;

    if (worker->phase == GK_PHASE_DONE) {
        return;
    }
    if (worker->left_before) { /* nothing is fetched, and not everybody may be there */
        GK_ASSERT(worker->phase == GK_PHASE_IDLE || worker->phase == GK_PHASE_LEAVING);
        GK_ASSERT(worker->version == worker->target);
        return;
    }
    GK_ASSERT(early || worker->all_welcomed);
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        check_phase_of(worker, &worker->shards[i], settled);
    }
    GK_ASSERT(!settled || worker->version == worker->target);
    if (worker->phase == GK_PHASE_PERSISTING) {
        GK_ASSERT(worker->next_step == worker->target + 1);
    } else if (worker->phase == GK_PHASE_COMPUTING) {
        GK_ASSERT(worker->next_step == worker->target);
        GK_ASSERT(gk_ring_has_room(worker));
    } else if (worker->phase == GK_PHASE_LEAVING) {
        GK_ASSERT(worker->left_at > 0 && worker->version == gk_left_step(worker->left_at));
    }
}

void gk_worker_check(const struct gk_worker *worker)
{
    GK_ASSERT((unsigned)worker->phase < GK_PHASE_COUNT);
    GK_ASSERT(worker->version <= worker->target);
    GK_ASSERT(worker->first_step <= worker->next_step);
    GK_ASSERT(worker->init_asked || !worker->init_made);
    check_ring(worker);
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        check_shard(worker, &worker->shards[i]);
    }
    check_phase(worker);
}
