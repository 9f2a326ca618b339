/* Goal: every push enters the model exactly once, in rank order, whatever the network does.
 * Method: the same pushes in other orders, twice, late, in pieces and mixed with others; planes are
 * compared bit for bit with those of the reference table fed in rank order. */
#include "server_job.h"

enum { WORKERS = 3 };

Test(server_round, rank_order_under_any_order_of_arrival)
{
    static const uint32_t orders[][WORKERS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                               {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    struct rig_model model;

    for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]); o++) {
        struct rig *rig = rig_running(WORKERS);

        for (uint64_t t = 0; t < 4; t++) {
            for (uint32_t i = 0; i < WORKERS; i++) {
                rig_push(rig, orders[(o + t) % 6][i], t);
                cr_kind(rig, GK_KIND_PUSH_OK);
            }
        }
        rig_model_run(rig, &model, 4);
        cr_assert(rig_view(rig).version == 4 && rig_view(rig).optimizer_step == 4);
        cr_assert(rig_same(rig, &model), "order %zu", o);
        rig_free(rig);
    }
}

/* The values are such that the order shows: otherwise the test above proves nothing. */
Test(server_round, planted_arrival_order_shows)
{
    struct rig *rig = rig_new(WORKERS, 1, 0);
    struct rig_model model;

    rig->config.plant = GK_SERVER_PLANT_ARRIVAL_ORDER;
    rig_again(rig);
    rig_start(rig);
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_hello(rig, r, 1);
    }
    rig_init(rig);
    for (uint32_t r = WORKERS; r-- > 0;) {
        rig_push(rig, r, 0);
    }
    rig_model_run(rig, &model, 1);
    cr_assert(!rig_same(rig, &model));
    rig_free(rig);
}

Test(server_round, chunks_in_any_order_of_all_ranks)
{
    struct rig_model model;

    for (uint32_t seed = 0; seed < 8; seed++) {
        struct rig *rig = rig_running(WORKERS);
        struct gk_rng rng = {.seed = seed, .purpose = GK_RNG_BATCH};
        uint32_t order[WORKERS * RIG_PARAMS / RIG_CHUNK];
        uint32_t chunks = rig_chunks(rig);
        struct rig_push pushes[WORKERS];

        for (uint32_t r = 0; r < WORKERS; r++) {
            pushes[r] = rig_make_push(rig, r, 0, 0);
        }
        gk_rng_permute(&rng, order, WORKERS * chunks);
        for (uint32_t i = 0; i < WORKERS * chunks; i++) {
            uint32_t rank = order[i] % WORKERS, chunk = order[i] / WORKERS;

            rig_push_chunk(rig, rank, &pushes[rank], chunk);
            cr_kind(rig, GK_KIND_PUSH_OK);
            cr_assert(rig_last(rig)->msg.h.chunk == chunk &&
                      rig_last(rig)->msg.h.push_id == pushes[rank].id);
            rig_push_chunk(rig, rank, &pushes[rank], chunk); /* each twice */
            cr_kind(rig, GK_KIND_PUSH_OK);
        }
        rig_model_run(rig, &model, 1);
        cr_assert(rig_view(rig).version == 1 && rig_same(rig, &model));
        cr_assert(rig_view(rig).ledger.pushes == WORKERS &&
                  rig_view(rig).ledger.applied == WORKERS);
        cr_assert(rig_view(rig).ledger.duplicates == WORKERS * chunks);
        rig_free(rig);
    }
}

