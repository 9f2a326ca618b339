/* The session with each shard: connect, HELLO, WELCOME or REFUSE, again after every loss.
 *
 *            PEER_UP               WELCOME
 *   DOWN ------------> GREETING ------------> READY
 *     ^                   |  ^                  |  |
 *     +----- PEER_DOWN ---+  +--- NO_SESSION ---+  |
 *     +-------------------- PEER_DOWN -------------+
 *
 * In READY the worker still says HELLO now and then while the job has not begun: that is how it
 * learns that others have arrived and that INIT is complete. */
#include "worker/core/internal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { POLL_US = 200 * 1000 };

static const uint32_t session_successors[GK_SESSION_COUNT] = {
    [GK_SESSION_DOWN] = 1u << GK_SESSION_GREETING,
    [GK_SESSION_GREETING] = 1u << GK_SESSION_READY | 1u << GK_SESSION_DOWN,
    [GK_SESSION_READY] = 1u << GK_SESSION_GREETING | 1u << GK_SESSION_DOWN,
};

static void set_state(struct gk_worker *worker, struct gk_shard *shard, enum gk_session_state to)
{
    GK_ASSERT(session_successors[shard->state] & 1u << to);
    if (shard->state == GK_SESSION_READY) {
        shard->unready_us = worker->now_us;
    }
    shard->state = to;
    shard->since_us = worker->now_us;
}

bool gk_session_all_ready(const struct gk_worker *worker)
{
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        if (worker->shards[i].state != GK_SESSION_READY) {
            return false;
        }
    }
    return true;
}

void gk_session_up(struct gk_worker *worker, struct gk_shard *shard)
{
    if (shard->state != GK_SESSION_DOWN) {
        return; /* the transport may report a second connection before the end of the first */
    }
    set_state(worker, shard, GK_SESSION_GREETING);
    gk_retry_start(worker, &shard->hello);
}

void gk_session_down(struct gk_worker *worker, struct gk_shard *shard)
{
    if (shard->state == GK_SESSION_DOWN) {
        return;
    }
    set_state(worker, shard, GK_SESSION_DOWN);
    gk_retry_stop(&shard->hello);
    if (shard->welcomed) {
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-SHARD-GONE",
                        "connection to shard %u at %s lost at step %llu; connecting again",
                        shard->index, worker->config->addresses[shard->index],
                        (unsigned long long)worker->target);
    }
}

static void greet_again(struct gk_worker *worker, struct gk_shard *shard)
{
    if (shard->state == GK_SESSION_READY) {
        set_state(worker, shard, GK_SESSION_GREETING);
    }
    if (shard->state == GK_SESSION_GREETING) {
        gk_retry_start(worker, &shard->hello);
    }
}

/* What this life still holds: by the push id a shard may keep a push that it already has, and by
 * the step it sees that the job is beyond version 0. */
static void fill_slot(const struct gk_worker *worker, const struct gk_shard *shard,
                      struct gk_hello *hello)
{
    const struct gk_push *push;
    const struct gk_ring_entry *entry;

    if (worker->phase == GK_PHASE_JOINING && !worker->resumes) {
        /* Welcomed everywhere before version 1, this life stands at step 0 with an empty residual:
         * that is a slot, and no process without one may push it out any more. */
        bool stands = worker->all_welcomed && gk_exchange_highest(worker) == 0;

        hello->slot = stands ? GK_SLOT_STEP : worker->slot_lost ? GK_SLOT_LOST : GK_SLOT_NONE;
        return;
    }
    if (worker->phase == GK_PHASE_LEAVING) {
        hello->slot = GK_SLOT_LEFT;
        hello->slot_left_at = gk_left_step(worker->left_at);
        return;
    }
    hello->slot = GK_SLOT_STEP;
    hello->slot_step = gk_max_u64(worker->version, worker->first_step);
    push = gk_ring_find(worker, worker->resumes ? worker->version : shard->version, &entry);
    if (push && entry->persisted && !entry->decided[shard->index]) {
        hello->slot_step = push->step;
        hello->slot_push_id = push->slices[shard->index].id;
    }
}

/* Nobody alive is pushed out: by the launcher's word, or because the life before this one in the
 * same slot held the rank everywhere, as long as no higher number has turned up. */
