/* Goal: version 0 is made once, whole, by rank 0, when everybody is there and nobody is beyond it.
 * Method: chunks in every order and twice, other init ids, missing ranks, states that contradict,
 * too little memory. */
#include "server_job.h"

static struct rig *joined(uint32_t workers)
{
    struct rig *rig = rig_new(workers, 1, 0);

    rig_start(rig);
    for (uint32_t r = 0; r < workers; r++) {
        rig_hello(rig, r, 1);
    }
    return rig;
}

static bool has_initial(const struct rig *rig)
{
    return memcmp(gk_server_plane(rig->core, 0), rig->initial + rig->lo,
                  (rig->hi - rig->lo) * sizeof(float)) == 0;
}

Test(server_init, waits_for_all_ranks)
{
    struct rig *rig = rig_new(3, 1, 0);

    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_hello(rig, 2, 1);
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(rig_retryable(rig));
    cr_assert(strstr(rig_last(rig)->msg.words.text, "waiting for worker 3 of 3"), "%s",
              rig_last(rig)->msg.words.text);
    cr_assert(strstr(rig_last(rig)->msg.words.text, "rank 1"), "%s", rig_last(rig)->msg.words.text);
    rig_hello(rig, 1, 1);
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    cr_kind(rig, GK_KIND_INIT_OK);
    rig_free(rig);
}

/* Rank 1 has another spec (or model), which only shows when rank 0's is known: version 0 must not
 * be made with it. */
Test(server_init, a_rank_of_another_job_does_not_count)
{
    enum { HASH, SIGNATURE, RANK_0_FIRST, RANK_0_SAYS_NOTHING, CASES };

    for (int how = 0; how < CASES; how++) {
        struct rig *rig = rig_new(2, 1, 0);
        struct gk_msg other, first;

        rig_start(rig);
        first = rig_hello_msg(rig, 0, 1);
        first.body.hello.spec_hash *= how != RANK_0_SAYS_NOTHING;
        other = rig_hello_msg(rig, 1, 1);
        if (how == SIGNATURE) {
            other.body.hello.model_signature ^= 1;
        } else {
            other.body.hello.spec_hash ^= 1;
        }
        if (how == RANK_0_FIRST) { /* its HELLO was judged before the record of rank 0 was there */
            rig->held = 1u << GK_SERVER_WRITE;
            rig_say_hello(rig, 0, 1, &first);
            rig_say_hello(rig, 1, 1, &other);
            rig_release(rig);
            rig->session[0] = rig_reply_to(rig, first.h.req_id)->msg.h.session;
        } else {
            rig_say_hello(rig, 1, 1, &other);
            cr_kind(rig, GK_KIND_WELCOME);
            first.h.req_id = ++rig->req_ids;
            rig_say_hello(rig, 0, 1, &first);
        }
        rig_init_chunk(rig, 0, RIG_INIT_ID);
        cr_assert(rig_code(rig) == GK_CODE_NOT_READY, "case %d: %s", how,
                  gk_code_name(rig_code(rig)));
        cr_assert(rig_view(rig).present == 1 && rig_view(rig).state == GK_SHARD_WAITING);
        cr_assert(strstr(rig_last(rig)->msg.words.text, "rank 1 is missing"), "%s",
                  rig_last(rig)->msg.words.text);
        if (how != RANK_0_SAYS_NOTHING) {
            other.h.req_id = ++rig->req_ids;
            rig_say_hello(rig, 1, 1, &other);
            cr_code(rig, GK_CODE_WRONG_SPEC);
            cr_assert(!rig_retryable(rig));
        }
        rig_hello(rig, 1, 2);
        cr_kind(rig, GK_KIND_WELCOME);
        rig_init(rig);
        cr_assert(rig_view(rig).state == GK_SHARD_RUNNING, "case %d", how);
        rig_free(rig);
    }
}