Test(server_round, duplicates_of_decided_steps_hear_the_verdict)
{
    struct rig *rig = rig_running(WORKERS);
    struct rig_model model;
    struct rig_push old = rig_make_push(rig, 1, 0, 0);
    const struct gk_header *h;

    rig_round(rig, 0);
    rig_round(rig, 1);
    for (uint32_t c = 0; c < old.chunks; c++) { /* of two versions ago */
        rig_push_chunk(rig, 1, &old, c);
        cr_kind(rig, GK_KIND_PUSH_OK);
        h = &rig_last(rig)->msg.h;
        cr_assert(h->verdict == GK_VERDICT_APPLIED && h->verdict_step == 1 &&
                  h->verdict_incarnation == 1);
        cr_assert(h->version == 2 && h->durable_version == 2);
    }
    old = rig_make_push(rig, 1, 1, 1); /* the step just decided, by another push */
    rig_push_all(rig, 1, &old);
    cr_kind(rig, GK_KIND_PUSH_OK);
    cr_assert(rig_last(rig)->msg.h.verdict_step == 1);
    cr_assert(rig_view(rig).ledger.pending == 0);
    rig_round(rig, 2);
    rig_model_run(rig, &model, 3);
    cr_assert(rig_same(rig, &model));
    rig_free(rig);
}

Test(server_round, steps_that_cannot_be)
{
    struct rig *rig = rig_running(WORKERS);

    rig_push(rig, 0, 1);
    cr_code(rig, GK_CODE_BAD_STEP);
    cr_assert(!rig_retryable(rig) && rig_view(rig).ledger.pending == 0);
    rig_push(rig, 0, 0);
    cr_kind(rig, GK_KIND_PUSH_OK);
    rig_free(rig);
}

Test(server_round, another_push_id_starts_over)
{
    struct rig *rig = rig_running(WORKERS);
    struct rig_push first = rig_make_push(rig, 1, 0, 1), second = rig_make_push(rig, 1, 0, 0);
    struct rig_model model;

    rig_push(rig, 0, 0);
    for (uint32_t c = 0; c < first.chunks / 2; c++) {
        rig_push_chunk(rig, 1, &first, c);
    }
    for (uint32_t c = first.chunks / 2; c < first.chunks;
         c++) { /* the other half of another push */
        rig_push_chunk(rig, 1, &second, c);
    }
    cr_assert(rig_view(rig).ledger.pending == 1, "halves of two pushes are not a push");
    rig_push_all(rig, 1, &first); /* whole */
    cr_assert(rig_view(rig).ledger.pending == 2);
    rig_push_all(rig, 1, &second); /* replaces it, because nothing was committed */
    cr_assert(rig_view(rig).ledger.pending == 2 && rig_view(rig).ledger.dropped == 1);
    rig_push(rig, 2, 0);
    rig_model_run(rig, &model, 1);
    cr_assert(rig_view(rig).version == 1 && rig_same(rig, &model));
    rig_free(rig);
}

Test(server_round, locked_while_it_is_committed)
{
    struct rig *rig = rig_running(WORKERS);
    struct rig_push other = rig_make_push(rig, 1, 0, 1), same = rig_make_push(rig, 1, 0, 0);
    struct rig_model model;

    rig->held = 1u << GK_SERVER_SUM | 1u << GK_SERVER_WRITE;
    rig_round(rig, 0);
    for (int i = 0; i < 2; i++) { /* SUMMING, then WRITING */
        cr_assert(rig_view(rig).round == (i == 0 ? GK_ROUND_SUMMING : GK_ROUND_WRITING));
        rig_push_chunk(rig, 1, &other, 0);
        cr_assert(rig_kind(rig) == 0, "left to the retry, which hears the verdict");
        rig_push_chunk(rig, 1, &same, 0);
        cr_kind(rig, GK_KIND_PUSH_OK);
        cr_assert(rig_last(rig)->msg.h.verdict == GK_VERDICT_NONE &&
                      rig_last(rig)->msg.h.version == 0,
                  "durable before visible");
        /* Even a new life does not get it back. */
        rig_tick(rig, 10 * GK_PING_US);
        if (i == 0) {
            cr_assert(rig_work(rig, true));
        }
    }
    rig_hello(rig, 1, 2);
    rig_release(rig);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig_last(rig)->msg.h.verdict == GK_VERDICT_APPLIED &&
              rig_last(rig)->msg.h.verdict_incarnation == 1);
    rig_model_run(rig, &model, 1);
    cr_assert(rig_same(rig, &model));
    rig_free(rig);
}

