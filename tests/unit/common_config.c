/* Goal: each value comes from the place that has precedence and says so, and what is printed is
 * what is in force. Method: one program with an option of every type, loaded with every combination
 * of places; the printed texts are read back from a file that stands in for stdout. */
#include "config_fixture.h"

#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>

static void enter(void)
{
    fixture_clear_environment();
    fixture_enter_folder();
}

TestSuite(config, .init = enter, .fini = fixture_leave_folder);

Test(config, defaults)
{
    fixture_load_nothing();
    cr_assert_eq(fixture.err, GK_OK);
    cr_assert_eq(fixture.exit, 0);
    cr_assert_str_eq(fixture.values.job, "default");
    cr_assert_null(fixture.values.state_dir);
    cr_assert_eq(fixture.values.rank, 0);
    cr_assert_eq(fixture.values.port, 7777);
    cr_assert_eq(fixture.values.budget, 65536);
    cr_assert(fixture.values.density >= 0.001 && fixture.values.density <= 0.001);
    cr_assert(fixture.values.shift >= 0 && fixture.values.shift <= 0);
    cr_assert_not(fixture.values.verbose);
    cr_assert(fixture.values.check);
    cr_assert_eq(fixture.values.log_format, 0);
    for (size_t i = 0; i < FIXTURE_OPTIONS; i++) {
        fixture_expect_source(fixture_options[i].name, "default");
    }
    fixture_expect_source("config", "default");
    cr_assert_null(gk_config_text(fixture.config, "state-dir"));
    cr_assert_null(gk_config_text(fixture.config, "config"));
    cr_assert_str_eq(gk_config_text(fixture.config, "budget"), "64k");
    cr_assert_str_eq(gk_config_text(fixture.config, "check"), "true",
                     "not \"yes\": what a launcher passes on");
}

/* Every subset of the five places; the highest that is there must win. */
Test(config, precedence)
{
    enum { FLAG = 1, OWN = 2, FIRST = 4, SECOND = 8, FILED = 16, ALL = 32 };

    fixture_write("# a comment\nrank: 5\n", 20);
    for (unsigned places = 0; places < ALL; places++) {
        uint64_t expected = 0;
        const char *source = "default";

        fixture_clear_environment();
        if (places & FILED) {
            setenv("GKPS_CONFIG", "job.yaml", 1);
            expected = 5;
            source = "job.yaml:2";
        }
        if (places & SECOND) {
            setenv("SLURM_PROCID", "4", 1);
            expected = 4;
            source = "SLURM_PROCID";
        }
        if (places & FIRST) {
            setenv("RANK", "3", 1);
            expected = 3;
            source = "RANK";
        }
        if (places & OWN) {
            setenv("GKPS_RANK", "2", 1);
            expected = 2;
            source = "GKPS_RANK";
        }
        if (places & FLAG) {
            fixture_load("--rank", "1");
            expected = 1;
            source = "flag";
        } else {
            fixture_load_nothing();
        }
        fixture_expect_source("rank", source);
        cr_assert_eq(fixture.values.rank, expected, "places %u", places);
        fixture_expect_source("config", places & FILED ? "GKPS_CONFIG" : "default");
    }
}

Test(config, every_type_from_every_place)
{
    static const char file[] =
        "job: f\nstate-dir: /f\nport: 3\nbudget: 3k\ndensity: 0.375\nshift: -3.5e2\nverbose: on\n"
        "log-format: json\nmode: asp\n";
    static const char *const flags[] = {"gkps-test", "--job=f",  "--state-dir", "/f",
                                        "--port=3",  "--budget", "3k",          "--density=0.375",
                                        "--shift",   "-3.5e2",   "--verbose",   "--log-format=json",
                                        "--mode",    "asp",      NULL};

    for (int place = 0; place < 3; place++) {
        if (place == 0) {
            fixture_load_array(&fixture_program, flags);
        } else if (place == 1) {
            fixture_load_text(file);
        } else {
            setenv("GKPS_JOB", "f", 1);
            setenv("GKPS_STATE_DIR", "/f", 1);
            setenv("GKPS_PORT", "3", 1);
            setenv("GKPS_BUDGET", "3k", 1);
            setenv("GKPS_DENSITY", "0.375", 1);
            setenv("GKPS_SHIFT", "-3.5e2", 1);
            setenv("GKPS_VERBOSE", "1", 1);
            setenv("GKPS_LOG_FORMAT", "json", 1);
            setenv("GKPS_MODE", "asp", 1);
            fixture_load_nothing();
        }
        cr_assert_eq(fixture.err, GK_OK, "%s", fixture.words.text);
        cr_assert_str_eq(fixture.values.job, "f");
        cr_assert_str_eq(fixture.values.state_dir, "/f");
        cr_assert_eq(fixture.values.port, 3);
        cr_assert_eq(fixture.values.budget, 3072);
        cr_assert(fixture.values.density >= 0.375 && fixture.values.density <= 0.375);
        cr_assert(fixture.values.shift >= -350 && fixture.values.shift <= -350);
        cr_assert(fixture.values.verbose);
        cr_assert_eq(fixture.values.log_format, 1);
        cr_assert_eq(fixture.values.mode, 2);
        cr_assert_str_eq(gk_config_text(fixture.config, "verbose"), "true");
    }
}

