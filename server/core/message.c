/* Messages: who may say what, in which state.
 *
 * Order of judgement: readable (proto/ did that), addressed to this shard and epoch, session, life,
 * state of the shard; only then the handler of the kind.  A peer's mistake is counted and answered,
 * and harms nobody else. */
#include "common/assert.h"
#include "server/core/state.h"

#include <inttypes.h>

enum { BAD_LINE_US = 1000 * 1000 };

enum admit {
    TAKE = 0,  /* the handler decides */
    NOT_READY, /* no version yet: ask again */
    DRAINING,  /* the server is going away */
    NEVER,     /* no request to a server */
};

/* One row per kind, one column per state in which messages are looked at (EXITED looks at none). */
static const uint8_t admission[GK_KIND_MAX + 1][GK_SHARD_EXITED] = {
    /*                        WAITING    SETUP      INIT       RUNNING FINISHED DRAINING */
    [GK_KIND_HELLO] = {TAKE, TAKE, TAKE, TAKE, TAKE, TAKE},
    [GK_KIND_INIT] = {TAKE, TAKE, TAKE, TAKE, TAKE, DRAINING},
    [GK_KIND_PUSH] = {NOT_READY, NOT_READY, NOT_READY, TAKE, TAKE, TAKE},
    [GK_KIND_PULL_DENSE] = {NOT_READY, NOT_READY, NOT_READY, TAKE, TAKE, TAKE},
    [GK_KIND_LEAVE] = {NOT_READY, NOT_READY, NOT_READY, TAKE, TAKE, DRAINING},
    [GK_KIND_PING] = {TAKE, TAKE, TAKE, TAKE, TAKE, TAKE},
    [GK_KIND_STATUS] = {TAKE, TAKE, TAKE, TAKE, TAKE, TAKE},
    [GK_KIND_DRAIN] = {TAKE, TAKE, TAKE, TAKE, TAKE, TAKE},
    [GK_KIND_PIN] = {NOT_READY, NOT_READY, NOT_READY, TAKE, TAKE, DRAINING},
    [GK_KIND_PULL_PIN] = {NOT_READY, NOT_READY, NOT_READY, TAKE, TAKE, TAKE},
    /* Reserved, or said by servers. */
    [0] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_WELCOME] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_REFUSE] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_INIT_OK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_PUSH_OK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_NACK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_PARAMS] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_PULL_UPDATES] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_UPDATES] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_GONE] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_LEAVE_OK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_PONG] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_STATUS_OK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_DRAIN_OK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_PIN_OK] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
    [GK_KIND_PIN_PARAMS] = {NEVER, NEVER, NEVER, NEVER, NEVER, NEVER},
};

static void note_bad(struct gk_server *server, const char *words)
{
    struct gk_server_live *live = &server->live;

    live->bad_messages++;
    if (server->now_us >= live->bad_line_us) {
        live->bad_line_us = server->now_us + BAD_LINE_US;
        gk_server_trace(server, GK_LOG_WARN, "SERVER-BAD-MESSAGE",
                        "%s (%" PRIu64 " bad messages so far)", words, live->bad_messages);
    }
}

static void bad(struct gk_server *server, uint64_t route, const struct gk_header *h,
                enum gk_code code, const char *words)
{
    note_bad(server, words);
    gk_server_nack_route(server, route, h, code, words);
}

void gk_server_bad_message(struct gk_server *server, const struct gk_server_event *ev)
{
    const char *words = ev->words ? ev->words : gk_err_text(ev->err);
    const struct gk_header *h = ev->header;

    if (!h || h->kind == 0 ||
        (h->kind <= GK_KIND_MAX && admission[h->kind][GK_SHARD_RUNNING] == NEVER &&
         h->kind != GK_KIND_PULL_UPDATES)) {
        note_bad(server, words); /* an answer to an answer could go round for ever */
        return;
    }
    bad(server, ev->route, h,
        ev->err == GK_E_UNSUPPORTED ? GK_CODE_UNSUPPORTED : GK_CODE_BAD_MESSAGE, words);
}

static void on_status(struct gk_server *server, uint64_t route, const struct gk_msg *msg)
{
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_STATUS);

    action->route = route;
    action->msg.h = (struct gk_header){
        .kind = GK_KIND_STATUS_OK,
        .req_id = msg->h.req_id,
        .rank = GK_RANK_ANY,
        .shard = server->config.shard,
        .incarnation = server->image->incarnation,
        .epoch = server->image->epoch,
    };
}

static void on_drain(struct gk_server *server, uint64_t route, const struct gk_msg *msg)
{
    struct gk_server_action *action;

    if (!server->config.local) {
        bad(server, route, &msg->h, GK_CODE_UNSUPPORTED,
            "DRAIN is obeyed on a loopback address only; send the server SIGTERM instead");
        return;
    }
    action = gk_server_emit(server, GK_SERVER_SEND);
    action->route = route;
    action->msg.h = (struct gk_header){
        .kind = GK_KIND_DRAIN_OK,
        .req_id = msg->h.req_id,
        .rank = GK_RANK_ANY,
        .shard = server->config.shard,
        .incarnation = server->image->incarnation,
        .epoch = server->image->epoch,
    };
    gk_server_drain(server, 0, "drained by request");
}

