/* Goal: a step goes gradient, persist, push, pull; what is installed is exactly the version asked
 * for, each range once; a push stays until its verdict is durable everywhere.
 * Method: one core against toy servers; answers are bent, doubled and held back one at a time. */
#include "worker_toy.h"

#include "worker/core/window.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options two = {.servers = 2, .rank = 1, .workers = 2};

static void open_joined(struct rig *rig, struct toy *toy, struct rig_options options,
                        uint64_t version)
{
    rig_open(rig, options);
    toy_open(toy, rig);
    toy_begun(toy, version);
    toy_join(toy);
    cr_assert(rig_in(rig, GK_PHASE_COMPUTING));
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

Test(exchange, nothing_is_sent_before_it_is_persisted)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    cr_assert(rig.counts[GK_WORKER_STEP] == 1 && rig.asked[GK_WORKER_STEP] == 0);
    rig_step_done(&rig);
    cr_assert(rig_in(&rig, GK_PHASE_PERSISTING));
    cr_assert(rig.counts[GK_WORKER_PERSIST] == 1 && rig.asked[GK_WORKER_PERSIST] == 0);
    toy_wait(&toy, 10 * SECOND);
    rig_down(&rig, 0);
    rig_up(&rig, 0);
    toy_serve(&toy);
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PUSH] + toy.shards[1].handled[GK_KIND_PUSH], 0);
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PULL_DENSE], 1, "that of version 0");
    rig_persisted(&rig);
    for (uint32_t s = 0; s < 2; s++) {
        const struct gk_msg *push = rig_take(&rig, s, GK_KIND_PUSH);
        const struct gk_msg *pull = rig_take(&rig, s, GK_KIND_PULL_DENSE);

        cr_assert(push && push->h.step == 0 && push->h.base_version == 0 && push->h.samples == 32);
        cr_assert(push->h.session == toy.shards[s].session && push->h.incarnation == 1);
        cr_assert(pull && pull->h.version == 1 && pull->h.lo == toy.shards[s].lo &&
                  pull->h.hi == toy.shards[s].hi);
        cr_assert(!rig_take(&rig, s, GK_KIND_PUSH) && !rig_take(&rig, s, GK_KIND_PULL_DENSE));
    }
    cr_assert_eq(gk_worker_stats(rig.core)->steps, 1);
    close_both(&rig, &toy);
}

/* Eight chunks at most are on their way, push and pull alike, and every one comes once. */
Test(exchange, windows)
{
    struct rig rig;
    struct toy toy;
    uint64_t push_id = 0, at = 0;

    open_joined(&rig, &toy,
                (struct rig_options){.params = UINT64_C(9) * GK_CHUNK_FLOATS + 16,
                                     .entries = 40,
                                     .chunk_floats = 2,
                                     .rank = 1,
                                     .workers = 2},
                0);
    toy.shards[0].closes = false;
    toy_compute(&toy);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PULL_DENSE), 8);
    for (uint32_t c = 0; c < 20; c++) {
        struct gk_msg *push = rig_take(&rig, 0, GK_KIND_PUSH);

        cr_assert(push && push->h.chunk == c && push->h.chunks == 20 && push->h.lo == at);
        cr_assert(c == 0 || push->h.push_id == push_id);
        cr_assert_eq(push->h.push_bytes, 40 * 8);
        push_id = push->h.push_id;
        at = push->h.hi;
        toy_handle(&toy, 0, push);
        toy_deliver(&toy);
        cr_assert_leq(rig_count(&rig, 0, GK_KIND_PUSH), 8);
        cr_assert_eq(rig_count(&rig, 0, GK_KIND_PUSH), c < 12 ? 8 : 19 - c);
    }
    cr_assert(at == rig.options.params && toy.shards[0].whole);
    rig_forget_sent(&rig);
    rig_wait(&rig, SECOND - 1);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PUSH), 0, "all are acknowledged");
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PULL_DENSE), 8, "the pulls are asked for again");
    toy.shards[0].closes = true;
    toy_serve(&toy);
    toy_commit(&toy, 0);
    toy_deliver(&toy);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(rig.installs_count, 20);
    close_both(&rig, &toy);
}

