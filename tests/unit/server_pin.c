/* Goal: an export reads one version, bit for bit, while training goes on as if nobody had asked.
 * Method: pins of versions that are past, present and to come, in every state and at every stage of
 * a commit; what is pulled is compared with a model of that version. The bounds (number, time,
 * memory) are reached one by one and by a flood, and the trained model stays the same. */
#include "server_job.h"

enum { TOOL = 900, WORKERS = 2 };

static struct gk_msg pin_msg(struct rig *rig, uint32_t kind, uint64_t id, uint64_t version)
{
    struct gk_msg msg = rig_msg(rig, kind, 0);

    msg.h.session = 0;
    msg.h.rank = GK_RANK_ANY;
    msg.h.incarnation = 0;
    msg.h.req_id = id;
    msg.h.version = version;
    if (kind == GK_KIND_PIN) {
        msg.h.job_uid = rig_uid();
    }
    rig->req_ids = id;
    return msg;
}

static void pin(struct rig *rig, uint64_t id, uint64_t version)
{
    struct gk_msg msg = pin_msg(rig, GK_KIND_PIN, id, version);

    rig_clear(rig);
    rig_send(rig, TOOL, &msg);
}

static void release(struct rig *rig, uint64_t id, uint64_t version)
{
    struct gk_msg msg = pin_msg(rig, GK_KIND_PIN, id, version);

    msg.h.flags = GK_FLAG_RELEASE;
    rig_clear(rig);
    rig_send(rig, TOOL, &msg);
    cr_assert(rig->replies_count == 0, "a release is not answered");
}

static void pull(struct rig *rig, uint64_t version)
{
    struct gk_msg msg = pin_msg(rig, GK_KIND_PULL_PIN, 5000, version);

    msg.h.lo = rig->lo;
    msg.h.hi = rig->hi;
    rig_clear(rig);
    rig_send(rig, TOOL, &msg);
}

/* Requests of workers have small numbers again. */
static void rounds(struct rig *rig, uint64_t from, uint64_t to)
{
    rig->req_ids = 100000;
    for (uint64_t t = from; t < to; t++) {
        rig_clear(rig);
        rig_round(rig, t);
    }
    cr_assert(rig_view(rig).version == to);
}

static uint32_t held(const struct rig *rig)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        count += rig->pins[i] != NULL;
    }
    return count;
}

/* What the export `id` reads is the version, and what the reply says of it is true. */
static void expect_version(struct rig *rig, uint64_t id, uint64_t version)
{
    struct rig_model model;
    uint64_t hash = 0;

    rig_model_run(rig, &model, version);
    for (uint64_t i = 0; i < rig->hi - rig->lo; i++) {
        hash += gk_hash_term(0, rig->lo + i, gk_float_bits(model.p[i]));
    }
    pin(rig, id, version);
    cr_kind(rig, GK_KIND_PIN_OK);
    cr_assert(rig_last(rig)->route == TOOL && rig_last(rig)->msg.h.version == version);
    cr_assert(rig_last(rig)->msg.h.lo == rig->lo && rig_last(rig)->msg.h.hi == rig->hi);
    cr_assert(rig_last(rig)->msg.h.state_hash == hash);
    pull(rig, version);
    cr_kind(rig, GK_KIND_PIN_PARAMS);
    cr_assert(rig_last(rig)->msg.h.version == version);
    cr_assert(memcmp(rig_last(rig)->values, model.p, (rig->hi - rig->lo) * sizeof(float)) == 0);
}

static void expect_undisturbed(struct rig *rig, uint64_t version)
{
    struct rig_model model;

    rig_model_run(rig, &model, version);
    cr_assert(rig_view(rig).version == version && rig_same(rig, &model));
}

Test(server_pin, a_version_to_come)
{
    struct rig *rig = rig_running(WORKERS);

    rounds(rig, 0, 1);
    pin(rig, 1, 3);
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(rig_retryable(rig) && rig_last(rig)->msg.h.version == 1);
    cr_assert(held(rig) == 0 && rig_view(rig).ledger.nacks == 0);
    rounds(rig, 1, 6);
    cr_assert(held(rig) == 1);
    expect_version(rig, 1, 3);
    rounds(rig, 6, 8);
    expect_version(rig, 1, 3);
    release(rig, 1, 3);
    cr_assert(held(rig) == 0);
    pull(rig, 3);
    cr_code(rig, GK_CODE_PAST);
    expect_undisturbed(rig, 8);
    rig_free(rig);
}

