/* Goal: no event finds the server in a state in which nobody thought of it.
 * Method: the shard is brought into every state; every kind of message and every other event is
 * given to it there, and the answer is compared with a table. */
#include "server_job.h"

enum { WORKERS = 2 };

static struct rig *waiting(void)
{
    struct rig *rig = rig_new(WORKERS, 1, 0);

    rig_start(rig);
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_hello(rig, r, 1);
    }
    return rig;
}

static struct rig *in_setup(void)
{
    struct rig *rig = waiting();

    rig->held = 1u << GK_SERVER_SETUP;
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    return rig;
}

static struct rig *in_init(void)
{
    struct rig *rig = waiting();

    rig_init_chunk(rig, 0, RIG_INIT_ID);
    return rig;
}

static struct rig *running(void)
{
    return rig_running(WORKERS);
}

static struct rig *in_commit(uint32_t held)
{
    struct rig *rig = rig_running(WORKERS);

    rig->held = 1u << held;
    rig_round(rig, 0);
    return rig;
}

static struct rig *summing(void)
{
    return in_commit(GK_SERVER_SUM);
}

static struct rig *writing(void)
{
    return in_commit(GK_SERVER_WRITE);
}

static struct rig *applying(void)
{
    return in_commit(GK_SERVER_APPLY);
}

static struct rig *finished(void)
{
    struct rig *rig = rig_running(WORKERS);

    rig_leave(rig, 0, 0);
    rig_leave(rig, 1, 0);
    return rig;
}

static struct rig *draining(void)
{
    struct rig *rig = in_commit(GK_SERVER_WRITE);

    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    return rig;
}

static struct rig *exited(void)
{
    struct rig *rig = waiting();

    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    return rig;
}

struct place {
    const char *name;
    struct rig *(*reach)(void);
    enum gk_shard_state state;
    enum gk_round_state round;
};

enum { PLACES = 10 };
static const struct place places[PLACES] = {
    {"waiting", waiting, GK_SHARD_WAITING, GK_ROUND_COLLECTING},
    {"setup", in_setup, GK_SHARD_SETUP, GK_ROUND_COLLECTING},
    {"init", in_init, GK_SHARD_INIT, GK_ROUND_COLLECTING},
    {"running", running, GK_SHARD_RUNNING, GK_ROUND_COLLECTING},
    {"summing", summing, GK_SHARD_RUNNING, GK_ROUND_SUMMING},
    {"writing", writing, GK_SHARD_RUNNING, GK_ROUND_WRITING},
    {"applying", applying, GK_SHARD_RUNNING, GK_ROUND_APPLYING},
    {"finished", finished, GK_SHARD_FINISHED, GK_ROUND_COLLECTING},
    {"draining", draining, GK_SHARD_DRAINING, GK_ROUND_WRITING},
    {"exited", exited, GK_SHARD_EXITED, GK_ROUND_COLLECTING},
};

/* What is said: a request as an honest worker would make it for the shard's current version. */
static struct gk_msg request(struct rig *rig, uint32_t kind)
{
    struct gk_msg msg = rig_msg(rig, kind, 0);
    uint64_t version = rig_view(rig).version;

    if (kind == GK_KIND_HELLO) {
        msg = rig_hello_msg(rig, 0, 1);
    } else if (kind == GK_KIND_INIT) {
        msg = rig_init_msg(rig, 0, RIG_INIT_ID);
    } else if (kind == GK_KIND_PUSH) {
        struct rig_push push = rig_make_push(rig, 0, version, 0);

        msg = rig_push_msg(rig, 0, &push, 0);
    } else if (kind == GK_KIND_PULL_DENSE) {
        msg.h.version = version;
        msg.h.hi = 8;
    } else if (kind == GK_KIND_LEAVE) {
        msg.h.step = version + 1;
    } else if (kind == GK_KIND_STATUS || kind == GK_KIND_DRAIN) {
        msg.h.session = 0;
        msg.h.rank = GK_RANK_ANY;
    } else if (kind == GK_KIND_PIN || kind == GK_KIND_PULL_PIN) {
        msg.h.session = 0;
        msg.h.rank = GK_RANK_ANY;
        msg.h.version = version;
        msg.h.job_uid = kind == GK_KIND_PIN ? rig_uid() : (struct gk_uid){0};
        msg.h.hi = kind == GK_KIND_PULL_PIN ? 8 : 0;
    }
    return msg;
}

enum { OK = 1000, NOTHING = 0 }; /* OK: the kind that belongs to the request; else a code */

struct row {
    uint32_t kind, answer;
    uint32_t expect[PLACES];
};

#define NR GK_CODE_NOT_READY
#define DR GK_CODE_DRAINING
#define FI GK_CODE_FINISHED
#define UN GK_CODE_UNSUPPORTED
#define PA GK_CODE_PAST

/* WRITE is held in `writing` and `draining`: LEAVE waits there; in `applying` nobody reads planes.
 */
