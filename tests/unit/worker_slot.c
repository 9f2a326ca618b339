/* Goal: a life that finds its slot goes on where the former one stopped: the push in the slot is
 * counted exactly once, the residual stays; and a slot of the past is thrown away, whole.
 * Method: one core that is restarted at chosen moments against toy servers at all distances. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options two = {
    .servers = 2, .rank = 1, .workers = 2, .entries = 40, .chunk_floats = 4, .params = 256};

/* The push of step 5 is persisted; none of its messages has arrived anywhere. */
static void open_persisted(struct rig *rig, struct toy *toy)
{
    rig_open(rig, two);
    toy_open(toy, rig);
    toy_begun(toy, 5);
    toy_join(toy);
    toy_compute(toy);
    cr_assert(rig_in(rig, GK_PHASE_EXCHANGING) && rig->counts[GK_WORKER_RESET] == 1);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

static uint64_t id_of(const struct rig *rig, uint64_t step, uint32_t s)
{
    struct gk_push *push = rig_push(rig, step);
    uint64_t id = push->slices[s].id;

    gk_push_free(push);
    return id;
}

/* The shards at the slot's step or one beyond it: each gets what it lacks, the residual stays. */
Test(slot, resumes)
{
    for (uint32_t ahead = 0; ahead < 4; ahead++) {
        struct rig rig;
        struct toy toy;
        uint32_t pushes[2];

        open_persisted(&rig, &toy);
        for (uint32_t s = 0; s < 2; s++) {
            if (ahead >> s & 1) {
                toy_serve_some(&toy, 1u << s);
                cr_assert_eq(toy.shards[s].version, 6);
            }
            pushes[s] = toy.shards[s].handled[GK_KIND_PUSH];
        }
        if (ahead == 3) {
            cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        }
        rig_restart(&rig, 6);
        toy_join(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING), "ahead %u", ahead);
        cr_assert_eq(rig.asked[GK_WORKER_STEP], 6);
        cr_assert_eq(rig.counts[GK_WORKER_RESET], 1, "ahead %u", ahead);
        cr_assert(rig_said(&rig, "WORKER-JOINED", "incarnation 2"));
        for (uint32_t s = 0; s < 2; s++) {
            cr_assert_eq(toy.shards[s].applied[5], id_of(&rig, 5, s));
            cr_assert_eq(toy.shards[s].handled[GK_KIND_PUSH] > pushes[s], !(ahead >> s & 1));
        }
        cr_assert_eq(gk_worker_stats(rig.core)->lost, 0);
        close_both(&rig, &toy);
    }
}

/* HELLO names the push, so that a shard that has it whole may keep it. */
Test(slot, named_in_hello)
{
    struct rig rig;
    struct toy toy;
    const struct gk_hello *hello;

    open_persisted(&rig, &toy);
    toy.shards[0].closes = false;
    toy_serve_some(&toy, 1);
    cr_assert(toy.shards[0].whole);
    rig_restart(&rig, 6);
    rig_start(&rig);
    rig_up(&rig, 0);
    rig_up(&rig, 1);
    for (uint32_t s = 0; s < 2; s++) {
        hello = &rig.sent[s].msg.body.hello;
        cr_assert(hello->slot == GK_SLOT_STEP && hello->slot_step == 5);
        cr_assert_eq(hello->slot_push_id, id_of(&rig, 5, s));
        cr_assert(hello->job_uid.hi == 7 && hello->job_uid.lo == 8);
        cr_assert_eq(rig.sent[s].msg.h.incarnation, 2);
    }
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_HELLO));
    cr_assert(toy.shards[0].whole, "kept");
    toy_deliver(&toy);
    toy_serve(&toy);
    toy_commit(&toy, 0);
    toy_deliver(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(toy.shards[0].verdict_incarnation, 2);
    close_both(&rig, &toy);
}

