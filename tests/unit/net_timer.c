/* Goal: timers fire once and never early, signals arrive as events, time goes forward, random bytes
 * differ. Method: a loop with a real clock; only lower bounds on time are asserted. */
#include "common/net/clock.h"
#include "common/net/signals.h"
#include "common/net/timer.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <signal.h>
#include <string.h>
#include <unistd.h>

struct state {
    struct gk_timer *timer;
    uint64_t due_us;
    int fired;
    int rounds; /* still to arm from the callback */
    int caught[2];
    struct gk_signals *signals;
};

static void on_fire(void *context)
{
    struct state *state = context;

    cr_assert_geq(gk_now_us(), state->due_us);
    state->fired++;
    if (state->rounds > 0) {
        state->rounds--;
        state->due_us = gk_now_us() + 300 + 700 * (uint64_t)state->rounds % 2500;
        gk_timer_arm(state->timer, state->due_us);
    }
}

Test(net_timer, never_early)
{
    struct state state = {.rounds = 20};
    uv_loop_t loop;

    uv_loop_init(&loop);
    cr_assert_eq(gk_timer_open(&loop, on_fire, &state, &state.timer), GK_OK);
    state.due_us = gk_now_us() + 1500;
    gk_timer_arm(state.timer, state.due_us);
    cr_assert_eq(uv_run(&loop, UV_RUN_DEFAULT), 0); /* ends when nothing is armed any more */
    cr_assert_eq(state.fired, 21);

    gk_timer_arm(state.timer, 1); /* past: at once */
    state.due_us = 1;
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(state.fired, 22);

    gk_timer_arm(state.timer, gk_now_us() + UINT64_C(1000) * 1000 * 1000);
    gk_timer_arm(state.timer, gk_now_us() + 1000); /* the earlier arming is forgotten */
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(state.fired, 23);

    gk_timer_arm(state.timer, gk_now_us() + 1000);
    gk_timer_arm(state.timer, UINT64_MAX);
    uv_run(&loop, UV_RUN_DEFAULT);
    gk_timer_arm(state.timer, gk_now_us() + 1000);
    gk_timer_close(state.timer);
    gk_timer_close(state.timer);
    gk_timer_arm(state.timer, 1); /* after the close: nothing */
    uv_run(&loop, UV_RUN_DEFAULT);
    gk_timer_close(NULL);
    cr_assert_eq(state.fired, 23);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

static void on_signal(void *context, int number)
{
    struct state *state = context;

    state->caught[number == SIGTERM]++;
}

Test(net_timer, signals)
{
    struct state state = {0};
    struct gk_words words;
    uv_loop_t loop;
    int ends[2];

    uv_loop_init(&loop);
    cr_assert_eq(gk_signals_open(&loop, on_signal, &state, &state.signals, &words), GK_OK);
    cr_assert_eq(uv_run(&loop, UV_RUN_DEFAULT), 0); /* they do not keep the loop running */
    cr_assert_eq(gk_timer_open(&loop, on_fire, &state, &state.timer), GK_OK);
    gk_timer_arm(state.timer, gk_now_us() + UINT64_C(1000) * 1000 * 1000); /* keeps it running */
    for (int i = 1; i <= 3; i++) {
        cr_assert_eq(kill(getpid(), SIGTERM), 0);
        cr_assert_eq(kill(getpid(), SIGINT), 0);
        while (state.caught[0] < i || state.caught[1] < i) {
            uv_run(&loop, UV_RUN_ONCE);
        }
    }
    gk_timer_close(state.timer);
    cr_assert_eq(pipe(ends), 0);
    close(ends[0]);
    cr_assert_eq(write(ends[1], "x", 1), -1); /* and not a SIGPIPE */
    close(ends[1]);
    gk_signals_close(state.signals);
    gk_signals_close(state.signals);
    gk_signals_close(NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

Test(net_timer, clock_and_random)
{
    uint64_t last = gk_now_us();
    uint64_t a = 0, b = 0;

    for (int i = 0; i < 1000; i++) {
        uint64_t now = gk_now_us();

        cr_assert_geq(now, last);
        last = now;
    }
    cr_assert_eq(gk_random_bytes(&a, sizeof(a)), GK_OK);
    cr_assert_eq(gk_random_bytes(&b, sizeof(b)), GK_OK);
    cr_assert_neq(a, b);
    cr_assert_eq(gk_random_bytes(&a, 0), GK_OK);
}
