/* The learning rate of a round, where the ranks bring one (LR_FROM_CLIENT): all of them the same,
 * bit for bit, or all of them none.
 *
 * Ranks that differ are different programs, and no rate would be right.  So nothing is committed:
 * the shard names two of them, answers whoever pushes or pulls with the reason, for a bounded time,
 * and ends.  LOST pushes are of no step that anybody computed and have no say. */
#include "common/bits.h"
#include "common/exit.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <stdio.h>

enum { RATE_BYTES = 64 };

static void say_rate(const struct gk_push_slot *push, char ret[RATE_BYTES])
{
    if (push->has_rate) { /* nine digits tell any two floats apart */
        (void)snprintf(ret, RATE_BYTES, "%.9g", (double)gk_bits_float(push->lr_bits));
    } else {
        (void)snprintf(ret, RATE_BYTES, "none, for the schedule's");
    }
}

static void begin_dispute(struct gk_server *server, uint32_t a, uint32_t b)
{
    struct gk_dispute *dispute = &server->live.dispute;
    char rate_a[RATE_BYTES], rate_b[RATE_BYTES];

    say_rate(&server->live.members[a].push, rate_a);
    say_rate(&server->live.members[b].push, rate_b);
    dispute->begun = true;
    dispute->until_us = server->now_us + GK_LINGER_US;
    gk_words_set(
        &dispute->words,
        "the ranks want different learning rates for step %" PRIu64 ": rank %" PRIu32
        " pushes %s, rank %" PRIu32
        " pushes %s. Make them agree, and begin anew from a checkpoint; state directories of "
        "workers hold these pushes",
        server->image->version, a, rate_a, b, rate_b);
    gk_server_trace(server, GK_LOG_ERROR, "SERVER-RATES-DIFFER", "%s", dispute->words.text);
    gk_server_pull_serve(server);
}

bool gk_server_rates_agree(struct gk_server *server)
{
    struct gk_round *round = &server->live.round;
    const struct gk_push_slot *first = NULL;
    uint32_t first_rank = 0;

    round->has_rate = false;
    round->lr_bits = 0;
    for (uint32_t i = 0; i < round->contributions_count; i++) {
        uint32_t rank = round->contributions[i].rank;
        const struct gk_push_slot *push = &server->live.members[rank].push;

        if (push->lost) {
            continue;
        }
        if (!first) {
            first = push;
            first_rank = rank;
        } else if (push->has_rate != first->has_rate || push->lr_bits != first->lr_bits) {
            begin_dispute(server, first_rank, rank);
            return false;
        }
    }
    if (first) {
        round->has_rate = first->has_rate;
        round->lr_bits = first->lr_bits;
    }
    return true;
}

/* True: the request was answered with the reason why nothing goes on. */
bool gk_server_rates_refuse(struct gk_server *server, uint32_t rank, uint64_t req_id)
{
    const struct gk_dispute *dispute = &server->live.dispute;

    if (dispute->begun) {
        gk_server_nack(server, rank, req_id, GK_CODE_RATES_DIFFER, false, dispute->words.text);
    }
    return dispute->begun;
}

void gk_server_rates_watch(struct gk_server *server)
{
    const struct gk_dispute *dispute = &server->live.dispute;

    if (dispute->begun && server->live.state == GK_SHARD_RUNNING &&
        server->now_us >= dispute->until_us) {
        gk_server_exit(server, GK_EXIT_DATA, "SERVER-RATES-DIFFER", dispute->words.text);
    }
}
