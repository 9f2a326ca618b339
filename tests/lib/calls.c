/* Goal: a call that makes no sense, and a job whose ranks do not fit together, is one clear error
 * with its code and exit code, and never a hang; after GKPS_E_ARGUMENT the handle goes on.
 * Method: every function with NULL, with structs of wrong sizes, with bad values, and at every
 * stage of a handle's life at which it has no place; then jobs of two ranks, threads of this
 * process, that differ in one thing. */
#include "tests/lib/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct rig_job job = {.servers = 1, .workers = 1, .steps = 3};

/* That the call gave this code, that words say so, and the exit code that belongs to it. */
static void expect(struct gkps *gkps, int code, int expected, int exit_code, const char *words)
{
    int told;
    const char *text = gkps_error(gkps, &told);

    rig_check(code == expected, "code %d, not %d: %s", code, expected, text);
    rig_check(told == exit_code, "exit code %d, not %d: %s", told, exit_code, text);
    rig_check(strstr(text, words) != NULL, "not '%s' but: %s", words, text);
    rig_check(strchr(text, '\n') == NULL, "more than a line: %s", text);
}

static void misuse(struct gkps *gkps, int code, const char *words)
{
    expect(gkps, code, GKPS_E_ARGUMENT, 64, words);
}

/* Opening. */

static int open_with(const struct gkps_setting *list, size_t count, uint32_t flags,
                     struct gkps **ret_gkps)
{
    const struct gkps_config config = {.size = sizeof(config),
                                       .flags = flags,
                                       .settings = list,
                                       .settings_count = count,
                                       .log = rig_log};

    return gkps_open(&config, ret_gkps);
}

static void test_open_misuse(void)
{
    struct gkps *gkps = (struct gkps *)&gkps;
    struct gkps_config config = {.size = 0};
    const size_t sizes[] = {0, 1, sizeof(config) - 8, sizeof(config) + 8, SIZE_MAX};

    rig_case("gkps_open");
    misuse(NULL, gkps_open(NULL, &gkps), "gkps_open: NULL");
    misuse(NULL, gkps_open(&config, NULL), "gkps_open: NULL");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        config.size = sizes[i];
        misuse(NULL, gkps_open(&config, &gkps), "size");
        rig_check(gkps == NULL, "there is a handle");
    }
    config = (struct gkps_config){.size = sizeof(config), .device = "abacus"};
    misuse(NULL, gkps_open(&config, &gkps), "cpu");
    config = (struct gkps_config){.size = sizeof(config), .settings_count = 1};
    misuse(NULL, gkps_open(&config, &gkps), "settings");
    config = (struct gkps_config){.size = sizeof(config), .flags = 1u << 31};
    misuse(NULL, gkps_open(&config, &gkps), "flag");
}

static void test_settings(void)
{
    static const struct {
        const char *key, *value, *words;
    } cases[] = {
        {"densty", "0.1", "did you mean 'density'"},
        {"", "0.1", "unknown setting ''"},
        {"density", "0", "density"},
        {"density", "much", "density"},
        {"optimizer", "magic", "optimizer"},
        {"compressor", "magic", "compressor"},
        {"steps", "-1", "steps"},
        {"servers", "nowhere", "servers"},
        {"servers", "", "servers"},
        {"rank", "7", "rank"},
        {"workers", "0", "workers"},
        {"milestones", "5", "milestones"},
        {"state-dir", "", "state-dir"},
        {"launcher-fd", "999", "launcher-fd"},
        {"job", "", "job"},
        {"model", "", "model"},
        {"density", NULL, "NULL"},
        {NULL, "1", "NULL"},
    };
    struct gkps *gkps;

    rig_case("settings");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct gkps_setting setting = {.key = cases[i].key, .value = cases[i].value};

        expect(NULL, open_with(&setting, 1, GKPS_NO_ENVIRONMENT, &gkps), GKPS_E_CONFIG, 64,
               cases[i].words);
        rig_check(gkps == NULL, "there is a handle with %s", cases[i].words);
    }
}

