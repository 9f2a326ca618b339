/* LEAVE: the last step is done and its version installed; every shard must know that it need not
 * wait for this rank, and must have decided its last push for good.
 *
 * The final version was seen everywhere, so a server that has gone since then owes us nothing: a
 * bounded wait for it, and the exit code is 0 all the same.  A rank that leaves before the others
 * has seen nothing of the kind: a server that is down may come back and wait for it, so it waits as
 * long as for any peer.  A life that has it from its slot alone must not call a server gone that
 * answers, and refuses: the slot may be of another run. */
#include "worker/core/internal.h"

#include "common/bits.h"
#include "common/exit.h"

void gk_leave_begin(struct gk_worker *worker)
{
    worker->leaving_us = worker->now_us;
    worker->left_at = worker->version > 0 ? worker->version : GK_LEFT_AT_START;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        gk_retry_start(worker, &worker->shards[i].leave);
    }
}

static bool sends_leave(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return worker->phase == GK_PHASE_LEAVING && shard->state == GK_SESSION_READY && !shard->left;
}

void gk_leave_pump(struct gk_worker *worker, struct gk_shard *shard)
{
    if (sends_leave(worker, shard) && gk_retry_due(worker, &shard->leave)) {
        struct gk_msg *msg = gk_worker_emit_send(worker, shard, GK_KIND_LEAVE, shard->leave.req_id);

        msg->h.step = gk_left_step(worker->left_at);
    }
}

uint64_t gk_leave_due_us(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return sends_leave(worker, shard) ? gk_retry_due_us(&shard->leave) : UINT64_MAX;
}

void gk_leave_ok(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    if (shard->leave.req_id == 0 || msg->h.req_id != shard->leave.req_id) {
        worker->stats.duplicates++;
        return;
    }
    shard->left = true;
    gk_retry_stop(&shard->leave);
    gk_stall_progress(worker);
}

/* Replaced by something else, down for the time that a server lingers, or silent until the
 * deadline. */
static bool is_gone(const struct gk_worker *worker, const struct gk_shard *shard)
{
    uint64_t down_us = worker->now_us - gk_max_u64(shard->unready_us, worker->leaving_us);
    uint64_t silent_us = worker->now_us - gk_max_u64(shard->heard_us, worker->leaving_us);
    uint64_t deadline_us = worker->config->deadline_us;
    bool early = gk_left_step(worker->left_at) < worker->config->spec->steps;

    if (early) { /* a bound in any case: the job may have ended since, unheard */
        deadline_us = deadline_us > 0 ? deadline_us : GK_DEADLINE_S * UINT64_C(1000000);
        return shard->gone || silent_us >= deadline_us;
    }
    return shard->gone || (shard->state != GK_SESSION_READY && down_us > GK_LINGER_US) ||
           (deadline_us > 0 && silent_us >= deadline_us);
}

/* It is in another run than the slot that this life began with, as far as it says now. */
static bool refuses_slot(const struct gk_worker *worker, const struct gk_shard *shard)
{
    return worker->left_before && shard->state != GK_SESSION_DOWN &&
           shard->refusal == GK_CODE_WRONG_JOB;
}

/* It may still be replaced by the right one, until the deadline of the start. */
static void check_refusals(struct gk_worker *worker)
{
    const struct gk_worker_config *config = worker->config;

    if (config->deadline_us == 0 || worker->now_us - worker->leaving_us < config->deadline_us) {
        return;
    }
    for (uint32_t i = 0; i < config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];

        if (refuses_slot(worker, shard)) {
            gk_worker_exit(
                worker, GK_EXIT_REFUSED,
                "refused by shard %u at %s for %.0f s (%s): %s; the state directory says "
                "that rank %u had left at step %llu: remove it, or stop the wrong "
                "servers",
                i, config->addresses[i], (double)config->deadline_us / 1e6,
                gk_code_name(shard->refusal), shard->refusal_words.text, worker->rank,
                (unsigned long long)gk_left_step(worker->left_at));
            return;
        }
    }
}

void gk_leave_progress(struct gk_worker *worker)
{
    const struct gk_shard *gone = NULL;

    check_refusals(worker);
    if (worker->phase == GK_PHASE_DONE) {
        return;
    }
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        const struct gk_shard *shard = &worker->shards[i];
        bool settled = shard->finished || (shard->left && !gk_ring_owes(worker, shard)) ||
                       (worker->config->plant & GK_WORKER_PLANT_FORGET_LEAVE);

        if (settled) {
            continue;
        }
        if (refuses_slot(worker, shard) || !is_gone(worker, shard)) {
            return;
        }
        gone = shard;
    }
    if (gone) {
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-LEAVE-UNHEARD",
                        "shard %u at %s went away before it confirmed that rank %u leaves",
                        gone->index, worker->config->addresses[gone->index], worker->rank);
    }
    gk_worker_exit(worker, GK_EXIT_OK, "%s%llu steps",
                   worker->left_before ? "a former life had left after " : "done after ",
                   (unsigned long long)worker->version);
}
