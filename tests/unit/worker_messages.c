/* Goal: no message that passes validation can make the core abort, install what was not asked for,
 * or end with anything but words that name a shard. Method: random legal messages of every kind in
 * every phase, many of them with the right session, request, version or range, so that they reach
 * deep; all from one seed. */
#include "proto_legal.h"
#include "worker_phases.h"

#include <criterion/criterion.h>

struct liar {
    struct draw draw;
    struct rig rig;
    struct toy toy;
    uint64_t exits, installs;
};

/* One of the requests that were sent, or none. */
static const struct gk_header *some_request(struct liar *liar)
{
    uint32_t count = liar->rig.sent_count;

    return count > 0 ? &liar->rig.sent[below(&liar->draw, count)].msg.h : NULL;
}

/* Make it likely that the core believes it. */
static void make_plausible(struct liar *liar, struct gk_msg *msg, uint32_t s)
{
    const struct toy_shard *shard = &liar->toy.shards[s];
    const struct gk_header *request = some_request(liar);
    bool session = gk_kind_rule(msg->h.kind)->session != GK_NEED_NEVER && shard->session != 0;

    if (session && below(&liar->draw, 8) > 0) {
        msg->h.session = shard->session;
    }
    if (request && below(&liar->draw, 8) > 0) {
        msg->h.req_id = request->req_id;
    }
    if (uses(gk_kind_rule(msg->h.kind), GK_FIELD_VERSION) && below(&liar->draw, 2)) {
        msg->h.version = below(&liar->draw, 4);
        msg->h.durable_version =
            uses(gk_kind_rule(msg->h.kind), GK_FIELD_DURABLE_VERSION) ? below(&liar->draw, 4) : 0;
    }
    if (msg->h.kind == GK_KIND_WELCOME) {
        msg->h.shard = below(&liar->draw, 8) ? s : msg->h.shard;
        msg->h.version = msg->body.welcome.initialised ? msg->h.version : 0;
        msg->h.lo = msg->body.welcome.initialised || below(&liar->draw, 2) ? shard->lo : 0;
        msg->h.hi = msg->h.lo == shard->lo ? shard->hi : 0;
        msg->body.welcome.oldest_version = 0;
        msg->body.welcome.job_uid = shard->uid;
        if (below(&liar->draw, 8)) {
            msg->body.welcome.life_nonce = shard->rank_nonce;
        }
    }
    if (msg->h.kind == GK_KIND_NACK && below(&liar->draw, 2)) {
        msg->h.code = GK_CODE_NO_SESSION + below(&liar->draw, 3) * 2; /* the harmless ones */
    }
}

static void lie(struct liar *liar)
{
    uint32_t kind = 1 + below(&liar->draw, GK_KIND_MAX), s = below(&liar->draw, 2);
    struct gk_msg msg;
    uint64_t installs = liar->rig.installs_count;

    if (reserved_kind(kind)) {
        return;
    }
    legal_message(&liar->draw, kind, &msg);
    make_plausible(liar, &msg, s);
    rig_give(&liar->rig, s, &msg);
    liar->installs += liar->rig.installs_count - installs;
    if (below(&liar->draw, 16) == 0) {
        rig_down(&liar->rig, s);
        rig_up(&liar->rig, s);
    }
    if (!liar->rig.exited && below(&liar->draw, 8) == 0) {
        rig_tick(&liar->rig);
    }
}

static void lie_in(enum gk_worker_phase phase, uint64_t seed, uint32_t rounds)
{
    struct liar liar = {.draw = {.rng = {.seed = seed, .purpose = GK_RNG_RANDK}}};

    for (uint32_t i = 0; i < rounds; i++) {
        phases_open(&liar.rig, &liar.toy, phase);
        for (uint32_t j = 0; j < 60 && !liar.rig.exited; j++) {
            lie(&liar);
        }
        if (liar.rig.exited && liar.rig.exit_code != GK_EXIT_OK) {
            liar.exits++;
            cr_assert(strstr(liar.rig.exit_words.text, "shard") ||
                          strstr(liar.rig.exit_words.text, "tcp://"),
                      "%s", liar.rig.exit_words.text);
        }
        phases_close(&liar.rig, &liar.toy);
    }
    if (phase == GK_PHASE_LEAVING) {
        cr_assert_eq(liar.exits, 0, "what is complete stays so");
    } else {
        cr_assert_gt(liar.exits, 0, "some lies are believed");
    }
    cr_assert_eq(liar.installs, 0, "but nobody guesses version, range and request");
}

Test(messages, joining)
{
    lie_in(GK_PHASE_JOINING, 1, 300);
}

Test(messages, exchanging)
{
    lie_in(GK_PHASE_EXCHANGING, 2, 100);
}

Test(messages, computing)
{
    lie_in(GK_PHASE_COMPUTING, 3, 100);
}

Test(messages, persisting)
{
    lie_in(GK_PHASE_PERSISTING, 4, 100);
}

Test(messages, evaluating)
{
    lie_in(GK_PHASE_EVALUATING, 5, 100);
}

Test(messages, leaving)
{
    lie_in(GK_PHASE_LEAVING, 6, 100);
}
