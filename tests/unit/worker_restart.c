/* Goal: whatever dies and comes back, in whichever state, every push is counted once and the step
 * goes on; and what cannot go on says why.
 * Method: one core against toy servers that restart, forget and overtake at chosen moments. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options two = {
    .servers = 2, .rank = 1, .workers = 2, .entries = 40, .chunk_floats = 4, .params = 256};

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

/* The connection goes and comes; on the other side the same life (keeps) or the next one. */
static void bounce(struct rig *rig, struct toy *toy, uint32_t s, bool restarts)
{
    rig_down(rig, s);
    if (restarts) {
        toy_restart(toy, s);
    }
    rig_up(rig, s);
}

static uint64_t id_of(const struct rig *rig, uint64_t step, uint32_t s)
{
    struct gk_push *push = rig_push(rig, step);
    uint64_t id = push->slices[s].id;

    gk_push_free(push);
    return id;
}

/* Three of five chunks are acknowledged when shard 1 dies: its next life gets all five again; the
 * PUSH_OKs of the former life count for nothing.  Shard 0 is not bothered. */
Test(restart, before_the_commit)
{
    struct rig rig;
    struct toy toy;
    struct gk_msg *push;

    open_joined(&rig, &toy, two, 0);
    toy_compute(&toy);
    toy_serve_some(&toy, 1);
    for (uint32_t c = 0; c < 3; c++) {
        toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_PUSH));
        toy_deliver(&toy);
    }
    push = rig_take(&rig, 1, GK_KIND_PUSH);
    toy_handle(&toy, 1, push); /* its answer is still on the way */
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    rig_up(&rig, 1);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_HELLO));
    cr_assert_eq(toy.replies_count, 2);
    rig_forget_sent(&rig);
    rig_give(&rig, 1, &toy.replies[1].msg); /* WELCOME */
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_PUSH), 5);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PUSH), 0);
    rig_give(&rig, 1, &toy.replies[0].msg); /* PUSH_OK of the former life */
    toy.replies_count = 0;
    rig_wait(&rig, 3 * SECOND);
    cr_assert_geq(rig_count(&rig, 1, GK_KIND_PUSH), 10, "all five are still asked for");
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(toy.shards[1].applied[0], id_of(&rig, 0, 1));
    cr_assert_eq(rig.installs_count, 4);
    close_both(&rig, &toy);
}

/* The commit is on disk, the answers are lost: the next life says so and gets nothing. */
Test(restart, after_the_commit)
{
    struct rig rig;
    struct toy toy;
    uint32_t pushes;

    open_joined(&rig, &toy, two, 0);
    toy_compute(&toy);
    toy_serve_some(&toy, 1);
    for (struct gk_msg *msg; (msg = rig_take(&rig, 1, GK_KIND_PUSH));) {
        toy_handle(&toy, 1, msg);
    }
    cr_assert_eq(toy.shards[1].version, 1);
    for (uint32_t i = 0; i < toy.replies_count; i++) {
        gk_msg_clear(&toy.replies[i].msg);
    }
    toy.replies_count = 0;
    pushes = toy.shards[1].handled[GK_KIND_PUSH];
    bounce(&rig, &toy, 1, true);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(toy.shards[1].handled[GK_KIND_PUSH], pushes);
    close_both(&rig, &toy);
}

/* The same life of the shard behind a new connection: the session goes on, PUSH_OKs count, what is
 * outstanding is sent again at once. */
Test(restart, new_connection_same_session)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy.shards[1].closes = false;
    toy_compute(&toy);
    for (uint32_t c = 0; c < 3; c++) {
        toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_PUSH));
        toy_deliver(&toy);
    }
    rig_forget_sent(&rig);
    rig_wait(&rig, SECOND / 10);
    bounce(&rig, &toy, 1, false);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_HELLO));
    toy_deliver(&toy);
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_PUSH), 2);
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_PULL_DENSE), 1);
    cr_assert_eq(gk_worker_stats(rig.core)->sessions, 2);
    toy_serve(&toy);
    cr_assert(toy.shards[1].whole);
    close_both(&rig, &toy);
}

/* A shard that forgot the session without a break of the connection. */
Test(restart, no_session)
{
    struct rig rig;
    struct toy toy;
    const struct gk_msg *hello;

    open_joined(&rig, &toy, two, 0);
    toy_compute(&toy);
    toy_restart(&toy, 1);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_PUSH));
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_PUSH));
    toy_deliver(&toy);
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_HELLO), 1, "once, however many messages were in vain");
    hello = rig_take(&rig, 1, GK_KIND_HELLO);
    cr_assert(hello->body.hello.slot == GK_SLOT_STEP && hello->body.hello.slot_step == 0);
    cr_assert_eq(hello->body.hello.slot_push_id, id_of(&rig, 0, 1));
    toy_handle(&toy, 1, hello);
    toy_deliver(&toy);
    cr_assert_eq(gk_worker_stats(rig.core)->sessions, 3);
    rig_forget_sent(&rig);
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(toy.shards[1].applied[0], id_of(&rig, 0, 1));
    close_both(&rig, &toy);
}

