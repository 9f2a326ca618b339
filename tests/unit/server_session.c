/* Goal: only the right process becomes a rank, and an older life of it can do no harm.
 * Method: one HELLO that is wrong in one way for each refusal, in the order of the checks; lives,
 * restarts, lost routes. */
#include "server_job.h"

struct refusal {
    const char *name;
    void (*spoil)(struct gk_msg *msg);
    uint32_t code;
    bool retryable;
};

static void old_protocol(struct gk_msg *msg)
{
    msg->body.hello.protocol_min = msg->body.hello.protocol_max = GK_PROTOCOL_VERSION + 1;
}

static void other_job(struct gk_msg *msg)
{
    gk_words_set(&msg->words, "another");
}

static void other_run(struct gk_msg *msg)
{
    msg->body.hello.job_uid = (struct gk_uid){.hi = 9, .lo = 9};
}

static void other_shard(struct gk_msg *msg)
{
    msg->h.shard = 1;
}

static void other_servers(struct gk_msg *msg)
{
    msg->body.hello.servers = 2;
}

static void other_workers(struct gk_msg *msg)
{
    msg->body.hello.workers = 3;
}

static void other_epoch(struct gk_msg *msg)
{
    msg->h.epoch = 1;
}

static void other_spec(struct gk_msg *msg)
{
    msg->body.hello.spec_hash ^= 1;
}

static void other_model(struct gk_msg *msg)
{
    msg->body.hello.model_signature ^= 1;
}

static void no_such_rank(struct gk_msg *msg)
{
    msg->h.rank = 2;
}

static void held(struct gk_msg *msg)
{
    msg->body.hello.life_nonce = 5;
    msg->h.incarnation = 2;
}

static void stale(struct gk_msg *msg)
{
    msg->body.hello.life_nonce = 5;
    msg->body.hello.takeover = true;
}

static const struct refusal refusals[] = {
    {"protocol", old_protocol, GK_CODE_PROTOCOL, false},
    {"job", other_job, GK_CODE_WRONG_JOB, true},
    {"run", other_run, GK_CODE_WRONG_JOB, true},
    {"shard", other_shard, GK_CODE_WRONG_SHARD, false},
    {"servers", other_servers, GK_CODE_WRONG_SHARD, false},
    {"workers", other_workers, GK_CODE_WRONG_SHARD, false},
    {"epoch", other_epoch, GK_CODE_WRONG_EPOCH, false},
    {"spec", other_spec, GK_CODE_WRONG_SPEC, false},
    {"model", other_model, GK_CODE_WRONG_SPEC, false},
    {"rank", no_such_rank, GK_CODE_BAD_RANK, false},
    {"held", held, GK_CODE_HELD, true},
    {"stale", stale, GK_CODE_STALE_LIFE, true},
};

Test(server_session, every_refusal)
{
    enum { COUNT = sizeof(refusals) / sizeof(refusals[0]) };

    for (size_t i = 0; i < COUNT; i++) {
        struct rig *rig = rig_running(2);
        struct gk_msg msg = rig_hello_msg(rig, 1, 1);

        refusals[i].spoil(&msg);
        rig_say_hello(rig, 1, 9, &msg);
        cr_assert(rig_kind(rig) == GK_KIND_REFUSE, "%s", refusals[i].name);
        cr_assert(rig_code(rig) == refusals[i].code, "%s: %s", refusals[i].name,
                  gk_code_name(rig_code(rig)));
        cr_assert(rig_retryable(rig) == refusals[i].retryable, "%s", refusals[i].name);
        cr_assert(rig_last(rig)->msg.words.text[0], "%s: no words", refusals[i].name);
        cr_assert(rig_last(rig)->route == rig_route(1, 9));
        if (refusals[i].code != GK_CODE_BAD_RANK) {
            cr_assert(rig_last(rig)->msg.h.incarnation == 1, "%s: highest known life",
                      refusals[i].name);
        }
        rig_free(rig);
    }
}

