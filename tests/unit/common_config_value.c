/* Goal: texts become values exactly as documented, and nothing that is nearly a value is taken for
 * one.  Method: tables of texts, good and bad, for each type, through a flag. */
#include "config_fixture.h"

#include <criterion/criterion.h>

#include <float.h>
#include <math.h>

TestSuite(config_value, .init = fixture_clear_environment);

static bool accepts(const char *flag, const char *text)
{
    char argument[400];

    (void)snprintf(argument, sizeof(argument), "--%s=%s", flag, text);
    fixture_load(argument);
    if (fixture.err) {
        cr_assert_eq(fixture.err, GK_E_CONFIG);
        cr_assert_eq(fixture.exit, 64);
    }
    return fixture.err == GK_OK;
}

Test(config_value, whole_numbers)
{
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "1e3",
                                      "0x10",
                                      "1k",
                                      "one",
                                      "1_000",
                                      "1,0",
                                      "--1",
                                      "18446744073709551616",
                                      "99999999999999999999999"};

    cr_assert(accepts("steps", "0") && fixture.values.steps == 0);
    cr_assert(accepts("steps", "007") && fixture.values.steps == 7, "decimal, not octal");
    cr_assert(accepts("steps", "18446744073709551615") && fixture.values.steps == UINT64_MAX);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_not(accepts("steps", bad[i]), "'%s'", bad[i]);
    }
}

Test(config_value, ranges_include_their_ends)
{
    cr_assert(accepts("port", "1") && accepts("port", "65535"));
    cr_assert(!accepts("port", "0") && !accepts("port", "65536"));
    cr_assert(accepts("rank", "0") && accepts("rank", "1023") && !accepts("rank", "1024"));
    cr_assert(accepts("density", "0") && accepts("density", "1") && accepts("density", "1.0"));
    cr_assert(!accepts("density", "-0.0001") && !accepts("density", "1.0001"));
    cr_assert(accepts("budget", "1024") && accepts("budget", "1k") && !accepts("budget", "1023"));
    cr_assert(accepts("budget", "1000000000000") && !accepts("budget", "1000000000001"));
}

Test(config_value, bounds_of_large_numbers_are_exact)
{
    static const struct gk_option option = {
        .name = "n", .type = GK_OPTION_UINT, .max = 0x1p60, .help = "N."};
    const struct gk_program program = {
        .name = "x", .usage = "", .options = &option, .options_count = 1};

    fixture_load_array(&program, (const char *const[]){"x", "--n=1152921504606846976", NULL});
    cr_assert_eq(fixture.err, GK_OK);
    fixture_load_array(&program, (const char *const[]){"x", "--n=1152921504606846977", NULL});
    cr_assert_eq(fixture.err, GK_E_CONFIG, "rounded to double it would fit");
}

Test(config_value, lower_bound_alone)
{
    static const struct gk_option option = {
        .name = "n", .type = GK_OPTION_FLOAT, .min = 0.5, .max = (double)INFINITY, .help = "N."};
    const struct gk_program program = {
        .name = "x", .usage = "", .options = &option, .options_count = 1};

    fixture_load_array(&program, (const char *const[]){"x", "--n=1e300", NULL});
    cr_assert_eq(fixture.err, GK_OK);
    fixture_load_array(&program, (const char *const[]){"x", "--n=0.25", NULL});
    fixture_expect_error(64, "--n: '0.25' is not a number from 0.5 up");
}

Test(config_value, bytes)
{
    static const struct gk_option option = {.name = "n", .type = GK_OPTION_BYTES, .help = "N."};
    const struct gk_program program = {
        .name = "x", .usage = "", .options = &option, .options_count = 1};
    static const struct {
        const char *text;
        uint64_t expected; /* UINT64_MAX - 1: refused */
    } cases[] = {
        {"0", 0},
        {"1", 1},
        {"1k", 1024},
        {"1K", 1024},
        {"3m", 3 << 20},
        {"3M", 3 << 20},
        {"5g", UINT64_C(5) << 30},
        {"5G", UINT64_C(5) << 30},
        {"18446744073709551615", UINT64_MAX},
        {"17179869183G", UINT64_C(17179869183) << 30},
        {"17179869184G", UINT64_MAX - 1},
        {"18446744073709551616", UINT64_MAX - 1},
        {"", UINT64_MAX - 1},
        {"k", UINT64_MAX - 1},
        {"1kB", UINT64_MAX - 1},
        {"1kk", UINT64_MAX - 1},
        {"1 k", UINT64_MAX - 1},
        {"1.5k", UINT64_MAX - 1},
        {"-1k", UINT64_MAX - 1},
        {"1T", UINT64_MAX - 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char argument[64];
        uint64_t value;

        (void)snprintf(argument, sizeof(argument), "--n=%s", cases[i].text);
        fixture_load_array(&program, (const char *const[]){"x", argument, NULL});
        memcpy(&value, &fixture.values, sizeof(value));
        cr_assert_eq(fixture.err == GK_OK, cases[i].expected != UINT64_MAX - 1, "'%s'",
                     cases[i].text);
        cr_assert(fixture.err || value == cases[i].expected, "'%s'", cases[i].text);
    }
}

Test(config_value, numbers)
{
    static const struct {
        const char *text;
        double expected;
    } good[] = {
        {"0", 0},       {"-1", -1},    {"+1", 1},
        {".5", 0.5},    {"5.", 5},     {"1e3", 1000},
        {"1E-3", 1e-3}, {"1e-400", 0}, {"1.7976931348623157e308", DBL_MAX},
    };
    static const char *const bad[] = {"",    " 1",   "1 ",    "x",   "1x",      "0x1p3", "inf",
                                      "nan", "-inf", "1e999", "1,5", "1e",      "e1",    "--1",
                                      ".",   "+",    "1k",    "1%",  "infinity"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_assert(accepts("shift", good[i].text), "'%s'", good[i].text);
        cr_assert(fixture.values.shift >= good[i].expected &&
                      fixture.values.shift <= good[i].expected,
                  "'%s'", good[i].text);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_not(accepts("shift", bad[i]), "'%s'", bad[i]);
    }
}

Test(config_value, booleans)
{
    static const char *const bad[] = {"",   "True",  "TRUE",  "t",     "y",  "2",
                                      "01", " true", "true ", "truee", "tru"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_not(accepts("check", bad[i]), "'%s'", bad[i]);
    }
}

Test(config_value, choices)
{
    static const char *const bad[] = {"", "|", "bsp|ssp", "bs", "bspp", "BSP", " bsp", "sp", "0"};

    cr_assert(accepts("mode", "bsp") && fixture.values.mode == 0);
    cr_assert(accepts("mode", "ssp") && fixture.values.mode == 1);
    cr_assert(accepts("mode", "asp") && fixture.values.mode == 2);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_not(accepts("mode", bad[i]), "'%s'", bad[i]);
    }
}
