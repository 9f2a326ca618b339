/* Goal: a program of the user's finds its place, its device and what was given in its environment,
 * and nothing else of ours; what has no meaning for it is refused; its configuration holds no
 * default that nobody has chosen. Method: command lines and environments; the variables that
 * follow; folders that look like those of a machine with GPUs. */
#include "common/exit.h"
#include "tool/machine.h"
#include "tool/run_command.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct gk_run_config run;
static struct gk_words words;
static int code;

static enum gk_err load(const char *const *flags)
{
    static char *argv[32]; /* the command stays there */
    int argc = 1;

    argv[0] = (char *)"run";
    for (; *flags; flags++) {
        argv[argc++] = (char *)*flags;
    }
    code = -1;
    return gk_run_config_load(&run, argc, argv, &code, &words);
}

#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

/* The value of a variable that stands there once; "": it does not. */
static const char *value(const struct gk_args *args, const char *name)
{
    const char *found = "";

    for (size_t i = 0; i < args->count; i++) {
        if (strncmp(args->v[i], name, strlen(name)) == 0 && args->v[i][strlen(name)] == '=') {
            cr_assert(!*found, "%s twice", name);
            found = args->v[i] + strlen(name) + 1;
        }
    }
    return found;
}

static struct gk_args environment(const char *const *before, const struct gk_run_place *place)
{
    struct gk_args args = {0};

    gk_run_command_environment(&run, place, before, &args);
    cr_assert(!args.failed);
    return args;
}

Test(command, place_and_options)
{
    static const char *const before[] = {
        "PATH=/bin",    "GKPS_CONFIG=/x.yaml", "GKPS_STEPS=3",       "GKPS_RANK=7", "RANK=7",
        "WORLD_SIZE=9", "GKPS_TAKEOVER=true",  "GKPS_CPU=reference", "EMPTY=",      NULL};
    static const char *const servers[] = {"tcp://127.0.0.1:1", "tcp://127.0.0.1:2"};
    const struct gk_run_machine machine = {.cores = 16, .gpus = 0, .port = 1234};
    struct gk_run_place place = {.index = 2, .servers = servers, .machine = &machine};
    struct gk_args args;

    cr_assert_eq(LOAD("--job=j", "--lr=0.0500", "--eval-every", "2", "--", "x"), GK_E_CONFIG);
    cr_assert_eq(LOAD("--job=j", "--lr=0.0500", "--log-level=debug", "--", "sh", "--lr=7"), GK_OK,
                 "%s", words.text);
    args = environment(before, &place);
    cr_assert_str_eq(value(&args, "PATH"), "/bin");
    cr_assert_str_eq(value(&args, "GKPS_CPU"), "reference");
    cr_assert_str_eq(value(&args, "GKPS_SERVERS"), "tcp://127.0.0.1:1,tcp://127.0.0.1:2");
    cr_assert_str_eq(value(&args, "GKPS_RANK"), "2");
    cr_assert_str_eq(value(&args, "RANK"), "2");
    cr_assert_str_eq(value(&args, "WORLD_SIZE"), "4");
    cr_assert_str_eq(value(&args, "MASTER_PORT"), "1234");
    cr_assert_str_eq(value(&args, "OMP_NUM_THREADS"), "4");
    cr_assert_str_eq(value(&args, "GKPS_LR"), "0.0500", "by the text that the user wrote");
    cr_assert_str_eq(value(&args, "GKPS_LOG_LEVEL"), "debug");
    cr_assert_str_eq(value(&args, "GKPS_STEPS"), "", "it configured us, and counts only so");
    cr_assert_str_eq(value(&args, "GKPS_CONFIG"), "");
    cr_assert_str_eq(value(&args, "GKPS_TAKEOVER"), "");
    cr_assert_str_eq(value(&args, "GKPS_ALLOW_FAULTS"), "");
    cr_assert_str_eq(value(&args, "GKPS_DENSITY"), "");
    gk_args_fini(&args);
    place.takeover = place.faults = true;
    args = environment(before, &place);
    cr_assert_str_eq(value(&args, "GKPS_TAKEOVER"), "true");
    cr_assert_str_eq(value(&args, "GKPS_ALLOW_FAULTS"), "true");
    gk_args_fini(&args);
    gk_run_config_fini(&run);
}

Test(command, device)
{
    static const struct {
        uint32_t gpus, rank;
        const char *visible, *device; /* NULL: nobody has chosen */
    } cases[] = {
        {0, 0, NULL, "cpu"},    {1, 3, NULL, "cuda:0"},       {4, 3, NULL, "cuda:3"},
        {4, 5, NULL, "cuda:1"}, {4, 3, "2,3", "cuda:1"},      {4, 0, "", "cpu"},
        {4, 0, "-1", "cpu"},    {4, 3, "GPU-a,-1", "cuda:0"}, {0, 1, "0,1", "cpu"},
    };
    static const char *const servers[] = {"a", "b"};

    cr_assert_eq(LOAD("--workers=8", "--", "sh"), GK_OK, "%s", words.text);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct gk_run_machine machine = {.cores = 2, .gpus = cases[i].gpus};
        const struct gk_run_place place = {
            .index = cases[i].rank, .servers = servers, .machine = &machine};
        char visible[64];
        const char *before[] = {visible, NULL};
        struct gk_args args;

        snprintf(visible, sizeof(visible), "%s=%s",
                 cases[i].visible ? "CUDA_VISIBLE_DEVICES" : "OTHER",
                 cases[i].visible ? cases[i].visible : "");
        args = environment(before, &place);
        cr_assert_str_eq(value(&args, "GKPS_DEVICE"), cases[i].device, "case %zu", i);
        cr_assert_str_eq(args.v[0], visible);
        cr_assert_str_eq(value(&args, "OMP_NUM_THREADS"), "1");
        gk_args_fini(&args);
    }
    gk_run_config_fini(&run);
}

