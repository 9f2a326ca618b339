/* Goal: every wait names whom it waits for, after 5 s and then every 10 s; a PING goes out each
 * second; nothing is ever given up without a deadline; the timer runs for a reason.
 * Method: one core in virtual time against toy servers that do not answer in every way there is
 * (worker_rig.h judges each timer). */
#include "worker_toy.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options two = {.servers = 2, .rank = 1, .workers = 2};

static void open_joined(struct rig *rig, struct toy *toy, struct rig_options options)
{
    rig_open(rig, options);
    toy_open(toy, rig);
    toy_begun(toy, 3);
    toy_join(toy);
    cr_assert(rig_in(rig, GK_PHASE_COMPUTING));
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

/* The lines of one kind came 5, 15, 25, ... s after `from_us`, all of them. */
static void check_times(const struct rig *rig, const char *id, uint64_t from_us)
{
    uint64_t due_us = from_us + GK_STALL_US;

    cr_assert_lt(rig->traces_count, RIG_TRACES_MAX);
    for (uint64_t i = 0; i < rig->traces_count; i++) {
        if (strcmp(rig->traces[i].id, id) == 0) {
            cr_assert_eq(rig->traces[i].at_us, due_us);
            due_us += GK_STALL_AGAIN_US;
        }
    }
    cr_assert_gt(due_us, rig->now_us, "none is missing");
    cr_assert_gt(due_us, from_us + GK_STALL_US, "there was one");
}

Test(stall, joining)
{
    static const char *const words[] = {
        "waiting for server 2 of 2: shard 1 at tcp://b:2: not connected for 25.0 s",
        "waiting for server 2 of 2: shard 1 at tcp://b:2: connected, but silent for 25.0 s",
        "waiting for server 2 of 2: shard 1 at tcp://b:2: refuses (HELD): the toy says so",
        "waiting for worker 2 of 2 for 25.0 s: shard 0 at tcp://a:1 has seen 1 and does not say",
        "waiting for rank 0 to initialise the job for 25.0 s: shard 1 at tcp://b:2 to answer",
        "waiting for worker 2 of 2 for 25.0 s: shard 0 at tcp://a:1 has not seen rank 0",
        "waiting for worker 2 of 2 for 25.0 s: shard 0 at tcp://a:1 has not seen rank 0 and 2 more",
    };

    for (uint32_t how = 0; how < 7; how++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, two);
        toy_open(&toy, &rig);
        toy_begun(&toy, 0);
        toy.shards[1].initialised = how < 4;
        toy.shards[0].present = toy.shards[1].present = how == 3 || how > 4 ? 1 : 2;
        toy.shards[0].missing = how > 4 ? 2 * how - 9 : 0;
        if (how == 3 || how > 4) {
            toy.shards[0].initialised = toy.shards[1].initialised = false;
        }
        rig_start(&rig);
        rig_up(&rig, 0);
        if (how > 0) {
            rig_up(&rig, 1);
        }
        if (how == 2) {
            toy_refuse(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_HELLO)->h, GK_CODE_HELD,
                       true);
        }
        toy_serve_some(&toy, how > 2 ? 3 : 1);
        for (uint32_t i = 0; i < 25; i++) {
            rig_wait(&rig, SECOND);
            toy_serve_some(&toy, how > 2 ? 3 : 1);
            rig_forget_sent(&rig);
        }
        cr_assert(rig_said(&rig, "WORKER-WAITS", words[how]), "%s",
                  rig_last_line(&rig)->words.text);
        check_times(&rig, "WORKER-WAITS", 0);
        close_both(&rig, &toy);
    }
}

/* All are there, and a shard holds INIT back for a reason of its own: its words. */
Test(stall, init_held_back)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .workers = 2});
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 5);
    for (uint32_t i = 0; i < 70; i++) {
        struct gk_msg *chunk;

        while ((chunk = rig_take(&rig, 1, GK_KIND_INIT))) {
            toy_nack(&toy, &toy.shards[1], &chunk->h, GK_CODE_NOT_READY, "memory is being set up")
                ->h.flags = GK_FLAG_RETRYABLE;
            toy_deliver(&toy);
        }
        toy_serve(&toy);
        rig_wait(&rig, SECOND / 10);
    }
    cr_assert(rig_said(
        &rig, "WORKER-WAITS",
        "waiting for rank 0 to initialise the job for 5.0 s: shard 1 at tcp://b:2: memory is "
        "being set up"));
    close_both(&rig, &toy);
}

