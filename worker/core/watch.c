/* When to look again, and when to give up.
 *
 * The timer is armed for the earliest thing that would be done then: each *_due_us() asks exactly
 * what the pump beside it asks, or a request that nobody may send now would make the timer run in
 * circles. */
#include "worker/core/internal.h"

#include "common/bits.h"
#include "common/exit.h"

/* Joining: from the start.  Later: since the shard was last heard, or since it was last of use. */
static uint64_t missing_since_us(const struct gk_worker *worker, const struct gk_shard *shard)
{
    if (worker->phase == GK_PHASE_JOINING) {
        return worker->started_us;
    }
    return shard->state == GK_SESSION_READY ? shard->heard_us : shard->unready_us;
}

static void give_up(struct gk_worker *worker, const struct gk_shard *shard)
{
    const struct gk_worker_config *config = worker->config;
    double deadline = (double)config->deadline_us / 1e6;

    if (shard->refusal && shard->state != GK_SESSION_DOWN) {
        gk_worker_exit(worker, GK_EXIT_REFUSED, "refused by shard %u at %s for %.0f s (%s): %s",
                       shard->index, config->addresses[shard->index], deadline,
                       gk_code_name(shard->refusal), shard->refusal_words.text);
    } else {
        gk_worker_exit(worker, GK_EXIT_PEER,
                       "no answer from shard %u at %s for %.0f s (--deadline): is the server "
                       "running there?",
                       shard->index, config->addresses[shard->index], deadline);
    }
}

/* The shard that waits for the most, or the first. */
static const struct gk_shard *fewest_present(const struct gk_worker *worker)
{
    const struct gk_shard *fewest = &worker->shards[0];

    for (uint32_t i = 1; i < worker->config->servers; i++) {
        if (worker->shards[i].workers_present < fewest->workers_present) {
            fewest = &worker->shards[i];
        }
    }
    return fewest;
}

void gk_watch_paused(struct gk_worker *worker, uint64_t pause_us)
{
    if (pause_us == 0) {
        return;
    }
    worker->started_us += pause_us;
    worker->leaving_us += pause_us;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        struct gk_shard *shard = &worker->shards[i];

        shard->since_us += pause_us;
        shard->unready_us += pause_us;
        shard->heard_us += pause_us;
    }
    gk_worker_trace(worker, GK_LOG_INFO, "WORKER-PAUSED",
                    "this process stood still for about %.1f s, which counts against nobody",
                    (double)pause_us / 1e6);
}

void gk_watch_deadlines(struct gk_worker *worker)
{
    const struct gk_worker_config *config = worker->config;
    bool joining = worker->phase == GK_PHASE_JOINING;

    if (config->deadline_us == 0 || worker->phase == GK_PHASE_LEAVING) {
        return; /* leave.c knows when it has waited enough */
    }
    for (uint32_t i = 0; i < config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];
        bool missing = !joining || shard->state != GK_SESSION_READY;

        if (missing && worker->now_us - missing_since_us(worker, shard) >= config->deadline_us) {
            give_up(worker, shard);
            return;
        }
    }
    if (joining && worker->now_us - worker->started_us >= config->deadline_us) {
        const struct gk_shard *fewest = fewest_present(worker);

        gk_worker_exit(worker, GK_EXIT_PEER,
                       "the job did not begin within %.0f s (--deadline): %u of %u workers have "
                       "come to shard %u at %s",
                       (double)config->deadline_us / 1e6, fewest->workers_present, config->workers,
                       fewest->index, config->addresses[fewest->index]);
    }
}

uint64_t gk_watch_due_us(const struct gk_worker *worker)
{
    uint64_t due_us = gk_min_u64(worker->stall_due_us, gk_init_due_us(worker));

    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        due_us = gk_min_u64(due_us, gk_session_due_us(worker, shard));
        due_us = gk_min_u64(due_us, gk_exchange_due_us(worker, shard));
        due_us = gk_min_u64(due_us, gk_leave_due_us(worker, shard));
    }
    /* Deadlines and lingering are checked at each tick; one a second is fine for them. */
    due_us = gk_min_u64(due_us, worker->now_us + GK_PING_US);
    return gk_max_u64(due_us, worker->now_us + 1);
}