static bool replaces_the_dead(const struct gk_worker *worker)
{
    return (worker->config->takeover && worker->config->rank != GK_RANK_ANY) ||
           (worker->succeeds && worker->rank == worker->former_rank &&
            worker->incarnation == worker->born_incarnation);
}

static void send_hello(struct gk_worker *worker, struct gk_shard *shard)
{
    struct gk_msg *msg = gk_worker_emit_send(worker, shard, GK_KIND_HELLO, shard->hello.req_id);
    struct gk_hello *hello = &msg->body.hello;

    hello->protocol_min = GK_PROTOCOL_VERSION;
    hello->protocol_max = GK_PROTOCOL_VERSION;
    hello->job_uid = worker->job_uid;
    hello->spec_hash = worker->config->spec_hash;
    hello->model_signature = worker->config->model_signature;
    hello->workers = worker->config->workers;
    hello->servers = worker->config->servers;
    hello->role = 1;
    hello->life_nonce = worker->life_nonce;
    /* Whoever holds the rank after this life had it is no life that somebody has reaped. */
    hello->takeover = !shard->welcomed && replaces_the_dead(worker);
    fill_slot(worker, shard, hello);
    gk_words_set(&msg->words, "%s", worker->config->job);
}

/* The job cannot go on with this shard.  A life that is leaving has itself seen the final version
 * on all shards: what became of a server since then is not its failure.  A slot alone proves
 * nothing of the kind: who is refused with it may hold the slot of another run. */
static void give_up(struct gk_worker *worker, struct gk_shard *shard, int exit_code,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

static void give_up(struct gk_worker *worker, struct gk_shard *shard, int exit_code,
                    const char *format, ...)
{
    char text[GK_WORDS_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (worker->phase == GK_PHASE_LEAVING &&
        !(worker->left_before && exit_code == GK_EXIT_REFUSED)) {
        shard->gone = true;
    } else {
        gk_worker_exit(worker, exit_code, "%s", text);
    }
}

/* What a WELCOME must not contradict.  False: it does, and what follows is decided. */
static bool check_welcome(struct gk_worker *worker, struct gk_shard *shard,
                          const struct gk_msg *msg)
{
    const struct gk_welcome *welcome = &msg->body.welcome;
    const char *address = worker->config->addresses[shard->index];
    uint64_t highest = gk_max_u64(gk_exchange_highest(worker), worker->version);
    bool other_range = msg->h.lo != shard->lo || msg->h.hi != shard->hi;

    if (msg->h.epoch != worker->epoch) { /* HELLO with another one is refused */
        give_up(worker, shard, GK_EXIT_REFUSED,
                "shard %u at %s welcomes in epoch %u, this worker is in epoch %u", shard->index,
                address, msg->h.epoch, worker->epoch);
        return false;
    }
    /* Before INIT a shard does not know its range yet. */
    if (msg->h.shard != shard->index || (msg->h.hi > 0 && other_range)) {
        give_up(worker, shard, GK_EXIT_REFUSED,
                "%s serves shard %u with parameters [%llu, %llu), expected shard %u with "
                "[%llu, %llu): check the order of --servers",
                address, msg->h.shard, (unsigned long long)msg->h.lo, (unsigned long long)msg->h.hi,
                shard->index, (unsigned long long)shard->lo, (unsigned long long)shard->hi);
        return false;
    }
    if (worker->rank == GK_RANK_ANY ? msg->h.rank >= worker->config->workers
                                    : msg->h.rank != worker->rank) {
        give_up(worker, shard, GK_EXIT_REFUSED, "shard %u at %s welcomes rank %u of %u workers",
                shard->index, address, msg->h.rank, worker->config->workers);
        return false;
    }
    if (worker->phase != GK_PHASE_JOINING && welcome->initialised &&
        (welcome->job_uid.hi != worker->job_uid.hi || welcome->job_uid.lo != worker->job_uid.lo)) {
        give_up(worker, shard, GK_EXIT_REFUSED, "shard %u at %s now serves another run of job '%s'",
                shard->index, address, worker->config->job);
        return false;
    }
    if (!welcome->initialised && highest > 0) {
        give_up(worker, shard, GK_EXIT_PEER,
                "LOST_SHARD: shard %u at %s came back without its state while the job is at "
                "version %llu" GK_LOST_SHARD_REPAIR,
                shard->index, address, (unsigned long long)highest);
        return false;
    }
    return true;
}

/* Every shard must see the same life, so all are greeted again with the new number. */
static void raise_incarnation(struct gk_worker *worker, struct gk_shard *shard, uint32_t highest)
{
    if (highest < worker->incarnation) {
        return;
    }
    if (highest == UINT32_MAX) {
        gk_worker_exit(worker, GK_EXIT_REFUSED,
                       "shard %u at %s has seen incarnation %u of rank %u: no higher one is left",
                       shard->index, worker->config->addresses[shard->index], highest,
                       worker->rank);
        return;
    }
    worker->incarnation = highest + 1;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        greet_again(worker, &worker->shards[i]);
    }
}

/* A session that was not there before.  Only here may a version go back: the shard restarted. */
static void begin_session(struct gk_worker *worker, struct gk_shard *shard,
                          const struct gk_header *header)
{
    shard->session = header->session;
    shard->version = header->version;
    shard->durable_version = gk_min_u64(header->durable_version, header->version);
    memset(&shard->pong, 0, sizeof(shard->pong));
    worker->stats.sessions++;
    gk_exchange_new_session(worker, shard);
    if (shard->welcomed) {
        gk_worker_trace(worker, GK_LOG_INFO, "WORKER-SESSION",
                        "shard %u at %s is back, version %llu", shard->index,
                        worker->config->addresses[shard->index],
                        (unsigned long long)shard->version);
    }
}

/* Shard 0 has chosen: from here on this life has the rank everywhere. */
static void take_rank(struct gk_worker *worker, uint32_t rank)
{
    struct gk_worker_action *action = gk_worker_emit(worker, GK_WORKER_RANK);

    worker->rank = rank;
    action->rank = rank;
    for (uint32_t i = 1; i < worker->config->servers; i++) {
        greet_again(worker, &worker->shards[i]);
    }
}

static void note_welcome(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    const struct gk_welcome *welcome = &msg->body.welcome;

    if (shard->session != msg->h.session) {
        begin_session(worker, shard, &msg->h);
    }
    if (welcome->workers_present > shard->workers_present) {
        /* INIT was perhaps held back for this one.  Asking more often by itself would mean to send
         * the first chunk, a megabyte, over and over to a job that waits for its workers. */
        gk_window_resend(&shard->init, worker->now_us);
    }
    shard->initialised = welcome->initialised;
    shard->finished = welcome->finished;
    shard->init_id = msg->h.init_id;
    shard->job_uid = welcome->job_uid;
    shard->workers_present = welcome->workers_present;
    shard->refusal = GK_CODE_NONE;
    shard->welcomed = true;
    gk_init_observe(worker, shard);
}

/* All shards have welcomed this life; they are told at once, not at the next poll. */
static void stand(struct gk_worker *worker)
{
    worker->all_welcomed = true;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        gk_retry_start(worker, &worker->shards[i].hello);
    }
}

