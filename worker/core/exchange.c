/* One exchange: every shard gets the push of the step it is at, and gives the parameters of version
 * `target`.
 *
 * What a shard needs follows from its version alone: the push in the ring whose step equals it.  So
 * a shard that restarts before its commit gets the push again, and one that restarts after it never
 * does.  A push leaves the ring when every shard has shown a verdict on it that is durable there.
 */
#include "worker/core/internal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"

uint64_t gk_exchange_highest(const struct gk_worker *worker)
{
    uint64_t highest = 0;

    for (uint32_t i = 0; i < worker->config->servers; i++) {
        if (worker->shards[i].initialised) {
            highest = gk_max_u64(highest, worker->shards[i].version);
        }
    }
    return highest;
}

void gk_exchange_observe(struct gk_worker *worker, struct gk_shard *shard,
                         const struct gk_header *header)
{
    shard->heard_us = worker->now_us;
    shard->version = gk_max_u64(shard->version, header->version);
    shard->durable_version =
        gk_max_u64(shard->durable_version, gk_min_u64(header->durable_version, shard->version));
    gk_ring_observe(worker, shard, header);
    if (shard->push.chunks > 0 && shard->version > shard->push_step) {
        gk_window_stop(&shard->push);
    }
}

void gk_exchange_new_session(struct gk_worker *worker, struct gk_shard *shard)
{
    gk_window_stop(&shard->init);
    if (!(worker->config->plant & GK_WORKER_PLANT_OLD_ACKS)) {
        gk_window_stop(&shard->push); /* PUSH_OK was a promise of the former life */
    }
}

void gk_exchange_begin(struct gk_worker *worker, uint64_t target)
{
    worker->target = target;
    worker->exchange_us = worker->now_us;
    worker->pushed_us = 0;
    worker->first_params_us = 0;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        struct gk_shard *shard = &worker->shards[i];
        uint64_t length = shard->hi - shard->lo;

        gk_window_start(&shard->pull,
                        (uint32_t)((length + worker->chunk_floats - 1) / worker->chunk_floats),
                        GK_PULL_WINDOW);
        shard->pull_version = target;
    }
}

static void fill_chunk(struct gk_msg *msg, const struct gk_push_slice *slice, uint32_t c)
{
    const struct gk_push_chunk *chunk = &slice->chunks[c];

    msg->h.push_id = slice->id;
    msg->h.push_bytes = slice->bytes;
    msg->h.lo = chunk->lo;
    msg->h.hi = chunk->hi;
    msg->h.count = chunk->count;
    msg->h.index_encoding = chunk->index_encoding;
    msg->h.value_encoding = chunk->index_encoding == GK_INDEX_NONE ? 0 : GK_VALUE_F32;
    msg->frames_count = chunk->frames_count;
    for (uint32_t f = 0; f < chunk->frames_count; f++) {
        msg->frame[f] = gk_buf_ref(chunk->frame[f]);
    }
}

static void send_push_chunk(struct gk_worker *worker, struct gk_shard *shard,
                            const struct gk_push *push, uint32_t chunk, uint64_t req_id)
{
    struct gk_msg *msg = gk_worker_emit_send(worker, shard, GK_KIND_PUSH, req_id);

    msg->h.step = shard->push_step;
    msg->h.base_version = shard->push_step;
    msg->h.chunk = chunk;
    msg->h.chunks = shard->push.chunks;
    if (push) {
        msg->h.samples = push->samples;
        msg->h.flags = push->has_rate ? GK_FLAG_LR_FROM_CLIENT : 0;
        msg->h.lr_bits = push->lr_bits;
        fill_chunk(msg, &push->slices[shard->index], chunk);
        return;
    }
    msg->h.flags = GK_FLAG_LOST;
    msg->h.push_id = gk_mix64(worker->life_nonce + shard->push_step) | 1;
    msg->h.lo = shard->lo;
    msg->h.hi = shard->hi;
}

/* A shard behind `target` for whose step no push is left: the state of a former life is gone, so it
 * gets an empty push; unless this life made that push and saw it durable, in which case the shard
 * has gone back in time. */