/* A value that is refused later is blamed on the place it came from, as the loader would. */
Test(config, blame)
{
    static const struct {
        const char *variable, *words;
        int exit;
    } cases[] = {
        {NULL, "job.yaml:2: rank: too high", 78},
        {"SLURM_PROCID", "SLURM_PROCID (rank): too high", 64},
        {"GKPS_RANK", "GKPS_RANK (rank): too high", 64},
        {"flag", "--rank: too high", 64},
    };
    struct gk_words words;

    fixture_write("# a comment\nrank: 5\n", 20);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].variable && strcmp(cases[i].variable, "flag") == 0) {
            fixture_load("--config", "job.yaml", "--rank", "4");
        } else {
            if (cases[i].variable) {
                setenv(cases[i].variable, "4", 1);
            }
            fixture_load("--config", "job.yaml");
        }
        cr_assert_eq(fixture.err, GK_OK, "%s", fixture.words.text);
        gk_words_set(&words, "too high");
        cr_assert_eq(gk_config_blame(fixture.config, "rank", &words), cases[i].exit);
        cr_assert_str_eq(words.text, cases[i].words);
        gk_words_set(&words, "bad");
        cr_assert_eq(gk_config_blame(fixture.config, "port", &words), 64, "a default");
        cr_assert_str_eq(words.text, "--port: bad");
    }
}

Test(config, empty_variables_count_as_unset)
{
    setenv("GKPS_RANK", "", 1);
    setenv("RANK", "", 1);
    setenv("SLURM_PROCID", "9", 1);
    setenv("GKPS_JOB", "", 1);
    setenv("GKPS_CONFIG", "", 1);
    fixture_load_nothing();
    fixture_expect_source("rank", "SLURM_PROCID");
    fixture_expect_source("job", "default");
    fixture_expect_source("config", "default");
    cr_assert_eq(fixture.values.rank, 9);
    fixture_load("--job=", "--state-dir", "");
    fixture_expect_source("job", "flag");
    cr_assert_str_eq(fixture.values.job, "", "an empty flag is an empty string");
    cr_assert_str_eq(fixture.values.state_dir, "");
}

Test(config, errors_of_variables)
{
    setenv("GKPS_PORT", "99999", 1);
    fixture_load_nothing();
    fixture_expect_error(64, "GKPS_PORT (port): '99999' is not a whole number from 1 to 65535");
    fixture_load("--port", "1");
    cr_assert_eq(fixture.err, GK_OK, "what is overridden does not matter");
    unsetenv("GKPS_PORT");
    setenv("SLURM_PROCID", "zero", 1);
    fixture_load_nothing();
    fixture_expect_error(64, "SLURM_PROCID (rank): 'zero' is not a whole number from 0 to 1023");
    setenv("RANK", "0", 1);
    fixture_load_nothing();
    fixture_expect_source("rank", "RANK");
}

Test(config, strings_outlive_their_places)
{
    char flag[] = "--state-dir=/a/folder";

    setenv("GKPS_JOB", "first", 1);
    fixture_load(flag);
    setenv("GKPS_JOB", "second", 1);
    unsetenv("GKPS_JOB");
    memset(flag, 'x', sizeof(flag) - 1);
    cr_assert_str_eq(fixture.values.job, "first");
    cr_assert_str_eq(fixture.values.state_dir, "/a/folder");
    cr_assert_eq(fixture.values.job, gk_config_text(fixture.config, "job"));
}

Test(config, values_of_a_failed_load_are_zero)
{
    fixture_load("--job", "x", "--mode", "none");
    fixture_expect_error(64, "--mode: 'none' is not bsp, ssp or asp");
    gk_config_free(NULL);
}

/* What the load writes to stdout. */
static const char *printed(const struct gk_program *program, const char *const *argv)
{
    static char text[1 << 14];
    int out = open("job.yaml", O_RDWR | O_CREAT | O_TRUNC, 0600), kept = dup(1);
    ssize_t length;

    cr_assert(out >= 0 && kept >= 0 && fflush(stdout) == 0 && dup2(out, 1) == 1);
    fixture_load_array(program, argv);
    cr_assert(fflush(stdout) == 0 && dup2(kept, 1) == 1);
    length = pread(out, text, sizeof(text) - 1, 0);
    cr_assert(length >= 0 && (size_t)length < sizeof(text) - 1);
    text[length] = '\0';
    close(out);
    close(kept);
    return text;
}