void gk_session_welcome(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    if (shard->state == GK_SESSION_DOWN || msg->body.welcome.life_nonce != worker->life_nonce ||
        msg->h.req_id != shard->hello.req_id) {
        worker->stats.duplicates++;
        return;
    }
    if (!check_welcome(worker, shard, msg)) {
        return;
    }
    if (worker->rank == GK_RANK_ANY) {
        take_rank(worker, msg->h.rank);
    }
    note_welcome(worker, shard, msg);
    if (shard->state != GK_SESSION_READY) {
        set_state(worker, shard, GK_SESSION_READY);
        shard->ping_due_us = worker->now_us + GK_PING_US;
        gk_window_resend(&shard->init, worker->now_us);
        gk_window_resend(&shard->push, worker->now_us);
        gk_window_resend(&shard->pull, worker->now_us);
        gk_stall_progress(worker);
    }
    gk_exchange_observe(worker, shard, &msg->h);
    gk_retry_start(worker, &shard->hello); /* the next poll, while the job has not begun */
    shard->hello.due_us = worker->now_us + POLL_US;
    if (!worker->all_welcomed) {
        if (msg->body.welcome.highest_incarnation > worker->incarnation) {
            raise_incarnation(worker, shard, msg->body.welcome.highest_incarnation);
        }
        if (gk_session_all_ready(worker)) {
            stand(worker);
        }
    }
}

