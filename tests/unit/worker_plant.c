/* Goal: each planted bug of the worker core does what its name says, so that the simulator has
 * something to catch.
 * Method: the situation that a sound core survives (worker_restart.c, worker_exchange.c,
 * worker_leave.c), with the bug and without. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static void open_pushed(struct rig *rig, struct toy *toy, uint32_t plant)
{
    rig_open(rig, (struct rig_options){.rank = 1, .workers = 2, .steps = 1, .plant = plant});
    toy_open(toy, rig);
    toy_begun(toy, 0);
    toy_join(toy);
    toy_compute(toy);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

/* The push was acknowledged by a life of the shard that then died: it never comes again. */
Test(plant, old_acks)
{
    for (uint32_t planted = 0; planted < 2; planted++) {
        struct rig rig;
        struct toy toy;

        open_pushed(&rig, &toy, planted ? GK_WORKER_PLANT_OLD_ACKS : 0);
        toy.shards[0].closes = false;
        toy_serve(&toy);
        rig_down(&rig, 0);
        toy_restart(&toy, 0);
        toy.shards[0].closes = true;
        rig_up(&rig, 0);
        toy_wait(&toy, 60 * SECOND);
        cr_assert_eq(toy.shards[0].version, planted ? 0 : 1);
        cr_assert_eq(rig_in(&rig, GK_PHASE_EXCHANGING), planted);
        close_both(&rig, &toy);
    }
}

Test(plant, mixed_pull)
{
    for (uint32_t planted = 0; planted < 2; planted++) {
        struct rig rig;
        struct toy toy;

        open_pushed(&rig, &toy, planted ? GK_WORKER_PLANT_MIXED_PULL : 0);
        toy_params(&toy, &toy.shards[0], &rig_take(&rig, 0, GK_KIND_PULL_DENSE)->h);
        cr_assert_eq(toy.replies[0].msg.h.version, 0, "not the one that was asked for");
        toy_deliver(&toy);
        cr_assert_eq(rig.installs_count, planted ? 2 : 1);
        close_both(&rig, &toy);
    }
}

Test(plant, forget_leave)
{
    for (uint32_t planted = 0; planted < 2; planted++) {
        struct rig rig;
        struct toy toy;

        open_pushed(&rig, &toy, planted ? GK_WORKER_PLANT_FORGET_LEAVE : 0);
        for (uint32_t i = 0; i < 2; i++) {
            toy_handle(&toy, 0, rig_take(&rig, 0, i == 0 ? GK_KIND_PUSH : GK_KIND_PULL_DENSE));
            toy_deliver(&toy);
        }
        rig_forget_sent(&rig); /* the LEAVE among them */
        rig_tick(&rig);
        cr_assert_eq(rig.exited, planted);
        cr_assert(!toy.shards[0].left);
        close_both(&rig, &toy);
    }
}