Test(server_init, chunks_in_any_order_and_twice)
{
    for (uint32_t seed = 0; seed < 6; seed++) {
        struct rig *rig = joined(2);
        struct gk_rng rng = {.seed = seed, .purpose = GK_RNG_BATCH};
        uint32_t order[RIG_PARAMS / RIG_CHUNK];
        uint32_t chunks = rig_chunks(rig);

        gk_rng_permute(&rng, order, chunks);
        rig_init_chunk(rig, 0, RIG_INIT_ID);
        for (uint32_t i = 0; i < chunks; i++) {
            rig_init_chunk(rig, order[i], RIG_INIT_ID);
            cr_kind(rig, GK_KIND_INIT_OK);
            rig_init_chunk(rig, order[i], RIG_INIT_ID);
            cr_kind(rig, GK_KIND_INIT_OK);
        }
        cr_assert(rig_view(rig).state == GK_SHARD_RUNNING && rig_view(rig).version == 0);
        cr_assert(rig_view(rig).init_id == RIG_INIT_ID && rig_view(rig).job_uid.lo == rig_uid().lo);
        cr_assert(has_initial(rig));
        rig_free(rig);
    }
}

Test(server_init, version_0_is_durable_before_the_last_chunk_is_acknowledged)
{
    struct rig *rig = joined(1);
    uint32_t last = rig_chunks(rig) - 1;

    for (uint32_t c = 0; c < last; c++) {
        rig_init_chunk(rig, c, RIG_INIT_ID);
    }
    rig->held = 1u << GK_SERVER_WRITE;
    rig_init_chunk(rig, last, RIG_INIT_ID);
    cr_assert(rig_kind(rig) == 0 && !rig_view(rig).initialised);
    rig_init_chunk(rig, last, RIG_INIT_ID);
    cr_assert(rig_kind(rig) == 0);
    rig_pull(rig, 0, 0);
    cr_code(rig, GK_CODE_NOT_READY);
    rig_init_chunk(rig, 0, RIG_INIT_ID + 1);
    cr_code(rig, GK_CODE_NOT_READY);
    rig->req_ids -= 3;
    rig_release(rig);
    cr_kind(rig, GK_KIND_INIT_OK);
    cr_assert(rig->records[1].record.type == GK_RECORD_INIT &&
              rig->records[1].record.init_id == RIG_INIT_ID);
    cr_assert(rig->records[1].record.spec_bytes == rig->spec_bytes_count);
    rig_free(rig);
}

Test(server_init, another_init_id_starts_over)
{
    struct rig *rig = joined(2);
    uint32_t chunks = rig_chunks(rig);

    /* Half of init 1, then rank 0 is back with init 2: nothing of init 1 may stay. */
    for (uint32_t c = 0; c < chunks / 2; c++) {
        rig_init_chunk(rig, c, RIG_INIT_ID);
    }
    rig->initial[3] = 5;
    rig->initial[70] = 6;
    rig_init_chunk(rig, 1, RIG_INIT_ID + 1);
    cr_code(rig, GK_CODE_NOT_READY); /* the first chunk is missing */
    for (uint32_t c = 0; c < chunks; c++) {
        rig_init_chunk(rig, c, RIG_INIT_ID + 1);
        cr_kind(rig, GK_KIND_INIT_OK);
    }
    cr_assert(rig_view(rig).init_id == RIG_INIT_ID + 1 && has_initial(rig));
    /* Even a whole version 0 is replaced, as long as no push has come. */
    rig->initial[9] = 7;
    rig_pull(rig, 1, 1);
    for (uint32_t c = 0; c < chunks; c++) {
        rig_init_chunk(rig, c, RIG_INIT_ID + 2);
        cr_kind(rig, GK_KIND_INIT_OK);
    }
    cr_assert(rig_view(rig).state == GK_SHARD_RUNNING && rig_view(rig).init_id == RIG_INIT_ID + 2 &&
              has_initial(rig));
    rig_push(rig, 1, 0);
    cr_code(rig, GK_CODE_NO_SESSION); /* it may have computed on the former init */
    rig_hello(rig, 1, 1);
    rig_push(rig, 1, 0);
    rig_init_chunk(rig, 0, RIG_INIT_ID + 3);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    cr_assert(rig_view(rig).state == GK_SHARD_RUNNING && rig_view(rig).init_id == RIG_INIT_ID + 2);
    /* The right one again is a duplicate, whenever it comes. */
    rig_init_chunk(rig, 4, RIG_INIT_ID + 2);
    cr_kind(rig, GK_KIND_INIT_OK);
    rig_push(rig, 0, 0);
    rig_init_chunk(rig, 4, RIG_INIT_ID + 2);
    cr_kind(rig, GK_KIND_INIT_OK);
    rig_free(rig);
}

