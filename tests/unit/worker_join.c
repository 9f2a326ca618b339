/* Goal: a worker joins in any order of connections, answers and lives, and says whom it waits for
 * when it cannot.
 * Method: one core against toy servers, message by message. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

/* All orders in which two shards connect and answer, with the answers late, lost or early. */
Test(join, any_order_of_connections)
{
    static const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                          {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (uint32_t i = 0; i < 12; i++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.servers = 3, .rank = 1, .workers = 2});
        toy_open(&toy, &rig);
        toy_begun(&toy, 0);
        rig_start(&rig);
        for (uint32_t j = 0; j < 3; j++) {
            rig_up(&rig, orders[i % 6][j]);
            cr_assert_eq(rig_count(&rig, orders[i % 6][j], GK_KIND_HELLO), 1);
            if (i < 6) {
                toy_serve(&toy);
            }
        }
        cr_assert(rig_in(&rig, i < 6 ? GK_PHASE_COMPUTING : GK_PHASE_JOINING));
        for (uint32_t j = 3; j-- > 0;) {
            toy_serve_some(&toy, 1u << orders[i % 6][j]);
        }
        toy_serve(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        cr_assert_eq(rig.installs_count, 3);
        cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 0);
        cr_assert_eq(rig.counts[GK_WORKER_RESET], 0);
        cr_assert(rig_said(&rig, "WORKER-JOINED", "version 0 as rank 1 of 2, incarnation 1"));
        toy_close(&toy);
        rig_close(&rig);
    }
}

Test(join, hello_says_who_and_what)
{
    struct rig rig;
    const struct gk_msg *hello;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 3, .workers = 5});
    rig_start(&rig);
    rig_up(&rig, 1);
    hello = rig_take(&rig, 1, GK_KIND_HELLO);
    cr_assert(hello->h.rank == 3 && hello->h.incarnation == 1 && hello->h.session == 0);
    cr_assert(hello->body.hello.workers == 5 && hello->body.hello.servers == 2);
    cr_assert(hello->body.hello.spec_hash == 0x5bec && hello->body.hello.life_nonce != 0);
    cr_assert(hello->body.hello.slot == GK_SLOT_NONE && hello->body.hello.job_uid.hi == 0);
    cr_assert_str_eq(hello->words.text, "rig");
    rig_close(&rig);
}

/* Unanswered: the same request after 50, 100, 200 ms ... 2 s, for ever; and at once after a new
 * connection, with another id. */
Test(join, hello_is_retried)
{
    struct rig rig;
    uint64_t last_us = 0, wait_us = GK_RETRY_US_MIN, req_id = 0;

    rig_open(&rig, (struct rig_options){.servers = 1, .rank = 1, .workers = 2});
    rig_start(&rig);
    rig_up(&rig, 0);
    rig_wait(&rig, 300 * SECOND);
    for (uint32_t i = 0; i < rig.sent_count; i++) {
        cr_assert(rig.sent[i].msg.h.kind == GK_KIND_HELLO, "nothing else before the WELCOME");
        cr_assert(i == 0 || rig.sent[i].msg.h.req_id == req_id);
        cr_assert(i == 0 || rig.sent[i].at_us - last_us == wait_us);
        wait_us = i == 0 ? wait_us : 2 * wait_us;
        wait_us = wait_us < GK_RETRY_US_MAX ? wait_us : GK_RETRY_US_MAX;
        last_us = rig.sent[i].at_us;
        req_id = rig.sent[i].msg.h.req_id;
    }
    cr_assert(rig.sent_count > 150 && rig.sent_count < 160);
    rig_forget_sent(&rig);
    rig_down(&rig, 0);
    rig_wait(&rig, 10 * SECOND);
    cr_assert_eq(rig.sent_count, 0, "to nobody while it is down");
    rig_up(&rig, 0);
    rig_up(&rig, 0);
    cr_assert_eq(rig.sent_count, 1);
    cr_assert(rig_take(&rig, 0, GK_KIND_HELLO)->h.req_id != req_id);
    rig_close(&rig);
}