#define PRINTED(...)                                                                               \
    printed(&fixture_program, (const char *const[]){"gkps-test", __VA_ARGS__, NULL})

Test(config, print_config)
{
    const char *text;

    setenv("SLURM_PROCID", "4", 1);
    text = PRINTED("--density=0.5", "--print-config", "--job", "a: b", "--no-check");
    cr_assert_eq(fixture.err, GK_E_HELP);
    cr_assert_eq(fixture.exit, 0);
    cr_assert_str_eq(text, "job: \"a: b\"   # flag\n"
                           "# state-dir: unset   # default\n"
                           "rank: 4   # SLURM_PROCID\n"
                           "port: 7777   # default\n"
                           "steps: 1000   # default\n"
                           "budget: 64k   # default\n"
                           "density: 0.5   # flag\n"
                           "# shift: unset   # default\n"
                           "verbose: false   # default\n"
                           "check: false   # flag\n"
                           "log-format: text   # default\n"
                           "# mode: unset   # default\n"
                           "# config: unset   # default\n");
    PRINTED("--print-config", "--rank", "x");
    fixture_expect_error(64, "--rank: 'x' is not a whole number from 0 to 1023");
}

Test(config, print_config_names_the_file)
{
    FILE *file = fopen("other.yaml", "w");
    const char *text;

    cr_assert_not_null(file);
    fputs("\nrank: 3\n", file);
    fclose(file);
    text = PRINTED("--config=other.yaml", "--print-config");
    cr_assert_not_null(strstr(text, "\nrank: 3   # other.yaml:2\n"), "%s", text);
    cr_assert_not_null(strstr(text, "\n# config: other.yaml   # flag\n"), "%s", text);
    unlink("other.yaml");
}

/* What is printed can be used as a file, whatever the strings hold. */
Test(config, print_config_reads_back)
{
    static const char *const strings[] = {
        "plain",    "",
        "a b",      " a ",
        "a: b",     "a #b",
        "#a",       "- a",
        "-a",       "--a",
        "\"q\"",    "it's",
        "[a]",      "{a}",
        "*a",       "&a",
        "!a",       "%a",
        "@a",       "`a`",
        "|",        ">",
        "a:",       ":a",
        "?",        "~",
        "null",     "1e3",
        "yes",      "a\\b",
        "a\nb",     "a\tb",
        "\x01",     "a,b",
        "x=y",      "/p/q",
        "a\"b",     "tcp://127.0.0.1:*",
        "\xc3\xa4",
    };

    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        PRINTED("--print-config", "--rank=7", "--job", strings[i][0] == '-' ? "x" : strings[i],
                "--verbose", "--shift=-2");
        cr_assert_eq(fixture.err, GK_E_HELP, "'%s'", strings[i]);
        fixture_load("--config", "job.yaml");
        cr_assert_eq(fixture.err, GK_OK, "'%s': %s", strings[i], fixture.words.text);
        cr_assert_str_eq(fixture.values.job, strings[i][0] == '-' ? "x" : strings[i]);
        cr_assert_eq(fixture.values.rank, 7);
        cr_assert(fixture.values.verbose);
        fixture_expect_source("rank", "job.yaml:3");
        fixture_expect_source("state-dir", "default");
    }
}

Test(config, version)
{
    cr_assert_str_eq(PRINTED("--version"), "gkps-test " GK_VERSION " (protocol 1)\n");
    cr_assert_eq(fixture.err, GK_E_HELP);
    cr_assert_eq(fixture.exit, 0);
}

static const char help_text[] =
    "usage: gkps-test [options] [FILE ...]\n"
    "\n"
    "Does nothing.\n"
    "\n"
    "Job:\n"
    "  --rank N                Number of this worker. Takes a whole number from 0 to\n"
    "                          1023. Also from RANK, SLURM_PROCID.\n"
    "  --a-rather-long-name TEXT\n"
    "                          Something that needs more words than one line of a\n"
    "                          terminal has room for. Default: empty.\n"
    "\n"
    "Options:\n"
    "  --budget BYTES          Memory. Takes a number of bytes (k, M, G: powers of\n"
    "                          1024). Default: 64k.\n"
    "  --[no-]verbose          Say more. Default: false.\n"
    "  --mode MODE             Mode. Choices: bsp, ssp or asp.\n"
    "\n"
    "Modes:\n"
    "  bsp                     all wait for all\n"
    "  asp                     nobody waits\n"
    "\n"
    "Common:\n"
    "  --config FILE           YAML file with options, one 'name: value' a line.\n"
    "  --print-config          Print the options in force, each with its source, and\n"
    "                          exit.\n"
    "  --help, -h              Print this text and exit.\n"
    "  --version               Print the version and exit.\n"
    "\n"
    "Each option is also a variable, --log-format as GKPS_LOG_FORMAT, --config as\n"
    "GKPS_CONFIG (an empty one counts as not set), and a key of the file, log-format.\n"
    "A flag wins over a variable, a variable over the file, the file over the\n"
    "default. Of a flag given twice the last one counts. Arguments behind -- are not\n"
    "flags.\n"
    "\n"
    "Examples:\n"
    "  gkps-test --rank 3\n";