/* A verdict that the former life earned counts for the push of the slot. */
Test(slot, verdict_of_the_former_life)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    toy.shards[0].lags = toy.shards[1].lags = true;
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    rig_restart(&rig, 6);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert_eq(toy.shards[0].verdict_incarnation, 1);
    toy.shards[0].durable = toy.shards[1].durable = 6;
    toy_wait(&toy, 2 * SECOND);
    cr_assert_eq(gk_worker_stats(rig.core)->lost, 0);
    cr_assert(!rig_said(&rig, "WORKER-PUSH-LOST", ""));
    close_both(&rig, &toy);
}

/* What was computed but not persisted is computed again. */
Test(slot, not_yet_persisted)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    toy_serve(&toy);
    rig_step_done(&rig);
    cr_assert(rig_in(&rig, GK_PHASE_PERSISTING));
    rig_restart(&rig, 6);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 6);
    toy_compute(&toy);
    toy_serve(&toy);
    cr_assert(toy.shards[0].applied[6] == id_of(&rig, 6, 0) && toy.shards[0].version == 7);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 1);
    close_both(&rig, &toy);
}

/* The job went on without it (its other disk is gone for good): void, and said so. */
Test(slot, of_the_past)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    toy.shards[0].version = toy.shards[0].durable = 7;
    toy.shards[1].version = toy.shards[1].durable = 6;
    rig_restart(&rig, 6);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 7);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 2);
    cr_assert(toy.shards[1].lost[6] && toy.shards[1].version == 7);
    close_both(&rig, &toy);
}

/* No slot: a new life like any other, but for its incarnation. */
Test(slot, empty)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    rig_restart(&rig, 0);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 5);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 2);
    cr_assert(rig_said(&rig, "WORKER-JOINED", "incarnation 2"));
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PUSH], 0);
    close_both(&rig, &toy);
}

/* Of two pushes in the slot the older may be needed too, by a shard whose disk lags. */
Test(slot, two_pushes)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    toy.shards[1].lags = true;
    toy_serve(&toy);
    toy_compute(&toy);
    toy_restart(&toy, 1);
    cr_assert(toy.shards[1].version == 5 && toy.shards[0].version == 6);
    rig_restart(&rig, 7);
    toy_join(&toy);
    toy_wait(&toy, 2 * SECOND);
    cr_assert(toy.shards[1].applied[5] == id_of(&rig, 5, 1) &&
              toy.shards[1].applied[6] == id_of(&rig, 6, 1));
    cr_assert(toy.shards[1].version == 7 && toy.shards[0].version == 7);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 1);
    close_both(&rig, &toy);
}

/* A shard that lost what it had called durable, and a slot that still holds the push. */
Test(slot, repairs_a_rollback)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    toy_serve_some(&toy, 1);
    cr_assert(toy.shards[0].version == 6 && toy.shards[1].version == 5);
    toy.shards[0].durable = 5;
    toy_restart(&toy, 0);
    rig_restart(&rig, 6);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && toy.shards[0].version == 6);
    cr_assert_eq(toy.shards[0].applied[5], id_of(&rig, 5, 0));
    close_both(&rig, &toy);
}

/* The first step of all: the slot of step 0 is a slot. */
Test(slot, of_step_0)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, two);
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy_join(&toy);
    toy_compute(&toy);
    rig_restart(&rig, 1);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 1);
    cr_assert_eq(toy.shards[0].applied[0], id_of(&rig, 0, 0));
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 0);
    close_both(&rig, &toy);
}

/* A shard without a version, and a slot that knows better. */
Test(slot, lost_shard)
{
    struct rig rig;
    struct toy toy;

    open_persisted(&rig, &toy);
    toy_serve(&toy);
    for (uint32_t s = 0; s < 2; s++) {
        toy.shards[s].initialised = false;
        toy.shards[s].version = toy.shards[s].durable = 0;
        toy.shards[s].session = 0;
    }
    rig_restart(&rig, 6);
    toy_join(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_PEER);
    cr_assert(strstr(rig.exit_words.text, "LOST_SHARD"));
    close_both(&rig, &toy);
}
