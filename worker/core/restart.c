/* A new life of the process that finds its slot: what a slot file keeps survives, everything else
 * is as after gk_worker_new().
 *
 * The slot of step s holds the residual and the push of s, so version s had been installed before
 * and version s + 1 is the next one to fetch, wherever the shards are: one that is still at s gets
 * the push again, one at s + 1 has it.  A shard beyond that proves the slot to be of the past, and
 * the LOST rule applies as to a life without one. */
#include "worker/core/internal.h"

#include "common/assert.h"

#include <string.h>

static void forget_shard(struct gk_shard *shard)
{
    struct gk_shard kept = {.index = shard->index, .lo = shard->lo, .hi = shard->hi};

    *shard = kept;
}

void gk_worker_restart(struct gk_worker *worker, uint64_t next_step)
{
    struct gk_worker kept = *worker;

    GK_ASSERT(next_step <= worker->next_step);
    gk_ring_restart(worker, next_step);
    memcpy(kept.ring, worker->ring, sizeof(kept.ring));
    memset(worker, 0, sizeof(*worker));
    worker->config = kept.config;
    worker->rank = next_step > 0 ? kept.rank : kept.config->rank;
    worker->chunk_floats = kept.chunk_floats;
    worker->shards = kept.shards;
    memcpy(worker->ring, kept.ring, sizeof(worker->ring));
    worker->stats = kept.stats;
    worker->now_us = kept.now_us;
    worker->incarnation = kept.incarnation;
    worker->req_ids = kept.req_ids;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        forget_shard(&worker->shards[i]);
    }
    if (next_step > 0) {
        worker->resumes = true;
        worker->job_uid = kept.job_uid;
        worker->init_id = kept.init_id;
        worker->memory_incarnation = kept.memory_incarnation;
        /* A life that never joined has not pushed; its number may lie above another process's. */
        worker->former_incarnation = kept.resumes ? kept.former_incarnation : kept.incarnation;
        worker->first_step = kept.first_step;
        worker->next_step = next_step;
        worker->version = next_step - 1;
        worker->target = next_step;
    }
}

/* Once all shards have welcomed it: true when the slot is not of the past. */
bool gk_worker_resumes(struct gk_worker *worker, uint64_t highest)
{
    bool resumes = worker->resumes && highest <= worker->next_step;

    worker->resumes = false;
    return resumes;
}

void gk_worker_forget(struct gk_worker *worker)
{
    if (!worker->resumes) {
        return;
    }
    worker->resumes = false;
    gk_ring_clear(worker);
    worker->first_step = worker->next_step = 0;
    worker->version = worker->target = 0;
    (void)gk_worker_emit(worker, GK_WORKER_RESET);
    gk_worker_trace(worker, GK_LOG_WARN, "WORKER-LOST",
                    "rank %u belongs to another process now: what this one held of it is void",
                    worker->rank);
}