static const struct row rows[] = {
    /*                                      waiting setup init running summing writing applying
       finished draining exited */
    {GK_KIND_HELLO, GK_KIND_WELCOME, {OK, OK, OK, OK, OK, OK, OK, OK, DR, NOTHING}},
    {GK_KIND_INIT, GK_KIND_INIT_OK, {OK, NR, OK, OK, OK, OK, OK, OK, DR, NOTHING}},
    {GK_KIND_PUSH, GK_KIND_PUSH_OK, {NR, NR, NR, OK, OK, OK, OK, FI, DR, NOTHING}},
    {GK_KIND_PULL_DENSE, GK_KIND_PARAMS, {NR, NR, NR, OK, OK, OK, NOTHING, OK, OK, NOTHING}},
    {GK_KIND_LEAVE, GK_KIND_LEAVE_OK, {NR, NR, NR, OK, OK, NOTHING, OK, OK, DR, NOTHING}},
    {GK_KIND_PING, GK_KIND_PONG, {OK, OK, OK, OK, OK, OK, OK, OK, OK, NOTHING}},
    {GK_KIND_STATUS, GK_KIND_STATUS_OK, {OK, OK, OK, OK, OK, OK, OK, OK, OK, NOTHING}},
    {GK_KIND_DRAIN, GK_KIND_DRAIN_OK, {OK, OK, OK, OK, OK, OK, OK, OK, OK, NOTHING}},
    {GK_KIND_PULL_UPDATES, 0, {UN, UN, UN, UN, UN, UN, UN, UN, UN, NOTHING}},
    {GK_KIND_WELCOME, 0, {NOTHING}},
    {GK_KIND_REFUSE, 0, {NOTHING}},
    {GK_KIND_INIT_OK, 0, {NOTHING}},
    {GK_KIND_PUSH_OK, 0, {NOTHING}},
    {GK_KIND_NACK, 0, {NOTHING}},
    {GK_KIND_PARAMS, 0, {NOTHING}},
    {GK_KIND_UPDATES, 0, {NOTHING}},
    {GK_KIND_GONE, 0, {NOTHING}},
    {GK_KIND_LEAVE_OK, 0, {NOTHING}},
    {GK_KIND_PONG, 0, {NOTHING}},
    {GK_KIND_STATUS_OK, 0, {NOTHING}},
    {GK_KIND_DRAIN_OK, 0, {NOTHING}},
    /* Version 0 is not settled in `running`; elsewhere the first answer is that the copy is not
       there yet, and nothing is pinned. */
    {GK_KIND_PIN, GK_KIND_PIN_OK, {NR, NR, NR, NR, NR, NR, NR, NR, DR, NOTHING}},
    {GK_KIND_PULL_PIN, GK_KIND_PIN_PARAMS, {NR, NR, NR, PA, PA, PA, PA, PA, PA, NOTHING}},
    {GK_KIND_PIN_OK, 0, {NOTHING}},
    {GK_KIND_PIN_PARAMS, 0, {NOTHING}},
};

Test(server_cells, every_kind_in_every_state)
{
    cr_assert(sizeof(rows) / sizeof(rows[0]) == GK_KIND_MAX, "a kind without a row");
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        for (uint32_t p = 0; p < PLACES; p++) {
            struct rig *rig = places[p].reach();
            uint32_t expect = rows[k].expect[p];
            struct gk_msg msg;
            uint32_t kind, code;

            cr_assert(rig_view(rig).state == places[p].state &&
                          rig_view(rig).round == places[p].round,
                      "%s", places[p].name);
            msg = request(rig, rows[k].kind);
            rig_send(rig, rig_route(0, 1), &msg);
            gk_msg_clear(&msg);
            kind = rig_kind(rig);
            code = rig_code(rig);
            if (expect == OK) {
                cr_assert(kind == rows[k].answer, "%s in %s: %s %s", gk_kind_name(rows[k].kind),
                          places[p].name, gk_kind_name(kind), gk_code_name(code));
            } else if (expect == NOTHING) {
                cr_assert(kind == 0, "%s in %s: %s %s", gk_kind_name(rows[k].kind), places[p].name,
                          gk_kind_name(kind), gk_code_name(code));
            } else {
                cr_assert((kind == GK_KIND_NACK || kind == GK_KIND_REFUSE) && code == expect,
                          "%s in %s: %s %s", gk_kind_name(rows[k].kind), places[p].name,
                          gk_kind_name(kind), gk_code_name(code));
            }
            rig_free(rig);
        }
    }
}

static bool same_view(const struct gk_server_view *a, const struct gk_server_view *b)
{
    return a->state == b->state && a->round == b->round && a->initialised == b->initialised &&
           a->version == b->version && a->durable_version == b->durable_version &&
           a->optimizer_step == b->optimizer_step && a->hashed == b->hashed && a->hash == b->hash &&
           a->reserved_bytes == b->reserved_bytes && a->present == b->present &&
           memcmp(&a->ledger, &b->ledger, sizeof(a->ledger)) == 0;
}

/* What a former life or a twin would bring: the end of something that this one does not wait for.
 */