Test(stall, exchanging)
{
    static const char *const words[] = {
        "step 3: waiting 25.0 s for shard 1 at tcp://b:2: not connected for 25.0 s",
        "step 3: waiting 25.0 s for shard 1 at tcp://b:2: connected, but silent for 25.0 s",
        "step 3: waiting 25.0 s for rank 0 and 2 more, which shard 1 at tcp://b:2 has missed for",
        "step 3: waiting 25.0 s for shard 1 at tcp://b:2 to answer",
        "step 3: waiting 25.0 s for shard 1 at tcp://b:2, whose disk has been full for 24.5 s",
    };

    for (uint32_t how = 0; how < 5; how++) {
        struct rig rig;
        struct toy toy;
        uint64_t from_us;

        open_joined(&rig, &toy, two);
        toy_wait(&toy, SECOND / 2);
        from_us = rig.now_us;
        toy_compute(&toy);
        toy.shards[1].closes = false;
        toy_serve_some(&toy, how < 2 ? 1 : 3);
        if (how == 0) {
            rig_down(&rig, 1);
        }
        for (uint32_t i = 0; i < 50; i++) {
            struct gk_msg *ping;

            toy_serve_some(&toy, 1);
            while (how >= 2 && (ping = rig_take(&rig, 1, GK_KIND_PING))) {
                toy_handle(&toy, 1, ping);
                if (how == 2 || how == 4) {
                    toy.replies[0].msg.body.ping.waits = how == 2 ? GK_WAIT_RANK : GK_WAIT_DISK;
                    toy.replies[0].msg.body.ping.waits_count = how == 2 ? 3 : 0;
                    toy.replies[0].msg.body.ping.waits_version = 4;
                    toy.replies[0].msg.body.ping.waits_us = rig.now_us - from_us;
                }
                toy_deliver(&toy);
            }
            rig_forget_sent(&rig);
            rig_wait(&rig, SECOND / 2);
        }
        cr_assert(rig_said(&rig, "WORKER-STALL", words[how]) || how == 1, "%s",
                  rig_last_line(&rig)->words.text);
        cr_assert(how != 1 || rig_said(&rig, "WORKER-STALL", "connected, but silent for 25."));
        check_times(&rig, "WORKER-STALL", from_us);
        close_both(&rig, &toy);
    }
}

/* What goes on is no stall: the clock starts again with each answer that ends a request. */
Test(stall, progress)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy,
                (struct rig_options){.rank = 1,
                                     .workers = 2,
                                     .params = UINT64_C(9) * GK_CHUNK_FLOATS,
                                     .entries = 10,
                                     .chunk_floats = 1});
    toy_compute(&toy);
    for (uint32_t i = 0; i < 10; i++) {
        struct gk_msg *push;

        rig_wait(&rig, 4 * SECOND);
        do {
            push = rig_take(&rig, 0, GK_KIND_PUSH);
        } while (push->h.chunk != i);
        toy_handle(&toy, 0, push);
        toy_deliver(&toy);
    }
    cr_assert(!rig_said(&rig, "WORKER-STALL", ""));
    rig_wait(&rig, 6 * SECOND);
    cr_assert(rig_said(&rig, "WORKER-STALL", "waiting 5.0 s"));
    close_both(&rig, &toy);
}

/* Our own work is slow: said too, but no warning. */
Test(stall, slow_work)
{
    static const char *const words[] = {"step 3: computing for 15.0 s", "step 3: persisting for",
                                        "step 4: evaluating for"};

    for (uint32_t how = 0; how < 3; how++) {
        struct rig rig;
        struct toy toy;
        uint64_t from_us;

        open_joined(&rig, &toy,
                    (struct rig_options){.servers = 2, .evaluates = true, .eval_every = 4});
        if (how == 1) {
            rig_step_done(&rig);
        } else if (how == 2) {
            toy_compute(&toy);
            toy_serve(&toy);
        }
        from_us = rig.now_us;
        toy_wait(&toy, 30 * SECOND);
        cr_assert(rig_said(&rig, "WORKER-SLOW", words[how]));
        cr_assert_eq(rig_last_line(&rig)->level, GK_LOG_INFO);
        check_times(&rig, "WORKER-SLOW", from_us);
        close_both(&rig, &toy);
    }
}

/* One PING a second and shard, in every phase, with what this worker waits for. */
Test(stall, ping)
{
    struct rig rig;
    struct toy toy;
    const struct gk_msg *ping;

    open_joined(&rig, &toy, two);
    rig_wait(&rig, 10 * SECOND);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PING), 10);
    for (uint64_t i = 1; i <= 10; i++) {
        ping = rig_take(&rig, 0, GK_KIND_PING);
        cr_assert(ping->body.ping.sent_us == i * SECOND && ping->body.ping.waits == GK_WAIT_NONE);
    }
    toy_serve(&toy);
    toy_compute(&toy);
    toy_serve_some(&toy, 1); /* shard 0 has given its part */
    rig_forget_sent(&rig);
    rig_wait(&rig, SECOND);
    ping = rig_take(&rig, 0, GK_KIND_PING);
    cr_assert(ping->body.ping.waits == GK_WAIT_SHARD && ping->body.ping.waits_for == 1);
    cr_assert(ping->body.ping.waits_version == 4 && ping->body.ping.waits_us == SECOND);
    rig_down(&rig, 0);
    rig_forget_sent(&rig);
    rig_wait(&rig, 5 * SECOND);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PING), 0, "none without a session");
    close_both(&rig, &toy);
}