/* Two faults at once: the earlier check answers. */
Test(server_session, order_of_checks)
{
    enum { COUNT = sizeof(refusals) / sizeof(refusals[0]) };

    for (size_t i = 0; i + 1 < COUNT; i++) {
        struct rig *rig = rig_running(2);
        struct gk_msg msg = rig_hello_msg(rig, 1, 1);

        if (refusals[i].spoil == stale || refusals[i + 1].spoil == stale) {
            rig_free(rig); /* `takeover` would lift HELD */
            continue;
        }
        refusals[i + 1].spoil(&msg);
        refusals[i].spoil(&msg);
        rig_say_hello(rig, 1, 9, &msg);
        cr_assert(rig_code(rig) == refusals[i].code, "%s before %s: %s", refusals[i].name,
                  refusals[i + 1].name, gk_code_name(rig_code(rig)));
        rig_free(rig);
    }
}

Test(server_session, welcome_says_what_there_is)
{
    struct rig *rig = rig_new(2, 2, 1);
    const struct gk_welcome *welcome;

    rig_start(rig);
    rig_hello(rig, 1, 1);
    cr_kind(rig, GK_KIND_WELCOME);
    welcome = &rig_last(rig)->msg.body.welcome;
    cr_assert(!welcome->initialised && !welcome->finished && welcome->workers_present == 1 &&
              welcome->workers == 2);
    cr_assert(welcome->life_nonce == 2001 && welcome->highest_incarnation == 1);
    cr_assert(rig_last(rig)->msg.h.hi == 0, "the size is unknown before INIT");
    rig_hello(rig, 0, 1);
    rig_init(rig);
    rig_hello(rig, 1, 1);
    welcome = &rig_last(rig)->msg.body.welcome;
    cr_assert(welcome->initialised && welcome->workers_present == 2 && welcome->credit_bytes > 0);
    cr_assert(welcome->job_uid.hi == rig_uid().hi && welcome->spec_hash == rig->spec_hash);
    cr_assert(rig_last(rig)->msg.h.init_id == RIG_INIT_ID);
    cr_assert(rig_last(rig)->msg.h.lo == rig->lo && rig_last(rig)->msg.h.hi == rig->hi);
    rig_free(rig);
}

Test(server_session, same_nonce_same_session)
{
    struct rig *rig = rig_running(2);
    uint64_t session = rig->session[1];
    struct gk_msg msg;

    rig_hello(rig, 1, 1);
    cr_assert(rig->session[1] == session);
    /* The nonce is what counts: another shard may have made the process raise its incarnation. */
    msg = rig_hello_msg(rig, 1, 1);
    msg.h.incarnation = 4;
    rig_say_hello(rig, 1, 1, &msg);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig->session[1] == session);
    cr_assert(rig_last(rig)->msg.body.welcome.highest_incarnation == 4);
    /* A HELLO that was late on its way does not lower it. */
    rig_hello(rig, 1, 1);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig_last(rig)->msg.body.welcome.highest_incarnation == 4);
    rig_free(rig);
}

Test(server_session, newer_life_fences_the_older)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg;
    uint64_t old = rig->session[1];

    rig_tick(rig, GK_HELD_US); /* the holder is still alive on the very edge */
    rig_hello(rig, 1, 2);
    cr_code(rig, GK_CODE_HELD);
    rig->now_us++;
    rig_hello(rig, 1, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig->session[1] != old && rig->session[1] != 0);
    msg = rig_msg(rig, GK_KIND_PING, 1);
    msg.h.session = old;
    rig_send(rig, rig_route(1, 1), &msg);
    cr_code(rig, GK_CODE_FENCED);
    cr_assert(rig_last(rig)->route == rig_route(1, 1) && rig_last(rig)->msg.h.session == old);
    rig_ping(rig, 1, 2);
    cr_kind(rig, GK_KIND_PONG);
    rig_free(rig);
}

