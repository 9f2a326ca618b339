/* Goal: rank 0, and nobody else, gives version 0 to the shards that lack it: all of one init, of
 * one run, and never beside a job that has begun. Method: one core against toy servers that hold
 * back, forget, restart or know another init. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options rank0 = {.servers = 2, .workers = 2};

Test(init, when_all_shards_are_ready)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, rank0);
    toy_open(&toy, &rig);
    rig_start(&rig);
    rig_up(&rig, 1);
    toy_wait(&toy, 3 * SECOND);
    cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 0);
    rig_up(&rig, 0);
    toy_serve(&toy);
    cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 1);
    toy_wait(&toy, 3 * SECOND);
    cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 1, "once");
    cr_assert_eq(rig.counts[GK_WORKER_SEND_INIT], 0);
    rig_init_made(&rig, 0xabc);
    cr_assert(rig_count(&rig, 0, GK_KIND_INIT) == 1 && rig_count(&rig, 1, GK_KIND_INIT) == 1);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(toy.shards[0].init_id == 0xabc && toy.shards[1].init_id == 0xabc);
    cr_assert(toy.shards[0].uid.hi == toy.shards[1].uid.hi && toy.shards[0].uid.hi != 0);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 0);
    toy_close(&toy);
    rig_close(&rig);
}

/* Chunk 0 alone, then a window; the chunks tile the shard. */
Test(init, first_chunk_alone)
{
    struct rig rig;
    struct toy toy;
    struct gk_msg *chunk;
    uint64_t at = 0;

    rig_open(&rig, (struct rig_options){.params = UINT64_C(10) * GK_CHUNK_FLOATS + 16});
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 0xabc);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_INIT), 1);
    for (uint32_t c = 0; c < 11; c++) {
        chunk = rig_take(&rig, 0, GK_KIND_INIT);
        cr_assert(chunk->h.chunk == c && chunk->h.chunks == 11 && chunk->h.lo == at);
        cr_assert(chunk->h.init_id == 0xabc && chunk->h.job_uid.hi != 0);
        cr_assert_eq(chunk->frames_count, c == 0 ? 2 : 1);
        at = chunk->h.hi;
        toy_handle(&toy, 0, chunk);
        toy_deliver(&toy);
        cr_assert_eq(rig_count(&rig, 0, GK_KIND_INIT), c == 10 ? 0 : c <= 2 ? 8 : 10 - c);
    }
    cr_assert_eq(at, rig.options.params);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_HELLO), 1, "asks at once");
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(rig.installs_count, 11);
    toy_close(&toy);
    rig_close(&rig);
}

/* A shard that waits for other workers is asked again, and at once when another has come. */
Test(init, held_back)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.workers = 2});
    toy_open(&toy, &rig);
    toy.shards[0].present = 1;
    toy_join(&toy);
    rig_init_made(&rig, 0xabc);
    toy_wait(&toy, 20 * SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_JOINING));
    cr_assert(rig_said(&rig, "WORKER-WAITS", "waiting for worker 2 of 2"));
    cr_assert(toy.shards[0].handled[GK_KIND_INIT] >= 5, "it never gives up");
    cr_assert(toy.shards[0].handled[GK_KIND_INIT] <= 7, "and sends its megabyte rarely");
    toy.shards[0].present = 2;
    toy_wait(&toy, SECOND / 4);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING), "within one poll");
    toy_close(&toy);
    rig_close(&rig);
}

/* What the shards have from a former life of rank 0, and what this one makes. */
Test(init, shards_that_have_one)
{
    static const struct {
        uint64_t has[2], made; /* 0: none */
        bool sends[2];
        bool adopts; /* the uid of the run that is there */
    } cases[] = {
        {{0, 0}, 5, {true, true}, false},  /* a new run */
        {{5, 5}, 0, {false, false}, true}, /* nothing to do: not even made */
        {{5, 0}, 5, {false, true}, true},  /* the former life died half-way */
        {{0, 5}, 5, {true, false}, true},  /* */
        {{6, 0}, 5, {true, true}, false},  /* it sent something else */
        {{6, 5}, 5, {true, false}, true},  /* two former lives */
        {{6, 7}, 5, {true, true}, false},  /* */
    };

    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, rank0);
        toy_open(&toy, &rig);
        for (uint32_t s = 0; s < 2; s++) {
            toy.shards[s].initialised = cases[i].has[s] != 0;
            toy.shards[s].init_id = toy.shards[s].init_seen = cases[i].has[s];
            toy.shards[s].uid = (struct gk_uid){.hi = cases[i].has[s] ? 77 : 0, .lo = 1};
        }
        toy_join(&toy);
        cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], cases[i].made != 0);
        if (cases[i].made) {
            rig_init_made(&rig, cases[i].made);
            toy_serve(&toy);
        }
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING), "case %u", i);
        for (uint32_t s = 0; s < 2; s++) {
            cr_assert_eq(toy.shards[s].handled[GK_KIND_INIT] > 0, cases[i].sends[s], "case %u", i);
            cr_assert_eq(toy.shards[s].init_id, 5);
            cr_assert_eq(toy.shards[s].uid.hi == 77, cases[i].adopts, "case %u", i);
        }
        toy_close(&toy);
        rig_close(&rig);
    }
}

