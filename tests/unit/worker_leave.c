/* Goal: a worker that is done tells every shard and waits for every answer, but for nobody who has
 * gone after the final version was seen everywhere.
 * Method: one core, two steps, toy servers that answer late, forget, restart or stay away. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options two = {
    .servers = 2, .rank = 1, .workers = 2, .steps = 2, .deadline_us = 60 * SECOND};

/* Up to the first LEAVE, which nobody has got yet. */
static void open_leaving(struct rig *rig, struct toy *toy, struct rig_options options)
{
    rig_open(rig, options);
    toy_open(toy, rig);
    toy_begun(toy, 0);
    toy_join(toy);
    toy_compute(toy);
    toy_serve(toy);
    toy_compute(toy);
    for (uint32_t s = 0; s < 2; s++) {
        for (struct gk_msg *msg; (msg = rig_take(rig, s, GK_KIND_PUSH));) {
            toy_handle(toy, s, msg);
        }
        for (struct gk_msg *msg; (msg = rig_take(rig, s, GK_KIND_PULL_DENSE));) {
            toy_handle(toy, s, msg);
        }
    }
    toy_deliver(toy);
    cr_assert(rig_in(rig, GK_PHASE_LEAVING));
    cr_assert(rig_count(rig, 0, GK_KIND_LEAVE) == 1 && rig_count(rig, 1, GK_KIND_LEAVE) == 1);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

Test(leave, all_say_ok)
{
    struct rig rig;
    struct toy toy;

    open_leaving(&rig, &toy, two);
    toy_serve_some(&toy, 2);
    cr_assert(!rig.exited);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    cr_assert_str_eq(rig.exit_words.text, "done after 2 steps");
    cr_assert_eq(gk_worker_stats(rig.core)->residuals_lost, 0);
    cr_assert(toy.shards[0].left && toy.shards[1].left);
    cr_assert_eq(gk_worker_version(rig.core), 2);
    close_both(&rig, &toy);
}

/* Neither a shard that is away nor a silent one has gone while this process stood still. */
Test(leave, a_pause_counts_against_nobody)
{
    for (uint32_t down = 0; down < 2; down++) {
        struct rig rig;
        struct toy toy;

        open_leaving(&rig, &toy, two);
        toy_serve_some(&toy, 1);
        if (down) {
            rig_down(&rig, 1);
        }
        rig.now_us += 200 * SECOND;
        rig_event(&rig, (struct gk_worker_event){.kind = GK_WORKER_TICK});
        cr_assert(!rig.exited);
        if (down) {
            rig_up(&rig, 1);
        }
        toy_serve(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK && toy.shards[1].left);
        close_both(&rig, &toy);
    }
}

/* The same request after 50, 100, 200 ms ..., to whom has not answered, across a restart. */
Test(leave, is_retried)
{
    struct rig rig;
    struct toy toy;
    uint64_t req_id = 0, last_us = 0, wait_us = GK_RETRY_US_MIN;

    open_leaving(&rig, &toy, two);
    toy_serve_some(&toy, 1);
    rig_wait(&rig, 3 * SECOND);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_LEAVE), 0);
    for (struct gk_msg *msg; (msg = rig_take(&rig, 1, GK_KIND_LEAVE));) {
        const struct rig_sent *sent =
            (const struct rig_sent *)((const char *)msg - offsetof(struct rig_sent, msg));

        cr_assert(msg->h.step == 2 && (req_id == 0 || msg->h.req_id == req_id));
        cr_assert(req_id == 0 || sent->at_us - last_us == wait_us);
        wait_us = req_id == 0 ? wait_us : 2 * wait_us;
        wait_us = wait_us < GK_RETRY_US_MAX ? wait_us : GK_RETRY_US_MAX;
        req_id = msg->h.req_id;
        last_us = sent->at_us;
    }
    cr_assert_geq(wait_us, 16 * GK_RETRY_US_MIN);
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    rig_forget_sent(&rig);
    rig_wait(&rig, 3 * SECOND);
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_LEAVE), 0);
    rig_up(&rig, 1);
    cr_assert_eq(rig.sent[rig.sent_count - 1].msg.body.hello.slot, GK_SLOT_LEFT);
    cr_assert_eq(rig.sent[rig.sent_count - 1].msg.body.hello.slot_left_at, 2);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK && toy.shards[1].left);
    close_both(&rig, &toy);
}