/* Shard 0 has given our rank to another life while we were away, before we had joined: it may have
 * another one for us.  A slot is kept as long as the holder may be our own former life: that one
 * has a lower number, has been silent since this life began, and may still be on its way to the
 * shard's disk (incarnation 0). */
static bool loses_rank(const struct gk_worker *worker, const struct gk_shard *shard,
                       const struct gk_header *header)
{
    bool heard = header->incarnation > 0 && worker->now_us - shard->since_us > 2 * GK_HELD_US;
    bool others = !worker->resumes || heard || header->incarnation >= worker->born_incarnation;

    return shard->index == 0 && worker->config->rank == GK_RANK_ANY &&
           worker->rank != GK_RANK_ANY && !worker->all_welcomed && others &&
           (header->code == GK_CODE_HELD ||
            (header->code == GK_CODE_STALE_LIFE && !worker->resumes));
}

static void lose_rank(struct gk_worker *worker)
{
    if (gk_worker_forget(worker)) {
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-LOST",
                        "rank %u belongs to another process now: what this one held of it is void",
                        worker->rank);
    }
    worker->rank = GK_RANK_ANY;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        greet_again(worker, &worker->shards[i]);
    }
}

/* An operator took the job back to an earlier version and raised the epoch: what belongs to a lower
 * one is void.  A shard in a lower epoch than others, or than the slot, was not taken back with
 * them. */
static void change_epoch(struct gk_worker *worker, const struct gk_shard *shard, uint32_t epoch)
{
    if (epoch < worker->epoch) {
        gk_worker_exit(worker, GK_EXIT_CONFIG,
                       "shard %u at %s is in epoch %u, this worker in %u: the shard was not taken "
                       "back with the others, or this state is of a later run",
                       shard->index, worker->config->addresses[shard->index], epoch, worker->epoch);
        return;
    }
    if (gk_worker_forget(worker) || worker->left_before) {
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-LOST",
                        "the job is in epoch %u: the slot of epoch %u is void", epoch,
                        worker->epoch);
    }
    if (worker->left_before) { /* of the job as it was before it was taken back */
        gk_worker_rejoin(worker);
    }
    worker->epoch = epoch;
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        greet_again(worker, &worker->shards[i]);
    }
}

void gk_session_refuse(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    const char *address = worker->config->addresses[shard->index];
    bool retryable = msg->h.flags & GK_FLAG_RETRYABLE;
    bool known = shard->refusal == msg->h.code;

    if (shard->state == GK_SESSION_DOWN || msg->h.req_id != shard->hello.req_id) {
        worker->stats.duplicates++;
        return;
    }
    shard->heard_us = worker->now_us;
    if (loses_rank(worker, shard, &msg->h)) {
        lose_rank(worker);
        return;
    }
    if (msg->h.code == GK_CODE_STALE_LIFE) {
        if (worker->all_welcomed) {
            give_up(worker, shard, GK_EXIT_FENCED,
                    "fenced: a newer life of rank %u exists (incarnation %u), shard %u at %s says: "
                    "%s",
                    worker->rank, msg->h.incarnation, shard->index, address, msg->words.text);
            return;
        }
        raise_incarnation(worker, shard, msg->h.incarnation);
        return;
    }
    if (msg->h.code == GK_CODE_WRONG_EPOCH && !worker->all_welcomed &&
        (worker->phase == GK_PHASE_JOINING || worker->left_before) &&
        msg->h.epoch != worker->epoch) {
        change_epoch(worker, shard, msg->h.epoch);
        return;
    }
    if (msg->h.code == GK_CODE_WRONG_JOB && shard->welcomed) {
        retryable = false; /* it was ours; now it is somebody else's */
    }
    shard->refusal = msg->h.code;
    shard->refusal_words = msg->words;
    if (!retryable) {
        give_up(worker, shard, GK_EXIT_REFUSED, "refused by shard %u at %s (%s): %s", shard->index,
                address, gk_code_name(msg->h.code), msg->words.text);
        return;
    }
    if (!known) {
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-REFUSED",
                        "shard %u at %s refuses (%s), will ask again: %s", shard->index, address,
                        gk_code_name(msg->h.code), msg->words.text);
    }
}