/* Ranks other than 0 wait for version 0, and ask five times a second. */
Test(join, others_poll_until_there_is_a_version)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_join(&toy);
    toy_wait(&toy, 20 * SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_JOINING));
    cr_assert_eq(toy.shards[1].handled[GK_KIND_HELLO], 102, "one more to say that it stands");
    cr_assert_eq(toy.shards[1].handled[GK_KIND_PING], 20);
    cr_assert_eq(toy.shards[1].handled[GK_KIND_INIT], 0);
    cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 0);
    cr_assert_eq(toy.shards[1].rank_slot, GK_SLOT_STEP, "nobody may push it out");
    toy_begun(&toy, 0);
    toy.shards[1].initialised = false;
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_JOINING), "one shard is not enough");
    toy.shards[1].initialised = true;
    toy.shards[1].init_id = 0x2222;
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_JOINING), "nor are two different inits");
    toy.shards[1].init_id = 0x1111;
    toy.shards[1].uid.lo++;
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_JOINING), "nor two runs: rank 0 may repair that");
    toy.shards[1].uid.lo--;
    toy_wait(&toy, SECOND / 4);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(gk_worker_stats(rig.core)->sessions, 2, "all in one session");
    toy_wait(&toy, 5 * SECOND);
    cr_assert_leq(toy.shards[1].handled[GK_KIND_HELLO], 101 + 17, "and then no more");
    toy_close(&toy);
    rig_close(&rig);
}

/* A rank that joins late takes the highest version, and its residual is void. */
Test(join, at_a_later_version)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 17);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(rig.asked[GK_WORKER_STEP], 17);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 1);
    cr_assert(rig_said(&rig, "WORKER-LOST", "the residual of rank 1 is void"));
    cr_assert(rig.installs[0].version == 17 && rig.installs[1].version == 17);
    cr_assert_eq(gk_worker_version(rig.core), 17);
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PUSH], 0);
    toy_close(&toy);
    rig_close(&rig);
}

/* Its shard that lags by one gets an empty push for the step that a former life owed it. */
Test(join, lagging_shard_gets_a_lost_push)
{
    struct rig rig;
    struct toy toy;
    const struct gk_msg *push;

    rig_open(&rig, (struct rig_options){.servers = 3, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 17);
    toy.shards[1].version = toy.shards[1].durable = 16;
    rig_start(&rig);
    for (uint32_t s = 0; s < 3; s++) {
        rig_up(&rig, s);
        toy_serve_some(&toy, 1u << s);
    }
    toy_serve_some(&toy, 5);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_PUSH) + rig_count(&rig, 2, GK_KIND_PUSH), 0);
    push = &rig.sent[rig.sent_count - 1].msg;
    for (uint32_t i = 0; i < rig.sent_count; i++) {
        push = rig.sent[i].msg.h.kind == GK_KIND_PUSH ? &rig.sent[i].msg : push;
    }
    cr_assert(push->h.kind == GK_KIND_PUSH && push->h.shard == 1 && push->h.step == 16);
    cr_assert(push->h.flags == GK_FLAG_LOST && push->h.samples == 0 && push->h.count == 0);
    cr_assert(push->h.lo == 64 && push->h.hi == 128 && push->h.push_id != 0);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(toy.shards[1].version == 17 && toy.shards[1].lost[16]);
    cr_assert_eq(gk_worker_stats(rig.core)->lost, 1);
    cr_assert(
        rig_said(&rig, "WORKER-LOST", "the push of step 16 is lost with a former life: shard 1"));
    toy_close(&toy);
    rig_close(&rig);
}

Test(join, lost_shard_on_joining)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t first = 0; first < 2; first++) {
            struct rig rig;
            struct toy toy;

            rig_open(&rig, (struct rig_options){.servers = 2, .rank = rank, .workers = 2});
            toy_open(&toy, &rig);
            toy_begun(&toy, 17);
            toy.shards[1].initialised = false;
            rig_start(&rig);
            rig_up(&rig, first);
            toy_serve(&toy);
            rig_up(&rig, 1 - first);
            toy_serve(&toy);
            cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
            cr_assert(strstr(rig.exit_words.text, "LOST_SHARD: shard 1 at tcp://b:2"));
            cr_assert(strstr(rig.exit_words.text, "version 17"));
            cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 0);
            toy_close(&toy);
            rig_close(&rig);
        }
    }
}

Test(join, two_runs_beyond_version_0)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 3);
    toy.shards[1].uid.lo++;
    toy_join(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_CONFIG);
    cr_assert(strstr(rig.exit_words.text, "shards 0 and 1 belong to different runs of job 'rig'"));
    toy_close(&toy);
    rig_close(&rig);
}

Test(join, servers_in_another_order)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy.shards[0].index = 1;
    toy.shards[0].lo = 64;
    toy.shards[0].hi = 128;
    rig_start(&rig);
    rig_up(&rig, 0);
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_HELLO));
    rig_give(&rig, 0, &toy.replies[0].msg);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
    cr_assert(strstr(rig.exit_words.text, "tcp://a:1 serves shard 1 with parameters [64, 128), "
                                          "expected shard 0 with [0, 64): check the order"));
    toy_close(&toy);
    rig_close(&rig);
}