/* The final version was seen everywhere: an empty server, another run or a stranger at an address
 * changes nothing any more. */
Test(leave, server_that_was_replaced)
{
    for (int kind = 0; kind < 2; kind++) {
        struct rig rig;
        struct toy toy;

        open_leaving(&rig, &toy, two);
        rig_down(&rig, 1);
        toy_restart(&toy, 1);
        if (kind == 0) {
            toy.shards[1].initialised = false;
        } else {
            toy.shards[1].uid.lo++;
        }
        rig_up(&rig, 1);
        toy_serve(&toy);
        toy_wait(&toy, 10 * SECOND);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK, "kind %d: exit %d", kind,
                  rig.exit_code);
        close_both(&rig, &toy);
    }
}

Test(leave, ok_to_something_else)
{
    struct rig rig;
    struct toy toy;

    open_leaving(&rig, &toy, two);
    toy_serve_some(&toy, 1);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_LEAVE));
    toy.replies[0].msg.h.req_id++;
    toy_deliver(&toy);
    cr_assert(!rig.exited);
    cr_assert_eq(gk_worker_stats(rig.core)->duplicates, 1);
    toy_wait(&toy, SECOND);
    cr_assert(rig.exited);
    close_both(&rig, &toy);
}

/* A LEAVE_OK that comes before the LEAVE is none. */
Test(leave, ok_too_early)
{
    struct rig rig;
    struct toy toy;
    struct gk_header request = {.req_id = 1, .rank = 1};

    rig_open(&rig, two);
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy_join(&toy);
    toy_reply(&toy, &toy.shards[0], GK_KIND_LEAVE_OK, &request);
    toy_deliver(&toy);
    cr_assert_eq(gk_worker_stats(rig.core)->duplicates, 1);
    close_both(&rig, &toy);
}

/* The job has ended there: in a WELCOME, or in a NACK to the LEAVE. */
Test(leave, finished)
{
    for (uint32_t how = 0; how < 2; how++) {
        struct rig rig;
        struct toy toy;

        open_leaving(&rig, &toy, two);
        toy_serve_some(&toy, 1);
        if (how == 0) {
            rig_forget_sent(&rig);
            toy.shards[1].finished = true;
            rig_down(&rig, 1);
            rig_up(&rig, 1);
            toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_HELLO));
        } else {
            toy_nack(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_LEAVE)->h, GK_CODE_FINISHED,
                     "over");
        }
        toy_deliver(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
        close_both(&rig, &toy);
    }
}

/* Gone for the time that a server lingers, counted from the leaving on. */
Test(leave, server_is_gone)
{
    for (uint32_t gone_before = 0; gone_before < 2; gone_before++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, two);
        toy_open(&toy, &rig);
        toy_begun(&toy, 0);
        toy_join(&toy);
        toy_compute(&toy);
        toy_serve(&toy);
        toy_compute(&toy);
        toy_serve_some(&toy, 2); /* the final version of shard 1 is here */
        if (gone_before) {
            rig_down(&rig, 1);
            rig_forget_sent(&rig);
            rig_wait(&rig, 20 * SECOND);
        }
        toy_serve_some(&toy, 1);
        cr_assert(rig_in(&rig, GK_PHASE_LEAVING));
        if (!gone_before) {
            rig_down(&rig, 1);
        }
        rig_wait(&rig, 3 * SECOND);
        rig_up(&rig, 1); /* somebody else has the address, and says nothing */
        rig_wait(&rig, 2 * SECOND - 1);
        cr_assert(!rig.exited);
        rig_wait(&rig, SECOND + 1);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
        cr_assert(
            rig_said(&rig, "WORKER-LEAVE-UNHEARD",
                     "shard 1 at tcp://b:2 went away before it confirmed that rank 1 leaves"));
        close_both(&rig, &toy);
    }
}

