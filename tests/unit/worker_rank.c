/* Goal: a worker without a rank takes the one that shard 0 assigns, and no other.
 * Method: the core alone, with toy shards. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

/* Shard 0 chooses the rank; the others hear nothing before. */
Test(rank, any_rank)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 2, .rank = GK_RANK_ANY, .workers = 4});
    toy_open(&toy, &rig);
    toy_begun(&toy, 0);
    toy.shards[0].assigns = 3;
    rig_start(&rig);
    rig_up(&rig, 1);
    rig_wait(&rig, 3 * SECOND);
    cr_assert_eq(rig.sent_count, 0);
    rig_up(&rig, 0);
    cr_assert_eq(rig.sent[0].msg.h.rank, GK_RANK_ANY);
    cr_assert_eq(rig.counts[GK_WORKER_RANK], 0);
    toy_serve(&toy);
    cr_assert(rig.counts[GK_WORKER_RANK] == 1 && rig.rank == 3);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(rig_said(&rig, "WORKER-JOINED", "as rank 3 of 4"));
    toy_compute(&toy);
    cr_assert_eq(rig_take(&rig, 1, GK_KIND_PUSH)->h.rank, 3);
    toy_close(&toy);
    rig_close(&rig);
}

/* While this life was away, shard 0 gave its rank to another one: it asks for any again. */
Test(rank, any_rank_again)
{
    static const uint32_t codes[] = {GK_CODE_HELD, GK_CODE_STALE_LIFE};

    for (size_t i = 0; i < 2; i++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.servers = 2, .rank = GK_RANK_ANY, .workers = 4});
        toy_open(&toy, &rig);
        toy.shards[0].assigns = 3;
        rig_start(&rig);
        rig_up(&rig, 0);
        toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_HELLO));
        toy_deliver(&toy);
        cr_assert(rig.counts[GK_WORKER_RANK] == 1 && rig.rank == 3);
        rig_down(&rig, 0);
        rig_forget_sent(&rig);
        rig_up(&rig, 0);
        toy_refuse(&toy, &toy.shards[0], &rig_take(&rig, 0, GK_KIND_HELLO)->h, codes[i], true);
        rig_forget_sent(&rig);
        toy_deliver(&toy);
        toy.shards[0].assigns = 2;
        cr_assert_eq(rig_take(&rig, 0, GK_KIND_HELLO)->h.rank, GK_RANK_ANY);
        cr_assert(!rig.exited);
        toy_close(&toy);
        rig_close(&rig);
    }
}

Test(rank, a_rank_that_cannot_be)
{
    for (uint32_t any = 0; any < 2; any++) {
        struct rig rig;
        struct toy toy;

        rig_open(&rig, (struct rig_options){.rank = any ? GK_RANK_ANY : 1, .workers = 4});
        toy_open(&toy, &rig);
        rig_start(&rig);
        rig_up(&rig, 0);
        toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_HELLO));
        toy.replies[0].msg.h.rank = any ? 4 : 2;
        toy_deliver(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
        cr_assert(strstr(rig.exit_words.text,
                         any ? "welcomes rank 4 of 4 workers" : "welcomes rank 2 of 4 workers"));
        toy_close(&toy);
        rig_close(&rig);
    }
}