/* A NACK about a former session says nothing about this one. */
Test(restart, late_no_session)
{
    struct rig rig;
    struct toy toy;
    struct gk_header request = {.req_id = 3, .rank = 1};

    open_joined(&rig, &toy, two, 0);
    toy_nack(&toy, &toy.shards[1], &request, GK_CODE_NO_SESSION, "who are you?")->h.session ^= 2;
    toy_deliver(&toy);
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_HELLO), 0);
    cr_assert_eq(gk_worker_stats(rig.core)->duplicates, 1);
    close_both(&rig, &toy);
}

/* What HELLO says of the slot in each phase. */
Test(restart, slot_in_hello)
{
    struct rig rig;
    struct toy toy;
    const struct gk_hello *hello;

    open_joined(&rig, &toy, two, 5);
    bounce(&rig, &toy, 0, false);
    hello = &rig_take(&rig, 0, GK_KIND_HELLO)->body.hello;
    cr_assert(hello->slot == GK_SLOT_STEP && hello->slot_step == 5 && hello->slot_push_id == 0);
    rig_step_done(&rig);
    bounce(&rig, &toy, 0, false);
    hello = &rig_take(&rig, 0, GK_KIND_HELLO)->body.hello;
    cr_assert(hello->slot_step == 5 && hello->slot_push_id == 0, "not yet persisted");
    rig_persisted(&rig);
    bounce(&rig, &toy, 0, false);
    hello = &rig_take(&rig, 0, GK_KIND_HELLO)->body.hello;
    cr_assert(hello->slot_step == 5 && hello->slot_push_id == id_of(&rig, 5, 0));
    cr_assert(hello->job_uid.hi == 7 && hello->job_uid.lo == 8);
    close_both(&rig, &toy);
}

/* One shard commits and the other does not for long; it is killed twice meanwhile. */
Test(restart, one_shard_ahead)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy.shards[1].closes = false;
    toy_compute(&toy);
    toy_serve(&toy);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert(toy.shards[0].version == 1 && toy.shards[1].whole);
        bounce(&rig, &toy, 1, true);
        cr_assert(!toy.shards[1].whole);
        toy_serve(&toy);
        bounce(&rig, &toy, 0, true);
        toy_serve(&toy);
    }
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PUSH], 6);
    toy_commit(&toy, 1);
    toy_deliver(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 1);
    cr_assert_eq(rig.installs_count, 4);
    close_both(&rig, &toy);
}

/* Chunks that were pulled before the shard died are not pulled again. */
Test(restart, pulls_go_on)
{
    struct rig rig;
    struct toy toy;
    uint32_t seen = 0;

    open_joined(
        &rig, &toy,
        (struct rig_options){.rank = 1, .workers = 2, .params = UINT64_C(10) * GK_CHUNK_FLOATS}, 0);
    toy_compute(&toy);
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PUSH));
    toy_deliver(&toy);
    for (uint32_t i = 0; i < 4; i++) {
        toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_PULL_DENSE));
        toy_deliver(&toy);
    }
    cr_assert_eq(rig.installs_count, 14);
    rig_forget_sent(&rig);
    bounce(&rig, &toy, 0, true);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(rig.installs_count, 20);
    for (uint32_t i = 0; i < 10; i++) {
        seen |= 1u << (rig.installs[10 + i].lo / GK_CHUNK_FLOATS);
        cr_assert_eq(rig.installs[10 + i].version, 1);
    }
    cr_assert_eq(seen, 0x3ff);
    close_both(&rig, &toy);
}

/* Versions were not yet durable, as many as the ring holds at last: the shard comes back without
 * them and gets all pushes again, the same bits, also while the next gradient is computed. */