Test(server_round, new_life_drops_what_it_does_not_name)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        for (int whole = 0; whole < 2; whole++) {
            struct rig *rig = rig_running(2);
            struct rig_push push = rig_make_push(rig, 1, 0, 0);
            struct gk_msg msg;

            if (whole) {
                rig_push_all(rig, 1, &push);
            } else {
                rig_push_chunk(rig, 1, &push, 2);
            }
            msg = rig_hello_msg(rig, 1, 2);
            msg.body.hello.takeover = true;
            if (keeps) {
                msg.body.hello.slot = GK_SLOT_STEP;
                msg.body.hello.slot_step = 0;
                msg.body.hello.slot_push_id = push.id;
            }
            rig_say_hello(rig, 1, 2, &msg);
            cr_kind(rig, GK_KIND_WELCOME);
            cr_assert(rig_view(rig).ledger.pending == (uint64_t)(whole && keeps));
            cr_assert(rig_view(rig).ledger.dropped == (uint64_t)(whole && !keeps));
            rig_push_chunk(rig, 1, &push, 2);
            cr_kind(rig, GK_KIND_PUSH_OK);
            cr_assert(rig_view(rig).ledger.duplicates == (uint64_t)keeps);
            rig_free(rig);
        }
    }
}

Test(server_round, empty_and_lost_pushes)
{
    struct rig *rig = rig_running(2);
    struct rig_push empty, pushes[2];
    struct rig_model model;
    struct gk_msg msg;

    rig_model_init(rig, &model);
    empty = rig_empty_push(0, 0, 4); /* a contribution like any other */
    rig_push_all(rig, 0, &empty);
    rig_push(rig, 1, 0);
    pushes[0] = empty;
    pushes[1] = rig_make_push(rig, 1, 0, 0);
    rig_model_commit(rig, &model, pushes, 2);
    cr_assert(rig_view(rig).version == 1 && rig_same(rig, &model));
    /* All LOST: the version advances without an optimizer step. */
    for (uint32_t r = 0; r < 2; r++) {
        empty = rig_empty_push(r, 1, 0);
        msg = rig_push_msg(rig, r, &empty, 0);
        msg.h.flags = GK_FLAG_LOST;
        rig_send(rig, rig_route(r, 1), &msg);
        cr_kind(rig, GK_KIND_PUSH_OK);
    }
    cr_assert(rig_view(rig).version == 2 && rig_view(rig).optimizer_step == 1 &&
              rig_same(rig, &model));
    cr_assert(rig_view(rig).ledger.lost == 2 && rig_view(rig).ledger.applied == 2);
    rig_ping(rig, 1, 1);
    cr_assert(rig_last(rig)->msg.h.verdict == GK_VERDICT_LOST &&
              rig_last(rig)->msg.h.verdict_step == 1);
    /* The next one trains on. */
    rig_round(rig, 2);
    pushes[0] = rig_make_push(rig, 0, 2, 0);
    pushes[1] = rig_make_push(rig, 1, 2, 0);
    rig_model_commit(rig, &model, pushes, 2);
    cr_assert(rig_view(rig).optimizer_step == 2 && rig_same(rig, &model));
    rig_free(rig);
}

/* A rank whose gradient was of no use takes part without samples: the others count alone, moments
 * coast; when nobody has any, nothing moves. */
Test(server_round, ranks_that_skip)
{
    struct rig *rig = rig_running(3);
    struct rig_model model, before;
    struct rig_push pushes[3];

    rig_round(rig, 0);
    rig_model_run(rig, &model, 1);
    for (uint64_t t = 1; t < 4; t++) {
        uint64_t samples = 0;

        for (uint32_t r = 0; r < 3; r++) {
            bool skips = t == 2 || r == t % 2;

            pushes[r] = skips ? rig_empty_push(r, t, 0) : rig_make_push(rig, r, t, 0);
            samples += pushes[r].samples;
            rig_push_all(rig, r, &pushes[r]);
        }
        before = model;
        rig_model_commit(rig, &model, pushes, 3);
        cr_assert(rig_view(rig).version == t + 1 && rig_same(rig, &model));
        cr_assert(rig->records[rig->records_count - 1].record.samples == samples);
        cr_assert(rig_view(rig).optimizer_step == (t < 2 ? 2 : t));
        cr_assert((memcmp(before.p, model.p, sizeof(model.p)) == 0) == (samples == 0));
    }
    cr_assert(rig_view(rig).ledger.applied == 12 && rig_view(rig).ledger.lost == 0);
    rig_free(rig);
}