Test(server_session, takeover_and_signs_of_life)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg;

    for (int i = 0; i < 5; i++) { /* any message of the session is a sign of life */
        rig_tick(rig, 2 * GK_PING_US);
        rig_pull(rig, 1, 1);
    }
    rig_hello(rig, 1, 2);
    cr_code(rig, GK_CODE_HELD);
    msg = rig_hello_msg(rig, 1, 2);
    msg.body.hello.takeover = true;
    rig_say_hello(rig, 1, 2, &msg);
    cr_kind(rig, GK_KIND_WELCOME);
    rig_free(rig);
}

/* Whoever is refused can tell a holder from a life that may have died while it was written down. */
Test(server_session, held_by_a_life_that_is_being_written)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg = rig_hello_msg(rig, 1, 2);

    rig_hello(rig, 1, 3);
    cr_code(rig, GK_CODE_HELD);
    cr_assert_eq(rig_last(rig)->msg.h.incarnation, 1);
    rig->held = 1u << GK_SERVER_WRITE;
    msg.body.hello.takeover = true;
    rig_say_hello(rig, 1, 2, &msg);
    rig_hello(rig, 1, 3);
    cr_code(rig, GK_CODE_HELD);
    cr_assert_eq(rig_last(rig)->msg.h.incarnation, 0);
    rig_release(rig);
    rig_hello(rig, 1, 3);
    cr_code(rig, GK_CODE_HELD);
    cr_assert_eq(rig_last(rig)->msg.h.incarnation, 2);
    rig_free(rig);
}

Test(server_session, a_life_is_written_before_it_is_welcomed)
{
    struct rig *rig = rig_new(2, 1, 0);

    rig_start(rig);
    rig->held = 1u << GK_SERVER_WRITE;
    rig_hello(rig, 1, 1);
    cr_assert(rig_kind(rig) == 0 && rig->ops_count == 1, "answered before it is durable");
    rig_hello(rig, 1, 1); /* the retry is the one to be answered */
    cr_assert(rig->ops_count == 1, "one record for two copies of a HELLO");
    rig_hello(rig, 1, 2);
    cr_code(rig, GK_CODE_HELD);
    rig_hello(rig, 0, 1);
    cr_assert(rig->ops_count == 1, "records are written one at a time");
    rig_release(rig);
    cr_assert(rig->records_count == 2);
    cr_assert(rig->records[0].record.type == GK_RECORD_MEMBER &&
              rig->records[0].members[0].rank == 1 &&
              rig->records[0].members[0].row.incarnation == 1 &&
              rig->records[0].members[0].row.life_nonce == 2001);
    cr_assert(rig_view(rig).present == 2);
    cr_assert(rig_reply_to(rig, 1) == NULL && rig_reply_to(rig, 2)->msg.h.kind == GK_KIND_WELCOME);
    rig_free(rig);
}

Test(server_session, life_changes_while_it_is_written)
{
    struct rig *rig = rig_new(1, 1, 0);
    struct gk_msg msg;

    rig_start(rig);
    rig->held = 1u << GK_SERVER_WRITE;
    rig_hello(rig, 0, 1);
    msg = rig_hello_msg(rig, 0, 1);
    msg.h.incarnation = 6;
    rig_say_hello(rig, 0, 1, &msg);
    cr_assert(rig_work(rig, true));
    cr_assert(rig_kind(rig) == 0, "incarnation 6 is not durable yet");
    rig_release(rig);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig->records[1].members[0].row.incarnation == 6);
    rig_free(rig);
}

Test(server_session, unknown_session_says_hello_again)
{
    struct rig *rig = rig_running(2);
    uint64_t old = rig->session[1];
    struct gk_msg msg;

    rig_restart(rig);
    cr_assert(rig_view(rig).incarnation == 2);
    rig_ping(rig, 1, 1);
    cr_code(rig, GK_CODE_NO_SESSION);
    rig_hello(rig, 1, 1);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig->session[1] != old, "a session belongs to one life of the shard");
    cr_assert(rig_last(rig)->msg.h.incarnation == 2);
    msg = rig_msg(rig, GK_KIND_PING, 1);
    msg.h.session = rig->session[1] + 1;
    rig_send(rig, 99, &msg);
    cr_code(rig, GK_CODE_NO_SESSION);
    cr_assert(rig_last(rig)->route == 99);
    msg.h.rank = 7;
    msg.h.req_id = ++rig->req_ids;
    rig_send(rig, 99, &msg);
    cr_code(rig, GK_CODE_NO_SESSION);
    rig_free(rig);
}

