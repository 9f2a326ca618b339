/* Goal: a child that dies is started again after waits that double up to a bound, a limited number
 * of times in a row; what another life cannot cure is not tried.  Method: invented clocks; all exit
 * codes. */
#include "common/exit.h"
#include "tool/restart.h"

#include <criterion/criterion.h>

#include <signal.h>

static struct gk_restart restart;

/* A life of this length, and the wait for the next one; 0: there is none. */
static uint64_t live(uint64_t *now_us, uint64_t length_us)
{
    uint64_t ended_us = *now_us + length_us;

    gk_restart_begin(&restart, *now_us);
    *now_us = ended_us;
    if (!gk_restart_plan(&restart, ended_us)) {
        return 0;
    }
    *now_us = restart.due_us;
    return restart.due_us - ended_us;
}

Test(restart, waits_double_up_to_a_bound)
{
    static const uint64_t wanted_ms[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000, 0};
    uint64_t now_us = 1;

    for (size_t i = 0; i < sizeof(wanted_ms) / sizeof(wanted_ms[0]); i++) {
        cr_assert_eq(live(&now_us, 1000 * 1000), wanted_ms[i] * 1000, "life %zu", i);
    }
    cr_assert_eq(restart.count, GK_RESTARTS_MAX);
    cr_assert_eq(restart.row, GK_RESTARTS_MAX);
}

Test(restart, a_long_life_ends_the_row)
{
    uint64_t now_us = 1;

    for (uint32_t i = 0; i < 5 * GK_RESTARTS_MAX; i++) {
        cr_assert_eq(live(&now_us, i % GK_RESTARTS_MAX == 0 ? GK_RESTART_ROW_US : 0) > 0, true);
    }
    cr_assert_eq(live(&now_us, GK_RESTART_ROW_US - 1), 0);
}

Test(restart, due_and_cancelled)
{
    gk_restart_begin(&restart, 5);
    cr_assert(!gk_restart_is_due(&restart, UINT64_MAX));
    cr_assert(gk_restart_plan(&restart, 10));
    cr_assert(!gk_restart_is_due(&restart, 10 + GK_RESTART_US_MIN - 1));
    cr_assert(gk_restart_is_due(&restart, 10 + GK_RESTART_US_MIN));
    gk_restart_cancel(&restart);
    cr_assert(!gk_restart_is_due(&restart, UINT64_MAX));
    gk_restart_begin(&restart, 20);
    cr_assert_eq(restart.count, 0); /* what was cancelled did not happen */
}

Test(restart, some_ends_are_final)
{
    for (int code = 0; code < 256; code++) {
        bool final = code == GK_EXIT_USAGE || code == GK_EXIT_DATA || code == GK_EXIT_PEER ||
                     code == GK_EXIT_REFUSED || code == GK_EXIT_CONFIG;

        cr_assert_eq(gk_restart_is_futile(code, 0), final, "code %d", code);
    }
    cr_assert(!gk_restart_is_futile(0, SIGKILL));
    cr_assert(!gk_restart_is_futile(GK_EXIT_CONFIG, SIGSEGV)); /* a killed process has no code */
}