/* Connected, but silent: the deadline, and a good end all the same. */
Test(leave, server_is_silent)
{
    struct rig rig;
    struct toy toy;

    open_leaving(&rig, &toy, two);
    for (uint32_t i = 0; i < 59; i++) {
        toy_serve_some(&toy, 1);
        rig_wait(&rig, SECOND);
        cr_assert(!rig.exited);
    }
    cr_assert(rig_said(&rig, "WORKER-STALL",
                       "leaving at step 2: waiting 5.0 s for shard 1 at tcp://b:2"));
    toy_serve_some(&toy, 1);
    rig_wait(&rig, 2 * SECOND);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    close_both(&rig, &toy);
}

/* LEAVE_OK is here, but the last version is not durable yet: the push may be needed again. */
Test(leave, waits_for_the_last_verdict)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, two);
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy.shards[1].lags = true;
    toy_join(&toy);
    toy_compute(&toy);
    toy_serve(&toy);
    toy.shards[1].durable = 1;
    toy_compute(&toy);
    toy_serve_some(&toy, 1);
    for (struct gk_msg *msg; !rig_in(&rig, GK_PHASE_LEAVING);) {
        msg = rig_take(&rig, 1, GK_KIND_PUSH);
        msg = msg ? msg : rig_take(&rig, 1, GK_KIND_PULL_DENSE);
        toy_handle(&toy, 1, msg);
        toy_deliver(&toy);
    }
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_LEAVE));
    toy.replies[0].msg.h.durable_version = 1;
    toy.shards[1].durable = 1;
    toy_deliver(&toy);
    toy_serve_some(&toy, 1);
    cr_assert(!rig.exited);
    toy_wait(&toy, 7 * SECOND);
    cr_assert(!rig.exited);
    cr_assert(rig_said(&rig, "WORKER-STALL", "shard 1 at tcp://b:2 to make version 2 durable"));
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    cr_assert_eq(toy.shards[1].version, 1);
    rig_up(&rig, 1);
    toy_serve(&toy);
    cr_assert_eq(toy.shards[1].version, 2, "it has got the push again");
    toy.shards[1].durable = 2;
    toy_wait(&toy, SECOND);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    close_both(&rig, &toy);
}

Test(leave, rollback)
{
    struct rig rig;
    struct toy toy;

    open_leaving(&rig, &toy, two);
    rig_forget_sent(&rig);
    toy.shards[1].durable = 1;
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    rig_up(&rig, 1);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
    cr_assert(strstr(rig.exit_words.text, "ROLLBACK: shard 1"));
    close_both(&rig, &toy);
}

/* Rank 0 evaluates the final version, once, before it leaves; the others do not. */
Test(leave, evaluation_first)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint64_t every = 0; every < 3; every++) {
            struct rig_options options = two;
            struct rig rig;
            struct toy toy;

            options.rank = rank;
            options.evaluates = rank == 0;
            options.eval_every = every;
            rig_open(&rig, options);
            toy_open(&toy, &rig);
            toy_begun(&toy, 0);
            toy_join(&toy);
            for (uint32_t t = 0; t < 2; t++) {
                toy_compute(&toy);
                toy_serve(&toy);
                if (rig_in(&rig, GK_PHASE_EVALUATING)) {
                    cr_assert(rig.counts[GK_WORKER_EXIT] == 0 && !toy.shards[0].left);
                    cr_assert_eq(rig.asked[GK_WORKER_EVALUATE], t + 1);
                    rig_evaluated(&rig);
                }
            }
            toy_serve(&toy);
            cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
            cr_assert_eq(rig.counts[GK_WORKER_EVALUATE], rank == 1 ? 0 : every == 1 ? 2 : 1);
            close_both(&rig, &toy);
        }
    }
}

/* A life that comes back when all is done leaves again. */
Test(leave, joined_at_the_final_version)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, two);
    toy_open(&toy, &rig);
    toy_begun(&toy, 2);
    toy_join(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    cr_assert(toy.shards[0].left && toy.shards[1].left);
    cr_assert_eq(rig.counts[GK_WORKER_STEP], 0);
    cr_assert_eq(gk_worker_stats(rig.core)->residuals_lost, 1);
    cr_assert(!gk_worker_left_before(rig.core));
    close_both(&rig, &toy);
}
