/* Every wait says whom it waits for: a line after 5 s without progress, then every 10 s. */
#include "worker/core/internal.h"

#include "common/bits.h"

void gk_stall_progress(struct gk_worker *worker)
{
    worker->phase_us = worker->now_us;
    worker->stall_due_us = worker->now_us + GK_STALL_US;
}

static double seconds(const struct gk_worker *worker, uint64_t since_us)
{
    return (double)(worker->now_us - gk_min_u64(worker->now_us, since_us)) / 1e6;
}

/* The ranks that the shard waits for, as its last PONG says: the lowest and how many. */
static void describe_ranks(struct gk_words *ret, const struct gk_shard *shard)
{
    if (shard->pong.waits_count > 1) {
        gk_words_set(ret, "rank %u and %u more", shard->pong.waits_for,
                     shard->pong.waits_count - 1);
    } else {
        gk_words_set(ret, "rank %u", shard->pong.waits_for);
    }
}

static double quiet_s(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return seconds(worker, gk_max_u64(shard->heard_us, worker->started_us));
}

static bool missing(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return shard->state == GK_SESSION_DOWN || quiet_s(worker, shard) > 1e-6 * GK_HELD_US;
}

/* Why a shard has not answered yet. */
static void describe_shard(const struct gk_worker *worker, const struct gk_shard *shard,
                           struct gk_words *ret)
{
    const char *address = worker->config->addresses[shard->index];
    struct gk_words ranks;

    if (shard->state == GK_SESSION_DOWN) {
        gk_words_set(ret, "shard %u at %s: not connected for %.1f s", shard->index, address,
                     seconds(worker, gk_max_u64(shard->since_us, worker->started_us)));
    } else if (shard->refusal) {
        gk_words_set(ret, "shard %u at %s: refuses (%s): %s", shard->index, address,
                     gk_code_name(shard->refusal), shard->refusal_words.text);
    } else if (missing(worker, shard)) {
        gk_words_set(ret, "shard %u at %s: connected, but silent for %.1f s", shard->index, address,
                     quiet_s(worker, shard));
    } else if (shard->pong.waits == GK_WAIT_DISK) {
        gk_words_set(ret, "shard %u at %s, whose disk has been full for %.1f s: make room there",
                     shard->index, address, (double)shard->pong.waits_us / 1e6);
    } else if (shard->init_words.text[0]) {
        gk_words_set(ret, "shard %u at %s: %s", shard->index, address, shard->init_words.text);
    } else if (shard->pong.waits == GK_WAIT_RANK && shard->pong.waits_version > 0) {
        describe_ranks(&ranks, shard);
        gk_words_set(ret, "%s, which shard %u at %s has missed for %.1f s", ranks.text,
                     shard->index, address, (double)shard->pong.waits_us / 1e6);
    } else {
        gk_words_set(ret, "shard %u at %s to answer", shard->index, address);
    }
}

/* All are connected, but workers are missing: the shard that misses the most says who. */
static void describe_missing(const struct gk_worker *worker, const struct gk_shard *shard,
                             struct gk_words *ret)
{
    const char *address = worker->config->addresses[shard->index];
    struct gk_words ranks;

    if (shard->pong.waits == GK_WAIT_RANK) {
        describe_ranks(&ranks, shard);
        gk_words_set(ret, "shard %u at %s has not seen %s", shard->index, address, ranks.text);
    } else {
        gk_words_set(ret, "shard %u at %s has seen %u and does not say which", shard->index,
                     address, shard->workers_present);
    }
}

/* All are connected and all workers are here: who has no version, or another than the first. */
static const struct gk_shard *without_init(const struct gk_worker *worker)
{
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (!shard->initialised || shard->init_id != worker->shards[0].init_id) {
            return shard;
        }
    }
    return &worker->shards[0];
}