static void begin_lost_push(struct gk_worker *worker, struct gk_shard *shard)
{
    if (shard->version >= worker->first_step && shard->version < worker->next_step) {
        gk_worker_exit(worker, GK_EXIT_PEER,
                       "ROLLBACK: shard %u at %s went back to version %llu, but had reported a "
                       "later one durable; the job is at version %llu. Put its newest state back, "
                       "or stop the servers and take all shards to that version: gkps rewind --to "
                       "%llu DIR..., with the state directories of all of them",
                       shard->index, worker->config->addresses[shard->index],
                       (unsigned long long)shard->version, (unsigned long long)worker->target,
                       (unsigned long long)shard->version);
        return;
    }
    gk_window_start(&shard->push, 1, 1);
    shard->push_lost = true;
    shard->push_step = shard->version;
    worker->stats.lost++;
    gk_worker_trace(worker, GK_LOG_WARN, "WORKER-LOST",
                    "the push of step %llu is lost with a former life: shard %u gets an empty one",
                    (unsigned long long)shard->version, shard->index);
}

static void begin_push(struct gk_worker *worker, struct gk_shard *shard)
{
    const struct gk_ring_entry *entry;
    const struct gk_push *push = gk_ring_find(worker, shard->version, &entry);

    if (shard->push.chunks > 0 && shard->push_step == shard->version) {
        return;
    }
    if (push && !entry->decided[shard->index]) {
        if (entry->persisted) {
            gk_window_start(&shard->push, push->slices[shard->index].chunks_count, GK_PUSH_WINDOW);
            shard->push_lost = false;
            shard->push_step = shard->version;
        }
    } else if (shard->version < worker->target) {
        begin_lost_push(worker, shard);
    }
}

static bool exchanges(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return shard->state == GK_SESSION_READY && shard->initialised &&
           worker->phase != GK_PHASE_JOINING && worker->phase != GK_PHASE_DONE;
}

static bool pulls(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return worker->phase == GK_PHASE_EXCHANGING && gk_window_active(&shard->pull);
}

static void pump_push(struct gk_worker *worker, struct gk_shard *shard)
{
    const struct gk_ring_entry *entry;
    uint32_t chunk;
    uint64_t req_id;
    bool again;

    while (
        gk_window_send(&shard->push, worker->now_us, &worker->req_ids, &chunk, &req_id, &again)) {
        const struct gk_push *push =
            shard->push_lost ? NULL : gk_ring_find(worker, shard->push_step, &entry);

        GK_ASSERT(push || shard->push_lost);
        worker->stats.retries += again;
        send_push_chunk(worker, shard, push, chunk, req_id);
    }
}

/* With an optimizer of their own the workers have the parameters, once they have begun together,
 * and fetch what those are to be moved by. */
static uint32_t wanted_plane(const struct gk_worker *worker)
{
    return worker->config->sums && worker->target > 0 ? 1 : 0;
}

static void pump_pull(struct gk_worker *worker, struct gk_shard *shard)
{
    uint32_t chunk;
    uint64_t req_id;
    bool again;

    while (
        gk_window_send(&shard->pull, worker->now_us, &worker->req_ids, &chunk, &req_id, &again)) {
        struct gk_msg *msg = gk_worker_emit_send(worker, shard, GK_KIND_PULL_DENSE, req_id);

        worker->stats.retries += again;
        msg->h.version = worker->target;
        msg->h.plane = wanted_plane(worker);
        msg->h.lo = shard->lo + (uint64_t)chunk * worker->chunk_floats;
        msg->h.hi = gk_min_u64(msg->h.lo + worker->chunk_floats, shard->hi);
    }
}

void gk_exchange_pump(struct gk_worker *worker, struct gk_shard *shard)
{
    if (exchanges(worker, shard)) {
        begin_push(worker, shard);
    }
    if (exchanges(worker, shard) && gk_window_active(&shard->push)) {
        pump_push(worker, shard);
    }
    if (exchanges(worker, shard) && pulls(worker, shard)) {
        pump_pull(worker, shard);
    }
}

