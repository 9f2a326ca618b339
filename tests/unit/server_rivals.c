/* Goal: two processes that want one rank end up as one, and no rank is given away that somebody
 * has. Method: the shard alone, HELLOs of several lives in different orders and at different times.
 */
#include "server_job.h"

/* Asks for rank 1 once a second for `seconds`, while the holder pings; the last answer counts. */
static void ask(struct rig *rig, uint32_t life, uint64_t life_nonce, uint32_t slot,
                uint32_t seconds)
{
    for (uint32_t i = 0; i <= seconds; i++) {
        struct gk_msg msg = rig_hello_msg(rig, 1, life);
        struct gk_msg ping = rig_msg(rig, GK_KIND_PING, 1);

        rig_send(rig, rig_route(1, 1), &ping);
        msg = rig_hello_msg(rig, 1, life);
        msg.body.hello.life_nonce = life_nonce;
        msg.body.hello.slot = slot;
        rig_say_hello(rig, 1, life, &msg);
        rig->now_us += GK_PING_US;
    }
}

/* Two processes of one rank that both still join must not each hold some shards for ever: the same
 * one wins everywhere, by its slot, then by its nonce, whoever came first; but not by one message.
 */
Test(server_rivals, joining_lives_do_not_block_each_other)
{
    struct rig *rig = rig_running(2);

    ask(rig, 2, 3000, GK_SLOT_NONE, 3); /* a greater nonce than life 1 */
    cr_code(rig, GK_CODE_HELD);
    ask(rig, 2, 3000, GK_SLOT_NONE, 1);
    cr_kind(rig, GK_KIND_WELCOME);
    ask(rig, 3, 1, GK_SLOT_NONE, 10); /* a smaller one */
    cr_code(rig, GK_CODE_HELD);
    ask(rig, 3, 1, GK_SLOT_STEP, 4);
    cr_kind(rig, GK_KIND_WELCOME);
    ask(rig, 4, 5000, GK_SLOT_NONE, 10);
    cr_code(rig, GK_CODE_HELD);
    rig_free(rig);
}

/* Three ask: the one that comes after the best of them waits, until that one is silent. */
Test(server_rivals, rivals)
{
    struct rig *rig = rig_running(2);

    ask(rig, 2, 5000, GK_SLOT_NONE, 2);
    ask(rig, 3, 4000, GK_SLOT_NONE, 1);
    cr_code(rig, GK_CODE_HELD);
    ask(rig, 3, 4000, GK_SLOT_NONE, 4);
    cr_code(rig, GK_CODE_HELD);
    ask(rig, 3, 4000, GK_SLOT_NONE, 0);
    cr_kind(rig, GK_KIND_WELCOME);
    rig_free(rig);
}

/* An older life hears that it is one, not that a living process holds its rank: it must exit. */
Test(server_rivals, older_life_is_not_told_to_wait)
{
    struct rig *rig = rig_running(2);

    rig_pull(rig, 1, 1);
    rig_tick(rig, GK_HELD_US + 1);
    rig_hello(rig, 1, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    rig_hello(rig, 1, 1);
    cr_code(rig, GK_CODE_STALE_LIFE);
    cr_assert_eq(rig_last(rig)->msg.h.incarnation, 2);
    rig_free(rig);
}

static void hello_any(struct rig *rig, uint32_t life)
{
    struct gk_msg msg = rig_hello_msg(rig, 7, life);

    msg.h.rank = GK_RANK_ANY;
    rig_say_hello(rig, 7, life, &msg);
}

/* What a new life of the shard has not heard yet may live all the same. */
Test(server_rivals, a_restart_gives_no_rank_away)
{
    struct rig *rig = rig_running(2);

    rig->now_us += GK_PING_US;
    rig_restart(rig);
    hello_any(rig, 2);
    cr_code(rig, GK_CODE_HELD);
    rig_tick(rig, GK_HELD_US);
    rig_hello(rig, 0, 1);
    hello_any(rig, 2);
    cr_code(rig, GK_CODE_HELD);
    rig->now_us++;
    hello_any(rig, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert_eq(rig_last(rig)->msg.h.rank, 1);
    rig_free(rig);
}

/* A process that asks for its rank by number gets it before one that takes any. */
Test(server_rivals, a_wanted_rank_is_not_given_away)
{
    struct rig *rig = rig_running(2);

    rig_pull(rig, 1, 1);
    rig_tick(rig, GK_HELD_US);
    rig_ping(rig, 0, 1);
    rig_hello(rig, 1, 2);
    cr_code(rig, GK_CODE_HELD);
    rig->now_us++;
    hello_any(rig, 3);
    cr_code(rig, GK_CODE_HELD);
    rig_hello(rig, 1, 2);
    cr_kind(rig, GK_KIND_WELCOME);
    rig_free(rig);
}

/* An orphan's number is told to the life that inherits its rank. */
Test(server_rivals, any_rank_learns_the_incarnation)
{
    struct rig *rig = rig_running(2);

    rig_tick(rig, GK_HELD_US + 1);
    rig_ping(rig, 0, 1);
    hello_any(rig, 1);
    cr_code(rig, GK_CODE_STALE_LIFE);
    cr_assert_eq(rig_last(rig)->msg.h.incarnation, 1);
    cr_assert(rig_retryable(rig));
    rig_free(rig);
}