/* Whoever launched the program hears why it never began, also where no setting can be believed. */
static void test_launcher_hears(void)
{
    static const struct gkps_setting settings[] = {{.key = "density", .value = "7"},
                                                   {.key = "densty", .value = "0.1"},
                                                   {.key = "job", .value = ""}};
    char number[16], line[1024];
    struct gkps *gkps;

    rig_case("a launcher of wrong settings");
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        ssize_t size;
        int pair[2];

        rig_require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0,
                    "no socket pair");
        (void)snprintf(number, sizeof(number), "%d", pair[1]);
        (void)setenv("GKPS_LAUNCHER_FD", number, 1);
        expect(NULL, open_with(&settings[i], 1, 0, &gkps), GKPS_E_CONFIG, 64, settings[i].key);
        size = recv(pair[0], line, sizeof(line) - 1, MSG_DONTWAIT);
        line[size > 0 ? size : 0] = '\0';
        rig_check(strstr(line, "\"death\"") && strstr(line, settings[i].key), "heard '%s'", line);
        (void)close(pair[0]);
        (void)close(pair[1]);
    }
    (void)setenv("GKPS_LAUNCHER_FD", "none", 1);
    expect(NULL, open_with(settings, 1, 0, &gkps), GKPS_E_CONFIG, 64, "");
    (void)unsetenv("GKPS_LAUNCHER_FD");
}

/* What a scheduler sets stands behind what the program says, GKPS_RANK before it. */
static void test_rank_variables(void)
{
    const struct gkps_setting settings[] = {{.key = "workers", .value = "4"},
                                            {.key = "rank", .value = "1"}};
    struct gkps *gkps;

    (void)setenv("RANK", "9", 1);
    expect(NULL, open_with(settings, 1, 0, &gkps), GKPS_E_CONFIG, 64, "RANK");
    rig_check(open_with(settings, 2, 0, &gkps) == GKPS_OK, "%s", gkps_error(NULL, NULL));
    gkps_close(gkps);
    (void)setenv("GKPS_RANK", "8", 1);
    expect(NULL, open_with(settings, 2, 0, &gkps), GKPS_E_CONFIG, 64, "GKPS_RANK");
    (void)unsetenv("RANK");
    (void)unsetenv("GKPS_RANK");
}

static void test_variables(void)
{
    const struct gkps_setting setting = {.key = "density", .value = "0.25"};
    struct gkps *gkps;
    int code;

    rig_case("variables");
    (void)setenv("GKPS_DENSITY", "0.125", 1);
    code = open_with(&setting, 1, 0, &gkps);
    rig_check(code == GKPS_OK, "%s", gkps_error(NULL, NULL));
    rig_check(rig_logged("density is 0.125 by GKPS_DENSITY, not 0.25"),
              "the log does not say that the variable wins");
    gkps_close(gkps);
    rig_case("variables that are not looked at");
    code = open_with(&setting, 1, GKPS_NO_ENVIRONMENT, &gkps);
    rig_check(code == GKPS_OK && !rig_logged("GKPS_DENSITY"), "the variable was looked at");
    gkps_close(gkps);
    (void)setenv("GKPS_DENSITY", "9", 1);
    expect(NULL, open_with(NULL, 0, 0, &gkps), GKPS_E_CONFIG, 64, "GKPS_DENSITY");
    (void)unsetenv("GKPS_DENSITY");
    test_rank_variables();
    code = open_with(NULL, 0, 0, &gkps);
    rig_check(code == GKPS_OK && gkps_error(NULL, NULL)[0] == '\0', "%s", gkps_error(NULL, NULL));
    gkps_close(gkps);
}

/* The model. */

static struct gkps *open_handle(void)
{
    struct gkps *gkps;
    int code = open_with(NULL, 0, GKPS_NO_ENVIRONMENT, &gkps);

    rig_require(code == GKPS_OK, "%s", gkps_error(NULL, NULL));
    return gkps;
}