/* Bend one field of an answer that would otherwise be installed. */
static void bend(struct gk_msg *msg, uint32_t how)
{
    switch (how) {
    case 0:
        msg->h.version = 0; /* the one before */
        break;
    case 1:
        msg->h.req_id += 1000;
        break;
    case 2:
        msg->h.session ^= 2;
        break;
    case 3:
        msg->h.plane = 1;
        break;
    case 4: /* another range of the same length */
        msg->h.lo += 64;
        msg->h.hi += 64;
        break;
    case 5: /* a part of the range */
        msg->h.hi -= 4;
        msg->h.count -= 4;
        gk_buf_unref(msg->frame[0]);
        msg->frame[0] = gk_buf_new(msg->h.count * sizeof(float));
        break;
    case 6: /* a copy that was not made */
        msg->h.req_id |= UINT64_C(1) << GK_WINDOW_TRY_SHIFT;
        break;
    default:
        cr_assert(false);
    }
}

Test(exchange, only_what_was_asked_for_is_installed)
{
    for (uint32_t how = 0; how < 7; how++) {
        struct rig rig;
        struct toy toy;

        open_joined(&rig, &toy, two, 0);
        toy_compute(&toy);
        cr_assert_eq(rig.installs_count, 2);
        toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PUSH));
        toy_deliver(&toy);
        toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PULL_DENSE));
        bend(&toy.replies[0].msg, how);
        toy_deliver(&toy);
        cr_assert_eq(rig.installs_count, 2, "case %u", how);
        cr_assert_eq(
            gk_worker_stats(rig.core)->bad_messages + gk_worker_stats(rig.core)->duplicates, 1);
        toy_wait(&toy, 3 * SECOND);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        cr_assert_eq(rig.installs_count, 4);
        close_both(&rig, &toy);
    }
}

Test(exchange, answers_may_come_twice)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy_compute(&toy);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t j = 0; j < rig.sent_count; j++) {
            toy_handle(&toy, rig.sent[j].shard, &rig.sent[j].msg);
        }
        toy_deliver(&toy);
    }
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.installs_count == 4);
    cr_assert(toy.shards[0].version == 1 && toy.shards[1].version == 1);
    cr_assert_geq(gk_worker_stats(rig.core)->duplicates, 8);
    close_both(&rig, &toy);
}

/* Fifty undisturbed steps: every version once per shard, in order, and every push applied. */
Test(exchange, fifty_steps)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    for (uint64_t t = 0; t < 50; t++) {
        struct gk_push *push = rig_push(&rig, t);

        toy_compute(&toy);
        toy_serve(&toy);
        cr_assert(toy.shards[0].applied[t] == push->slices[0].id &&
                  toy.shards[1].applied[t] == push->slices[1].id);
        cr_assert(rig.asked[GK_WORKER_STEP] == t + 1 && gk_worker_version(rig.core) == t + 1);
        gk_push_free(push);
    }
    cr_assert_eq(rig.installs_count, 102);
    for (uint32_t i = 0; i < 102; i++) {
        cr_assert(rig.installs[i].version == i / 2 && rig.installs[i].first == (float)(i / 2));
    }
    cr_assert_eq(gk_worker_stats(rig.core)->retries, 0);
    cr_assert_eq(gk_worker_stats(rig.core)->lost, 0);
    close_both(&rig, &toy);
}

/* A verdict ends a push even when its PUSH_OKs were lost. */
Test(exchange, verdict_ends_the_resending)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy.shards[1].closes = false;
    toy_compute(&toy);
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PUSH));
    gk_msg_clear(&toy.replies[0].msg);
    toy.replies_count = 0;
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PULL_DENSE));
    toy_deliver(&toy);
    rig_forget_sent(&rig);
    rig_wait(&rig, 20 * SECOND);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PUSH), 0);
    cr_assert_geq(rig_count(&rig, 1, GK_KIND_PUSH), 4);
    close_both(&rig, &toy);
}

/* The ring holds four pushes.  With none of them durable yet the fifth step waits. */
Test(exchange, full_ring_waits_for_durability)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy.shards[1].lags = true;
    for (uint32_t t = 0; t < GK_RING_ENTRIES; t++) {
        toy_compute(&toy);
        toy_serve(&toy);
    }
    cr_assert(rig_in(&rig, GK_PHASE_EXCHANGING));
    cr_assert(gk_worker_version(rig.core) == 4 && rig.counts[GK_WORKER_STEP] == 4);
    toy_wait(&toy, 7 * SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_EXCHANGING));
    cr_assert(rig_said(&rig, "WORKER-STALL",
                       "step 3: waiting 5.0 s for shard 1 at tcp://b:2 to make version 4 "
                       "durable (0 is)"));
    toy.shards[1].durable = 1;
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING), "a PONG is enough");
    cr_assert(rig.counts[GK_WORKER_STEP] == 5 && rig.asked[GK_WORKER_STEP] == 4);
    close_both(&rig, &toy);
}