Test(server_round, the_record_says_everything)
{
    struct rig *rig = rig_running(2);
    const struct rig_record *kept;

    rig_round(rig, 0);
    rig_round(rig, 1);
    kept = &rig->records[rig->records_count - 1];
    cr_assert(kept->record.type == GK_RECORD_ROUND && kept->record.version == 2 &&
              kept->record.step == 1);
    cr_assert(kept->record.optimizer_step == 1 && kept->record.optimizer == GK_OPTIMIZER_MOMENTUM);
    cr_assert(gk_float_bits(kept->record.hyper.lr) == gk_float_bits(gk_spec_lr(&rig->spec, 1)));
    cr_assert(kept->record.samples == 3 + 4 && kept->record.contributions_count == 2);
    cr_assert(kept->record.job_uid.lo == rig_uid().lo && kept->record.count > 0 &&
              kept->record.val);
    for (uint32_t r = 0; r < 2; r++) {
        const struct gk_contribution *c = &kept->contributions[r];

        cr_assert(c->rank == r && c->step == 1 && c->base_version == 1 && c->incarnation == 1 &&
                  c->samples == 3 + r);
        cr_assert(c->push_id == rig_make_push(rig, r, 1, 0).id && c->verdict == GK_VERDICT_APPLIED);
    }
    rig_free(rig);
}

static void wrong_base(struct gk_msg *msg)
{
    msg->h.base_version = 1;
}
static void wrong_tile(struct gk_msg *msg)
{
    msg->h.hi -= 1;
    gk_buf_unref(msg->frame[0]);
    gk_buf_unref(msg->frame[1]);
    msg->frames_count = 0;
    msg->frame[0] = msg->frame[1] = NULL;
    msg->h.count = 0;
    msg->h.index_encoding = msg->h.value_encoding = 0;
}
static void beyond_shard(struct gk_msg *msg)
{
    msg->h.lo = RIG_PARAMS;
    msg->h.hi = RIG_PARAMS + RIG_CHUNK;
}
static void too_many_chunks(struct gk_msg *msg)
{
    msg->h.chunks = 40;
}
static void too_many_bytes(struct gk_msg *msg)
{
    msg->h.push_bytes = 4 * RIG_PARAMS + 4;
}
static void other_samples(struct gk_msg *msg)
{
    msg->h.samples++;
}

Test(server_round, shapes_that_this_shard_does_not_expect)
{
    static void (*const spoils[])(struct gk_msg *) = {
        wrong_base, wrong_tile, beyond_shard, too_many_chunks, too_many_bytes, other_samples};

    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        struct rig *rig = rig_running(1);
        struct rig_push push = rig_make_push(rig, 0, 0, 0);
        struct rig_model model;
        struct gk_msg msg;

        rig_push_chunk(rig, 0, &push, 4);
        msg = rig_push_msg(rig, 0, &push, 3);
        spoils[i](&msg);
        rig_send(rig, rig_route(0, 1), &msg);
        gk_msg_clear(&msg);
        cr_assert(rig_code(rig) == GK_CODE_BAD_SHAPE, "spoil %zu: %s", i,
                  gk_code_name(rig_code(rig)));
        rig_push_all(rig, 0, &push); /* and the right one is still welcome */
        rig_model_run(rig, &model, 1);
        cr_assert(rig_view(rig).version == 1 && rig_same(rig, &model), "spoil %zu", i);
        rig_free(rig);
    }
}