/* What the former life of a shard waited for says nothing about this one. */
Test(stall, pong_of_a_former_session)
{
    struct gk_header nothing = {.req_id = 1, .rank = 1};
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two);
    toy_compute(&toy);
    toy.shards[1].closes = false;
    toy_serve(&toy);
    rig_wait(&rig, SECOND);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_PING));
    toy.replies[0].msg.body.ping.waits = GK_WAIT_RANK;
    toy.replies[0].msg.body.ping.waits_version = 4;
    toy_deliver(&toy);
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    rig_up(&rig, 1);
    toy_serve(&toy);
    rig_wait(&rig, 4 * SECOND); /* no PONG, but a sign of life */
    for (uint32_t s = 0; s < 2; s++) {
        toy_reply(&toy, &toy.shards[s], GK_KIND_PUSH_OK, &nothing);
        toy_deliver(&toy);
    }
    rig_wait(&rig, 2 * SECOND);
    cr_assert(rig_said(&rig, "WORKER-STALL", "shard 1 at tcp://b:2 to answer"));
    toy_close(&toy);
    rig_close(&rig);
}

/* Shard 1 waits for another rank, and that one for shard 0, which stands still: this worker has got
 * what it wanted from there, and names it all the same. */
Test(stall, a_silent_shard_behind_a_rank)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two);
    toy_compute(&toy);
    toy.shards[1].closes = false;
    toy_serve_some(&toy, 3);
    for (uint32_t i = 0; i < 14; i++) {
        struct gk_msg *ping;

        while ((ping = rig_take(&rig, 1, GK_KIND_PING))) {
            toy_handle(&toy, 1, ping);
            toy.replies[0].msg.body.ping.waits = GK_WAIT_RANK;
            toy.replies[0].msg.body.ping.waits_count = 1;
            toy.replies[0].msg.body.ping.waits_version = 4;
            toy_deliver(&toy);
        }
        rig_forget_sent(&rig);
        rig_wait(&rig, SECOND / 2);
    }
    cr_assert(rig_said(&rig, "WORKER-STALL", "for shard 0 at tcp://a:1: connected, but silent for"),
              "%s", rig_last_line(&rig)->words.text);
    close_both(&rig, &toy);
}

/* An hour without a word, and without a deadline: everything is still asked for, at a bounded rate,
 * and the hour ends well. */
Test(stall, retries_for_an_hour)
{
    struct rig rig;
    struct toy toy;

    open_joined(&rig, &toy, two);
    toy_compute(&toy);
    for (uint32_t i = 0; i < 120; i++) {
        rig_forget_sent(&rig);
        rig_wait(&rig, 30 * SECOND);
        for (uint32_t s = 0; s < 2; s++) {
            cr_assert(rig_count(&rig, s, GK_KIND_PUSH) >= 3);
            cr_assert(rig_count(&rig, s, GK_KIND_PULL_DENSE) >= 3);
            cr_assert(rig_count(&rig, s, GK_KIND_PUSH) <= 6);
            cr_assert_eq(rig_count(&rig, s, GK_KIND_PING), 30);
        }
    }
    cr_assert(!rig.exited);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    close_both(&rig, &toy);
}

/* The worker itself stood still, with everybody else: nobody was silent for that.  Then the
 * deadline counts again. */
Test(stall, a_pause_counts_against_nobody)
{
    for (uint32_t joined = 0; joined < 2; joined++) {
        struct rig_options options = two;
        struct rig rig;
        struct toy toy;

        options.deadline_us = 20 * SECOND;
        if (joined) {
            open_joined(&rig, &toy, options);
            toy_compute(&toy);
        } else {
            rig_open(&rig, options);
            toy_open(&toy, &rig);
            rig_start(&rig);
            rig_up(&rig, 0);
        }
        rig.now_us += 60 * SECOND;
        rig_event(&rig, (struct gk_worker_event){.kind = GK_WORKER_TICK});
        cr_assert(!rig.exited, "joined %u: %s", joined, rig.exit_words.text);
        cr_assert(rig_said(&rig, "WORKER-PAUSED", "stood still for about 59.0 s"));
        rig_wait(&rig, 18 * SECOND);
        cr_assert(!rig.exited);
        rig_wait(&rig, 2 * SECOND);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
        close_both(&rig, &toy);
    }
}

/* Where the time of an exchange went. */
Test(stall, times)
{
    struct rig rig;
    struct toy toy;
    const struct gk_worker_stats *stats;

    open_joined(&rig, &toy, two);
    stats = gk_worker_stats(rig.core);
    cr_assert(stats->push_us == 0 && stats->wait_us == 0 && stats->pull_us == 0);
    toy.shards[0].closes = toy.shards[1].closes = false;
    toy_compute(&toy);
    rig.now_us += 1000;
    toy_serve(&toy);
    rig.now_us += 20000;
    toy_commit(&toy, 0);
    toy_deliver(&toy);
    rig.now_us += 3000;
    toy_commit(&toy, 1);
    toy_deliver(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(stats->push_us == 1000 && stats->wait_us == 20000 && stats->pull_us == 3000);
    close_both(&rig, &toy);
}