static void test_tensor_values(void)
{
    static const uint64_t dims[] = {4, 5, 6, 7, 8}, zero[] = {4, 0}, wide[] = {1ull << 32},
                          huge[] = {1u << 31, 1u << 31, 1u << 31};
    static const struct {
        struct gkps_tensor tensor;
        const char *words;
    } cases[] = {
        {{.dims = dims, .dims_count = 1}, "name"},
        {{.name = "", .dims = dims, .dims_count = 1}, "name"},
        {{.name = "0123456789012345678901234567890123456789012345678901234567890123"}, "name"},
        {{.name = "a", .dims_count = 1}, "dims"},
        {{.name = "a", .dims = dims, .dims_count = 5}, "join"},
        {{.name = "a", .dims = zero, .dims_count = 2}, "dim"},
        {{.name = "a", .dims = wide, .dims_count = 1}, "dim"},
        {{.name = "a", .dims = huge, .dims_count = 3}, "dim"},
        {{.name = "a", .flags = 1u << 31}, "flag"},
        {{.name = "a", .density = -0.5}, "density"},
        {{.name = "a", .density = 1.5}, "density"},
        {{.name = "a", .density = (double)NAN}, "density"},
        {{.name = "b"}, "same name"},
    };
    struct gkps *gkps = open_handle();

    rig_case("tensors");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gkps_tensor list[] = {{.name = "b"}, cases[i].tensor};

        list[0].size = list[1].size = sizeof(list[0]);
        misuse(gkps, gkps_tensors(gkps, list, 2), cases[i].words);
        misuse(gkps, gkps_tensors(gkps, list, 2), "tensor 1");
    }
    gkps_close(gkps);
}

static void test_tensor_calls(void)
{
    struct gkps_tensor list[2] = {{.name = "a"}, {.name = "b"}};
    const size_t sizes[] = {0, 1, sizeof(list[0]) - 8, sizeof(list[0]) + 8};
    struct gkps_start start = {.size = sizeof(start)};
    struct gkps *gkps = open_handle();
    float memory[2] = {0};

    rig_case("tensors, bind, aux");
    misuse(gkps, gkps_tensors(gkps, NULL, 1), "at least one");
    misuse(gkps, gkps_tensors(gkps, list, 0), "at least one");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        list[0].size = list[1].size = sizes[i];
        misuse(gkps, gkps_tensors(gkps, list, 2), "size");
    }
    misuse(gkps, gkps_bind(gkps, 0, memory, memory, 1), "no tensor 0");
    misuse(gkps, gkps_start(gkps, &start), "no model");
    list[0].size = list[1].size = sizeof(list[0]);
    rig_check(gkps_tensors(gkps, list, 2) == GKPS_OK, "%s", gkps_error(gkps, NULL));
    misuse(gkps, gkps_tensors(gkps, list, 2), "already");
    misuse(gkps, gkps_bind(gkps, 2, memory, memory, 1), "no tensor 2");
    misuse(gkps, gkps_bind(gkps, 1, memory, memory, 2), "('b') has 1 elements");
    rig_check(gkps_bind(gkps, 0, memory, NULL, 1) == GKPS_OK, "%s", gkps_error(gkps, NULL));
    misuse(gkps, gkps_start(gkps, &start), "tensor 1 ('b')");
    misuse(gkps, gkps_aux(gkps, NULL, 4), "no memory");
    misuse(gkps, gkps_aux(gkps, memory, 0), "0 bytes");
    rig_check(gkps_aux(gkps, memory, 4) == GKPS_OK, "%s", gkps_error(gkps, NULL));
    misuse(gkps, gkps_aux(gkps, memory, 4), "already");
    rig_check(gkps_bind(gkps, 1, memory, NULL, 1) == GKPS_OK, "%s", gkps_error(gkps, NULL));
    expect(gkps, gkps_start(gkps, &start), GKPS_E_CONFIG, 64, "below 16 for each server");
    expect(gkps, gkps_start(gkps, &start), GKPS_E_CONFIG, 64, "below 16 for each server");
    gkps_close(gkps);
}