Test(restart, behind_the_ring)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy.shards[1].lags = true;
    toy_compute(&toy);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && toy.shards[1].version == 1);
    bounce(&rig, &toy, 1, true);
    cr_assert_eq(toy.shards[1].version, 0);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && toy.shards[1].version == 1);
    cr_assert_eq(toy.shards[1].applied[0], id_of(&rig, 0, 1));
    for (uint64_t t = 1; t < GK_RING_ENTRIES; t++) {
        toy_compute(&toy);
        toy_wait(&toy, SECOND); /* a PONG says that version 1 is there again */
        cr_assert_eq(toy.shards[1].version, t + 1);
    }
    cr_assert(rig_in(&rig, GK_PHASE_EXCHANGING));
    bounce(&rig, &toy, 1, true);
    toy_wait(&toy, GK_RING_ENTRIES * SECOND);
    cr_assert(toy.shards[1].version == GK_RING_ENTRIES && toy.shards[1].durable == 0);
    for (uint64_t t = 0; t < GK_RING_ENTRIES; t++) {
        cr_assert_eq(toy.shards[1].applied[t], id_of(&rig, t, 1));
    }
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PUSH], 24, "nothing again to the other");
    cr_assert_eq(gk_worker_stats(rig.core)->lost, 0);
    close_both(&rig, &toy);
}

/* A version that was reported durable is gone: no push can repair that, in whatever phase. */
Test(restart, rollback)
{
    for (uint32_t phase = GK_PHASE_EXCHANGING; phase <= GK_PHASE_PERSISTING; phase++) {
        for (uint32_t other_lags = 0; other_lags < 2; other_lags++) {
            struct rig rig;
            struct toy toy;

            open_joined(&rig, &toy, two, 5);
            toy.shards[0].lags = other_lags; /* then the push still lies in the ring */
            toy_compute(&toy);
            toy_serve(&toy);
            if (phase != GK_PHASE_COMPUTING) {
                rig_step_done(&rig);
            }
            if (phase == GK_PHASE_EXCHANGING) {
                rig_persisted(&rig);
            }
            cr_assert(rig_in(&rig, phase));
            toy.shards[1].durable = 5;
            bounce(&rig, &toy, 1, true);
            toy_serve(&toy);
            cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
            cr_assert(strstr(rig.exit_words.text,
                             "ROLLBACK: shard 1 at tcp://b:2 went back to version 5"));
            close_both(&rig, &toy);
        }
    }
}

/* A life that joined at version 5 has nothing to give for step 4, when a shard falls back there. */
Test(restart, behind_this_life)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 5);
    toy.shards[1].durable = 4;
    bounce(&rig, &toy, 1, true);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(toy.shards[1].version == 5 && toy.shards[1].lost[4]);
    toy_compute(&toy);
    toy_wait(&toy, SECOND);
    cr_assert(toy.shards[1].version == 6 && !toy.shards[1].lost[5]);
    close_both(&rig, &toy);
}

/* The push of the former life was whole at shard 0, which commits after this life has joined: the
 * LOST rule, noticed while pulling, while computing, and not before the push is out. */
Test(restart, overtaken_by_a_former_life)
{
    for (uint32_t when = 0; when < 3; when++) {
        struct rig rig;
        struct toy toy;
        struct toy_shard *ahead = &toy.shards[0];

        rig_open(&rig, two);
        toy_open(&toy, &rig);
        toy_begun(&toy, 5);
        rig_start(&rig);
        rig_up(&rig, 0);
        rig_up(&rig, 1);
        for (uint32_t s = 0; s < 2; s++) {
            toy_handle(&toy, s, rig_take(&rig, s, GK_KIND_HELLO));
        }
        toy_deliver(&toy);
        if (when > 0) {
            toy_serve(&toy);
            cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        }
        ahead->version = ahead->durable = 6;
        ahead->verdict = GK_VERDICT_APPLIED;
        ahead->verdict_step = 5;
        ahead->verdict_incarnation = 9;
        if (when == 1) {
            toy_wait(&toy, SECOND); /* a PONG tells */
        }
        if (when > 0) {
            rig_step_done(&rig);
        }
        if (when == 2) {
            rig_persisted(&rig);
        }
        toy_serve(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 6);
        cr_assert_eq(toy.shards[1].version, 6);
        cr_assert_eq(toy.shards[1].lost[5], when < 2, "case %u", when);
        cr_assert(ahead->handled[GK_KIND_PUSH] == 0 || when == 2);
        cr_assert_eq(gk_worker_stats(rig.core)->lost, 1, "counted once");
        cr_assert_eq(rig.counts[GK_WORKER_RESET], when < 2 ? 2 : 1);
        close_both(&rig, &toy);
    }
}

/* A life that was left behind by far (its rank was taken for lost): everything it has is void. */
Test(restart, overtaken_by_far)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 5);
    toy_compute(&toy);
    toy_serve_some(&toy, 1);
    toy.shards[0].version = toy.shards[0].durable = 9;
    toy.shards[1].version = toy.shards[1].durable = 8;
    rig_forget_sent(&rig);
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 9);
    cr_assert(toy.shards[1].lost[8] && toy.shards[1].version == 9);
    cr_assert_geq(rig.counts[GK_WORKER_RESET], 2);
    close_both(&rig, &toy);
}