/* WELCOMEs that answer nothing: another life's, an old request's, after the connection went. */
Test(join, welcome_of_another_hello_is_ignored)
{
    struct rig rig;
    struct toy toy;
    struct gk_msg *hello;

    rig_open(&rig, (struct rig_options){.servers = 1, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    rig_start(&rig);
    rig_up(&rig, 0);
    hello = rig_take(&rig, 0, GK_KIND_HELLO);
    for (uint32_t i = 0; i < 3; i++) {
        toy_handle(&toy, 0, hello);
    }
    toy.replies[0].msg.body.welcome.life_nonce++;
    rig_give(&rig, 0, &toy.replies[0].msg);
    toy.replies[1].msg.h.req_id++;
    rig_give(&rig, 0, &toy.replies[1].msg);
    rig_down(&rig, 0);
    rig_give(&rig, 0, &toy.replies[2].msg);
    toy.replies_count = 0;
    cr_assert(rig_in(&rig, GK_PHASE_JOINING));
    cr_assert_eq(gk_worker_stats(rig.core)->duplicates, 3);
    rig_up(&rig, 0);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    toy_close(&toy);
    rig_close(&rig);
}

/* A life without a disk: some shard knows a higher incarnation, so all must see one above it. */
Test(join, stale_life_raises_the_incarnation)
{
    for (uint32_t knows = 0; knows < 3; knows++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.servers = 3, .rank = 1, .workers = 2});
        toy_open(&toy, &rig);
        toy_begun(&toy, 4);
        toy.shards[knows].rank_incarnation = 6;
        toy.shards[knows].rank_nonce = 99;
        toy_join(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        cr_assert(rig_said(&rig, "WORKER-JOINED", "incarnation 7"));
        for (uint32_t s = 0; s < 3; s++) {
            cr_assert_eq(toy.shards[s].rank_incarnation, 7);
        }
        toy_close(&toy);
        rig_close(&rig);
    }
}

Test(join, no_incarnation_is_left)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 1, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy.shards[0].rank_incarnation = UINT32_MAX;
    toy.shards[0].rank_nonce = 99;
    toy_join(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
    cr_assert(strstr(rig.exit_words.text, "no higher one is left"));
    toy_close(&toy);
    rig_close(&rig);
}

/* FENCED counts once all shards have welcomed this life; before, HELLO is said again. */
Test(join, fenced)
{
    for (uint32_t joined = 0; joined < 2; joined++) {
        struct rig rig;
        struct toy toy;
        struct gk_header request = {.req_id = 1, .rank = 1};

        rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
        toy_open(&toy, &rig);
        toy_begun(&toy, 0);
        rig_start(&rig);
        rig_up(&rig, 0);
        toy_serve(&toy);
        if (joined) {
            rig_up(&rig, 1);
            toy_serve(&toy);
        }
        toy_nack(&toy, &toy.shards[0], &request, GK_CODE_FENCED, "a newer life");
        toy_deliver(&toy);
        cr_assert_eq(rig.exited, joined);
        cr_assert(!joined || rig.exit_code == GK_EXIT_FENCED);
        cr_assert(joined || rig_count(&rig, 0, GK_KIND_HELLO) == 1);
        toy_close(&toy);
        rig_close(&rig);
    }
}

/* The same from a REFUSE, when a shard comes back after all had welcomed this life. */
Test(join, stale_life_after_the_welcomes_is_fenced)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 1, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy_join(&toy);
    toy.shards[0].rank_incarnation = 2;
    toy.shards[0].rank_nonce = 99;
    toy.shards[0].session = 0;
    rig_down(&rig, 0);
    rig_up(&rig, 0);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_FENCED);
    cr_assert(strstr(rig.exit_words.text, "a newer life of rank 1 exists (incarnation 2)"));
    toy_close(&toy);
    rig_close(&rig);
}

/* A retryable REFUSE is said once and asked again; the deadline names it. */
Test(join, retryable_refusal)
{
    struct rig rig;
    struct toy toy;
    uint64_t lines;

    rig_open(&rig, (struct rig_options){
                       .servers = 2, .rank = 1, .workers = 2, .deadline_us = 20 * SECOND});
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    rig_start(&rig);
    rig_up(&rig, 0);
    toy_serve(&toy);
    rig_up(&rig, 1);
    for (uint32_t i = 0; i < 3; i++) {
        toy_refuse(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_HELLO)->h, GK_CODE_HELD, true);
        toy_deliver(&toy);
        rig_wait(&rig, 3 * SECOND);
    }
    lines = rig.traces_count;
    cr_assert(rig_said(&rig, "WORKER-REFUSED",
                       "shard 1 at tcp://b:2 refuses (HELD), will ask again: the toy says so"));
    toy_refuse(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_HELLO)->h, GK_CODE_HELD, true);
    toy_deliver(&toy);
    cr_assert_eq(rig.traces_count, lines, "once a reason");
    toy_refuse(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_HELLO)->h, GK_CODE_DRAINING, true);
    toy_deliver(&toy);
    cr_assert_eq(rig.traces_count, lines + 1);
    rig_wait(&rig, 30 * SECOND);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
    cr_assert(strstr(rig.exit_words.text, "refused by shard 1 at tcp://b:2 for 20 s (DRAINING)"));
    toy_close(&toy);
    rig_close(&rig);
}

