/* Goal: a socket under the loop must not go deaf when sends swallow the signals of replies.
 * Method: a timer sends a request, busy for `gap`, sends another; an echo thread replies.  With a
 * gap of some milliseconds a wrong integration reads nothing at all, on any machine; with shorter
 * gaps it depends on the load. All replies must be in within PATIENCE after the last request, with
 * nothing but them to wake the loop. Prints "DEAF" and exits 1 in the first round where they are
 * not.  Linked twice: net_gap must pass, and its canary with the naive integration must print DEAF.
 */
#include "tests/net/dealer.h"
#include "tests/net/echo.h"

#include "common/net/clock.h"

#include <uv.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

enum {
    CALLBACKS = 20, /* a round */
    INTERVAL_MS = 20,
    PATIENCE_MS = 3000,
};

struct round {
    struct dealer *dealer;
    uv_timer_t timer;
    uv_timer_t limit;
    uint64_t gap_us;
    uint32_t callbacks;
    uint64_t requests;
    bool late;
};

/* The gap is the stimulus: the time a worker spends between its sends to two shards. */
static void be_busy(uint64_t gap_us)
{
    uint64_t end_us = gk_now_us() + gap_us;

    while (gk_now_us() < end_us) {
    }
}

static void on_limit(uv_timer_t *timer)
{
    ((struct round *)timer->data)->late = true;
}

static void on_timer(uv_timer_t *timer)
{
    struct round *round = timer->data;

    dealer_send(round->dealer);
    be_busy(round->gap_us);
    dealer_send(round->dealer);
    round->requests += 2;
    round->callbacks++;
    if (round->callbacks == CALLBACKS) {
        (void)uv_timer_stop(timer);
        (void)uv_timer_start(&round->limit, on_limit, PATIENCE_MS, 0);
    }
}

/* True when every reply came. */
static bool run_round(uv_loop_t *loop, const char *address, uint64_t gap_us)
{
    struct round round = {.gap_us = gap_us};
    uint64_t replies;

    round.dealer = dealer_open(loop, address);
    (void)uv_timer_init(loop, &round.timer);
    (void)uv_timer_init(loop, &round.limit);
    round.timer.data = &round;
    round.limit.data = &round;
    (void)uv_timer_start(&round.timer, on_timer, INTERVAL_MS, INTERVAL_MS);
    while (!round.late &&
           (round.callbacks < CALLBACKS || dealer_replies(round.dealer) < round.requests)) {
        (void)uv_run(loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&round.timer, NULL);
    uv_close((uv_handle_t *)&round.limit, NULL);
    replies = dealer_replies(round.dealer);
    (void)printf("gap %" PRIu64 " us: %" PRIu64 " of %" PRIu64 " replies\n", gap_us, replies,
                 round.requests);
    dealer_close(round.dealer);
    if (replies < round.requests) {
        (void)printf("DEAF\n");
    }
    return replies == round.requests;
}

int main(void)
{
    static const uint64_t gaps_us[] = {3000, 0, 1500, 200, 3000, 6000};
    struct echo *echo = echo_start();
    bool good = true;
    uv_loop_t loop;

    if (uv_loop_init(&loop) != 0) {
        return 2;
    }
    for (size_t i = 0; good && i < sizeof(gaps_us) / sizeof(gaps_us[0]); i++) {
        good = run_round(&loop, echo_address(echo), gaps_us[i]);
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    echo_stop(echo);
    return uv_loop_close(&loop) == 0 && good ? 0 : 1;
}