/* A restarted shard knows from its records that life 2 was welcomed. */
Test(server_session, fenced_over_a_restart)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg;

    rig_tick(rig, 10 * GK_PING_US);
    rig_hello(rig, 1, 2);
    rig_restart(rig);
    rig_hello(rig, 1, 1);
    cr_code(rig, GK_CODE_STALE_LIFE);
    cr_assert(rig_last(rig)->msg.h.incarnation == 2);
    msg = rig_msg(rig, GK_KIND_PING, 1);
    msg.h.incarnation = 1;
    rig_send(rig, rig_route(1, 1), &msg);
    cr_code(rig, GK_CODE_FENCED);
    rig_hello(rig, 1, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    rig_free(rig);
}

Test(server_session, replies_follow_the_newest_route)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg;
    uint64_t pull;

    rig_pull(rig, 1, 1); /* waits for version 1 */
    pull = rig->req_ids;
    rig_push(rig, 1, 0);
    msg = rig_msg(rig, GK_KIND_PING, 1);
    rig_send(rig, 555, &msg);
    cr_assert(rig_last(rig)->route == 555);
    rig_push(rig, 0, 0);
    cr_assert(rig_reply_to(rig, pull)->msg.h.kind == GK_KIND_PARAMS &&
              rig_reply_to(rig, pull)->route == 555);
    /* A route that is gone swallows nothing: nothing is sent, and the next message brings a new
     * one. */
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_PEER_GONE, .route = rig_route(1, 1)});
    rig_pull(rig, 0, 2);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_PEER_GONE, .route = rig_route(0, 1)});
    rig_clear(rig);
    rig_push(rig, 1, 1);
    rig_push(rig, 0, 1);
    cr_assert(rig_view(rig).version == 2);
    rig_pull(rig, 0, 2);
    cr_kind(rig, GK_KIND_PARAMS);
    rig_free(rig);
}

Test(server_session, any_rank)
{
    struct rig *rig = rig_new(3, 1, 0);
    struct gk_msg msg;

    rig_start(rig);
    rig_hello(rig, 1, 1);
    for (uint32_t i = 0; i < 2; i++) {
        for (int again = 0; again < 2; again++) {
            msg = rig_hello_msg(rig, 5 + i, 1);
            msg.h.rank = GK_RANK_ANY;
            rig_say_hello(rig, 5 + i, 1, &msg);
            cr_kind(rig, GK_KIND_WELCOME);
            cr_assert(rig_last(rig)->msg.h.rank == 2 * i,
                      "the lowest free one, and the same again");
        }
    }
    msg = rig_hello_msg(rig, 7, 1);
    msg.h.rank = GK_RANK_ANY;
    rig_say_hello(rig, 7, 1, &msg);
    cr_code(rig, GK_CODE_HELD);
    rig_tick(rig, 10 * GK_PING_US);
    rig_ping(rig, 0, 1);
    msg = rig_hello_msg(rig, 7, 2);
    msg.h.rank = GK_RANK_ANY;
    rig_say_hello(rig, 7, 2, &msg);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig_last(rig)->msg.h.rank == 1, "the lowest whose holder is silent");
    rig_free(rig);
    rig = rig_new(2, 2, 1);
    rig_start(rig);
    msg = rig_hello_msg(rig, 0, 1);
    msg.h.rank = GK_RANK_ANY;
    rig_say_hello(rig, 0, 1, &msg);
    cr_code(rig, GK_CODE_BAD_RANK);
    rig_free(rig);
}