Test(server_init, another_spec_gets_other_memory)
{
    struct rig *rig = joined(1);

    rig_init_chunk(rig, 0, RIG_INIT_ID);
    rig_set_optimizer(rig, GK_OPTIMIZER_SGD);
    rig_tick(rig, 10 * GK_PING_US);
    rig_init_chunk(rig, 0, RIG_INIT_ID + 1);
    cr_code(rig, GK_CODE_BAD_SHAPE); /* not the spec that rank 0 promised in its HELLO */
    rig_tick(rig, 10 * GK_PING_US);
    rig_hello(rig, 0, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    for (uint32_t c = 0; c < rig_chunks(rig); c++) {
        rig_init_chunk(rig, c, RIG_INIT_ID + 1);
        cr_kind(rig, GK_KIND_INIT_OK);
    }
    cr_assert(has_initial(rig) && gk_server_plane(rig->core, 1) == NULL);
    rig_free(rig);
}

Test(server_init, lost_shard)
{
    static const struct {
        uint32_t slot;
        uint64_t step, left_at;
        struct gk_uid uid;
        uint32_t code;
    } cases[] = {
        {GK_SLOT_STEP, 5, 0, {11, 22}, GK_CODE_LOST_SHARD},
        {GK_SLOT_LEFT, 0, 5, {11, 22}, GK_CODE_LOST_SHARD},
        {GK_SLOT_STEP, 0, 0, {11, 22}, GK_CODE_NONE},
        {GK_SLOT_STEP,
         5,
         0,
         {9, 9},
         GK_CODE_NOT_READY}, /* a worker of another run is not one of ours */
        {GK_SLOT_NONE, 0, 0, {11, 22}, GK_CODE_NONE},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_new(2, 1, 0);
        struct gk_msg msg;

        rig_start(rig);
        rig_hello(rig, 0, 1);
        msg = rig_hello_msg(rig, 1, 1);
        msg.body.hello.slot = cases[i].slot;
        msg.body.hello.slot_step = cases[i].step;
        msg.body.hello.slot_push_id = cases[i].slot == GK_SLOT_STEP ? 3 : 0;
        msg.body.hello.slot_left_at = cases[i].left_at;
        msg.body.hello.job_uid = cases[i].uid;
        rig_say_hello(rig, 1, 1, &msg);
        rig_init_chunk(rig, 0, RIG_INIT_ID);
        cr_assert(rig_code(rig) == cases[i].code, "case %zu: %s", i, gk_code_name(rig_code(rig)));
        rig_free(rig);
    }
}

Test(server_init, memory_budget)
{
    struct rig *rig = rig_new(2, 1, 0);

    rig->config.memory_bytes = 1000;
    rig_again(rig);
    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_hello(rig, 1, 1);
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    cr_code(rig, GK_CODE_NO_MEMORY);
    cr_assert(!rig_retryable(rig) && rig_view(rig).state == GK_SHARD_WAITING);
    cr_assert(strstr(rig->traces, "SERVER-NO-MEMORY"));
    rig_free(rig);

    rig = joined(2);
    rig->refuse_memory = true;
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    cr_code(rig, GK_CODE_NO_MEMORY);
    cr_assert(rig_view(rig).state == GK_SHARD_WAITING && gk_server_plane(rig->core, 0) == NULL);
    rig->refuse_memory = false;
    rig_init(rig);
    cr_assert(rig_view(rig).state == GK_SHARD_RUNNING);
    /* Two planes and two sums of 80 floats, two pushes of at most 80 floats, tables. */
    cr_assert(rig_view(rig).reserved_bytes >= 6 * 4 * RIG_PARAMS);
    rig_free(rig);
}

Test(server_init, while_memory_is_set_up)
{
    struct rig *rig = joined(1);

    rig->held = 1u << GK_SERVER_SETUP;
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    cr_assert(rig_kind(rig) == 0 && rig_view(rig).state == GK_SHARD_SETUP);
    rig_init_chunk(rig, 0, RIG_INIT_ID + 1);
    cr_code(rig, GK_CODE_NOT_READY);
    rig->req_ids--;
    rig_release(rig);
    cr_kind(rig, GK_KIND_INIT_OK);
    rig_free(rig);
}

Test(server_init, wrong_shapes)
{
    struct rig *rig = joined(2);
    struct gk_msg msg = rig_init_msg(rig, 0, RIG_INIT_ID);

    msg.frame[0]->data[msg.frame[0]->size - 1] ^= 1;
    rig_send(rig, rig_route(0, 1), &msg);
    cr_code(rig, GK_CODE_BAD_SHAPE); /* a spec that is not the promised one */
    gk_msg_clear(&msg);
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    msg = rig_init_msg(rig, 1, RIG_INIT_ID);
    msg.h.lo++;
    msg.h.hi++;
    rig_send(rig, rig_route(0, 1), &msg);
    cr_code(rig, GK_CODE_BAD_SHAPE); /* a hole */
    gk_msg_clear(&msg);
    msg = rig_init_msg(rig, 1, RIG_INIT_ID);
    msg.h.chunks++;
    rig_send(rig, rig_route(0, 1), &msg);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    gk_msg_clear(&msg);
    cr_assert(rig_view(rig).state == GK_SHARD_INIT);
    rig_init(rig);
    cr_assert(rig_view(rig).state == GK_SHARD_RUNNING);
    rig_free(rig);
}

/* A first chunk that cannot be is refused before the former init is given up. */
Test(server_init, a_bad_first_chunk_replaces_nothing)
{
    struct rig *rig = joined(1);
    struct gk_msg msg;

    rig_init(rig);
    for (int i = 0; i < 3; i++) {
        msg = rig_init_msg(rig, 0, RIG_INIT_ID + 1);
        msg.h.chunks = i == 0 ? 500 : i == 1 ? 1 : msg.h.chunks;
        msg.h.lo += i == 2 ? 8 : 0;
        msg.h.hi += i == 2 ? 8 : 0;
        rig_send(rig, rig_route(0, 1), &msg);
        gk_msg_clear(&msg);
        cr_code(rig, GK_CODE_BAD_SHAPE);
        cr_assert(rig_view(rig).state == GK_SHARD_RUNNING && rig_view(rig).init_id == RIG_INIT_ID);
    }
    rig->held = 1u << GK_SERVER_WRITE; /* nor is a job that ends */
    rig_leave(rig, 0, 0);
    cr_assert(rig_work(rig, true) && rig->ops_count == 1);
    rig_init_chunk(rig, 0, RIG_INIT_ID + 1);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    rig_release(rig);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED);
    rig_free(rig);
}

Test(server_init, nothing_else_before_version_0)
{
    struct rig *rig = joined(2);
    struct rig_push push = rig_make_push(rig, 0, 0, 0);

    rig_push_chunk(rig, 0, &push, 0);
    cr_code(rig, GK_CODE_NOT_READY);
    rig_pull(rig, 0, 0);
    cr_code(rig, GK_CODE_NOT_READY);
    rig_leave(rig, 0, 0);
    cr_code(rig, GK_CODE_NOT_READY);
    rig_ping(rig, 0, 1);
    cr_kind(rig, GK_KIND_PONG);
    rig_free(rig);
}
