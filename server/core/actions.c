/* What the core emits: actions into the bounded list of the step, and the headers of all replies.
 */
#include "common/assert.h"
#include "server/core/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct gk_server_action *gk_server_emit(struct gk_server *server, enum gk_server_action_kind kind)
{
    struct gk_server_actions *out = server->out;
    struct gk_server_action *action;

    GK_ASSERT(out && out->count < GK_SERVER_ACTIONS_MAX);
    action = &out->list[out->count++];
    memset(action, 0, sizeof(*action));
    action->kind = kind;
    return action;
}

uint64_t gk_server_emit_op(struct gk_server *server, struct gk_server_action *action)
{
    action->op = ++server->ops;
    return action->op;
}

void gk_server_trace(struct gk_server *server, enum gk_log_level level, const char *id,
                     const char *format, ...)
{
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_TRACE);
    va_list args;

    action->u.trace.level = level;
    action->u.trace.id = id;
    va_start(args, format);
    (void)vsnprintf(action->words.text, sizeof(action->words.text), format, args);
    va_end(args);
}

void gk_server_exit(struct gk_server *server, int code, const char *id, const char *words)
{
    struct gk_server_action *action;

    gk_server_set_shard(server, GK_SHARD_EXITED);
    action = gk_server_emit(server, GK_SERVER_EXIT);
    action->u.exit.code = code;
    action->u.exit.id = id;
    gk_words_set(&action->words, "%s", words);
}

/* What every header of a session carries: the worker learns the verdict on its last push from
 * whatever comes first. */
void gk_server_fill(const struct gk_server *server, struct gk_header *h, uint32_t kind,
                    uint32_t rank, uint64_t req_id)
{
    const struct gk_server_durable *durable = &server->durable;
    const struct gk_rank_row *row = &server->image->rows[rank];

    *h = (struct gk_header){
        .kind = kind,
        .session = server->live.members[rank].session,
        .req_id = req_id,
        .epoch = server->image->epoch,
        .rank = rank,
        .shard = server->config.shard,
        .incarnation = server->image->incarnation,
        .version = server->image->version,
        .durable_version = durable->durable_version,
        .verdict = row->verdict,
        .verdict_step = row->verdict_step,
        .verdict_incarnation = row->verdict_incarnation,
    };
}

struct gk_msg *gk_server_reply(struct gk_server *server, uint32_t kind, uint32_t rank,
                               uint64_t req_id)
{
    uint64_t route = server->live.members[rank].route;
    struct gk_msg *msg = &server->nowhere;

    /* A reply that waited for the disk may find its session ended. */
    if (route != 0 && server->live.members[rank].session != 0) {
        struct gk_server_action *action = gk_server_emit(server, GK_SERVER_SEND);

        action->route = route;
        msg = &action->msg;
    }
    gk_server_fill(server, &msg->h, kind, rank, req_id);
    return msg;
}

void gk_server_nack(struct gk_server *server, uint32_t rank, uint64_t req_id, enum gk_code code,
                    bool retryable, const char *words)
{
    struct gk_msg *msg = gk_server_reply(server, GK_KIND_NACK, rank, req_id);

    msg->h.code = code;
    msg->h.flags = retryable ? GK_FLAG_RETRYABLE : 0;
    gk_words_set(&msg->words, "%s", words);
    server->live.nacks++;
}

/* To a peer without a session: nothing about any rank is said, its own session number is repeated.
 */
void gk_server_nack_route(struct gk_server *server, uint64_t route, const struct gk_header *h,
                          enum gk_code code, const char *words)
{
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_SEND);

    action->route = route;
    action->msg.h = (struct gk_header){
        .kind = GK_KIND_NACK,
        .session = h->session,
        .req_id = h->req_id,
        .epoch = server->image->epoch,
        .rank = h->rank < server->config.workers ? h->rank : GK_RANK_ANY, /* it may be anything */
        .shard = server->config.shard,
        .incarnation = server->image->incarnation,
        .code = code,
    };
    gk_words_set(&action->msg.words, "%s", words);
    server->live.nacks++;
}