Test(server_cells, completions_that_nobody_waits_for)
{
    static const enum gk_server_event_kind kinds[] = {GK_SERVER_SETUP_DONE, GK_SERVER_SUM_DONE,
                                                      GK_SERVER_WRITE_DONE, GK_SERVER_APPLY_DONE,
                                                      GK_SERVER_HASH_DONE,  GK_SERVER_PIN_DONE};

    for (uint32_t p = 0; p < PLACES; p++) {
        struct rig *rig = places[p].reach();
        struct gk_server_view before = rig_view(rig), after;

        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            static const uint64_t ops[] = {0, 1, UINT64_MAX};

            for (size_t o = 0; o < 3; o++) {
                rig_event(rig, (struct gk_server_event){
                                   .kind = kinds[k], .op = ops[o], .err = GK_E_NOMEM});
                after = rig_view(rig);
                cr_assert(same_view(&before, &after), "%s", places[p].name);
            }
        }
        rig_free(rig);
    }
}

Test(server_cells, other_events_in_every_state)
{
    for (uint32_t p = 0; p < PLACES; p++) {
        struct rig *rig = places[p].reach();
        struct gk_server_view view;

        rig_event(rig,
                  (struct gk_server_event){.kind = GK_SERVER_PEER_GONE, .route = rig_route(0, 1)});
        rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_PEER_GONE, .route = 12345});
        rig_event(rig, (struct gk_server_event){
                           .kind = GK_SERVER_BAD_MESSAGE, .route = 3, .err = GK_E_CORRUPT});
        rig_tick(rig, 1);
        view = rig_view(rig);
        cr_assert(view.state == places[p].state && view.round == places[p].round, "%s",
                  places[p].name);
        rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 130});
        rig_release(rig);
        view = rig_view(rig);
        cr_assert(view.state == GK_SHARD_EXITED && rig->exited, "%s", places[p].name);
        cr_assert(rig->exit_code == (places[p].state == GK_SHARD_FINISHED ? 0
                                     : places[p].state == GK_SHARD_EXITED ? 143
                                                                          : 130),
                  "%s: %d", places[p].name, rig->exit_code);
        rig_free(rig);
    }
}

/* Restarts wherever the shard is: what is durable goes on, what is not begins anew. */
Test(server_cells, restart_in_every_state)
{
    for (uint32_t p = 0; p < PLACES; p++) {
        struct rig *rig = places[p].reach();
        struct gk_server_view before = rig_view(rig), after;

        rig->held = 0;
        rig_restart(rig);
        after = rig_view(rig);
        cr_assert(after.version == before.version && after.initialised == before.initialised, "%s",
                  places[p].name);
        cr_assert(after.incarnation == before.incarnation + 1);
        cr_assert(after.state == (before.state == GK_SHARD_FINISHED ? GK_SHARD_FINISHED
                                  : before.initialised              ? GK_SHARD_RUNNING
                                                                    : GK_SHARD_WAITING),
                  "%s", places[p].name);
        for (uint32_t r = 0; r < WORKERS; r++) {
            rig_hello(rig, r, 1);
            cr_kind(rig, GK_KIND_WELCOME);
        }
        rig_init(rig);
        cr_kind(rig, GK_KIND_INIT_OK);
        if (after.state != GK_SHARD_FINISHED) {
            struct rig_model model;

            rig_round(rig, after.version);
            rig_model_run(rig, &model, after.version + 1);
            cr_assert(rig_view(rig).version == after.version + 1 && rig_same(rig, &model), "%s",
                      places[p].name);
        }
        rig_free(rig);
    }
}

Test(server_cells, arrows)
{
    static const char shard[GK_SHARD_STATES_COUNT][GK_SHARD_STATES_COUNT + 1] = {
        /* to: WSIRFDX */
        ".x.xxxx", /* waiting; running and finished: a life that finds records */
        "x.x..xx", /* setup */
        ".xxx.xx", /* init */
        "..x.xxx", /* running */
        ".....xx", /* finished */
        "......x", /* draining */
        ".......", /* exited */
    };
    static const char round[GK_ROUND_STATES_COUNT][GK_ROUND_STATES_COUNT + 1] = {
        ".x.x", /* collecting; applying: a life that finds a record which is not applied */
        "..x.", /* summing */
        "...x", /* writing */
        "x...", /* applying */
    };

    for (uint32_t i = 0; i < GK_SHARD_STATES_COUNT; i++) {
        for (uint32_t j = 0; j < GK_SHARD_STATES_COUNT; j++) {
            cr_assert(gk_shard_may_follow(i, j) == (shard[i][j] == 'x'), "%s -> %s",
                      gk_shard_state_name(i), gk_shard_state_name(j));
        }
    }
    for (uint32_t i = 0; i < GK_ROUND_STATES_COUNT; i++) {
        for (uint32_t j = 0; j < GK_ROUND_STATES_COUNT; j++) {
            cr_assert(gk_round_may_follow(i, j) == (round[i][j] == 'x'), "%s -> %s",
                      gk_round_state_name(i), gk_round_state_name(j));
        }
    }
}
