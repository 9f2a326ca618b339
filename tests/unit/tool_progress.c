/* Goal: the bar fits the terminal, the rate and the time left are right, and a log is not flooded.
 * Method: invented clocks; every width; runs of a second, an hour and one that stalls. */
#include "tool/progress.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#define S UINT64_C(1000000)

static struct gk_progress progress;
static char text[GK_PROGRESS_BYTES];

Test(progress, says_what_it_knows)
{
    gk_progress_init(&progress, 1000, 5 * S);
    gk_progress_line(&progress, 5 * S, text, sizeof(text));
    cr_assert_str_eq(text, "step 0/1000 (0 %)");
    gk_progress_set(&progress, 100, 0.5, 6 * S);
    gk_progress_line(&progress, 6 * S, text, sizeof(text));
    cr_assert_str_eq(text, "step 100/1000 (10 %)  loss 0.5");
    progress.accuracy = 0.961;
    gk_progress_set(&progress, 300, NAN, 7 * S); /* keeps the last loss that is known */
    gk_progress_line(&progress, 7 * S, text, sizeof(text));
    cr_assert_str_eq(text,
                     "step 300/1000 (30 %)  loss 0.5  accuracy 96.10 %  200 steps/s  3.5 s left");
    gk_progress_set(&progress, 5000, 0.25, 8 * S);
    gk_progress_line(&progress, 8 * S, text, sizeof(text));
    cr_assert_str_eq(text, "step 1000/1000 (100 %)  loss 0.25  accuracy 96.10 %  450 steps/s");
}

Test(progress, nobody_knows_how_many_there_will_be)
{
    gk_progress_init(&progress, 0, 0);
    gk_progress_set(&progress, 100, 0.5, S);
    cr_assert(gk_progress_line_due(&progress, S), "the first one");
    gk_progress_set(&progress, 300, NAN, 2 * S);
    cr_assert(!gk_progress_line_due(&progress, 2 * S));
    cr_assert(gk_progress_line_due(&progress, 3 * S + 1), "two seconds");
    gk_progress_line(&progress, 2 * S, text, sizeof(text));
    cr_assert_str_eq(text, "step 300  loss 0.5  200 steps/s");
    gk_progress_bar(&progress, 2 * S, 79, text, sizeof(text));
    cr_assert_str_eq(text, "step 300  loss 0.5  200 steps/s");
}

Test(progress, late_reports_change_nothing)
{
    gk_progress_init(&progress, 10, 0);
    gk_progress_set(&progress, 7, 1.0, S);
    gk_progress_set(&progress, 3, 1.0, 2 * S);
    cr_assert_eq(progress.step, 7);
    cr_assert_eq(progress.change_us, S);
}

Test(progress, rate_is_of_late_and_falls_in_silence)
{
    uint64_t now = 0;
    double rate;

    gk_progress_init(&progress, 1000000, 0);
    cr_assert(isnan(gk_progress_rate(&progress, 0)));
    for (uint64_t step = 1; step <= 100; step++) { /* ten a second ... */
        now += S / 10;
        gk_progress_set(&progress, step, 1.0, now);
    }
    cr_assert_float_eq(gk_progress_rate(&progress, now), 10.0, 0.01);
    for (uint64_t step = 101; step <= 20100;
         step++) { /* ... then a thousand, for longer than the window */
        now += S / 1000;
        gk_progress_set(&progress, step, 1.0, now);
    }
    rate = gk_progress_rate(&progress, now);
    cr_assert_float_eq(rate, 1000.0, 1.0, "%g", rate);
    cr_assert_float_eq(gk_progress_rate(&progress, now + S), rate, 0.001);
    cr_assert_lt(gk_progress_rate(&progress, now + 60 * S), rate / 5);
}

Test(progress, bar_never_exceeds_its_columns)
{
    gk_progress_init(&progress, 123456789, 0);
    progress.accuracy = 0.5;
    gk_progress_set(&progress, 1000, 1.25, S);
    gk_progress_set(&progress, 61728394, 1.25, 2 * S);
    for (unsigned columns = 0; columns < 400; columns++) {
        gk_progress_bar(&progress, 2 * S, columns, text, sizeof(text));
        cr_assert_leq(strlen(text), columns, "%u columns", columns);
    }
    gk_progress_bar(&progress, 2 * S, 120, text, sizeof(text));
    cr_assert_not_null(strstr(text, "step 61728394/123456789  49 % [##"), "%s", text);
    cr_assert_not_null(strstr(text, "left"));
}

Test(progress, bar_fills)
{
    gk_progress_init(&progress, 4, 0);
    gk_progress_bar(&progress, 0, 60, text, sizeof(text));
    cr_assert_str_eq(text, "step 0/4   0 % [........................................]");
    gk_progress_set(&progress, 1, NAN, S);
    gk_progress_bar(&progress, S, 60, text, sizeof(text));
    cr_assert_str_eq(text, "step 1/4  25 % [##########..............................]");
    gk_progress_set(&progress, 4, NAN, S);
    gk_progress_bar(&progress, S, 60, text, sizeof(text));
    cr_assert_str_eq(text, "step 4/4 100 % [########################################]");
}

static unsigned count_lines(uint64_t steps, uint64_t step_us)
{
    unsigned lines = 0;
    uint64_t now = S;

    gk_progress_init(&progress, steps, now);
    for (uint64_t step = 1; step <= steps; step++) {
        now += step_us;
        gk_progress_set(&progress, step, 1.0, now);
        lines += gk_progress_line_due(&progress, now);
        cr_assert(!gk_progress_line_due(&progress, now)); /* nothing new since */
    }
    return lines;
}

Test(progress, lines_are_few)
{
    cr_assert_eq(count_lines(1000, 1000), 10);      /* a second: each tenth */
    cr_assert_eq(count_lines(3, 1000), 3);          /* fewer steps than tenths */
    cr_assert_eq(count_lines(10, 10 * S), 10);      /* slow steps: each */
    cr_assert_leq(count_lines(36000, 100000), 150); /* an hour: not 1800 */
    cr_assert_geq(count_lines(36000, 100000), 60);  /* but a sign of life each minute */
}