Test(server_pin, past_and_present)
{
    struct rig *rig = rig_running(WORKERS);

    pin(rig, 1, 0); /* another INIT may replace version 0 */
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(held(rig) == 0);
    rig->req_ids = 100000;
    rig_push(rig, 0, 0);
    pin(rig, 1, 0);
    cr_code(rig, GK_CODE_NOT_READY); /* the copy has begun */
    cr_assert(held(rig) == 1);
    expect_version(rig, 1, 0);
    release(rig, 1, 0);
    rig->held = 1u << GK_SERVER_PIN;
    pin(rig, 1, 0);
    pull(rig, 0);
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(rig_retryable(rig));
    rig_release(rig);
    pull(rig, 0);
    cr_kind(rig, GK_KIND_PIN_PARAMS);
    rig->req_ids = 100000;
    rig_push(rig, 1, 0);
    rounds(rig, 1, 3);
    expect_version(rig, 1, 0);
    pin(rig, 2, 2);
    cr_code(rig, GK_CODE_PAST);
    cr_assert(!rig_retryable(rig) && rig_last(rig)->msg.h.version == 3);
    cr_assert(held(rig) == 1);
    rig_free(rig);
}

/* At every stage the version that stands in the planes is copied, and before the APPLY. */
Test(server_pin, stages_of_a_commit)
{
    static const uint32_t stages[] = {GK_SERVER_SUM, GK_SERVER_WRITE, GK_SERVER_APPLY};

    for (size_t i = 0; i < 3; i++) {
        struct rig *rig = rig_running(WORKERS);
        uint64_t version = stages[i] == GK_SERVER_APPLY ? 2 : 1;

        rounds(rig, 0, 1);
        rig->held = 1u << stages[i] | 1u << GK_SERVER_PIN;
        rig_round(rig, 1);
        pin(rig, 1, version);
        cr_code(rig, GK_CODE_NOT_READY);
        for (uint32_t o = 0; o < rig->ops_count; o++) { /* nobody reads what is being written */
            cr_assert(stages[i] != GK_SERVER_APPLY || rig->ops_queued[o].kind != GK_SERVER_PIN);
        }
        rig_release(rig);
        rounds(rig, 2, 4);
        expect_version(rig, 1, version);
        expect_undisturbed(rig, 4);
        rig_free(rig);
    }
}

/* The copy is asked for first, then the commit: the queue of the thread keeps that order. */
Test(server_pin, nothing_waits)
{
    struct rig *rig = rig_running(WORKERS);
    uint32_t at_pin = UINT32_MAX, at_apply = UINT32_MAX;

    rounds(rig, 0, 1);
    rig->held = 1u << GK_SERVER_PIN | 1u << GK_SERVER_APPLY;
    pin(rig, 1, 1);
    rig->req_ids = 100000;
    rig_round(rig, 1);
    for (uint32_t i = 0; i < rig->ops_count; i++) {
        at_pin = rig->ops_queued[i].kind == GK_SERVER_PIN ? i : at_pin;
        at_apply = rig->ops_queued[i].kind == GK_SERVER_APPLY ? i : at_apply;
    }
    cr_assert(at_pin < at_apply && at_apply != UINT32_MAX, "the commit waits for the copy");
    rig_release(rig);
    expect_version(rig, 1, 1);
    expect_undisturbed(rig, 2);
    rig_free(rig);
}

Test(server_pin, finished_and_draining)
{
    struct rig *rig = rig_running(WORKERS);

    rounds(rig, 0, 2);
    pin(rig, 1, 9);
    cr_code(rig, GK_CODE_NOT_READY);
    rig->req_ids = 100000;
    rig_leave(rig, 0, 2);
    rig_leave(rig, 1, 2);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED);
    pin(rig, 1, 9);
    cr_code(rig, GK_CODE_FINISHED);
    cr_assert(!rig_retryable(rig) && rig_last(rig)->msg.h.version == 2);
    pin(rig, 1, 2);
    expect_version(rig, 1, 2);
    rig_free(rig);

    rig = rig_running(WORKERS);
    rounds(rig, 0, 1);
    pin(rig, 1, 1);
    rig->held = 1u << GK_SERVER_WRITE;
    rig_round(rig, 1);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    cr_assert(rig_view(rig).state == GK_SHARD_DRAINING);
    pin(rig, 2, 2);
    cr_code(rig, GK_CODE_DRAINING);
    pull(rig, 1);
    cr_kind(rig, GK_KIND_PIN_PARAMS);
    rig_release(rig);
    cr_assert(rig->exited && rig->exit_code == 143, "an export delays the end");
    rig_free(rig);
}