uint64_t gk_exchange_due_us(const struct gk_worker *worker, const struct gk_shard *shard)
{
    uint64_t due_us = UINT64_MAX;

    if (exchanges(worker, shard) && gk_window_active(&shard->push)) {
        due_us = gk_window_due_us(&shard->push, worker->now_us);
    }
    if (exchanges(worker, shard) && pulls(worker, shard)) {
        due_us = gk_min_u64(due_us, gk_window_due_us(&shard->pull, worker->now_us));
    }
    return due_us;
}

void gk_exchange_push_ok(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    uint32_t chunk;

    if (!gk_window_answer(&shard->push, msg->h.req_id, worker->now_us, &chunk)) {
        worker->stats.duplicates++; /* also the answer that a verdict has overtaken */
        return;
    }
    gk_stall_progress(worker);
}

static bool all_pushed(const struct gk_worker *worker)
{
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (shard->version < worker->target && !gk_window_complete(&shard->push)) {
            return false;
        }
    }
    return true;
}

/* The request that PARAMS answers.  Planted bug: or any that asks for the same range. */
static const struct gk_window_slot *find_request(const struct gk_worker *worker,
                                                 const struct gk_shard *shard,
                                                 const struct gk_header *header)
{
    bool mixes = (worker->config->plant & GK_WORKER_PLANT_MIXED_PULL) != 0;

    for (uint32_t i = 0; i < shard->pull.limit; i++) {
        const struct gk_window_slot *slot = &shard->pull.slots[i];
        uint64_t lo = shard->lo + (uint64_t)slot->chunk * worker->chunk_floats;

        if (gk_window_slot_has(slot, header->req_id) ||
            (mixes && slot->active && lo == header->lo)) {
            return slot;
        }
    }
    return NULL;
}

static void account_params(struct gk_worker *worker)
{
    if (worker->pushed_us == 0) {
        worker->pushed_us = worker->now_us;
    }
    if (worker->first_params_us == 0) {
        worker->first_params_us = worker->now_us;
    }
}

void gk_exchange_params(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    const struct gk_window_slot *slot = find_request(worker, shard, &msg->h);
    struct gk_worker_action *action;
    uint32_t chunk;
    uint64_t lo, hi, req_id;

    if (worker->phase != GK_PHASE_EXCHANGING || !slot) {
        worker->stats.duplicates++;
        gk_window_heard(&shard->pull, worker->now_us);
        return;
    }
    lo = shard->lo + (uint64_t)slot->chunk * worker->chunk_floats;
    hi = gk_min_u64(lo + worker->chunk_floats, shard->hi);
    /* P5: never another version than the one asked for. */
    if ((msg->h.version != worker->target &&
         !(worker->config->plant & GK_WORKER_PLANT_MIXED_PULL)) ||
        msg->h.lo != lo || msg->h.hi != hi || msg->h.plane != wanted_plane(worker)) {
        worker->stats.bad_messages++;
        return;
    }
    /* What was mixed in has another id. */
    req_id = gk_window_slot_has(slot, msg->h.req_id) ? msg->h.req_id : slot->req_id;
    (void)gk_window_answer(&shard->pull, req_id, worker->now_us, &chunk);
    account_params(worker);
    action = gk_worker_emit(worker, GK_WORKER_INSTALL);
    action->step = worker->target;
    action->plane = msg->h.plane;
    action->samples = msg->h.samples;
    action->lo = lo;
    action->hi = hi;
    action->buf = gk_buf_ref(msg->frame[0]);
    gk_stall_progress(worker);
}

void gk_exchange_gone(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    /* The header's version was observed already: if it is beyond the target, the LOST rule takes
     * over. */
    if (!gk_window_holds(&shard->pull, msg->h.req_id)) {
        worker->stats.duplicates++;
    }
}

bool gk_exchange_complete(struct gk_worker *worker)
{
    if (worker->pushed_us == 0 && all_pushed(worker)) {
        worker->pushed_us = worker->now_us;
    }
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        if (!gk_window_complete(&worker->shards[i].pull)) {
            return false;
        }
    }
    return true;
}