static void stall_joining(struct gk_worker *worker)
{
    const struct gk_worker_config *config = worker->config;
    const struct gk_shard *fewest = &worker->shards[0];
    double waited = seconds(worker, worker->started_us);
    uint32_t ready = 0;
    struct gk_words first = {.text = ""};

    for (uint32_t i = 0; i < config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (shard->state == GK_SESSION_READY) {
            ready++;
            fewest = shard->workers_present < fewest->workers_present ? shard : fewest;
        } else if (!first.text[0]) {
            describe_shard(worker, shard, &first);
        }
    }
    if (ready < config->servers) {
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-WAITS", "waiting for server %u of %u: %s",
                        ready + 1, config->servers, first.text);
    } else if (fewest->workers_present < config->workers) {
        describe_missing(worker, fewest, &first);
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-WAITS",
                        "waiting for worker %u of %u for %.1f s: %s", fewest->workers_present + 1,
                        config->workers, waited, first.text);
    } else {
        describe_shard(worker, without_init(worker), &first);
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-WAITS",
                        "waiting for rank 0 to initialise the job for %.1f s: %s", waited,
                        first.text);
    }
}

/* All parameters are here, but the ring has no room: a shard has not made a version durable. */
static void describe_ring(const struct gk_worker *worker, struct gk_words *ret)
{
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (gk_ring_owes(worker, shard)) {
            gk_words_set(ret, "shard %u at %s to make version %llu durable (%llu is)", i,
                         worker->config->addresses[i], (unsigned long long)shard->version,
                         (unsigned long long)shard->durable_version);
            return;
        }
    }
}

/* The step whose round makes the version that is fetched; 0 also for version 0 itself. */
static uint64_t stalled_step(const struct gk_worker *worker)
{
    return worker->target > 0 ? worker->target - 1 : 0;
}

/* The first shard that has not given its parameters; or one that is missing, though it has given
 * them, because whoever is waited for may in turn be waiting for that one. */
static void describe_pulls(const struct gk_worker *worker, struct gk_words *ret)
{
    const struct gk_shard *first = NULL;

    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (!gk_window_complete(&shard->pull) && !first) {
            first = shard;
        }
    }
    for (uint32_t i = 0; first && i < worker->config->servers; i++) {
        if (!missing(worker, first) && missing(worker, &worker->shards[i])) {
            first = &worker->shards[i];
        }
    }
    if (first) {
        describe_shard(worker, first, ret);
    }
}

static void stall_exchanging(struct gk_worker *worker)
{
    struct gk_words words = {.text = ""};

    describe_pulls(worker, &words);
    if (!words.text[0]) {
        describe_ring(worker, &words);
    }
    gk_worker_trace(worker, GK_LOG_WARN, "WORKER-STALL", "step %llu: waiting %.1f s for %s",
                    (unsigned long long)stalled_step(worker), seconds(worker, worker->phase_us),
                    words.text);
}

static void stall_leaving(struct gk_worker *worker)
{
    struct gk_words words = {.text = ""};

    for (uint32_t i = 0; i < worker->config->servers && !words.text[0]; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (!shard->left && !shard->finished) {
            describe_shard(worker, shard, &words);
        }
    }
    if (!words.text[0]) {
        describe_ring(worker, &words);
    }
    gk_worker_trace(worker, GK_LOG_WARN, "WORKER-STALL",
                    "leaving at step %llu: waiting %.1f s for %s",
                    (unsigned long long)worker->config->spec->steps,
                    seconds(worker, worker->phase_us), words.text);
}

void gk_stall_check(struct gk_worker *worker)
{
    if (worker->now_us < worker->stall_due_us) {
        return;
    }
    worker->stall_due_us = worker->now_us + GK_STALL_AGAIN_US;
    switch (worker->phase) {
    case GK_PHASE_JOINING:
        stall_joining(worker);
        break;
    case GK_PHASE_EXCHANGING:
        stall_exchanging(worker);
        break;
    case GK_PHASE_LEAVING:
        stall_leaving(worker);
        break;
    case GK_PHASE_COMPUTING:
    case GK_PHASE_PERSISTING:
    case GK_PHASE_EVALUATING:
        gk_worker_trace(worker, GK_LOG_INFO, "WORKER-SLOW", "step %llu: %s for %.1f s",
                        (unsigned long long)worker->target, gk_worker_phase_name(worker->phase),
                        seconds(worker, worker->phase_us));
        break;
    case GK_PHASE_IDLE:
    case GK_PHASE_DONE:
    case GK_PHASE_COUNT:
        break;
    }
}