/* More elements than any job can have, also when their number overflows. */
static void test_huge_models(void)
{
    static const uint64_t dims[] = {1u << 31, 1u << 31};
    struct gkps_tensor list[4];
    struct gkps_start start = {.size = sizeof(start)};
    float memory = 0;

    rig_case("huge models");
    for (size_t count = 1; count <= 4; count++) {
        struct gkps *gkps = open_handle();

        for (size_t i = 0; i < count; i++) {
            static const char *const names[] = {"a", "b", "c", "d"};

            list[i] = (struct gkps_tensor){.size = sizeof(list[i]),
                                           .name = names[i],
                                           .dims = dims,
                                           .dims_count = 2,
                                           .params = &memory};
        }
        rig_check(gkps_tensors(gkps, list, count) == GKPS_OK, "%s", gkps_error(gkps, NULL));
        expect(gkps, gkps_start(gkps, &start), GKPS_E_CONFIG, 64, "number of parameters");
        gkps_close(gkps);
    }
}

/* Stages. */

enum call {
    TENSORS = 1 << 0,
    BIND = 1 << 1,
    AUX = 1 << 2,
    START = 1 << 3,
    STEP = 1 << 4,
    WAIT = 1 << 5,
    PULL = 1 << 6,
    REPORT = 1 << 7,
    NOTE = 1 << 8,
    FAIL = 1 << 9,
    LEAVE = 1 << 10,
};

/* Everything but `allowed` is refused here, with these words, and harms nothing. */
static void refuse(struct gkps *gkps, unsigned allowed, int code, int exit_code, const char *words)
{
    struct gkps_start start = {.size = sizeof(start)};
    struct gkps_step step = {.size = sizeof(step), .samples = 1};
    const struct gkps_tensor tensor = {.size = sizeof(tensor), .name = "x"};
    const struct gkps_sparse list = {.size = sizeof(list)};
    float memory = 0;

    if (!(allowed & TENSORS)) {
        expect(gkps, gkps_tensors(gkps, &tensor, 1), code, exit_code, words);
    }
    if (!(allowed & BIND)) {
        expect(gkps, gkps_bind(gkps, 0, &memory, NULL, 200), code, exit_code, words);
    }
    if (!(allowed & AUX)) {
        expect(gkps, gkps_aux(gkps, &memory, 4), code, exit_code, words);
    }
    if (!(allowed & START)) {
        expect(gkps, gkps_start(gkps, &start), code, exit_code, words);
    }
    if (!(allowed & STEP)) {
        expect(gkps, gkps_step(gkps, &step), code, exit_code, words);
        expect(gkps, gkps_push(gkps, &step), code, exit_code, words);
        expect(gkps, gkps_push_sparse(gkps, &step, &list), code, exit_code, words);
    }
    if (!(allowed & WAIT)) {
        expect(gkps, gkps_wait(gkps, &step), code, exit_code, words);
    }
    if (!(allowed & PULL)) {
        expect(gkps, gkps_pull(gkps), code, exit_code, words);
    }
    if (!(allowed & REPORT)) {
        expect(gkps, gkps_report(gkps, 1, 1), code, exit_code, words);
    }
    if (!(allowed & NOTE)) {
        expect(gkps, gkps_note(gkps, "note"), code, exit_code, words);
    }
    if (!(allowed & FAIL)) {
        expect(gkps, gkps_fail(gkps, 70, "why"), code, exit_code, words);
    }
    if (!(allowed & LEAVE)) {
        expect(gkps, gkps_leave(gkps, 0), code, exit_code, words);
    }
}

static void test_null_handle(void)
{
    struct gkps_stats stats = {.size = sizeof(stats)};

    rig_case("no handle");
    refuse(NULL, 0, GKPS_E_ARGUMENT, 64, "NULL is no handle");
    rig_check(gkps_stats(NULL, &stats) == GKPS_E_ARGUMENT, "stats of no handle");
    gkps_stop(NULL, 1);
    gkps_close(NULL);
}

static int initialise_and_call(void *context, char *words, size_t words_bytes)
{
    struct rig_rank *rank = context;

    (void)words;
    (void)words_bytes;
    refuse(rank->gkps, NOTE, GKPS_E_ARGUMENT, 64, "initialise");
    return 0;
}

