/* INIT: rank 0 gives version 0 to every shard that has none, or another than the rest.
 *
 * All ranks wait until every shard shows the same init id and the same job.  A shard without a
 * version while another is beyond version 0 has lost its state: the job must not begin again beside
 * the old one (LOST_SHARD). */
#include "worker/core/internal.h"

#include "common/bits.h"
#include "common/exit.h"

static bool uid_equal(struct gk_uid a, struct gk_uid b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* The shard that came back empty, or NULL. */
static const struct gk_shard *lost_shard(const struct gk_worker *worker)
{
    uint64_t highest = gk_exchange_highest(worker);

    for (uint32_t i = 0; highest > 0 && i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (shard->state == GK_SESSION_READY && !shard->initialised) {
            return shard;
        }
    }
    return NULL;
}

/* All shards show one init of one run. */
static bool all_same(const struct gk_worker *worker)
{
    const struct gk_shard *first = &worker->shards[0];

    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (!shard->initialised || shard->init_id != first->init_id ||
            !uid_equal(shard->job_uid, first->job_uid)) {
            return false;
        }
    }
    return true;
}

/* Beyond version 0 nobody can make two shards agree that do not. */
static void check_runs(struct gk_worker *worker)
{
    const struct gk_shard *first = &worker->shards[0];

    for (uint32_t i = 1; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (shard->initialised && first->initialised &&
            (shard->init_id != first->init_id || !uid_equal(shard->job_uid, first->job_uid))) {
            gk_worker_exit(worker, GK_EXIT_CONFIG,
                           "shards 0 and %u belong to different runs of job '%s': stop the servers "
                           "of the older one",
                           i, worker->config->job);
            return;
        }
    }
}

bool gk_init_agreed(struct gk_worker *worker)
{
    const struct gk_shard *lost = lost_shard(worker);

    if (lost) {
        gk_worker_exit(worker, GK_EXIT_PEER,
                       "LOST_SHARD: shard %u at %s has no state while the job is at version "
                       "%llu" GK_LOST_SHARD_REPAIR,
                       lost->index, worker->config->addresses[lost->index],
                       (unsigned long long)gk_exchange_highest(worker));
        return false;
    }
    if (!gk_session_all_ready(worker)) {
        return false;
    }
    if (gk_exchange_highest(worker) > 0) {
        check_runs(worker);
    }
    return worker->phase != GK_PHASE_DONE && all_same(worker);
}

/* Of a shard, once the init is made: it has none, or not the one that it is to get. */
static bool lacks_init(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return !shard->initialised || shard->init_id != worker->made_init_id ||
           !uid_equal(shard->job_uid, worker->init_uid);
}

static bool makes_init(const struct gk_worker *worker)
{
    return worker->rank == 0 && worker->phase != GK_PHASE_DONE && worker->version == 0 &&
           gk_exchange_highest(worker) == 0 && gk_session_all_ready(worker) && !all_same(worker);
}

/* The uid of a run that has begun with the same init, by this life of rank 0 or by a former one; or
 * a new one. */
static struct gk_uid choose_uid(const struct gk_worker *worker)
{
    if ((worker->job_uid.hi || worker->job_uid.lo) && worker->init_id == worker->made_init_id) {
        return worker->job_uid;
    }
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (shard->initialised && shard->init_id == worker->made_init_id) {
            return shard->job_uid;
        }
    }
    return worker->minted_uid;
}

/* A shard that has begun with another uid must begin again, at chunk 0. */
static void settle_uid(struct gk_worker *worker)
{
    struct gk_uid uid = choose_uid(worker);

    if (uid_equal(uid, worker->init_uid)) {
        return;
    }
    worker->init_uid = uid;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        gk_window_stop(&worker->shards[i].init);
    }
}

static uint32_t chunks_of(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return (uint32_t)((shard->hi - shard->lo + worker->chunk_floats - 1) / worker->chunk_floats);
}

static void send_chunk(struct gk_worker *worker, struct gk_shard *shard, uint32_t chunk,
                       uint64_t req_id)
{
    struct gk_msg *msg = gk_worker_emit_send(worker, shard, GK_KIND_INIT, req_id);
    struct gk_header *h = &msg->h;

    h->init_id = worker->made_init_id;
    h->job_uid = worker->init_uid;
    h->chunk = chunk;
    h->chunks = shard->init.chunks;
    h->lo = shard->lo + (uint64_t)chunk * worker->chunk_floats;
    h->hi = gk_min_u64(h->lo + worker->chunk_floats, shard->hi);
    h->count = h->hi - h->lo;
    h->index_encoding = GK_INDEX_DENSE;
    h->value_encoding = GK_VALUE_F32;
}

static void pump_shard(struct gk_worker *worker, struct gk_shard *shard)
{
    uint32_t chunk;
    uint64_t req_id;
    bool again;

    if (!lacks_init(worker, shard) || gk_window_complete(&shard->init)) {
        return; /* the next WELCOME shows what it has */
    }
    if (shard->init.chunks == 0) {
        /* Chunk 0 alone first: with it the shard learns the job and sets its memory up. */
        gk_window_start(&shard->init, chunks_of(worker, shard), 1);
    }
    while (
        gk_window_send(&shard->init, worker->now_us, &worker->req_ids, &chunk, &req_id, &again)) {
        worker->stats.retries += again;
        send_chunk(worker, shard, chunk, req_id);
    }
}

void gk_init_pump(struct gk_worker *worker)
{
    if (!makes_init(worker)) {
        return;
    }
    if (!worker->init_made) {
        if (!worker->init_asked) {
            worker->init_asked = true;
            (void)gk_worker_emit(worker, GK_WORKER_MAKE_INIT);
        }
        return;
    }
    settle_uid(worker);
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        pump_shard(worker, &worker->shards[i]);
    }
}

uint64_t gk_init_due_us(const struct gk_worker *worker)
{
    uint64_t due_us = UINT64_MAX;

    if (!worker->init_made || !makes_init(worker)) {
        return due_us;
    }
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (lacks_init(worker, shard) && gk_window_active(&shard->init)) {
            due_us = gk_min_u64(due_us, gk_window_due_us(&shard->init, worker->now_us));
        }
    }
    return due_us;
}

/* A WELCOME has shown what the shard has.  A window that is complete, and all the same did not lead
 * to a version, was for nothing (somebody else sent another init): it begins again. */
void gk_init_observe(struct gk_worker *worker, struct gk_shard *shard)
{
    if (shard->init.chunks > 0 &&
        (!lacks_init(worker, shard) || gk_window_complete(&shard->init))) {
        gk_window_stop(&shard->init);
    }
    if (shard->initialised) {
        shard->init_words.text[0] = '\0';
    }
}

void gk_init_ok(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    uint32_t chunk;

    if (!gk_window_answer(&shard->init, msg->h.req_id, worker->now_us, &chunk)) {
        worker->stats.duplicates++;
        return;
    }
    shard->init_words.text[0] = '\0';
    shard->init.limit = GK_PUSH_WINDOW;
    gk_stall_progress(worker);
    if (gk_window_complete(&shard->init)) {
        gk_retry_start(worker, &shard->hello); /* ask at once rather than at the next poll */
    }
}
