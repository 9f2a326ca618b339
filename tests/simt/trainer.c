/* Goal: a device that fails under the built-in models ends the worker with words, and gives no
 * gradient and no accuracy of a part of the test images; without a number each rank has the device
 * of its rank.
 * Method: a trainer on the emulated device; every launch and every product of a gradient and of an
 * evaluation fails once.  A machine with three devices and five ranks. */
#include "tests/simt/simt.h"
#include "worker/trainer.h"

#include <criterion/criterion.h>

#include <string.h>

enum { ROUNDS_MAX = 1000 };

static struct gk_worker_options options;
static struct gk_config *config;
static struct gk_trainer *trainer;
static struct gk_words words;

static void open_trainer(char *backend, char *rank)
{
    char *argv[] = {"gkps-worker", "--model", "softmax", "--batch",   "2", "--backend",
                    backend,       "--rank",  rank,      "--workers", "5", NULL};
    const struct gk_config_args args = {.program = gk_worker_program(),
                                        .argc = sizeof(argv) / sizeof(argv[0]) - 1,
                                        .argv = argv,
                                        .no_environment = true,
                                        .values = &options,
                                        .values_bytes = sizeof(options)};
    int exit_code;

    cr_assert(gk_config_load(&args, &config, &exit_code, &words) == GK_OK, "%s", words.text);
    options.config = config;
    cr_assert(gk_trainer_open(&options, &trainer, &exit_code, &words) == GK_OK, "%s", words.text);
}

static void close_trainer(void)
{
    gk_trainer_close(trainer);
    gk_config_free(config);
}

typedef enum gk_err (*computation)(struct gk_trainer *trainer, uint64_t at,
                                   struct gk_trainer_result *ret_result, struct gk_words *words);

/* How often it failed before it did not; then with the result of one that nothing has disturbed. */
static unsigned fail_each(computation compute, void (*fail)(int64_t after), const char *expected)
{
    struct gk_trainer_result clean, result;
    unsigned failures = 0;

    cr_assert(compute(trainer, 7, &clean, &words) == GK_OK, "%s", words.text);
    for (bool failed = true; failed && failures < ROUNDS_MAX; failures += failed) {
        fail(failures);
        failed = compute(trainer, 7, &result, &words) != GK_OK;
        fail(-1);
        cr_assert(!failed || strstr(words.text, expected), "%s", words.text);
    }
    cr_assert(result.accuracy == clean.accuracy && result.loss == clean.loss);
    return failures;
}

Test(trainer, failures_are_said)
{
    open_trainer("cuda", "0");
    cr_assert(gk_trainer_initialise(trainer, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_trainer_set_rank(trainer, 0, &words) == GK_OK, "%s", words.text);
    cr_assert(fail_each(gk_trainer_compute, gk_simt_fail_launch, "the gradient of step 7: ") > 2);
    cr_assert(fail_each(gk_trainer_compute, gk_simt_fail_blas, "the gradient of step 7: ") > 1);
    cr_assert(fail_each(gk_trainer_evaluate, gk_simt_fail_launch, "accuracy of version 7: ") > 2);
    cr_assert(fail_each(gk_trainer_evaluate, gk_simt_fail_blas, "accuracy of version 7: ") > 1);
    close_trainer();
}

Test(trainer, each_rank_has_a_device)
{
    static const struct {
        char *backend, *rank;
        const char *device;
    } cases[] = {{"cuda", "0", "cuda:0"},   {"cuda", "2", "cuda:2"},   {"cuda", "4", "cuda:1"},
                 {"cuda", "any", "cuda:0"}, {"cuda:1", "4", "cuda:1"}, {"cpu", "2", "cpu"}};

    gk_simt_devices(3);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_trainer(cases[i].backend, cases[i].rank);
        cr_assert_str_eq(gk_trainer_device(trainer), cases[i].device);
        close_trainer();
    }
}