/* The last chunk of a former life came in late: a shard shows its uid when the other has already
 * begun with a new one. */
Test(init, a_uid_that_turns_up_late)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){
                       .servers = 2, .workers = 2, .params = UINT64_C(4) * GK_CHUNK_FLOATS});
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 5);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_INIT));
    toy_deliver(&toy);
    rig_forget_sent(&rig);
    toy.shards[0].initialised = true;
    toy.shards[0].init_id = toy.shards[0].init_seen = 5;
    toy.shards[0].uid = (struct gk_uid){.hi = 77, .lo = 1};
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(toy.shards[1].uid.hi == 77 && toy.shards[1].uid.lo == 1);
    toy_close(&toy);
    rig_close(&rig);
}

/* Both shards have the init, but of two runs: rank 0 makes them one. */
Test(init, two_uids)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, rank0);
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy.shards[0].init_seen = toy.shards[1].init_seen = 0x1111;
    toy.shards[1].uid.hi++;
    toy_join(&toy);
    rig_init_made(&rig, 0x1111);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(toy.shards[0].handled[GK_KIND_INIT] == 0 && toy.shards[1].uid.hi == 7);
    toy_close(&toy);
    rig_close(&rig);
}

/* INIT_OK is lost, the poll shows the version all the same: the request ends there, and the timer
 * does not run for it. */
Test(init, lost_ok)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, rank0);
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 5);
    for (uint32_t s = 0; s < 2; s++) {
        toy_handle(&toy, s, rig_take(&rig, s, GK_KIND_INIT));
        gk_msg_clear(&toy.replies[s].msg);
    }
    toy.replies_count = 0;
    rig_forget_sent(&rig);
    toy_wait(&toy, 30 * SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(toy.shards[0].handled[GK_KIND_INIT], 1);
    toy_close(&toy);
    rig_close(&rig);
}

/* All chunks are acknowledged, and yet the shard shows another init: somebody else was at it.  It
 * is sent again, from chunk 0. */
Test(init, replaced_by_another)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig,
             (struct rig_options){.servers = 2, .workers = 2, .params = 128, .pull_floats = 16});
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 5);
    for (struct gk_msg *msg; (msg = rig_take(&rig, 0, GK_KIND_INIT));) {
        toy_handle(&toy, 0, msg);
        toy_deliver(&toy);
    }
    cr_assert(toy.shards[0].initialised && toy.shards[0].handled[GK_KIND_INIT] == 4);
    toy.shards[0].init_id = toy.shards[0].init_seen = 6;
    toy_serve(&toy);
    toy_wait(&toy, SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(toy.shards[0].init_id == 5 && toy.shards[0].handled[GK_KIND_INIT] == 8);
    toy_close(&toy);
    rig_close(&rig);
}

/* A shard that dies in the middle begins again at chunk 0; the other waits, without a spin. */
Test(init, restart_in_the_middle)
{
    struct rig rig;
    struct toy toy;
    struct gk_msg *chunk;

    rig_open(&rig, (struct rig_options){
                       .servers = 2, .workers = 2, .params = UINT64_C(6) * GK_CHUNK_FLOATS});
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 5);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_INIT));
    toy_deliver(&toy);
    cr_assert_eq(rig_count(&rig, 1, GK_KIND_INIT), 2);
    rig_forget_sent(&rig);
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    toy.shards[1].init_have = toy.shards[1].init_seen = 0;
    rig_wait(&rig, 20 * SECOND);
    cr_assert_eq(rig_count(&rig, 0, GK_KIND_INIT) + rig_count(&rig, 1, GK_KIND_INIT), 0);
    cr_assert(rig_said(&rig, "WORKER-WAITS", "waiting for server 2 of 2: shard 1 at tcp://b:2"));
    rig_forget_sent(&rig);
    rig_up(&rig, 1);
    toy_serve_some(&toy, 2);
    for (uint32_t i = 0; i < rig.sent_count; i++) {
        chunk = &rig.sent[i].msg;
        if (rig.sent[i].shard == 1 && chunk->h.kind == GK_KIND_INIT) {
            cr_assert_eq(chunk->h.chunk, 0, "the first of the new session");
            break;
        }
    }
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    toy_close(&toy);
    rig_close(&rig);
}

