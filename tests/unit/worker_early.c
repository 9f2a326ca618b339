/* Goal: a rank may leave before the last step, at any one: all shards hear of it, however long that
 * takes, its pushes are decided, and no later life goes on in its place.
 * Method: one core, ten steps, toy servers that go on without it, die and come back. */
#include "worker_toy.h"

#include "common/exit.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options ten = {
    .servers = 2, .rank = 1, .workers = 2, .steps = 10, .deadline_us = 60 * SECOND};

static void open_at(struct rig *rig, struct toy *toy, struct rig_options options, uint64_t version)
{
    rig_open(rig, options);
    toy_open(toy, rig);
    toy_begun(toy, 0);
    toy_join(toy);
    for (uint64_t v = 0; v < version; v++) {
        toy_compute(toy);
        toy_serve(toy);
    }
    cr_assert(rig_in(rig, GK_PHASE_COMPUTING) && rig->asked[GK_WORKER_STEP] == version);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

static void leave(struct rig *rig)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_LEAVE});
    cr_assert(rig_in(rig, GK_PHASE_LEAVING));
}

/* Both have got the LEAVE, of that step. */
static void take_leaves(struct rig *rig, struct toy *toy, uint64_t step)
{
    for (uint32_t s = 0; s < 2; s++) {
        struct gk_msg *msg = rig_take(rig, s, GK_KIND_LEAVE);

        cr_assert(msg && msg->h.step == step, "shard %u", s);
        toy_handle(toy, s, msg);
    }
    toy_deliver(toy);
}

Test(early, at_any_step)
{
    for (uint64_t step = 0; step < 10; step += 3) {
        struct rig rig;
        struct toy toy;

        open_at(&rig, &toy, ten, step);
        leave(&rig);
        cr_assert(rig.identity.left_at == (step > 0 ? step : GK_LEFT_AT_START));
        take_leaves(&rig, &toy, step);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK, "%s", rig.exit_words.text);
        cr_assert(toy.shards[0].left && toy.shards[1].left);
        cr_assert(gk_worker_stats(rig.core)->lost == 0 && gk_worker_stats(rig.core)->steps == step);
        close_both(&rig, &toy);
    }
}

/* The others go on while one shard has not confirmed: that is nobody's loss. */
Test(early, the_others_go_on)
{
    struct rig rig;
    struct toy toy;

    open_at(&rig, &toy, ten, 3);
    leave(&rig);
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_LEAVE));
    toy_deliver(&toy);
    toy.shards[0].version = toy.shards[0].durable = 7;
    rig_wait(&rig, 3 * SECOND);
    cr_assert(!rig.exited && rig.counts[GK_WORKER_RESET] == 0);
    cr_assert(rig_count(&rig, 0, GK_KIND_PUSH) == 0 && rig_count(&rig, 0, GK_KIND_LEAVE) == 0);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK && toy.shards[1].left);
    close_both(&rig, &toy);
}

/* The last push is in the ring until it is decided for good, also by a shard that must get it
 * again.
 */
Test(early, waits_for_the_last_verdict)
{
    struct rig rig;
    struct toy toy;

    open_at(&rig, &toy, ten, 2);
    toy_compute(&toy);
    toy.shards[1].lags = true;
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    leave(&rig);
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_LEAVE));
    rig_forget_sent(&rig);
    toy_deliver(&toy);
    rig_down(&rig, 1);
    toy_restart(&toy, 1); /* what was not durable is gone */
    cr_assert(toy.shards[1].version == 2);
    rig_up(&rig, 1);
    toy_serve(&toy);
    cr_assert(toy.shards[1].version == 3 && !toy.shards[1].lost[2]);
    toy.shards[1].durable = 3;
    toy_wait(&toy, SECOND);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    close_both(&rig, &toy);
}

/* A shard that is down may come back and wait for this rank: it is waited for, as any peer is. */
Test(early, a_shard_that_is_away)
{
    static const uint64_t deadlines_s[] = {60, 0};

    for (int back = 0; back < 2; back++) {
        for (int d = 0; d < 2; d++) {
            struct rig_options options = ten;
            uint64_t bound_s = deadlines_s[d] > 0 ? deadlines_s[d] : GK_DEADLINE_S;
            struct rig rig;
            struct toy toy;

            options.deadline_us = deadlines_s[d] * SECOND;
            open_at(&rig, &toy, options, 3);
            leave(&rig);
            rig_down(&rig, 1);
            toy_serve_some(&toy, 1);
            rig_wait(&rig, (bound_s - 5) * SECOND);
            cr_assert(!rig.exited);
            if (back) {
                toy_restart(&toy, 1);
                rig_up(&rig, 1);
                toy_serve(&toy);
                cr_assert(rig.exited && toy.shards[1].left);
            } else {
                rig_wait(&rig, 10 * SECOND);
                cr_assert(rig.exited && rig_said(&rig, "WORKER-LEAVE-UNHEARD", "shard 1"));
            }
            cr_assert(rig.exit_code == GK_EXIT_OK);
            close_both(&rig, &toy);
        }
    }
}

/* Killed before all had heard: the next life says it again and nothing else, also from step 0. */
Test(early, the_next_life_says_it_again)
{
    for (uint64_t step = 0; step < 4; step += 3) {
        struct rig rig;
        struct toy toy;

        open_at(&rig, &toy, ten, step);
        leave(&rig);
        toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_LEAVE));
        rig_restart(&rig, step);
        rig_start(&rig);
        cr_assert(rig_in(&rig, GK_PHASE_LEAVING) && gk_worker_left_before(rig.core));
        toy.shards[0].version = toy.shards[0].durable = 9; /* the others go on */
        rig_up(&rig, 0);
        rig_up(&rig, 1);
        cr_assert(rig.sent[rig.sent_count - 1].msg.body.hello.slot == GK_SLOT_LEFT);
        cr_assert(rig.sent[rig.sent_count - 1].msg.body.hello.slot_left_at == step);
        toy_serve(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK, "%s", rig.exit_words.text);
        cr_assert(toy.shards[1].left && toy.shards[0].left);
        cr_assert(toy.shards[1].handled[GK_KIND_PULL_DENSE] == step + 1, "nothing is pulled again");
        close_both(&rig, &toy);
    }
}