static bool list_mode(size_t i, const char **ret_name, const char **ret_explanation)
{
    *ret_name = i == 0 ? "bsp" : "asp";
    *ret_explanation = i == 0 ? "all wait for all" : "nobody waits";
    return i < 2;
}

Test(config, help)
{
    static const struct gk_option options[] = {
        {.name = "rank",
         .type = GK_OPTION_UINT,
         .max = 1023,
         .argument = "N",
         .help = "Number of this worker.",
         .env_also = "RANK|SLURM_PROCID",
         .group = "Job"},
        {.name = "a-rather-long-name",
         .type = GK_OPTION_STRING,
         .default_text = "",
         .argument = "TEXT",
         .help = "Something that needs more words than one line of a terminal has room for.",
         .group = "Job"},
        {.name = "budget",
         .type = GK_OPTION_BYTES,
         .default_text = "64k",
         .argument = "BYTES",
         .help = "Memory."},
        {.name = "verbose", .type = GK_OPTION_BOOL, .default_text = "false", .help = "Say more."},
        {.name = "mode",
         .type = GK_OPTION_CHOICE,
         .choices = "bsp|ssp|asp",
         .argument = "MODE",
         .help = "Mode."},
    };
    struct gk_program program = fixture_program;
    const char *text;

    program.options = options;
    program.options_count = sizeof(options) / sizeof(options[0]);
    program.notes = "Examples:\n  gkps-test --rank 3";
    program.list_heading = "Modes";
    program.list_entry = list_mode;
    for (int form = 0; form < 2; form++) {
        text = printed(&program, (const char *const[]){"gkps-test", form ? "-h" : "--help",
                                                       "--unknown", NULL});
        cr_assert_eq(fixture.err, GK_E_HELP);
        cr_assert_eq(fixture.exit, 0);
        cr_assert_str_eq(text, help_text);
    }
}

Test(config, stdout_that_cannot_be_written_is_an_error)
{
    int full = open("/dev/full", O_WRONLY), kept = dup(1);

    cr_assert(full >= 0 && kept >= 0);
    cr_assert(fflush(stdout) == 0 && dup2(full, 1) == 1);
    fixture_load("--version");
    dup2(kept, 1);
    cr_assert_eq(fixture.err, GK_E_IO);
    cr_assert_eq(fixture.exit, 74);
    cr_assert_str_eq(fixture.words.text,
                     "standard output cannot be written: No space left on device");
}

Test(config, program_without_options)
{
    struct gk_program program = {.name = "gkps-none", .usage = "[options]"};

    fixture_write("", 0);
    fixture_load_array(&program, (const char *const[]){"gkps-none", "--config", "job.yaml", NULL});
    cr_assert_eq(fixture.err, GK_OK);
    fixture_write("a: 1\n", 5);
    fixture_load_array(&program, (const char *const[]){"gkps-none", "--config", "job.yaml", NULL});
    fixture_expect_error(78, "job.yaml:1: unknown key 'a'; --help lists all");
}

static void load_option(struct gk_option option)
{
    struct gk_program program = {.name = "x", .usage = "", .options = &option, .options_count = 1};

    option.help = option.help ? option.help : "Help.";
    fixture_load_array(&program, (const char *const[]){"x", NULL});
}

Test(config, default_that_does_not_parse_is_our_bug, .signal = SIGABRT)
{
    load_option((struct gk_option){.name = "a", .type = GK_OPTION_UINT, .default_text = "x"});
}

Test(config, name_of_a_common_flag_is_our_bug, .signal = SIGABRT)
{
    load_option((struct gk_option){.name = "config", .type = GK_OPTION_UINT});
}

Test(config, offset_outside_the_values_is_our_bug, .signal = SIGABRT)
{
    load_option((struct gk_option){
        .name = "a", .type = GK_OPTION_UINT, .offset = sizeof(struct values) - 7});
}

Test(config, source_of_an_unknown_name_is_our_bug, .signal = SIGABRT)
{
    fixture_load_nothing();
    (void)gk_config_source(fixture.config, "unknown");
}