Test(init, fatal_answers)
{
    static const struct {
        uint32_t code;
        int exit_code;
    } cases[] = {{GK_CODE_LOST_SHARD, GK_EXIT_PEER},
                 {GK_CODE_NO_MEMORY, GK_EXIT_REFUSED},
                 {GK_CODE_BAD_SHAPE, GK_EXIT_REFUSED},
                 {GK_CODE_UNSUPPORTED, GK_EXIT_REFUSED}};

    for (uint32_t i = 0; i < 4; i++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, rank0);
        toy_open(&toy, &rig);
        toy_join(&toy);
        rig_init_made(&rig, 5);
        toy_nack(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_INIT)->h, cases[i].code,
                 "it cannot be");
        toy_deliver(&toy);
        cr_assert(rig.exited && rig.exit_code == cases[i].exit_code);
        cr_assert(strstr(rig.exit_words.text, "shard 1 at tcp://b:2"));
        cr_assert(strstr(rig.exit_words.text, gk_code_name(cases[i].code)));
        cr_assert(strstr(rig.exit_words.text, "it cannot be"));
        toy_close(&toy);
        rig_close(&rig);
    }
}

/* Version 0 may be lost and made again while no shard is beyond it: by the life that made it, and
 * by a later one, which keeps the uid of the run. */
Test(init, version_0_is_made_again)
{
    for (uint32_t first_life = 0; first_life < 2; first_life++) {
        struct rig rig;
        struct toy toy;
        struct gk_uid uid;

        rig_open(&rig, (struct rig_options){.servers = 1, .workers = 2});
        toy_open(&toy, &rig);
        if (!first_life) {
            toy_begun(&toy, 0);
            toy.shards[0].init_id = 5;
        }
        toy_join(&toy);
        if (first_life) {
            rig_init_made(&rig, 5);
            toy_serve(&toy);
        }
        uid = toy.shards[0].uid;
        toy_compute(&toy);
        rig_forget_sent(&rig);
        rig_down(&rig, 0);
        toy_restart(&toy, 0);
        toy.shards[0].initialised = false;
        toy.shards[0].init_seen = toy.shards[0].init_have = 0;
        toy.shards[0].uid = (struct gk_uid){0};
        rig_up(&rig, 0);
        toy_serve(&toy);
        if (!first_life) {
            cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 1);
            rig_init_made(&rig, 5);
        }
        toy_wait(&toy, SECOND);
        cr_assert(!rig.exited, "%s", rig.exit_words.text);
        cr_assert(toy.shards[0].uid.hi == uid.hi && toy.shards[0].uid.lo == uid.lo);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && toy.shards[0].version == 1);
        toy_close(&toy);
        rig_close(&rig);
    }
}

/* Not rank 0: such a worker waits and asks, and its pulls and pushes go on afterwards. */
Test(init, others_wait_for_version_0_again)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy_join(&toy);
    toy_compute(&toy);
    rig_forget_sent(&rig);
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    toy.shards[0].closes = false;
    toy.shards[1].initialised = false;
    rig_up(&rig, 1);
    toy_serve(&toy);
    toy_wait(&toy, 10 * SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_EXCHANGING));
    cr_assert_eq(toy.shards[1].handled[GK_KIND_PUSH], 0);
    toy.shards[1].initialised = true;
    toy_wait(&toy, SECOND);
    cr_assert_eq(toy.shards[1].version, 1);
    toy_commit(&toy, 0);
    toy_deliver(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    toy_close(&toy);
    rig_close(&rig);
}

/* Beyond version 0 nobody makes it again. */
Test(init, lost_in_the_middle)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.servers = 2, .rank = rank, .workers = 2});
        toy_open(&toy, &rig);
        toy_begun(&toy, 3);
        toy_join(&toy);
        rig_down(&rig, 0);
        toy_restart(&toy, 0);
        toy.shards[0].initialised = false;
        toy.shards[0].version = toy.shards[0].durable = 0;
        rig_up(&rig, 0);
        toy_serve(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
        cr_assert(strstr(rig.exit_words.text,
                         "LOST_SHARD: shard 0 at tcp://a:1 came back without its state while the "
                         "job is at version 3"));
        cr_assert_eq(rig.counts[GK_WORKER_MAKE_INIT], 0);
        toy_close(&toy);
        rig_close(&rig);
    }
}

/* The same job name, but not this run. */
Test(init, another_run_in_the_middle)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = 1, .workers = 2});
    toy_open(&toy, &rig);
    toy_begun(&toy, 3);
    toy_join(&toy);
    rig_down(&rig, 0);
    toy_restart(&toy, 0);
    toy.shards[0].uid.lo++;
    rig_up(&rig, 0);
    cr_assert_eq(rig.sent[rig.sent_count - 1].msg.body.hello.job_uid.hi, 7);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
    cr_assert(strstr(rig.exit_words.text, "now serves another run of job 'rig'"));
    toy_close(&toy);
    rig_close(&rig);
}
