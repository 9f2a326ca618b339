/* The ring: the pushes of the last steps, kept until every shard has shown a verdict that is
 * durable there.
 *
 * A shard that restarts may have forgotten every version above its durable one; as long as the push
 * of such a step lies here it can be sent again, so nothing that was computed is lost. */
#include "worker/core/internal.h"

#include "common/assert.h"

#include <string.h>

static void entry_free(struct gk_worker *worker, struct gk_ring_entry *entry)
{
    gk_push_free(entry->push);
    entry->push = NULL;
    entry->persisted = false;
    memset(entry->decided, 0, worker->config->servers * sizeof(*entry->decided));
}

void gk_ring_clear(struct gk_worker *worker)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        entry_free(worker, &worker->ring[i]);
    }
}

bool gk_ring_has_room(const struct gk_worker *worker)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        if (!worker->ring[i].push) {
            return true;
        }
    }
    return false;
}

void gk_ring_put(struct gk_worker *worker, struct gk_push *push)
{
    GK_ASSERT(gk_ring_has_room(worker)); /* or the step would not have begun */
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        if (!worker->ring[i].push) {
            worker->ring[i].push = push;
            return;
        }
    }
}

void gk_ring_persisted(struct gk_worker *worker)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        worker->ring[i].persisted = worker->ring[i].push != NULL;
    }
}

const struct gk_push *gk_ring_find(const struct gk_worker *worker, uint64_t step,
                                   const struct gk_ring_entry **ret_entry)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        if (worker->ring[i].push && worker->ring[i].push->step == step) {
            *ret_entry = &worker->ring[i];
            return worker->ring[i].push;
        }
    }
    return NULL;
}

/* Some push has no durable verdict of this shard yet. */
bool gk_ring_owes(const struct gk_worker *worker, const struct gk_shard *shard)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        if (worker->ring[i].push && !worker->ring[i].decided[shard->index]) {
            return true;
        }
    }
    return false;
}

/* The verdict on a step is ours when it is by a life with this memory; a second process may have
 * had the rank between two of them.  One on a later step tells nothing of this step; if another
 * life came so far, the LOST rule takes over. */
static bool is_ours(const struct gk_worker *worker, uint64_t step, const struct gk_header *header)
{
    uint32_t life = header->verdict_incarnation;
    bool known = life == worker->incarnation ||
                 (life >= worker->memory_incarnation && life <= worker->former_incarnation);

    if (header->verdict == GK_VERDICT_NONE || header->verdict_step < step) {
        return false;
    }
    return header->verdict_step > step || (header->verdict != GK_VERDICT_LOST && known);
}

/* Where a verdict is not ours the shard made its version of another life's push, or of none: ours
 * is lost there, whole. */
static void decide(struct gk_worker *worker, struct gk_ring_entry *entry, struct gk_shard *shard,
                   const struct gk_header *header)
{
    uint64_t step = entry->push->step;
    bool everywhere = true;

    if (entry->decided[shard->index] || shard->durable_version <= step) {
        return;
    }
    entry->decided[shard->index] = true;
    if (!is_ours(worker, step, header)) {
        worker->stats.lost++;
        gk_worker_trace(worker, GK_LOG_ERROR, "WORKER-PUSH-LOST",
                        "shard %u committed step %llu without the push of rank %u", shard->index,
                        (unsigned long long)step, worker->rank);
    }
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        everywhere = everywhere && entry->decided[i];
    }
    if (everywhere) {
        entry_free(worker, entry);
    }
}

void gk_ring_observe(struct gk_worker *worker, struct gk_shard *shard,
                     const struct gk_header *header)
{
    for (uint32_t i = 0; i < GK_RING_ENTRIES; i++) {
        if (worker->ring[i].push) {
            decide(worker, &worker->ring[i], shard, header);
        }
    }
}