static void bad_steps(struct gkps *gkps)
{
    struct gkps_step step = {.size = sizeof(step)};
    const size_t sizes[] = {0, 1, sizeof(step) - 8, sizeof(step) + 8};

    misuse(gkps, gkps_step(gkps, NULL), "NULL");
    misuse(gkps, gkps_step(gkps, &step), "0 samples");
    step.samples = 1;
    step.flags = 1u << 31;
    misuse(gkps, gkps_push(gkps, &step), "flag");
    step.flags = 0;
    step.reserved = 1;
    misuse(gkps, gkps_push(gkps, &step), "flag");
    step.reserved = 0;
    step.flags = GKPS_LR;
    step.lr = -1;
    misuse(gkps, gkps_step(gkps, &step), "learning rate");
    step.lr = (double)NAN;
    misuse(gkps, gkps_step(gkps, &step), "learning rate");
    step.lr = 1e300;
    misuse(gkps, gkps_step(gkps, &step), "learning rate");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        step = (struct gkps_step){.size = sizes[i], .samples = 1};
        misuse(gkps, gkps_step(gkps, &step), "size");
        misuse(gkps, gkps_push(gkps, &step), "size");
        misuse(gkps, gkps_push_sparse(gkps, &step, NULL), "size");
    }
}

static void bad_lists(struct gkps *gkps)
{
    static const uint32_t falling[] = {3, 3}, beyond[] = {50},
                          many[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const float values[17] = {1}, bad[] = {(float)INFINITY};
    static const struct {
        struct gkps_sparse sparse;
        const char *words;
    } cases[] = {
        {{.indices = falling, .values = values, .count = 2}, "entry 1, index 3, does not rise"},
        {{.indices = beyond, .values = values, .count = 1}, "is not in the tensor"},
        {{.indices = falling, .values = bad, .count = 1}, "not finite"},
        {{.indices = falling, .count = 1}, "NULL"},
        {{.values = values, .count = 1}, "NULL"},
        {{.indices = many, .values = values, .count = 17}, "17 entries, more than the 16"},
    };
    const struct gkps_step step = {.size = sizeof(step), .samples = 1};

    misuse(gkps, gkps_push_sparse(gkps, &step, NULL), "NULL");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gkps_sparse list[RIG_TENSORS] = {{.size = 0}};

        for (size_t k = 0; k < RIG_TENSORS; k++) {
            list[k] = (struct gkps_sparse){.size = sizeof(list[k])};
        }
        list[1] = cases[i].sparse;
        list[1].size = sizeof(list[1]);
        misuse(gkps, gkps_push_sparse(gkps, &step, list), cases[i].words);
        list[1].size = sizeof(list[1]) + 8;
        misuse(gkps, gkps_push_sparse(gkps, &step, list), "size");
    }
}

static void bad_starts(struct gkps *gkps)
{
    struct gkps_start start = {.size = 0};
    const size_t sizes[] = {0, 1, sizeof(start) - 8, sizeof(start) + 8};

    misuse(gkps, gkps_start(gkps, NULL), "NULL");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        start.size = sizes[i];
        misuse(gkps, gkps_start(gkps, &start), "size");
    }
}

static void bad_stats(struct gkps *gkps)
{
    struct gkps_stats stats = {.size = sizeof(stats) + 8};

    rig_check(gkps_stats(gkps, NULL) == GKPS_E_ARGUMENT, "stats to NULL");
    rig_check(gkps_stats(gkps, &stats) == GKPS_E_ARGUMENT, "stats of a wrong size");
    stats.size = sizeof(stats);
    rig_check(gkps_stats(gkps, &stats) == GKPS_OK, "stats");
}

/* Of the second step: under way, and over. */
static void step_in_parts(struct gkps *gkps)
{
    struct gkps_step step = {.size = sizeof(step), .samples = 1};
    struct gkps_step other = {.size = sizeof(other) + 8};

    rig_check(gkps_push(gkps, &step) == GKPS_OK, "%s", gkps_error(gkps, NULL));
    refuse(gkps, WAIT | NOTE, GKPS_E_ARGUMENT, 64, "a step is under way");
    misuse(gkps, gkps_wait(gkps, NULL), "NULL");
    misuse(gkps, gkps_wait(gkps, &other), "size");
    rig_check(gkps_wait(gkps, &step) == GKPS_OK && step.version == 2, "%s", gkps_error(gkps, NULL));
    rig_check(gkps_pull(gkps) == GKPS_OK, "%s", gkps_error(gkps, NULL));
}