Test(server_session, spec_of_rank_0_before_init)
{
    struct rig *rig = rig_new(2, 1, 0);
    struct gk_msg msg;

    rig_start(rig);
    msg = rig_hello_msg(rig, 1, 1);
    msg.body.hello.spec_hash ^= 1;
    rig_say_hello(rig, 1, 1, &msg);
    cr_kind(rig, GK_KIND_WELCOME); /* nobody knows better yet */
    rig_hello(rig, 0, 1);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig_last(rig)->msg.body.welcome.workers_present == 1);
    cr_assert(rig_view(rig).present == 1, "a life of another job does not hold its rank");
    cr_assert(strstr(rig->traces, "the first is rank 1: the worker's job spec"), "%s", rig->traces);
    rig_ping(rig, 1, 1);
    cr_code(rig, GK_CODE_NO_SESSION);
    msg.h.req_id = ++rig->req_ids;
    rig_say_hello(rig, 1, 1, &msg);
    cr_code(rig, GK_CODE_WRONG_SPEC);
    rig_hello(rig, 1, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    rig_free(rig);
}

Test(server_session, ping_tells_who_is_missing)
{
    struct rig *rig = rig_running(4);
    const struct gk_ping *pong;

    rig_push(rig, 0, 0);
    rig_push(rig, 2, 0);
    rig->now_us += 1500;
    rig_ping(rig, 0, 1);
    cr_kind(rig, GK_KIND_PONG);
    pong = &rig_last(rig)->msg.body.ping;
    cr_assert(pong->waits == GK_WAIT_RANK && pong->waits_for == 1 && pong->waits_count == 2);
    cr_assert(pong->waits_version == 1 && pong->waits_us == 1500);
    cr_assert(pong->sent_us == 5 && pong->received_us == rig->now_us);
    rig_free(rig);
}

Test(server_session, ping_tells_who_has_not_come)
{
    struct rig *rig = rig_new(4, 1, 0);
    const struct gk_ping *pong;

    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_hello(rig, 2, 1);
    rig->now_us += 1500;
    rig_ping(rig, 0, 1);
    pong = &rig_last(rig)->msg.body.ping;
    cr_assert(pong->waits == GK_WAIT_RANK && pong->waits_for == 1 && pong->waits_count == 2);
    cr_assert(pong->waits_version == 0 && pong->waits_us == 1500);
    rig_hello(rig, 1, 1);
    rig_hello(rig, 3, 1);
    rig_ping(rig, 0, 1);
    cr_assert(rig_last(rig)->msg.body.ping.waits == GK_WAIT_NONE, "for the model");
    rig_free(rig);
}

Test(server_session, bad_messages_are_counted_and_answered)
{
    struct rig *rig = rig_running(2);
    struct gk_header unreadable = {0},
                     readable = {.kind = GK_KIND_PUSH, .session = 3, .req_id = 71, .rank = 1};
    struct gk_header answer = {.kind = GK_KIND_NACK, .session = 3, .req_id = 72, .rank = 1};
    struct gk_msg msg;

    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_BAD_MESSAGE,
                                            .route = 5,
                                            .header = &unreadable,
                                            .err = GK_E_CORRUPT,
                                            .words = "magic"});
    cr_assert(rig->replies_count == 0);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_BAD_MESSAGE,
                                            .route = 5,
                                            .header = &readable,
                                            .err = GK_E_CORRUPT,
                                            .words = "lo"});
    cr_assert(rig_reply_to(rig, 71)->msg.h.code == GK_CODE_BAD_MESSAGE &&
              rig_reply_to(rig, 71)->route == 5);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_BAD_MESSAGE,
                                            .route = 5,
                                            .header = &readable,
                                            .err = GK_E_UNSUPPORTED,
                                            .words = "x"});
    cr_assert(rig_reply_to(rig, 71)->msg.h.code == GK_CODE_UNSUPPORTED);
    rig_clear(rig);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_BAD_MESSAGE,
                                            .route = 5,
                                            .header = &answer,
                                            .err = GK_E_CORRUPT,
                                            .words = "x"});
    cr_assert(rig->replies_count == 0, "an answer is never answered");
    msg = rig_msg(rig, GK_KIND_PONG, 1);
    rig_send(rig, 5, &msg);
    cr_assert(rig->replies_count == 0);
    msg = rig_msg(rig, GK_KIND_PING, 1);
    msg.h.shard = 1;
    rig_send(rig, 5, &msg);
    cr_code(rig, GK_CODE_BAD_MESSAGE);
    cr_assert(rig_view(rig).ledger.bad_messages == 6);
    memset(&readable, 0xff, sizeof(readable)); /* whatever it says, the answer is a legal message */
    rig_clear(rig);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_BAD_MESSAGE,
                                            .route = 5,
                                            .header = &readable,
                                            .err = GK_E_UNSUPPORTED,
                                            .words = "no such kind"});
    cr_assert(rig->replies_count == 1 && rig->replies[0].msg.h.code == GK_CODE_UNSUPPORTED);
    for (int i = 0; i < 100; i++) {
        rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_BAD_MESSAGE,
                                                .route = 5,
                                                .header = &unreadable,
                                                .err = GK_E_CORRUPT});
    }
    cr_assert(strlen(rig->traces) < 200, "a flood of noise must not fill the log: %s", rig->traces);
    rig_free(rig);
}