/* What the whole job, or this life, ends with. */
static void nack_fatal(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    int exit_code = GK_EXIT_REFUSED;
    const char *repair = "";

    if (msg->h.code == GK_CODE_FENCED) {
        exit_code = GK_EXIT_FENCED;
    } else if (msg->h.code == GK_CODE_LOST_SHARD) {
        exit_code = GK_EXIT_PEER;
        repair = GK_LOST_SHARD_REPAIR;
    } else if (msg->h.code == GK_CODE_RATES_DIFFER) {
        exit_code = GK_EXIT_DATA;
    }
    give_up(worker, shard, exit_code, "shard %u at %s says %s at step %llu: %s%s", shard->index,
            worker->config->addresses[shard->index], gk_code_name(msg->h.code),
            (unsigned long long)worker->target, msg->words.text, repair);
}

void gk_session_nack(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg)
{
    bool retryable = msg->h.flags & GK_FLAG_RETRYABLE;

    worker->stats.nacks++;
    shard->heard_us = worker->now_us;
    if (msg->h.code == GK_CODE_NO_SESSION ||
        (msg->h.code == GK_CODE_FENCED && !worker->all_welcomed)) {
        /* FENCED: until all have welcomed it a life may have been seen with a lower number. */
        if (shard->state == GK_SESSION_READY) {
            greet_again(worker, shard);
        }
    } else if (msg->h.code == GK_CODE_NOT_READY) {
        if (gk_window_holds(&shard->init, msg->h.req_id)) {
            shard->init_words = msg->words; /* a WELCOME tells when another worker has come */
        }
    } else if (msg->h.code == GK_CODE_BAD_MESSAGE) {
        /* Damaged on its way, or our own fault: the request is sent again, and the stall lines say
         * if that never helps. */
        gk_worker_trace(worker, GK_LOG_WARN, "WORKER-NACK", "shard %u at %s rejects a message: %s",
                        shard->index, worker->config->addresses[shard->index], msg->words.text);
    } else if (msg->h.code == GK_CODE_FINISHED && worker->phase == GK_PHASE_LEAVING) {
        shard->finished = true;
    } else if (retryable) {
        shard->refusal = msg->h.code; /* DRAINING: the shard will be back, or the deadline comes */
        shard->refusal_words = msg->words;
    } else {
        nack_fatal(worker, shard, msg);
    }
}

static void send_ping(struct gk_worker *worker, struct gk_shard *shard)
{
    struct gk_msg *msg = gk_worker_emit_send(worker, shard, GK_KIND_PING, ++worker->req_ids);
    struct gk_ping *ping = &msg->body.ping;

    ping->sent_us = worker->now_us;
    if (worker->phase != GK_PHASE_EXCHANGING) {
        return;
    }
    for (uint32_t i = 0; i < worker->config->servers; i++) {
        if (!gk_window_complete(&worker->shards[i].pull)) {
            ping->waits = GK_WAIT_SHARD;
            ping->waits_for = i;
            ping->waits_count = 1;
            ping->waits_version = worker->target;
            ping->waits_us = worker->now_us - worker->exchange_us;
            return;
        }
    }
}

/* In GREETING until there is a session.  In READY to learn that the job has begun; version 0 may be
 * lost and made again as long as no shard is beyond it. */
static bool says_hello(const struct gk_worker *worker, const struct gk_shard *shard)
{
    if (worker->rank == GK_RANK_ANY && shard->index > 0) {
        return false; /* shard 0 alone assigns ranks */
    }
    return shard->state == GK_SESSION_GREETING ||
           (shard->state == GK_SESSION_READY &&
            (worker->phase == GK_PHASE_JOINING || !shard->initialised));
}

void gk_session_pump(struct gk_worker *worker, struct gk_shard *shard)
{
    if (says_hello(worker, shard) && gk_retry_due(worker, &shard->hello)) {
        send_hello(worker, shard);
    }
    if (shard->state == GK_SESSION_READY && shard->ping_due_us <= worker->now_us) {
        shard->ping_due_us = worker->now_us + GK_PING_US;
        send_ping(worker, shard);
    }
}

uint64_t gk_session_due_us(const struct gk_worker *worker, const struct gk_shard *shard)
{
    uint64_t due_us = says_hello(worker, shard) ? gk_retry_due_us(&shard->hello) : UINT64_MAX;

    return shard->state == GK_SESSION_READY ? gk_min_u64(due_us, shard->ping_due_us) : due_us;
}
