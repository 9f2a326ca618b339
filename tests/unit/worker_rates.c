/* Goal: a rate that comes with a step is in every copy of its push, in this life and the next, and
 * a worker that hears that the ranks differ ends with the words of the shard. Method: one core
 * against toy servers; each chunk that is sent is looked at. */
#include "worker_toy.h"

#include "common/exit.h"

#include <criterion/criterion.h>

static const struct rig_options two = {
    .servers = 2, .workers = 2, .entries = 40, .chunk_floats = 4, .params = 256, .rate = 0.375f};

static void open_both(struct rig *rig, struct toy *toy, const struct rig_options *options)
{
    rig_open(rig, *options);
    toy_open(toy, rig);
    toy_begun(toy, 0);
    toy_join(toy);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

static uint32_t look(struct rig *rig, uint32_t shard, float rate)
{
    uint32_t count = 0;

    for (struct gk_msg *msg; (msg = rig_take(rig, shard, GK_KIND_PUSH)); count++) {
        cr_assert(msg->h.flags == (rate > 0 ? GK_FLAG_LR_FROM_CLIENT : 0u));
        cr_assert(msg->h.lr_bits == (rate > 0 ? gk_float_bits(rate) : 0));
    }
    return count;
}

Test(rates, in_every_copy)
{
    struct rig rig;
    struct toy toy;

    open_both(&rig, &toy, &two);
    toy_compute(&toy);
    cr_assert(look(&rig, 0, 0.375f) > 1 && look(&rig, 1, 0.375f) > 1);
    rig_wait(&rig, 4 * GK_RETRY_BULK_US_MIN);
    cr_assert(look(&rig, 0, 0.375f) > 1 && look(&rig, 1, 0.375f) > 1);
    rig_restart(&rig, 1);
    rig.options.rate = 0.125f; /* of the steps to come */
    toy.shards[0].closes = toy.shards[1].closes = false;
    toy_join(&toy);
    toy_serve(&toy);
    cr_assert(toy.shards[0].whole && toy.shards[1].whole);
    rig_wait(&rig, 2 * GK_PING_US);
    rig_down(&rig, 1);
    toy_restart(&toy, 1);
    rig_up(&rig, 1);
    toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_HELLO));
    toy_deliver(&toy);
    cr_assert(look(&rig, 1, 0.375f) > 1);
    close_both(&rig, &toy);
}

Test(rates, none_without_one)
{
    struct rig_options options = two;
    struct rig rig;
    struct toy toy;

    options.rate = 0;
    open_both(&rig, &toy, &options);
    toy_compute(&toy);
    cr_assert(look(&rig, 0, 0) > 1 && look(&rig, 1, 0) > 1);
    close_both(&rig, &toy);
}

/* Pushes that differ in nothing but the rate have different ids. */
Test(rates, are_part_of_the_id)
{
    struct gk_push *pushes[3];
    struct rig rig;
    struct toy toy;

    open_both(&rig, &toy, &two);
    for (int i = 0; i < 3; i++) {
        rig.options.rate = (float)i / 2;
        pushes[i] = rig_push(&rig, 7);
    }
    cr_assert(pushes[0]->slices[0].id != pushes[1]->slices[0].id &&
              pushes[1]->slices[1].id != pushes[2]->slices[1].id &&
              pushes[0]->slices[1].id != pushes[2]->slices[1].id);
    for (int i = 0; i < 3; i++) {
        gk_push_free(pushes[i]);
    }
    close_both(&rig, &toy);
}

Test(rates, the_end_has_words)
{
    struct rig rig;
    struct toy toy;
    struct gk_msg *push;

    open_both(&rig, &toy, &two);
    toy_compute(&toy);
    push = rig_take(&rig, 1, GK_KIND_PUSH);
    (void)toy_nack(&toy, &toy.shards[1], &push->h, GK_CODE_RATES_DIFFER,
                   "rank 0 pushes 0.375, rank 1 pushes 0.5");
    toy_deliver(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_DATA);
    cr_assert(strstr(rig.exit_words.text, "RATES_DIFFER at step 1") &&
                  strstr(rig.exit_words.text, "rank 1 pushes 0.5"),
              "%s", rig.exit_words.text);
    close_both(&rig, &toy);
}