Test(command, gpus_of_the_machine)
{
    static const char *const made[] = {"/dev",
                                       "/dev/nvidia0",
                                       "/dev/nvidia12",
                                       "/dev/nvidiactl",
                                       "/dev/nvidia-uvm",
                                       "/proc",
                                       "/proc/driver",
                                       "/proc/driver/nvidia",
                                       "/proc/driver/nvidia/gpus",
                                       "/proc/driver/nvidia/gpus/0000:01:00.0"};
    enum { MADE = sizeof(made) / sizeof(made[0]) };
    char root[] = "/tmp/gkps-test-XXXXXX", path[MADE][128];

    cr_assert_not_null(mkdtemp(root));
    cr_assert_eq(gk_machine_gpus(root), 0);
    for (size_t i = 0; i < MADE; i++) {
        snprintf(path[i], sizeof(path[i]), "%s%s", root, made[i]);
        cr_assert_eq(mkdir(path[i], 0700), 0);
        cr_assert_eq(gk_machine_gpus(root), i == MADE - 1 ? 1 : i >= 2 ? 2 : i, "%s", made[i]);
    }
    for (size_t i = MADE; i > 0; i--) {
        cr_assert_eq(rmdir(path[i - 1]), 0);
    }
    cr_assert_eq(rmdir(root), 0);
}

Test(command, options_are_judged_as_far_as_they_are_in_force)
{
    static const struct {
        const char *flags[5];
        int code; /* 0: good */
        const char *words;
    } cases[] = {
        {{"--warmup=2000", "--", "sh"}, 0, NULL}, /* nobody knows the number of steps */
        {{"--warmup=2000", "--steps=1000", "--", "sh"}, 64, "--warmup: 2000 is more than --steps"},
        {{"--beta1=0.5", "--", "sh"}, 0, NULL},
        {{"--beta1=0.5", "--optimizer=sgd", "--", "sh"},
         64,
         "--beta1: 0.5 needs --optimizer adamw"},
        {{"--milestones=5", "--", "sh"}, 0, NULL},
        {{"--servers=256", "--", "sh"}, 0, NULL},
        {{"--momentum=1", "--", "sh"}, 64, "--momentum: must be less than 1"},
        {{"--batch=8", "--", "sh"}, 64, "--batch: has no meaning with a command"},
        {{"--", "nosuchprogram"},
         78,
         "cannot run 'nosuchprogram': there is no such program in PATH"},
        {{"--", "/"}, 78, "cannot run '/': Is a directory"},
        {{"--", "./a\nb"}, 78, "cannot run './a?b': No such file"},
        {{"--"}, 64, "a command must follow behind --"},
        {{"--", ""}, 64, "the command behind -- is empty"},
        {{"sh"}, 64, "unexpected argument 'sh'"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum gk_err err = load(cases[i].flags);

        cr_assert_eq(err != GK_OK, cases[i].code != 0, "case %zu: %s", i, words.text);
        cr_assert_eq(code, cases[i].code, "case %zu: %d", i, code);
        if (err) {
            cr_assert(strncmp(words.text, cases[i].words, strlen(cases[i].words)) == 0, "%s",
                      words.text);
        } else {
            gk_run_config_fini(&run);
        }
    }
    setenv("GKPS_MODEL", "softmax", 1);
    cr_assert_eq(LOAD("--", "sh"), GK_E_CONFIG);
    cr_assert(strncmp(words.text, "GKPS_MODEL (model): has no meaning", 34) == 0, "%s", words.text);
    unsetenv("GKPS_MODEL");
}

Test(command, what_is_shown_of_it)
{
    char text[400], small[24];
    json_t *config;

    cr_assert_eq(LOAD("--density=0.1", "--seed=4", "--", "sh", "-c", "a  b\n", "", "x=1"), GK_OK);
    gk_run_command_text(&run, text, sizeof(text));
    cr_assert_str_eq(text, "sh -c 'a  b?' '' x=1");
    gk_run_command_text(&run, small, sizeof(small));
    cr_assert_str_eq(small, "sh -c 'a  b?' '' ...");
    gk_run_command_options(&run, text, sizeof(text));
    cr_assert_str_eq(text, "seed 4, density 0.1");
    config = gk_run_config_json(&run);
    cr_assert_eq(json_array_size(json_object_get(config, "command")), 5);
    cr_assert(json_is_null(json_object_get(config, "model")) &&
              json_is_null(json_object_get(config, "lr")) &&
              json_is_null(json_object_get(config, "steps")));
    cr_assert_eq(json_integer_value(json_object_get(config, "seed")), 4);
    cr_assert_eq(json_integer_value(json_object_get(config, "workers")), 4);
    json_decref(config);
    gk_run_config_fini(&run);
    cr_assert_eq(LOAD("--quiet"), GK_OK);
    config = gk_run_config_json(&run);
    cr_assert(json_is_null(json_object_get(config, "command")));
    cr_assert_str_eq(json_string_value(json_object_get(config, "model")), "fnn3");
    json_decref(config);
    gk_run_config_fini(&run);
}
