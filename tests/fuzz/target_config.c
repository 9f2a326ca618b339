/* Options from flags and from a YAML file: the lines before the first empty one are flags, the rest
 * is the file.  Whatever comes, the answer is values within their bounds or one line of words. */
#include "common/config.h"
#include "common/exit.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS_MAX = 32, TEXT_BYTES_MAX = 1 << 20 };

struct values {
    const char *job;
    uint64_t rank, port, budget;
    double density, shift;
    bool verbose;
    uint32_t mode;
};

#define OPTION(name_, type_, member)                                                               \
    .name = name_, .type = type_, .offset = offsetof(struct values, member), .help = "Help."

/* One of each type, with and without bounds, default and list of variables. */
static const struct gk_option options[] = {
    {OPTION("job", GK_OPTION_STRING, job), .argument = "NAME", .group = "Job"},
    {OPTION("rank", GK_OPTION_UINT, rank), .max = 1023, .argument = "N", .env_also = "RANK",
     .group = "Job"},
    {OPTION("port", GK_OPTION_UINT, port), .default_text = "7", .argument = "N", .group = "Job"},
    {OPTION("budget", GK_OPTION_BYTES, budget), .min = 1024, .max = 1e12, .default_text = "64k",
     .argument = "BYTES", .group = "Sizes"},
    {OPTION("density", GK_OPTION_FLOAT, density), .max = 1, .default_text = "0.001",
     .argument = "D", .group = "Sizes"},
    {OPTION("shift", GK_OPTION_FLOAT, shift), .argument = "X", .group = "Sizes"},
    {OPTION("verbose", GK_OPTION_BOOL, verbose), .default_text = "no", .group = "Log"},
    {OPTION("mode", GK_OPTION_CHOICE, mode), .choices = "bsp|ssp|asp", .argument = "MODE",
     .group = "Log"},
};

static const struct gk_program program = {
    .name = "gkps-fuzz",
    .summary = "Does nothing.",
    .usage = "[options] [FILE]",
    .options = options,
    .options_count = sizeof(options) / sizeof(options[0]),
    .positional_max = 1,
};

static struct memory_file file;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const variables[] = {
        "RANK",        "GKPS_CONFIG",  "GKPS_JOB",   "GKPS_RANK",    "GKPS_PORT",
        "GKPS_BUDGET", "GKPS_DENSITY", "GKPS_SHIFT", "GKPS_VERBOSE", "GKPS_MODE",
    };

    (void)argc;
    (void)argv;
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        FUZZ_CHECK(unsetenv(variables[i]) == 0);
    }
    memory_file_open(&file);
    FUZZ_CHECK(freopen("/dev/null", "w", stdout)); /* --help prints */
    return 0;
}

/* The flags into argv; where the file begins in `text`.  A flag that names a file of its own is
 * left out: it could be a device. */
static size_t take_flags(char *text, size_t size, char **argv, int *ret_argc)
{
    size_t at = 0;
    int argc = 1;

    while (at < size && text[at] != '\n') {
        char *line = text + at;
        char *end = memchr(line, '\n', size - at);

        if (!end) {
            end = text + size; /* there is a terminator */
        }
        *end = '\0';
        at = (size_t)(end - text) + 1;
        if (argc < FLAGS_MAX && strncmp(line, "--config", 8) != 0) {
            argv[argc++] = line;
        }
    }
    *ret_argc = argc;
    return at < size ? at + 1 : size;
}

static void check_values(const struct gk_config *config, const struct values *values)
{
    const char *const *positional;

    FUZZ_CHECK(values->rank <= 1023 && values->mode < 3);
    FUZZ_CHECK(values->budget >= 1024 && values->budget <= UINT64_C(1000000000000));
    FUZZ_CHECK(values->density >= 0 && values->density <= 1 && isfinite(values->shift));
    FUZZ_CHECK(gk_config_positional(config, &positional) <= program.positional_max);
    for (size_t i = 0; i < program.options_count; i++) {
        const char *text = gk_config_text(config, options[i].name);

        FUZZ_CHECK(gk_config_source(config, options[i].name)[0] != '\0');
        FUZZ_CHECK(!text || strlen(text) <= TEXT_BYTES_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *argv[FLAGS_MAX + 3] = {"gkps-fuzz"};
    struct gk_config_args args = {.program = &program, .argv = argv};
    struct gk_config *config = NULL;
    struct values values;
    struct gk_words words = {.text = ""};
    char *text = malloc(size + 1);
    enum gk_err err;
    size_t at;
    int code = -1;

    FUZZ_CHECK(text);
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    at = take_flags(text, size, argv, &args.argc);
    memory_file_put(&file, text + at, size - at);
    if (size > at) { /* before the others: one of them may end the flags */
        memmove(&argv[3], &argv[1], (size_t)(args.argc - 1) * sizeof(argv[0]));
        argv[1] = "--config";
        argv[2] = file.path;
        args.argc += 2;
    }
    args.values = &values;
    args.values_bytes = sizeof(values);
    err = gk_config_load(&args, &config, &code, &words);
    FUZZ_CHECK((err == GK_OK) == (config != NULL));
    if (err == GK_OK) {
        check_values(config, &values);
    } else if (err == GK_E_HELP) {
        FUZZ_CHECK(code == GK_EXIT_OK);
    } else {
        FUZZ_CHECK(err == GK_E_CONFIG && (code == GK_EXIT_USAGE || code == GK_EXIT_CONFIG));
        fuzz_check_words(words.text);
    }
    gk_config_free(config);
    free(text);
    return 0;
}