Test(server_pin, two_at_most)
{
    struct rig *rig = rig_running(WORKERS);

    rounds(rig, 0, 1);
    pin(rig, 1, 1);
    pin(rig, 2, 2);
    pin(rig, 3, 3);
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(rig_retryable(rig) && strstr(rig_last(rig)->msg.words.text, "2 exports"));
    rounds(rig, 1, 3);
    cr_assert(held(rig) == 2);
    expect_version(rig, 1, 1);
    expect_version(rig, 2, 2);
    pin(rig, 3, 3);
    cr_code(rig, GK_CODE_NOT_READY);
    release(rig, 2, 2);
    pin(rig, 3, 3);
    rounds(rig, 3, 4);
    expect_version(rig, 3, 3);
    release(rig, 77, 3); /* nobody's */
    cr_assert(held(rig) == 2);
    rig_free(rig);
}

/* One copy at a time; who waits for it too long has missed the version, and hears it. */
Test(server_pin, one_copy_at_a_time)
{
    struct rig *rig = rig_running(WORKERS);

    rounds(rig, 0, 1);
    rig->held = 1u << GK_SERVER_PIN;
    pin(rig, 1, 1);
    pin(rig, 2, 1);
    cr_assert(rig->ops_count == 1);
    rig_release(rig);
    cr_assert(held(rig) == 2);
    expect_version(rig, 1, 1);
    expect_version(rig, 2, 1);
    release(rig, 1, 1);
    release(rig, 2, 1);
    rig->held = 1u << GK_SERVER_PIN;
    pin(rig, 1, 1);
    pin(rig, 2, 1);
    rig->req_ids = 100000;
    rig_push(rig, 0, 1);
    rig->held |= 1u << GK_SERVER_APPLY;
    rig_push(rig, 1, 1);
    rig_release(rig);
    pin(rig, 2, 1);
    cr_assert(rig_kind(rig) == GK_KIND_PIN_OK || rig_code(rig) == GK_CODE_PAST);
    expect_version(rig, 1, 1);
    rig_free(rig);
}

Test(server_pin, ends_when_nobody_asks)
{
    struct rig *rig = rig_running(WORKERS);

    rounds(rig, 0, 1);
    pin(rig, 1, 1);
    pin(rig, 2, 50);
    for (uint32_t i = 0; i < 4; i++) { /* a pull counts as asking */
        rig_tick(rig, GK_PIN_US - 2 * GK_PING_US);
        pull(rig, 1);
        cr_kind(rig, GK_KIND_PIN_PARAMS);
    }
    pin(rig, 3, 1); /* 2 has ended, or there would be no room */
    cr_assert(held(rig) == 2);
    rig_tick(rig, GK_PIN_US + 2 * GK_PING_US);
    cr_assert(held(rig) == 0 && rig_view(rig).state == GK_SHARD_RUNNING);
    pull(rig, 1);
    cr_code(rig, GK_CODE_PAST);

    pin(rig, 1, 1); /* the process stood still, not the tool */
    rig_pause(rig, 10 * GK_PIN_US);
    cr_assert(held(rig) == 1);

    rig->held = 1u << GK_SERVER_PIN; /* it ends while the copy is made */
    pin(rig, 2, 1);
    rig_tick(rig, GK_PIN_US + 2 * GK_PING_US);
    cr_assert(held(rig) == 0 && rig->ops_count == 1);
    rig_release(rig);
    cr_assert(held(rig) == 0);
    rig_free(rig);
}

Test(server_pin, another_try_of_the_same_export)
{
    struct rig *rig = rig_running(WORKERS);

    rounds(rig, 0, 1);
    pin(rig, 1, 1);
    pin(rig, 2, 1);
    pin(rig, 1, 2);
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(held(rig) == 1, "the copy of the former try stays");
    rounds(rig, 1, 3);
    expect_version(rig, 1, 2);
    release(rig, 2, 1);
    rig->held = 1u << GK_SERVER_PIN;
    pin(rig, 2, 3);
    pin(rig, 2, 4); /* while the former copy is made */
    cr_assert(rig_code(rig) == GK_CODE_NOT_READY);
    rig_release(rig);
    cr_assert(held(rig) == 1);
    pin(rig, 2, 4);
    rounds(rig, 3, 5);
    expect_version(rig, 2, 4);
    rig_free(rig);
}

