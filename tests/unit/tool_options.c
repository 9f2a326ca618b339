/* Goal: every option reaches the daemons by the text that the user wrote, the environment holds no
 * second source for it, and wrong values are refused before anything starts. Method: parse command
 * lines, look at the arguments that follow. */
#include "common/exit.h"
#include "common/log.h"
#include "tool/json.h"
#include "tool/run_child.h"
#include "tool/run_options.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static struct gk_run_config run;
static struct gk_words words;
static int code;

static enum gk_err load(const char *const *flags)
{
    char *argv[32] = {(char *)"run"};
    int argc = 1;

    for (; *flags; flags++) {
        argv[argc++] = (char *)*flags;
    }
    code = -1;
    return gk_run_config_load(&run, argc, argv, &code, &words);
}

#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

static bool has(const struct gk_args *args, const char *wanted)
{
    for (size_t i = 0; i < args->count; i++) {
        if (strcmp(args->v[i], wanted) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_name(const struct gk_args *args, const char *name)
{
    for (size_t i = 0; i < args->count; i++) {
        if (strncmp(args->v[i], name, strlen(name)) == 0) {
            return true;
        }
    }
    return false;
}

Test(options, defaults_reach_the_server)
{
    struct gk_args args = {0};

    cr_assert_eq(LOAD("--job=j"), GK_OK, "%s", words.text);
    cr_assert_eq(run.options.servers, 2);
    cr_assert_eq(run.options.workers, 4);
    gk_run_server_args(&run, "/bin/x", 1, "", &args);
    cr_assert(!args.failed);
    cr_assert_str_eq(args.v[0], "/bin/x");
    cr_assert_null(args.v[args.count]);
    cr_assert(has(&args, "--bind=tcp://127.0.0.1:*") && has(&args, "--shard=1") &&
              has(&args, "--servers=2"));
    cr_assert(has(&args, "--workers=4") && has(&args, "--job=j") && has(&args, "--deadline=120"));
    cr_assert(has(&args, "--launcher-fd=3") && has(&args, "--log-format=text") &&
              has(&args, "--log-level=warn"));
    cr_assert_eq(args.count, 10);
    gk_args_fini(&args);
    gk_run_server_args(&run, "/bin/x", 1, "tcp://127.0.0.1:7", &args); /* a later life */
    cr_assert(has(&args, "--bind=tcp://127.0.0.1:7"));
    gk_args_fini(&args);
    gk_run_config_fini(&run);
}

Test(options, texts_reach_the_worker_unchanged)
{
    static const char *const servers[] = {"tcp://127.0.0.1:1", "tcp://127.0.0.1:2",
                                          "tcp://127.0.0.1:3"};
    static const char *const flags[] = {"--model=softmax",
                                        "--data=mnist:/",
                                        "--compressor=topk",
                                        "--density=1e-3",
                                        "--steps=7",
                                        "--batch=9",
                                        "--optimizer=nesterov",
                                        "--lr=0.0500",
                                        "--momentum=.95",
                                        "--weight-decay=5e-4",
                                        "--schedule=milestones",
                                        "--milestones=3,5",
                                        "--lr-gamma=0.2",
                                        "--warmup=2",
                                        "--seed=9007199254740991",
                                        "--eval-every=3",
                                        "--nonfinite=abort",
                                        "--deadline=9",
                                        "--log-format=json",
                                        "--log-level=debug",
                                        NULL};
    struct gk_args args = {0};

    cr_assert_eq(load(flags), GK_OK, "%s", words.text);
    cr_assert(strncmp(run.options.job, "gkps-", 5) == 0);
    run.options.servers = 3;
    gk_run_worker_args(&run, "w", servers, 2, false, &args);
    for (const char *const *flag = flags; *flag; flag++) {
        cr_assert(has(&args, *flag), "%s", *flag);
    }
    cr_assert(has(&args, "--servers=tcp://127.0.0.1:1,tcp://127.0.0.1:2,tcp://127.0.0.1:3"));
    cr_assert(has(&args, "--rank=2") && has(&args, "--launcher-fd=3") && !has(&args, "--takeover"));
    cr_assert(!has_name(&args, "--summary") && !has_name(&args, "--quiet") &&
              !has_name(&args, "--restart"));
    gk_args_fini(&args);
    gk_run_worker_args(&run, "w", servers, 2, true, &args);
    cr_assert(has(&args, "--takeover"));
    gk_args_fini(&args);
    gk_run_config_fini(&run);
}

Test(options, largest_job_fits)
{
    const char *servers[256];
    struct gk_args args = {0};

    cr_assert_eq(LOAD("--servers=256", "--workers=1024"), GK_OK, "%s", words.text);
    for (int i = 0; i < 256; i++) {
        servers[i] =
            "tcp://127.127.127.127:65535/01234567890123456789012345678901234"; /* 63 characters */
    }
    cr_assert_eq(strlen(servers[0]), GK_RUN_ADDRESS_BYTES - 1);
    gk_run_worker_args(&run, "w", servers, 1023, false, &args);
    cr_assert_eq(strlen(args.v[1]), strlen("--servers=") + 256 * 63 + 255);
    gk_args_fini(&args);
    gk_run_config_fini(&run);
}

Test(options, wrong_values_are_refused)
{
    static const char *const wrong[] = {
        "--density=0",      "--density=1.5", "--servers=0",  "--servers=257",
        "--workers=1025",   "--workers=0",   "--steps=0",    "--nonfinite=zero",
        "--restart=maybe",  "--job=",        "--job=a\tb",   "--summary=",
        "--optimizer=adam", "--bogus=1",     "--deadline=0", "extra"};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cr_assert_eq(LOAD(wrong[i]), GK_E_CONFIG, "%s", wrong[i]);
        cr_assert_eq(code, GK_EXIT_USAGE, "%s", wrong[i]);
        cr_assert_gt(strlen(words.text), 10, "%s", wrong[i]);
    }
    cr_assert_eq(LOAD("--job=0123456789012345678901234567890123456789012345678901234567890123"),
                 GK_E_CONFIG);
}

/* Every option with values at and beyond its edges: refused here, in words that begin with the
 * flag, and never by a daemon. */
Test(options, every_option_judges_its_own_values)
{
    static const struct {
        const char *name, *good, *wrong; /* separated by | */
    } cases[] = {
        {"servers", "1|256", "|0|257|-1|1.5|nan|99999999999999999999"},
        {"workers", "1|1024", "|0|1025|-1|x"},
        {"job", "a", "|a\tb"},
        {"restart", "never|always", "|maybe"},
        {"deadline", "1|1000000", "|0|1000001|inf"},
        {"model", "fnn3|lenet5|resnet20|softmax|vgg16", "|charlstm|nosuchmodel|FNN3"}, /* no text */
        {"data", "digits|mnist:/|cifar10:/",
         "|mnist|mnist:|text:|cifar10:|nosuchset|digits:|text:/"},
        {"steps", "1|4294967295", "|0|4294967296|1e3"},
        {"batch", "1|1048576", "|0|1048577"},
        {"seed", "0|9007199254740991", "|-1|9007199254740992|9223372036854775808"},
        {"eval-every", "0|4294967295", "|-1|4294967296"},
        {"nonfinite", "abort", "|zero|skip|ignore"},
        {"clip", "0|0.5|1000000", "|-1|nan|1e7|1e-60"},
        {"backend", "auto|cpu|cuda|cuda:3", "|gpu|cuda:|cuda:x"},
        {"compressor", "gaussk|topk|dense|gaussk-paper|dgc|randk", "|gauss|nosuchway"},
        {"density", "1|1e-9|.5", "|0|1.0001|-0.1|nan|inf|1e-10|-0"},
        {"optimizer", "none|sgd|momentum|nesterov|adamw", "|adam"},
        {"lr", "0|-0|1e6|1e-30", "|-1|nan|inf|1e7|1e999|1e-60|0x1"},
        {"momentum", "0|0.999", "|1|-0.1|nan|1.5|0.99999999999|1e-60"},
        {"beta1", "0.9", "0.5|1|-0.1|nan|0.99999999999|1e-60"}, /* momentum has none */
        {"beta2", "0.999", "0.5|1|-0.1|nan|0.99999999999|1e-60"},
        {"epsilon", "1e-8", "1e-6|0|1e-31|-0.1|nan|2"},
        {"weight-decay", "0|1000", "|-1|nan|1001|1e-60"},
        {"schedule", "constant|cosine", "|milestones|step"},
        {"milestones", "", "1|5,x|0"},
        {"lr-gamma", "0|1", "|-1|2|nan|1e-60"},
        {"lr-min", "0", "|0.01|-1|nan|1e7|inf"},
        {"warmup", "0|1000", "|1001|-1|4294967296"},
        {"summary", "-|x", ""},
        {"log-format", "text|json", "|xml"},
        {"log-level", "debug|error", "|loud"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int side = 0; side < 2; side++) {
            const char *at = side ? cases[i].wrong : cases[i].good;

            for (bool more = true; more;) {
                size_t length = strcspn(at, "|");
                char flag[128], place[64];

                snprintf(flag, sizeof(flag), "--%s=%.*s", cases[i].name, (int)length, at);
                snprintf(place, sizeof(place), "--%s: ", cases[i].name);
                more = at[length] == '|';
                at += length + more;
                if (!side) {
                    cr_assert_eq(LOAD(flag), GK_OK, "%s: %s", flag, words.text);
                    gk_run_config_fini(&run);
                    continue;
                }
                cr_assert_eq(LOAD(flag), GK_E_CONFIG, "%s", flag);
                cr_assert_eq(code, GK_EXIT_USAGE, "%s", flag);
                cr_assert(strncmp(words.text, place, strlen(place)) == 0, "%s: %s", flag,
                          words.text);
            }
        }
    }
}

Test(options, values_are_judged_beside_others)
{
    static const struct {
        const char *first, *second, *place; /* NULL: good */
    } cases[] = {
        {"--schedule=milestones", "--milestones=1", NULL},
        {"--schedule=milestones", "--milestones=1,2,3,4,5,6,7,8", NULL},
        {"--schedule=milestones", "--milestones=1,2,3,4,5,6,7,8,9", "--milestones: 9 steps"},
        {"--schedule=milestones", "--milestones=5,5", "--milestones: '5,5' is no list"},
        {"--schedule=milestones", "--milestones=5,", "--milestones: '5,' is"},
        {"--schedule=milestones", "--milestones=,5", "--milestones: ',5' is"},
        {"--schedule=milestones", "--milestones=4294967296", "--milestones: '4294967296' is"},
        {"--schedule=milestones", "--milestones=5 6", "--milestones: '5 6' is"},
        {"--schedule=milestones", "--milestones=", "--schedule: milestones needs steps"},
        {"--schedule=cosine", "--milestones=5", "--milestones: '5' needs --schedule milestones"},
        {"--schedule=cosine", "--lr-min=0.1", NULL},
        {"--schedule=cosine", "--lr-min=0.2", "--lr-min: 0.2 is more than the rate"},
        {"--steps=5", "--warmup=5", NULL},
        {"--steps=5", "--warmup=6", "--warmup: 6 is more than --steps 5"},
        {"--model=softmax", "--servers=40", NULL},
        {"--model=softmax", "--servers=41", "--servers: 41 are too many"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum gk_err err = LOAD(cases[i].first, cases[i].second);

        cr_assert_eq(err, cases[i].place ? GK_E_CONFIG : GK_OK, "%s %s: %s", cases[i].first,
                     cases[i].second, words.text);
        if (cases[i].place) {
            cr_assert(strncmp(words.text, cases[i].place, strlen(cases[i].place)) == 0, "%s",
                      words.text);
        } else {
            gk_run_config_fini(&run);
        }
    }
    cr_assert_eq(LOAD("--data=mnist:/nonexistent"), GK_E_CONFIG);
    cr_assert_eq(code, GK_EXIT_DATA);
    cr_assert_str_eq(words.text,
                     "--data: the folder /nonexistent cannot be read: No such file or directory");
}

/* Defaults that go with the model, and what counts more than they. */
Test(options, models_have_defaults_of_their_own)
{
    cr_assert_eq(LOAD("--model=lenet5"), GK_OK, "%s", words.text);
    cr_assert(run.options.steps == 1000 && run.options.batch == 32 && run.options.clip == 0);
    cr_assert_str_eq(gk_config_source(run.config, "steps"), "default");
    cr_assert_str_eq(gk_config_text(run.config, "lr"), "0.05");
    gk_run_config_fini(&run);
    setenv("GKPS_LR", "0.5", 1);
    cr_assert_eq(LOAD("--model=lenet5", "--steps=7"), GK_OK, "%s", words.text);
    cr_assert(run.options.steps == 7 && run.options.lr == 0.5);
    unsetenv("GKPS_LR");
    gk_run_config_fini(&run);
    cr_assert_eq(LOAD("--quiet"), GK_OK, "%s", words.text);
    cr_assert(run.options.steps == 1000 && run.options.lr == 0.1 && run.options.batch == 32);
    gk_run_config_fini(&run);
}

/* A model that takes text, and data that is none, and the other way round. */
Test(options, models_and_data)
{
    cr_assert_eq(LOAD("--model=charlstm"), GK_E_CONFIG);
    cr_assert_str_eq(words.text, "--model: charlstm takes text: --data text:FILE");
    cr_assert_eq(LOAD("--data=text:/dev/null"), GK_E_CONFIG);
    cr_assert_str_eq(words.text, "--data: fnn3 takes images, not text: charlstm does");
    cr_assert_eq(LOAD("--model=charlstm", "--data=text:/nonexistent"), GK_E_CONFIG);
    cr_assert_eq(code, GK_EXIT_DATA);
    cr_assert_str_eq(words.text,
                     "--data: the file /nonexistent cannot be read: No such file or directory");
    cr_assert_eq(LOAD("--model=charlstm", "--data=text:/dev/null"), GK_OK, "%s", words.text);
    gk_run_config_fini(&run);
}

Test(options, the_place_is_the_one_that_the_user_wrote)
{
    setenv("GKPS_MODEL", "nosuchmodel", 1);
    cr_assert_eq(LOAD("--quiet"), GK_E_CONFIG);
    cr_assert(
        strncmp(words.text, "GKPS_MODEL (model): 'nosuchmodel' is not charlstm, fnn3, ", 57) == 0,
        "%s", words.text);
    unsetenv("GKPS_MODEL");
    setenv("GKPS_MOMENTUM", "1", 1);
    cr_assert_eq(LOAD("--quiet"), GK_E_CONFIG);
    cr_assert(strncmp(words.text, "GKPS_MOMENTUM (momentum): must be less than 1", 45) == 0, "%s",
              words.text);
    unsetenv("GKPS_MOMENTUM");
}

Test(options, log_level_and_restart)
{
    struct gk_args args = {0};

    cr_assert_eq(LOAD("--quiet"), GK_OK);
    cr_assert_eq(run.options.log_level, GK_LOG_WARN);
    cr_assert_eq(run.options.restart, GK_RUN_RESTART_NEVER);
    gk_run_config_fini(&run);
    cr_assert_eq(LOAD("--restart=always", "--log-level=debug"), GK_OK);
    cr_assert_eq(run.options.log_level, GK_LOG_DEBUG);
    cr_assert_eq(run.options.restart, GK_RUN_RESTART_ALWAYS);
    gk_run_server_args(&run, "x", 0, "", &args);
    cr_assert(has(&args, "--log-level=debug"));
    gk_args_fini(&args);
    gk_run_config_fini(&run);
}

Test(options, children_see_one_source)
{
    const char *const before[] = {"PATH=/bin",
                                  "GKPS_CONFIG=/x.yaml",
                                  "GKPS_WORKERS=3",
                                  "GKPS_LOG_LEVEL=debug",
                                  "GKPS_EVAL_EVERY=4",
                                  "GKPS_CPU=reference",
                                  "GKPS_WORKERSX=1",
                                  "HOME=/root",
                                  NULL};
    const char *const chosen[] = {"OPENBLAS_NUM_THREADS=4", NULL};
    struct gk_args args = {0};

    gk_run_environment(before, &args);
    cr_assert_eq(args.count, 5);
    cr_assert(has(&args, "PATH=/bin") && has(&args, "GKPS_CPU=reference") &&
              has(&args, "GKPS_WORKERSX=1"));
    cr_assert(has(&args, "HOME=/root") && has(&args, "OPENBLAS_NUM_THREADS=1"));
    gk_args_fini(&args);
    gk_run_environment(chosen, &args);
    cr_assert_eq(args.count, 1);
    cr_assert(has(&args, "OPENBLAS_NUM_THREADS=4"));
    gk_args_fini(&args);
}

Test(options, configuration_is_typed)
{
    json_t *config;
    char *text;

    cr_assert_eq(LOAD("--density=0.1", "--optimizer=sgd", "--job=j\xc3\xa9"), GK_OK);
    config = gk_run_config_json(&run);
    cr_assert_eq(gk_json_u64(config, "workers", 0), 4);
    cr_assert_float_eq(gk_json_double(config, "density"), 0.1, 1e-15);
    cr_assert_str_eq(json_string_value(json_object_get(config, "optimizer")), "sgd");
    cr_assert_str_eq(json_string_value(json_object_get(config, "model")), "fnn3");
    cr_assert_str_eq(json_string_value(json_object_get(config, "job")), "j\xc3\xa9");
    cr_assert(json_is_null(json_object_get(config, "summary")));
    cr_assert(json_is_false(json_object_get(config, "quiet")));
    text = gk_json_dump(config, false);
    cr_assert_not_null(strstr(text, "\"density\":0.1,"), "%s", text);
    free(text);
    json_decref(config);
    gk_run_config_fini(&run);
    gk_run_config_fini(&run);
}