Test(join, fatal_refusals)
{
    static const uint32_t codes[] = {GK_CODE_PROTOCOL, GK_CODE_WRONG_SHARD, GK_CODE_WRONG_SPEC,
                                     GK_CODE_BAD_RANK, GK_CODE_WRONG_EPOCH};

    for (uint32_t i = 0; i < 5; i++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.servers = 1, .rank = 1, .workers = 2});
        toy_open(&toy, &rig);
        rig_start(&rig);
        rig_up(&rig, 0);
        toy_refuse(&toy, &toy.shards[0], &rig_take(&rig, 0, GK_KIND_HELLO)->h, codes[i], false);
        toy_deliver(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
        cr_assert(strstr(rig.exit_words.text, gk_code_name(codes[i])));
        cr_assert(strstr(rig.exit_words.text, "shard 0 at tcp://a:1"));
        toy_close(&toy);
        rig_close(&rig);
    }
}

/* Another job on the address: perhaps the last run, as long as the shard was never ours. */
Test(join, wrong_job_is_fatal_after_a_welcome)
{
    for (uint32_t welcomed = 0; welcomed < 2; welcomed++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.servers = 1, .rank = 1, .workers = 2});
        toy_open(&toy, &rig);
        rig_start(&rig);
        rig_up(&rig, 0);
        if (welcomed) {
            toy_serve(&toy);
            rig_wait(&rig, SECOND / 5);
        }
        toy_refuse(&toy, &toy.shards[0], &rig_take(&rig, 0, GK_KIND_HELLO)->h, GK_CODE_WRONG_JOB,
                   true);
        toy_deliver(&toy);
        cr_assert_eq(rig.exited, welcomed);
        toy_close(&toy);
        rig_close(&rig);
    }
}

Test(join, deadline_names_the_missing_server)
{
    for (uint32_t connected = 0; connected < 2; connected++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){
                           .servers = 2, .rank = 1, .workers = 2, .deadline_us = 30 * SECOND});
        toy_open(&toy, &rig);
        rig_start(&rig);
        rig_up(&rig, 0);
        if (connected) {
            rig_up(&rig, 1);
        }
        for (uint32_t i = 0; i < 29; i++) {
            toy_serve_some(&toy, 1);
            rig_wait(&rig, SECOND);
            cr_assert(!rig.exited);
        }
        rig_wait(&rig, 2 * SECOND);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
        cr_assert(strstr(rig.exit_words.text, "no answer from shard 1 at tcp://b:2 for 30 s"));
        toy_close(&toy);
        rig_close(&rig);
    }
}

Test(join, deadline_names_the_missing_workers)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){
                       .servers = 2, .rank = 1, .workers = 4, .deadline_us = 30 * SECOND});
    toy_open(&toy, &rig);
    toy.shards[1].present = 3;
    toy_join(&toy);
    toy_wait(&toy, 40 * SECOND);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
    cr_assert(strstr(rig.exit_words.text, "the job did not begin within 30 s"));
    cr_assert(strstr(rig.exit_words.text, "3 of 4 workers have come to shard 1 at tcp://b:2"));
    toy_close(&toy);
    rig_close(&rig);
}

/* Welcomed everywhere, and no version yet: it stands, and says so at once. */
Test(join, stands)
{
    struct rig rig;
    struct toy toy;
    const struct gk_msg *hello;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    rig_start(&rig);
    rig_up(&rig, 0);
    toy_serve(&toy);
    rig_wait(&rig, SECOND / 4);
    cr_assert_eq(rig_take(&rig, 0, GK_KIND_HELLO)->body.hello.slot, GK_SLOT_NONE);
    rig_forget_sent(&rig);
    rig_up(&rig, 1);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_HELLO));
    toy_deliver(&toy);
    for (uint32_t s = 0; s < 2; s++) {
        hello = rig_take(&rig, s, GK_KIND_HELLO);
        cr_assert(hello && hello->body.hello.slot == GK_SLOT_STEP);
        cr_assert(hello->body.hello.slot_step == 0 && hello->body.hello.slot_push_id == 0);
    }
    toy_close(&toy);
    rig_close(&rig);
}