/* A server that is going away says so; nothing is wrong with the worker. */
Test(restart, draining)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two, 0);
    toy_compute(&toy);
    toy_serve_some(&toy, 1);
    for (struct gk_msg *msg; (msg = rig_take(&rig, 1, GK_KIND_PUSH));) {
        toy_nack(&toy, &toy.shards[1], &msg->h, GK_CODE_DRAINING, "going away")->h.flags =
            GK_FLAG_RETRYABLE;
    }
    toy_deliver(&toy);
    cr_assert(!rig.exited);
    rig_wait(&rig, 6 * SECOND);
    cr_assert(rig_said(&rig, "WORKER-STALL", "shard 1 at tcp://b:2: refuses (DRAINING)"));
    rig_forget_sent(&rig);
    bounce(&rig, &toy, 1, true);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    close_both(&rig, &toy);
}

Test(restart, fatal_nacks)
{
    static const struct {
        uint32_t code;
        int exit_code;
    } cases[] = {{GK_CODE_FENCED, GK_EXIT_FENCED},
                 {GK_CODE_BAD_STEP, GK_EXIT_REFUSED},
                 {GK_CODE_BAD_SHAPE, GK_EXIT_REFUSED},
                 {GK_CODE_FINISHED, GK_EXIT_REFUSED},
                 {GK_CODE_LOST_SHARD, GK_EXIT_PEER}};

    for (uint32_t i = 0; i < 5; i++) {
        struct rig rig;
        struct toy toy;

        open_joined(&rig, &toy, two, 5);
        toy_compute(&toy);
        toy_nack(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_PUSH)->h, cases[i].code, "no");
        toy_deliver(&toy);
        cr_assert(rig.exited && rig.exit_code == cases[i].exit_code);
        cr_assert(strstr(rig.exit_words.text, "shard 1 at tcp://b:2 says "));
        cr_assert(strstr(rig.exit_words.text, "at step 6: no"));
        close_both(&rig, &toy);
    }
}

/* A damaged message is counted and asked for again. */
Test(restart, bad_messages)
{
    struct rig rig;
    struct toy toy;
    struct gk_msg *push;

    open_joined(&rig, &toy, two, 5);
    toy_compute(&toy);
    push = rig_take(&rig, 1, GK_KIND_PUSH);
    toy_nack(&toy, &toy.shards[1], &push->h, GK_CODE_BAD_MESSAGE, "the CRC is wrong");
    toy_deliver(&toy);
    cr_assert(rig_said(&rig, "WORKER-NACK", "rejects a message: the CRC is wrong"));
    rig_event(&rig, (struct gk_worker_event){
                        .kind = GK_WORKER_BAD_MESSAGE, .shard = 1, .words = "no magic"});
    cr_assert(rig_said(&rig, "WORKER-BAD-MESSAGE", "from shard 1 at tcp://b:2: no magic"));
    cr_assert_eq(gk_worker_stats(rig.core)->bad_messages, 1);
    cr_assert_eq(gk_worker_stats(rig.core)->nacks, 1);
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    close_both(&rig, &toy);
}

/* A shard that went away, or is connected and silent, or refuses for ever: the deadline. */
Test(restart, deadline_in_the_middle)
{
    static const char *const words[] = {"no answer from shard 1 at tcp://b:2 for 30 s",
                                        "no answer from shard 1 at tcp://b:2 for 30 s",
                                        "refused by shard 1 at tcp://b:2 for 30 s (HELD)"};

    for (uint32_t how = 0; how < 3; how++) {
        struct rig_options options = two;
        struct rig rig;
        struct toy toy;

        options.deadline_us = 30 * SECOND;
        open_joined(&rig, &toy, options, 5);
        toy_compute(&toy);
        toy_wait(&toy, 60 * SECOND);
        rig_forget_sent(&rig);
        if (how == 0) {
            rig_down(&rig, 1);
        } else if (how == 2) {
            bounce(&rig, &toy, 1, true);
        }
        for (uint32_t i = 0; i < 31; i++) {
            struct gk_msg *hello;

            toy_serve_some(&toy, 1);
            while (how == 2 && (hello = rig_take(&rig, 1, GK_KIND_HELLO))) {
                toy_refuse(&toy, &toy.shards[1], &hello->h, GK_CODE_HELD, true);
                toy_deliver(&toy);
            }
            cr_assert(!rig.exited || i >= 29);
            rig_wait(&rig, SECOND);
        }
        cr_assert(rig.exited && rig.exit_code == (how == 2 ? GK_EXIT_REFUSED : GK_EXIT_PEER));
        cr_assert(strstr(rig.exit_words.text, words[how]), "%s", rig.exit_words.text);
        close_both(&rig, &toy);
    }
}