/* A shard that calls durable what does not exist is not believed, and does no harm. */
Test(exchange, durable_beyond_the_version)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy.shards[0].closes = false;
    toy_compute(&toy);
    rig_wait(&rig, SECOND);
    toy.shards[0].durable = 9;
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PING));
    toy_deliver(&toy);
    toy.shards[0].durable = 0;
    toy_wait(&toy, 3 * SECOND);
    toy_commit(&toy, 0);
    toy_deliver(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(gk_worker_stats(rig.core)->lost, 0);
    close_both(&rig, &toy);
}

/* GONE: this life was overtaken; the LOST rule. */
Test(exchange, gone)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy_compute(&toy);
    toy.shards[0].version = toy.shards[0].durable = 2;
    toy.shards[1].version = toy.shards[1].durable = 2;
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(rig.asked[GK_WORKER_STEP], 2);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 1);
    cr_assert_eq(rig.installs[rig.installs_count - 1].version, 2);
    close_both(&rig, &toy);
}

/* A verdict that is none, or on an earlier step, or on the push of an older life. */
Test(exchange, committed_without_our_push)
{
    for (uint32_t how = 0; how < 3; how++) {
        struct rig rig;
        struct toy toy;
        struct toy_shard *shard = &toy.shards[0];

        open_joined(&rig, &toy, two, 4);
        toy_compute(&toy);
        shard->version = shard->durable = 5;
        shard->verdict = how == 0 ? GK_VERDICT_NONE : GK_VERDICT_APPLIED;
        shard->verdict_step = how == 0 ? 0 : how == 1 ? 3 : 4;
        shard->verdict_incarnation = how == 0 ? 0 : how == 1 ? 1 : 9;
        toy_serve(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 5);
        cr_assert_eq(gk_worker_stats(rig.core)->lost, 1);
        cr_assert(rig_said(&rig, "WORKER-PUSH-LOST",
                           "shard 0 committed step 4 without the push of rank 1"));
        cr_assert_eq(toy.shards[1].applied[4] != 0, true);
        close_both(&rig, &toy);
    }
}

Test(exchange, failed_step)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    rig_event(&rig, (struct gk_worker_event){.kind = GK_WORKER_STEP_DONE,
                                             .exit_code = GK_EXIT_DATA,
                                             .words = "the gradient is not finite"});
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_DATA);
    cr_assert_str_eq(rig.exit_words.text, "the gradient is not finite");
    close_both(&rig, &toy);
}

/* A stop in the middle of a computation: its result comes later and is dropped. */
Test(exchange, stop_while_computing)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    rig_event(&rig, (struct gk_worker_event){
                        .kind = GK_WORKER_STOP, .exit_code = 143, .words = "stopped by SIGTERM"});
    cr_assert(rig.exited && rig.exit_code == 143);
    rig_step_done(&rig);
    rig_event(&rig, (struct gk_worker_event){.kind = GK_WORKER_TICK});
    cr_assert_eq(rig.counts[GK_WORKER_EXIT], 1);
    close_both(&rig, &toy);
}

/* Rank 0 evaluates every `eval_every` versions, each version once, before the next step. */
Test(exchange, evaluation)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, (struct rig_options){.servers = 2, .evaluates = true, .eval_every = 3},
                0);
    for (uint64_t t = 1; t <= 10; t++) {
        toy_compute(&toy);
        toy_serve(&toy);
        cr_assert_eq(rig_in(&rig, GK_PHASE_EVALUATING), t % 3 == 0);
        if (t % 3 == 0) {
            cr_assert(rig.asked[GK_WORKER_EVALUATE] == t && rig.counts[GK_WORKER_STEP] == t);
            toy_wait(&toy, 2 * SECOND);
            cr_assert(rig_in(&rig, GK_PHASE_EVALUATING));
            rig_evaluated(&rig);
        }
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    }
    cr_assert_eq(rig.counts[GK_WORKER_EVALUATE], 3);
    close_both(&rig, &toy);
}

/* The ring may be full when an evaluation ends. */
Test(exchange, evaluation_with_a_full_ring)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, (struct rig_options){.evaluates = true, .eval_every = 4}, 0);
    toy.shards[0].lags = true;
    for (uint32_t t = 0; t < GK_RING_ENTRIES; t++) {
        toy_compute(&toy);
        toy_serve(&toy);
    }
    cr_assert(rig_in(&rig, GK_PHASE_EVALUATING));
    rig_evaluated(&rig);
    cr_assert(rig_in(&rig, GK_PHASE_EXCHANGING));
    toy_wait(&toy, 2 * SECOND);
    toy.shards[0].durable = 2;
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 4);
    cr_assert_eq(rig.counts[GK_WORKER_EVALUATE], 1);
    close_both(&rig, &toy);
}