/* The rank that speaks, or false after an answer.  A session number is proof of the current life;
 * without it, an incarnation below the known one tells an older life, which must exit rather than
 * say HELLO again. */
static bool session_of(struct gk_server *server, uint64_t route, const struct gk_msg *msg,
                       uint32_t *ret_rank)
{
    const struct gk_header *h = &msg->h;
    struct gk_member *member;

    if (h->rank < server->config.workers && h->session != 0 &&
        h->session == server->live.members[h->rank].session) {
        member = &server->live.members[h->rank];
        member->route = route;
        member->heard = true;
        member->heard_us = server->now_us;
        *ret_rank = h->rank;
        return true;
    }
    if (h->rank < server->config.workers &&
        h->incarnation < server->image->rows[h->rank].incarnation) {
        gk_server_nack_route(server, route, h, GK_CODE_FENCED,
                             "a newer life of this rank has joined");
    } else {
        gk_server_nack_route(server, route, h, GK_CODE_NO_SESSION, "unknown session: say HELLO");
    }
    return false;
}

static void on_session_message(struct gk_server *server, uint64_t route, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    uint32_t rank;

    if (!session_of(server, route, msg, &rank)) {
        return;
    }
    switch ((enum admit)admission[h->kind][server->live.state]) {
    case NOT_READY:
        gk_server_nack(server, rank, h->req_id, GK_CODE_NOT_READY, true,
                       "this shard has no version yet");
        return;
    case DRAINING:
        gk_server_nack(server, rank, h->req_id, GK_CODE_DRAINING, true,
                       "this server is going away");
        return;
    case NEVER:
        return;
    case TAKE:
        break;
    }
    server->live.members[rank].engaged |=
        h->kind == GK_KIND_PUSH || h->kind == GK_KIND_PULL_DENSE || h->kind == GK_KIND_LEAVE;
    if (h->kind == GK_KIND_INIT) {
        gk_server_init_chunk(server, msg);
    } else if (h->kind == GK_KIND_PUSH) {
        gk_server_push(server, rank, msg);
    } else if (h->kind == GK_KIND_PULL_DENSE) {
        gk_server_pull(server, rank, msg);
    } else if (h->kind == GK_KIND_LEAVE) {
        gk_server_leave(server, rank, msg);
    } else {
        GK_ASSERT(h->kind == GK_KIND_PING);
        gk_server_ping(server, rank, msg);
    }
}

static void on_pin_message(struct gk_server *server, uint64_t route, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;

    switch ((enum admit)admission[h->kind][server->live.state]) {
    case NOT_READY:
        gk_server_pin_refuse(server, route, h, GK_CODE_NOT_READY, "this shard has no version yet");
        return;
    case DRAINING:
        gk_server_pin_refuse(server, route, h, GK_CODE_DRAINING, "this server is going away");
        return;
    case NEVER:
        return;
    case TAKE:
        break;
    }
    if (h->kind == GK_KIND_PULL_PIN) {
        gk_server_pin_pull(server, route, h);
    } else if (h->job_uid.hi != server->image->job_uid.hi ||
               h->job_uid.lo != server->image->job_uid.lo) {
        bad(server, route, h, GK_CODE_BAD_MESSAGE, "PIN for another job than the one served here");
    } else {
        gk_server_pin(server, route, h);
    }
}

void gk_server_message(struct gk_server *server, uint64_t route, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    struct gk_words words;

    if (h->kind > GK_KIND_MAX || admission[h->kind][server->live.state] == NEVER) {
        gk_words_set(&words, "%s is not a request to a server", gk_kind_name(h->kind));
        if (h->kind == GK_KIND_PULL_UPDATES) {
            bad(server, route, h, GK_CODE_UNSUPPORTED, words.text);
        } else {
            note_bad(server, words.text);
        }
    } else if (h->kind == GK_KIND_HELLO) {
        gk_server_hello(server, route, msg);
    } else if (h->kind == GK_KIND_STATUS) {
        on_status(server, route, msg);
    } else if (h->kind == GK_KIND_DRAIN) {
        on_drain(server, route, msg);
    } else if (h->shard != server->config.shard || h->epoch != server->image->epoch) {
        gk_words_set(
            &words,
            "%s for shard %" PRIu32 " epoch %" PRIu32 ", this is shard %" PRIu32 " epoch %" PRIu32,
            gk_kind_name(h->kind), h->shard, h->epoch, server->config.shard, server->image->epoch);
        bad(server, route, h, GK_CODE_BAD_MESSAGE, words.text);
    } else if (h->kind == GK_KIND_PIN || h->kind == GK_KIND_PULL_PIN) {
        on_pin_message(server, route, msg);
    } else {
        on_session_message(server, route, msg);
    }
}