/* All the wrong calls of a life, which goes on to its good end. */
static void test_stages(void)
{
    struct rig_rank *rank = rig_ranks();
    struct gkps_start start = {
        .size = sizeof(start), .initialise = initialise_and_call, .initialise_context = rank};
    struct gkps_step step = {.size = sizeof(step), .samples = 1};
    struct rig_end end;
    struct rig rig;

    rig_case("stages");
    rig_open(&rig, job.servers, job.workers);
    rank->job = &job;
    rank->addresses = rig.addresses;
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    refuse(rank->gkps, TENSORS | BIND | AUX | START | NOTE | FAIL, GKPS_E_ARGUMENT, 64,
           "gkps_start() has not been called");
    bad_starts(rank->gkps);
    bad_stats(rank->gkps);
    rig_require(gkps_start(rank->gkps, &start) == GKPS_OK, "%s", gkps_error(rank->gkps, NULL));
    refuse(rank->gkps, BIND | STEP | PULL | REPORT | NOTE | FAIL | LEAVE, GKPS_E_ARGUMENT, 64,
           "no step is under way");
    bad_steps(rank->gkps);
    bad_lists(rank->gkps);
    bad_stats(rank->gkps);
    misuse(rank->gkps, gkps_note(rank->gkps, NULL), "NULL");
    misuse(rank->gkps, gkps_bind(rank->gkps, 0, rank->params, NULL, 199), "shape must not change");
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        rank->gradient[i] = (float)(i + 1);
    }
    rig_check(gkps_step(rank->gkps, &step) == GKPS_OK && step.version == 1 && step.selected == 16,
              "%s", gkps_error(rank->gkps, NULL));
    step_in_parts(rank->gkps);
    rig_check(gkps_step(rank->gkps, &step) == GKPS_OK && step.finished, "%s",
              gkps_error(rank->gkps, NULL));
    misuse(rank->gkps, gkps_step(rank->gkps, &step), "step 2 was the last one");
    rig_check(gkps_leave(rank->gkps, 0) == GKPS_OK, "%s", gkps_error(rank->gkps, NULL));
    refuse(rank->gkps, FAIL | LEAVE, GKPS_E_ARGUMENT, 64, "the rank has left");
    rig_check(gkps_leave(rank->gkps, 0) == GKPS_OK, "%s", gkps_error(rank->gkps, NULL));
    bad_stats(rank->gkps);
    gkps_close(rank->gkps);
    rig_end(&rig, &end);
    rig_check(end.version == 3 && end.applied == 3, "ended at version %llu",
              (unsigned long long)end.version);
    free(rank);
}

static void test_failed_program(void)
{
    struct rig_rank *rank = rig_ranks();

    rig_case("gkps_fail");
    rank->job = &job;
    rank->addresses = "tcp://127.0.0.1:9";
    for (int exit_code = 64; exit_code <= 65; exit_code++) {
        int code = exit_code == 64 ? GKPS_E_CONFIG : GKPS_E_DATA;

        rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
        expect(rank->gkps, gkps_fail(rank->gkps, exit_code, "the file is torn"), code, exit_code,
               "the file is torn");
        refuse(rank->gkps, 0, code, exit_code, "the file is torn");
        gkps_close(rank->gkps);
    }
    free(rank);
}

int main(int argc, char **argv)
{
    rig_require(argc == 2, "usage: lib_calls GKPS-SERVER");
    rig_use(argv[1]);
    test_open_misuse();
    test_settings();
    test_launcher_hears();
    test_variables();
    test_tensor_values();
    test_tensor_calls();
    test_huge_models();
    test_null_handle();
    test_stages();
    test_failed_program();
    return rig_result();
}