/* All at once: the records are bounded, and so is what one step emits. */
Test(server_session, many_ranks_join_and_leave)
{
    enum { MANY = 300 };
    struct rig *rig = rig_new(MANY, 1, 0);
    uint32_t members = 0, written = 0;

    rig_start(rig);
    rig->held = 1u << GK_SERVER_WRITE;
    for (uint32_t r = 0; r < MANY; r++) {
        struct gk_msg msg = rig_hello_msg(rig, r, 1);

        rig_send(rig, rig_route(r, 1), &msg);
    }
    rig_release(rig);
    for (; written < rig->records_count; written++) {
        members += rig->records[written].record.members_count;
        cr_assert(rig->records[written].record.members_count <= GK_SERVER_MEMBERS_MAX);
    }
    cr_assert(members == MANY && written <= 2 + MANY / GK_SERVER_MEMBERS_MAX);
    cr_assert(rig_view(rig).present == MANY && rig->replies_count == MANY);
    rig_free(rig);
}

/* The record of life 2 is on its way when life 2 asks for a higher incarnation: life 1 is fenced by
 * the first record, life 2 is welcomed after the second. */
Test(server_session, a_record_fences_even_when_another_follows)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg;

    rig_tick(rig, 10 * GK_PING_US);
    rig->held = 1u << GK_SERVER_WRITE;
    rig_hello(rig, 1, 2);
    msg = rig_hello_msg(rig, 1, 2);
    msg.h.incarnation = 5;
    rig_say_hello(rig, 1, 2, &msg);
    cr_assert(rig_work(rig, true) && rig_kind(rig) == 0);
    rig_ping(rig, 1, 1);
    cr_code(rig, GK_CODE_FENCED);
    rig->req_ids--;
    rig_release(rig);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig_last(rig)->msg.body.welcome.highest_incarnation == 5);
    rig_free(rig);
}

/* A reply that waits for its record finds the session ended by a refusal: nothing is sent. */
Test(server_session, no_reply_after_a_refusal)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg;
    uint64_t leave;

    rig->held = 1u << GK_SERVER_WRITE;
    rig_leave(rig, 1, 0);
    leave = rig->req_ids;
    msg = rig_hello_msg(rig, 1, 1);
    msg.body.hello.spec_hash ^= 1;
    rig_say_hello(rig, 1, 1, &msg);
    cr_code(rig, GK_CODE_WRONG_SPEC);
    rig_release(rig);
    cr_assert(!rig_reply_to(rig, leave));
    rig_hello(rig, 1, 1);
    rig_leave(rig, 1, 0);
    cr_kind(rig, GK_KIND_LEAVE_OK);
    rig_free(rig);
}
