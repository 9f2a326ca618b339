/* Goal: the command line is understood as documented, and every mistake in it gets its own words
 * and exit 64. Method: command lines with the exact words they must give. */
#include "config_fixture.h"

#include <criterion/criterion.h>

TestSuite(config_flags, .init = fixture_clear_environment);

Test(config_flags, both_notations)
{
    fixture_load("--rank=3", "--port", "5", "--job=a=b");
    cr_assert_eq(fixture.err, GK_OK, "%s", fixture.words.text);
    cr_assert_eq(fixture.values.rank, 3);
    cr_assert_eq(fixture.values.port, 5);
    cr_assert_str_eq(fixture.values.job, "a=b");
}

Test(config_flags, booleans)
{
    static const struct {
        const char *flag;
        bool expected;
    } cases[] = {
        {"--check", true},        {"--no-check", false}, {"--check=true", true},
        {"--check=off", false},   {"--check=1", true},   {"--check=0", false},
        {"--check=yes", true},    {"--check=no", false}, {"--check=on", true},
        {"--check=false", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_load(cases[i].flag);
        fixture_expect_source("check", "flag");
        cr_assert_eq(fixture.values.check, cases[i].expected, "%s", cases[i].flag);
        cr_assert_str_eq(gk_config_text(fixture.config, "check"),
                         cases[i].expected ? "true" : "false");
    }
    fixture_load("--check", "--no-check", "--verbose", "--no-verbose", "--verbose");
    cr_assert_not(fixture.values.check, "the last one counts");
    cr_assert(fixture.values.verbose);
}

Test(config_flags, the_last_one_counts)
{
    fixture_load("--rank=x", "--rank", "2", "--rank=3");
    cr_assert_eq(fixture.err, GK_OK, "%s", fixture.words.text);
    cr_assert_eq(fixture.values.rank, 3);
}

Test(config_flags, positional_arguments)
{
    const char *const *arguments;

    fixture_load("a", "--rank", "3", "-");
    cr_assert_eq(gk_config_positional(fixture.config, &arguments), 2);
    cr_assert_str_eq(arguments[0], "a");
    cr_assert_str_eq(arguments[1], "-");
    fixture_load("--rank=3", "--", "--rank", "-x");
    cr_assert_eq(gk_config_positional(fixture.config, &arguments), 2);
    cr_assert_str_eq(arguments[0], "--rank");
    cr_assert_str_eq(arguments[1], "-x");
    fixture_load("--");
    cr_assert_eq(gk_config_positional(fixture.config, &arguments), 0);
    fixture_load("--", "--");
    cr_assert_eq(gk_config_positional(fixture.config, &arguments), 1);
    fixture_load("a", "");
    cr_assert_eq(gk_config_positional(fixture.config, &arguments), 2);
    fixture_load("a", "b", "c");
    fixture_expect_error(64, "unexpected argument 'c'; --help shows the usage");
}

Test(config_flags, a_command_is_taken_as_it_is)
{
    static const struct gk_option options[] = {
        {.name = "rank", .type = GK_OPTION_UINT, .help = "Rank.", .argument = "N"}};
    const struct gk_program program = {
        .name = "x", .usage = "", .options = options, .options_count = 1, .command = true};
    static char *lines[][6] = {{(char *)"x", (char *)"--rank=1", (char *)"--", (char *)"--rank=2",
                                (char *)"--", (char *)"-q"},
                               {(char *)"x", (char *)"--rank", (char *)"1"},
                               {(char *)"x", (char *)"--"}};
    struct gk_config_args args = {
        .program = &program, .values_bytes = sizeof(uint64_t), .argv = lines[0], .argc = 6};
    uint64_t rank = 0;
    struct gk_config *config;
    struct gk_words words;
    char *const *command;
    int code;

    args.values = &rank;
    cr_assert_eq(gk_config_load(&args, &config, &code, &words), GK_OK, "%s", words.text);
    cr_assert_eq(rank, 1);
    cr_assert_eq(gk_config_command(config, &command), 3);
    cr_assert(command == lines[0] + 3);
    gk_config_free(config);
    args.argv = lines[1];
    args.argc = 3;
    cr_assert_eq(gk_config_load(&args, &config, &code, &words), GK_OK, "%s", words.text);
    cr_assert_eq(gk_config_command(config, &command), 0);
    gk_config_free(config);
    args.argv = lines[2];
    args.argc = 2;
    cr_assert_eq(gk_config_load(&args, &config, &code, &words), GK_E_CONFIG);
    cr_assert_eq(code, 64);
    cr_assert_str_eq(words.text, "a command must follow behind --");
}

Test(config_flags, negative_numbers_are_values)
{
    fixture_load("--shift", "-2.5");
    cr_assert_eq(fixture.err, GK_OK, "%s", fixture.words.text);
    cr_assert(fixture.values.shift < -2.4);
}

Test(config_flags, words_of_mistakes)
{
    static const struct {
        const char *arguments[3];
        const char *words;
    } cases[] = {
        {{"--desnity", "3"}, "unknown flag --desnity; did you mean --density?"},
        {{"--desnity=3"}, "unknown flag --desnity; did you mean --density?"},
        {{"--log_format=json"}, "unknown flag --log_format; did you mean --log-format?"},
        {{"--no-verbos"}, "unknown flag --no-verbos; did you mean --no-verbose?"},
        {{"--no-rank"}, "unknown flag --no-rank; --help lists all"},
        {{"--hlep"}, "unknown flag --hlep; did you mean --help?"},
        {{"--printconfig"}, "unknown flag --printconfig; did you mean --print-config?"},
        {{"--something-else"}, "unknown flag --something-else; --help lists all"},
        {{"--"
          "0123456789012345678901234567890123456789012345678901234567890123456789"},
         "unknown flag --0123456789012345678901234567890123456789012345678901234567\u2026; "
         "--help lists all"},
        {{"-rank"}, "unknown flag -rank; did you mean --rank?"},
        {{"-v"}, "unknown flag -v; --help lists all"},
        {{"--="}, "unknown flag --; --help lists all"},
        {{"--=x"}, "unknown flag --; --help lists all"},
        {{"---"}, "unknown flag ---; --help lists all"},
        {{"--rank"}, "--rank needs a value: --rank N"},
        {{"--job", "--rank", "3"},
         "--job needs a value but '--rank' follows; a value like that is given as --job=--rank"},
        {{"--config"}, "--config needs a value: --config FILE"},
        {{"--config="}, "--config needs the name of a file"},
        {{"--help=x"}, "--help takes no value"},
        {{"--print-config=1"}, "--print-config takes no value"},
        {{"--no-check=true"}, "--no-check takes no value"},
        {{"--check="},
         "--check: the value is empty; it must be true or false (or yes, no, on, off, 1, 0)"},
        {{"--check=maybe"}, "--check: 'maybe' is not true or false (or yes, no, on, off, 1, 0)"},
        {{"--rank="}, "--rank: the value is empty; it must be a whole number from 0 to 1023"},
        {{"--mode=BSP"}, "--mode: 'BSP' is not bsp, ssp or asp"},
        {{"--log-format", "xml"}, "--log-format: 'xml' is not text or json"},
        {{"--job=x", "--density=1.5"}, "--density: '1.5' is not a number from 0 to 1"},
        {{"--budget=1000"},
         "--budget: '1000' is not a number of bytes (k, M, G: powers of 1024) from 1024 to "
         "1000000000000"},
        {{"--steps=1e6"}, "--steps: '1e6' is not a whole number"},
        {{"--port=\n"}, "--port: '?' is not a whole number from 1 to 65535"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_load(cases[i].arguments[0], cases[i].arguments[1], cases[i].arguments[2]);
        fixture_expect_error(64, cases[i].words);
    }
}

Test(config_flags, long_values_are_quoted_in_part)
{
    char flag[2000] = "--rank=";

    memset(flag + 7, '1', sizeof(flag) - 8);
    fixture_load(flag);
    fixture_expect_error(
        64, "--rank: '111111111111111111111111111111111111111111111111111111111111\u2026' is not a "
            "whole number from 0 to 1023");
}

Test(config_flags, no_arguments_at_all)
{
    fixture_load_array(&fixture_program, (const char *const[]){NULL});
    cr_assert_eq(fixture.err, GK_OK);
}
