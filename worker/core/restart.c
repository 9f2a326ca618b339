/* A new life of the process that finds its slot: what the slot keeps survives, everything else is
 * as after gk_worker_new().
 *
 * The slot of step s holds the residual and the push of s, so version s had been installed before
 * and version s + 1 is the next one to fetch, wherever the shards are: one that is still at s gets
 * the push again, one at s + 1 has it.  A shard beyond that proves the slot to be of the past, and
 * the LOST rule applies as to a life without one.  A life that had left has nothing to fetch: it
 * says LEAVE again, to whoever is still there. */
#include "worker/core/internal.h"

#include "common/assert.h"

#include <string.h>

static void take_memory(struct gk_worker *worker, const struct gk_worker_memory *memory)
{
    worker->resumes = true;
    worker->memory_incarnation = memory->incarnation;
    worker->first_step = memory->first_step;
    worker->next_step = memory->step + 1;
    worker->version = memory->step;
    worker->target = memory->step + 1;
}

void gk_worker_resume(struct gk_worker *worker, struct gk_worker_slot *slot)
{
    const struct gk_worker_identity *identity = &slot->identity;

    GK_ASSERT(worker->phase == GK_PHASE_IDLE && slot->pushes_count <= GK_RING_ENTRIES);
    worker->remembered = *identity;
    worker->incarnation = identity->incarnation;
    worker->former_incarnation = identity->joined_incarnation;
    worker->epoch = identity->epoch;
    worker->job_uid = identity->job_uid;
    worker->init_id = identity->init_id;
    /* Who finds a slot holds its lock.  A process that took the rank since has a higher number. */
    worker->succeeds =
        identity->joined_incarnation > 0 && identity->joined_incarnation == identity->incarnation;
    worker->former_rank = identity->rank;
    worker->slot_lost = slot->state == GK_SLOT_LOST;
    worker->left_before = slot->state == GK_SLOT_LEFT;
    if (slot->remembers) {
        take_memory(worker, &slot->memory);
    }
    if (slot->remembers || worker->left_before) {
        worker->rank = identity->rank;
    }
    if (worker->left_before) {
        worker->resumes = false;
        worker->left_at = identity->left_at;
        worker->version = worker->target = gk_left_step(identity->left_at);
    }
    for (uint32_t i = 0; i < slot->pushes_count; i++) {
        GK_ASSERT(slot->pushes[i]->step >= worker->first_step &&
                  slot->pushes[i]->step < worker->next_step);
        gk_ring_put(worker, slot->pushes[i]);
        slot->pushes[i] = NULL;
    }
    slot->pushes_count = 0;
    gk_ring_persisted(worker);
}

/* Take out of the ring what PERSISTED has confirmed. */
static void collect_pushes(struct gk_worker *worker, uint64_t next_step, struct gk_worker_slot *ret)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        struct gk_ring_entry *entry = &worker->ring[i];

        if (entry->push && entry->persisted && entry->push->step < next_step) {
            ret->pushes[ret->pushes_count++] = entry->push;
            entry->push = NULL;
        }
    }
    gk_ring_clear(worker);
}

void gk_worker_restart(struct gk_worker *worker, uint64_t next_step)
{
    struct gk_worker_slot slot = {.identity = worker->remembered,
                                  .remembers = next_step > 0,
                                  .state = next_step > 0 ? GK_SLOT_STEP : GK_SLOT_NONE};
    struct gk_worker kept;

    GK_ASSERT(next_step <= worker->next_step);
    collect_pushes(worker, next_step, &slot);
    if (slot.remembers) {
        slot.memory = (struct gk_worker_memory){.step = next_step - 1,
                                                .first_step = worker->first_step,
                                                .incarnation = worker->memory_incarnation,
                                                .epoch = worker->epoch};
    }
    if (slot.identity.left_at > 0) {
        slot.state = GK_SLOT_LEFT;
    }
    kept = *worker;
    memset(worker, 0, sizeof(*worker));
    worker->config = kept.config;
    worker->rank = kept.config->rank;
    worker->chunk_floats = kept.chunk_floats;
    worker->shards = kept.shards;
    memcpy(worker->ring, kept.ring, sizeof(worker->ring));
    worker->stats = kept.stats;
    worker->now_us = kept.now_us;
    worker->req_ids = kept.req_ids;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &kept.shards[i];

        worker->shards[i] =
            (struct gk_shard){.index = shard->index, .lo = shard->lo, .hi = shard->hi};
    }
    gk_worker_resume(worker, &slot);
}

/* Once all shards have welcomed it: true when the slot is not of the past. */
bool gk_worker_resumes(struct gk_worker *worker, uint64_t highest)
{
    bool resumes = worker->resumes && highest <= worker->next_step;

    worker->resumes = false;
    return resumes;
}

bool gk_worker_forget(struct gk_worker *worker)
{
    if (!worker->resumes) {
        return false;
    }
    worker->resumes = false;
    gk_ring_clear(worker);
    worker->first_step = worker->next_step = 0;
    worker->version = worker->target = 0;
    (void)gk_worker_emit(worker, GK_WORKER_RESET);
    return true;
}

/* What the next life must know, when it has changed. */
void gk_worker_remember(struct gk_worker *worker)
{
    bool joined =
        worker->phase != GK_PHASE_IDLE && worker->phase != GK_PHASE_JOINING && !worker->left_before;
    struct gk_worker_identity identity = {
        .rank = worker->rank,
        .incarnation = worker->incarnation,
        .joined_incarnation = joined ? worker->incarnation : worker->former_incarnation,
        .epoch = worker->epoch,
        .job_uid = worker->job_uid,
        .init_id = worker->init_id,
        .left_at = worker->left_at,
    };

    if (memcmp(&identity, &worker->remembered, sizeof(identity)) != 0) {
        worker->remembered = identity;
        gk_worker_emit(worker, GK_WORKER_REMEMBER)->identity = identity;
    }
}
