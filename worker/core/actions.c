#include "worker/core/internal.h"

#include "common/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one step emits at most.
 *
 * Per shard, from the pumps, each of which runs once: a window sends no chunk twice (a slot that
 * was used is not due, and a chunk takes a slot), so INIT, push and pull send at most
 * GK_PULL_WINDOW each; HELLO, PING and LEAVE one each; beginning an empty push says one line.
 * Beside them, from the one event and the one move of the phase: INSTALL or the two lines of a
 * WELCOME or NACK; a line for each push of the ring that was decided otherwise; RESET, MAKE_INIT
 * and the lines of joining and of a void residual; REMEMBER; one of STEP, PERSIST and EVALUATE; a
 * line about a pause; a stall line; ARM_TIMER; EXIT. */
enum {
    SENDS_ALONE = 3,
    LINES_PER_SHARD = 1,
    ACTIONS_PER_SHARD = 3 * GK_PULL_WINDOW + SENDS_ALONE + LINES_PER_SHARD,
    ACTIONS_BESIDE = 2 + GK_RING_ENTRIES + 4 + 1 + 1 + 1 + 1 + 1 + 1,
};

enum gk_err gk_worker_actions_new(uint32_t servers, struct gk_worker_actions **ret_actions)
{
    struct gk_worker_actions *actions = calloc(1, sizeof(*actions));

    if (!actions) {
        return GK_E_NOMEM;
    }
    actions->room = servers * ACTIONS_PER_SHARD + ACTIONS_BESIDE;
    actions->list = calloc(actions->room, sizeof(*actions->list));
    if (!actions->list) {
        free(actions);
        return GK_E_NOMEM;
    }
    *ret_actions = actions;
    return GK_OK;
}

void gk_worker_actions_clear(struct gk_worker_actions *actions)
{
    for (uint32_t i = 0; i < actions->count; i++) {
        gk_buf_unref(actions->list[i].buf);
        gk_msg_clear(&actions->list[i].msg);
    }
    actions->count = 0;
}

void gk_worker_actions_free(struct gk_worker_actions *actions)
{
    if (!actions) {
        return;
    }
    gk_worker_actions_clear(actions);
    free(actions->list);
    free(actions);
}

struct gk_worker_action *gk_worker_emit(struct gk_worker *worker, enum gk_worker_action_kind kind)
{
    struct gk_worker_action *action;

    GK_ASSERT(worker->out->count < worker->out->room);
    action = &worker->out->list[worker->out->count++];
    memset(action, 0, sizeof(*action));
    action->kind = kind;
    return action;
}

struct gk_msg *gk_worker_emit_send(struct gk_worker *worker, struct gk_shard *shard,
                                   enum gk_kind kind, uint64_t req_id)
{
    bool init = kind == GK_KIND_INIT;
    struct gk_worker_action *action =
        gk_worker_emit(worker, init ? GK_WORKER_SEND_INIT : GK_WORKER_SEND);
    struct gk_header *h = &action->msg.h;

    action->shard = shard->index;
    h->kind = kind;
    h->session = kind == GK_KIND_HELLO ? 0 : shard->session;
    h->req_id = req_id;
    h->epoch = worker->epoch;
    h->rank = worker->rank;
    h->shard = shard->index;
    h->incarnation = worker->incarnation;
    return &action->msg;
}

void gk_worker_trace(struct gk_worker *worker, enum gk_log_level level, const char *id,
                     const char *format, ...)
{
    struct gk_worker_action *action = gk_worker_emit(worker, GK_WORKER_TRACE);
    char text[GK_WORDS_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    action->level = level;
    action->id = id;
    gk_words_set(&action->words, "%s", text);
}

void gk_worker_exit(struct gk_worker *worker, int code, const char *format, ...)
{
    struct gk_worker_action *action;
    char text[GK_WORDS_BYTES];
    va_list args;

    if (worker->phase == GK_PHASE_DONE) {
        return; /* the first reason counts */
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    worker->phase = GK_PHASE_DONE;
    action = gk_worker_emit(worker, GK_WORKER_EXIT);
    action->exit_code = code;
    gk_words_set(&action->words, "%s", text);
}

void gk_retry_start(struct gk_worker *worker, struct gk_retry *retry)
{
    retry->req_id = ++worker->req_ids;
    retry->due_us = worker->now_us;
    retry->backoff_us = 0;
}

bool gk_retry_due(struct gk_worker *worker, struct gk_retry *retry)
{
    if (retry->req_id == 0 || retry->due_us > worker->now_us) {
        return false;
    }
    if (retry->backoff_us == 0) {
        retry->backoff_us = GK_RETRY_US_MIN;
    } else {
        worker->stats.retries++;
        retry->backoff_us *= 2;
    }
    if (retry->backoff_us > GK_RETRY_US_MAX) {
        retry->backoff_us = GK_RETRY_US_MAX;
    }
    retry->due_us = worker->now_us + retry->backoff_us;
    return true;
}

void gk_retry_stop(struct gk_retry *retry)
{
    memset(retry, 0, sizeof(*retry));
}

uint64_t gk_retry_due_us(const struct gk_retry *retry)
{
    return retry->req_id ? retry->due_us : UINT64_MAX;
}
