/* What the tests of the configuration share: a program with options of every type, its values, one
 * call that loads them, and a file that goes away with the test. */
#ifndef GK_TESTS_CONFIG_FIXTURE_H
#define GK_TESTS_CONFIG_FIXTURE_H

#include "common/config.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct values {
    const char *job;
    const char *state_dir;
    uint64_t rank;
    uint64_t port;
    uint64_t steps;
    uint64_t budget;
    double density;
    double shift;
    bool verbose;
    bool check;
    uint32_t log_format;
    uint32_t mode;
};

static const struct gk_option fixture_options[] = {
    {.name = "job",
     .type = GK_OPTION_STRING,
     .offset = offsetof(struct values, job),
     .argument = "NAME",
     .default_text = "default",
     .help = "Name of the job.",
     .group = "Job"},
    {.name = "state-dir",
     .type = GK_OPTION_STRING,
     .offset = offsetof(struct values, state_dir),
     .argument = "DIR",
     .help = "Where to keep state.",
     .group = "Job"},
    {.name = "rank",
     .type = GK_OPTION_UINT,
     .offset = offsetof(struct values, rank),
     .max = 1023,
     .argument = "N",
     .help = "Number of this worker.",
     .env_also = "RANK|SLURM_PROCID",
     .group = "Job"},
    {.name = "port",
     .type = GK_OPTION_UINT,
     .offset = offsetof(struct values, port),
     .min = 1,
     .max = 65535,
     .default_text = "7777",
     .argument = "N",
     .help = "Port.",
     .group = "Job"},
    {.name = "steps",
     .type = GK_OPTION_UINT,
     .offset = offsetof(struct values, steps),
     .default_text = "1000",
     .argument = "N",
     .help = "Steps.",
     .group = "Job"},
    {.name = "budget",
     .type = GK_OPTION_BYTES,
     .offset = offsetof(struct values, budget),
     .min = 1024,
     .max = 1e12,
     .default_text = "64k",
     .argument = "BYTES",
     .help = "Memory.",
     .group = "Sizes"},
    {.name = "density",
     .type = GK_OPTION_FLOAT,
     .offset = offsetof(struct values, density),
     .max = 1,
     .default_text = "0.001",
     .argument = "D",
     .help = "Part that is pushed.",
     .group = "Sizes"},
    {.name = "shift",
     .type = GK_OPTION_FLOAT,
     .offset = offsetof(struct values, shift),
     .argument = "X",
     .help = "Any number.",
     .group = "Sizes"},
    {.name = "verbose",
     .type = GK_OPTION_BOOL,
     .offset = offsetof(struct values, verbose),
     .default_text = "false",
     .help = "Say more.",
     .group = "Log"},
    {.name = "check",
     .type = GK_OPTION_BOOL,
     .offset = offsetof(struct values, check),
     .default_text = "yes",
     .help = "Check more.",
     .group = "Log"},
    {.name = "log-format",
     .type = GK_OPTION_CHOICE,
     .offset = offsetof(struct values, log_format),
     .choices = "text|json",
     .default_text = "text",
     .argument = "FORMAT",
     .help = "Form.",
     .group = "Log"},
    {.name = "mode",
     .type = GK_OPTION_CHOICE,
     .offset = offsetof(struct values, mode),
     .choices = "bsp|ssp|asp",
     .argument = "MODE",
     .help = "Mode.",
     .group = "Log"},
};

enum { FIXTURE_OPTIONS = sizeof(fixture_options) / sizeof(fixture_options[0]) };

static const struct gk_program fixture_program = {
    .name = "gkps-test",
    .summary = "Does nothing.",
    .usage = "[options] [FILE ...]",
    .options = fixture_options,
    .options_count = FIXTURE_OPTIONS,
    .positional_max = 2,
};

struct fixture {
    enum gk_err err;
    int exit;
    struct values values;
    struct gk_config *config;
    struct gk_words words;
};

static struct fixture fixture;

/* Whatever the environment of the test run holds must not matter. */
static inline void fixture_clear_environment(void)
{
    static const char *const names[] = {
        "RANK",         "SLURM_PROCID", "GKPS_CONFIG", "GKPS_JOB",    "GKPS_STATE_DIR",
        "GKPS_RANK",    "GKPS_PORT",    "GKPS_STEPS",  "GKPS_BUDGET", "GKPS_SHIFT",
        "GKPS_DENSITY", "GKPS_VERBOSE", "GKPS_CHECK",  "GKPS_MODE",   "GKPS_LOG_FORMAT",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unsetenv(names[i]);
    }
}

/* Load with these arguments, of which the last is NULL, into `fixture`; what was there is freed. */
static inline void fixture_load_array(const struct gk_program *program, const char *const *argv)
{
    struct gk_config_args args = {.program = program,
                                  .argv = (char **)argv,
                                  .values = &fixture.values,
                                  .values_bytes = sizeof(fixture.values)};

    while (argv[args.argc]) {
        args.argc++;
    }
    gk_config_free(fixture.config);
    memset(&fixture, 0xee, sizeof(fixture));
    fixture.config = NULL;
    fixture.words.text[0] = '\0';
    fixture.err = gk_config_load(&args, &fixture.config, &fixture.exit, &fixture.words);
    cr_assert_eq(fixture.config == NULL, fixture.err != GK_OK);
}

#define fixture_load(...)                                                                          \
    fixture_load_array(&fixture_program, (const char *const[]){"gkps-test", __VA_ARGS__, NULL})

static inline void fixture_load_nothing(void)
{
    fixture_load_array(&fixture_program, (const char *const[]){"gkps-test", NULL});
}

/* The load failed with this exit code and exactly these words, and left no value behind. */
static inline void fixture_expect_error(int code, const char *words)
{
    struct values zero;

    memset(&zero, 0, sizeof(zero));
    cr_assert_eq(fixture.err, GK_E_CONFIG, "expected: %s", words);
    cr_assert_str_eq(fixture.words.text, words);
    cr_assert_eq(fixture.exit, code, "%s: exit %d", words, fixture.exit);
    cr_assert_arr_eq((const char *)&fixture.values, (const char *)&zero, sizeof(zero));
}

static inline void fixture_expect_source(const char *name, const char *source)
{
    cr_assert_eq(fixture.err, GK_OK, "%s", fixture.words.text);
    cr_assert_str_eq(gk_config_source(fixture.config, name), source, "%s", name);
}

/* A folder of the test's own, entered, so that names of files are short: "job.yaml". */
static inline void fixture_enter_folder(void)
{
    const char *root = getenv("TMPDIR");
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/gkps-test-XXXXXX", root ? root : "/tmp");
    cr_assert_not_null(mkdtemp(path));
    cr_assert_eq(chdir(path), 0);
}

static inline void fixture_leave_folder(void)
{
    char path[4096];

    gk_config_free(fixture.config);
    fixture.config = NULL;
    (void)unlink("job.yaml");
    if (getcwd(path, sizeof(path)) && chdir("/") == 0) {
        (void)rmdir(path);
    }
}

static inline void fixture_write(const void *bytes, size_t count)
{
    FILE *file = fopen("job.yaml", "wb");

    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, count, file), count);
    cr_assert_eq(fclose(file), 0);
}

/* Load job.yaml with this text. */
static inline void fixture_load_text(const char *text)
{
    fixture_write(text, strlen(text));
    fixture_load("--config", "job.yaml");
}

#endif