Test(server_round, sum_of_bytes_must_be_what_was_said)
{
    struct rig *rig = rig_running(1);
    struct rig_push push = rig_make_push(rig, 0, 0, 0);

    push.bytes += 8;
    rig_push_all(rig, 0, &push);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    cr_assert(rig_view(rig).version == 0 && rig_view(rig).ledger.pending == 0);
    rig_free(rig);
}

Test(server_round, dense_chunks)
{
    struct rig *rig = rig_running(1);
    struct rig_model model;
    struct rig_push push = {
        .step = 0, .samples = 5, .chunks = rig_chunks(rig), .id = 4, .bytes = 4 * RIG_PARAMS};

    for (uint32_t c = 0; c < push.chunks; c++) {
        struct gk_msg msg;

        push.counts[c] = RIG_CHUNK;
        for (uint32_t j = 0; j < RIG_CHUNK; j++) {
            push.idx[c][j] = j;
            push.val[c][j] = (float)(c * 3 + j) * 0.7f;
        }
        msg = rig_push_msg(rig, 0, &push, c);
        gk_buf_unref(msg.frame[0]);
        msg.frame[0] = msg.frame[1];
        msg.frame[1] = NULL;
        msg.frames_count = 1;
        msg.h.index_encoding = GK_INDEX_DENSE;
        rig_send(rig, rig_route(0, 1), &msg);
        gk_msg_clear(&msg);
        cr_kind(rig, GK_KIND_PUSH_OK);
    }
    rig_model_init(rig, &model);
    rig_model_commit(rig, &model, &push, 1);
    cr_assert(rig_view(rig).version == 1 && rig_same(rig, &model));
    rig_free(rig);
}

Test(server_round, overflow_names_the_rank)
{
    struct rig *rig = rig_running(2);
    struct rig_push push;

    for (uint32_t r = 0; r < 2; r++) {
        push = rig_make_push(rig, r, 0, 0);
        push.val[0][0] = 0;
        for (uint32_t c = 0; r == 1 && c < push.chunks; c++) {
            for (uint32_t j = 0; j < push.counts[c]; j++) {
                push.val[c][j] = 3e38f;
            }
        }
        if (r == 0) { /* the sum of 3e38 and 0.7e38 is beyond fp32; neither is */
            push.counts[1] = RIG_CHUNK;
            push.bytes = 0;
            for (uint32_t c = 0; c < push.chunks; c++) {
                for (uint32_t j = 0; j < push.counts[c]; j++) {
                    push.idx[c][j] = c == 1 ? j : push.idx[c][j];
                    push.val[c][j] = 0.7e38f;
                }
                push.bytes += 8 * push.counts[c];
            }
        }
        rig_push_all(rig, r, &push);
    }
    cr_assert(rig->exited && rig->exit_code == 65);
    cr_assert(strstr(rig->exit_words.text, "rank 1"), "%s", rig->exit_words.text);
    cr_assert(rig_view(rig).version == 0, "nothing of it was committed");
    cr_assert(strcmp(rig->exit_id, "SERVER-OVERFLOW") == 0);
    rig_free(rig);
}

Test(server_round, computation_that_fails)
{
    static const uint32_t kinds[] = {GK_SERVER_SUM, GK_SERVER_APPLY};

    for (size_t i = 0; i < 2; i++) {
        struct rig *rig = rig_running(1);

        rig->held = 1u << kinds[i];
        rig_push(rig, 0, 0);
        cr_assert(rig->ops_count == 1);
        rig_event(rig, (struct gk_server_event){.kind = i == 0 ? GK_SERVER_SUM_DONE
                                                               : GK_SERVER_APPLY_DONE,
                                                .op = rig->ops_queued[0].op,
                                                .err = GK_E_UNSUPPORTED,
                                                .words = "no such optimizer"});
        cr_assert(rig->exited && rig->exit_code == 70 &&
                  strstr(rig->exit_words.text, "no such optimizer"));
        rig_free(rig);
    }
}