Test(server_pin, memory)
{
    struct rig *rig = rig_new(WORKERS, 1, 0);
    uint64_t plane = RIG_PARAMS * sizeof(float), job;

    rig_free(rig);
    rig = rig_running(WORKERS);
    job = rig_view(rig).reserved_bytes;
    rig_free(rig);

    rig = rig_new(WORKERS, 1, 0);
    rig->config.memory_bytes = job + 2 * plane - 1;
    rig_again(rig);
    rig_start(rig);
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_hello(rig, r, 1);
    }
    rig_init(rig);
    rounds(rig, 0, 1);
    pin(rig, 1, 1);
    cr_assert(held(rig) == 1 && rig_view(rig).reserved_bytes == job + plane);
    pin(rig, 2, 1);
    cr_code(rig, GK_CODE_NO_MEMORY);
    cr_assert(!rig_retryable(rig) && strstr(rig_last(rig)->msg.words.text, "--memory"));
    expect_version(rig, 1, 1);
    release(rig, 1, 1);
    rig->refuse_memory = true;
    pin(rig, 2, 1);
    pin(rig, 2, 1);
    cr_code(rig, GK_CODE_NO_MEMORY);
    rig->refuse_memory = false;
    pin(rig, 2, 1);
    expect_version(rig, 2, 1);
    rig_free(rig);
}

Test(server_pin, wrong_requests)
{
    struct rig *rig = rig_running(WORKERS);
    struct gk_msg msg;

    rounds(rig, 0, 1);
    for (uint32_t i = 0; i < 3; i++) {
        msg = pin_msg(rig, GK_KIND_PIN, 10 + i, 1);
        msg.h.job_uid.lo += i == 0;
        msg.h.shard += i == 1;
        msg.h.epoch += i == 2;
        rig_send(rig, TOOL, &msg);
        cr_code(rig, GK_CODE_BAD_MESSAGE);
        cr_assert(held(rig) == 0);
    }
    pin(rig, 1, 1);
    msg = pin_msg(rig, GK_KIND_PULL_PIN, 20, 1);
    msg.h.lo = RIG_PARAMS - 1;
    msg.h.hi = RIG_PARAMS + 1;
    rig_send(rig, TOOL, &msg);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    rig_restart(rig); /* a new life has no pins */
    pull(rig, 1);
    cr_code(rig, GK_CODE_PAST);
    pin(rig, 1, 1);
    expect_version(rig, 1, 1);
    rig_free(rig);
}

static uint32_t below(uint64_t *draw, uint32_t bound)
{
    static const struct gk_rng rng = {.seed = 3, .purpose = GK_RNG_BATCH};

    return (uint32_t)gk_rng_below(&rng, (*draw)++, bound);
}

/* Whatever anybody asks for, in any order: two copies at most, and the same model. */
Test(server_pin, flood)
{
    struct rig *rig = rig_running(WORKERS);
    uint64_t draw = 0;

    rounds(rig, 0, 1);
    for (uint64_t t = 1; t < 12; t++) {
        for (uint32_t i = 0; i < 200; i++) {
            bool pulls = below(&draw, 3) == 0;
            uint64_t id = below(&draw, 6), version = t + below(&draw, 5) - 1;
            struct gk_msg msg = pin_msg(rig, pulls ? GK_KIND_PULL_PIN : GK_KIND_PIN, id, version);

            msg.h.hi = pulls ? 1 + below(&draw, 100) : 0;
            msg.h.flags = !pulls && below(&draw, 8) == 0 ? GK_FLAG_RELEASE : 0;
            rig->held = below(&draw, 2) == 0 ? 1u << GK_SERVER_PIN : 0;
            rig_clear(rig);
            rig_send(rig, TOOL + below(&draw, 50), &msg);
            cr_assert(rig->replies_count <= 1 && held(rig) <= GK_PINS_MAX);
            rig_tick(rig, below(&draw, GK_PIN_US / 50));
        }
        rig_release(rig);
        rounds(rig, t, t + 1);
    }
    expect_undisturbed(rig, 12);
    rig_free(rig);
}
