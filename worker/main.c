#include "common/exit.h"
#include "common/log.h"
#include "common/net/daemon.h"
#include "common/net/process.h"
#include "worker/train.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

static void begin_log(const struct gk_settings *settings, uint32_t rank)
{
    char who[32] = "worker";

    if (rank != GK_RANK_ANY) {
        (void)snprintf(who, sizeof(who), "worker %" PRIu32, rank);
    }
    gk_log_open(who, (enum gk_log_format)settings->log_format,
                (enum gk_log_level)settings->log_level, 2);
}

static int run(const struct gk_worker_options *options)
{
    const struct gk_settings_place place = {.values = &options->settings,
                                            .config = options->config};
    struct gk_trainer *trainer = NULL;
    struct gk_words words;
    uint32_t rank = GK_RANK_ANY;
    int exit_code = GK_EXIT_USAGE;

    begin_log(&options->settings, rank);
    if (gk_settings_check(&place, &exit_code, &words) ||
        gk_settings_rank(&place, &rank, &exit_code, &words)) {
        goto fail;
    }
    begin_log(&options->settings, rank);
    if (gk_trainer_open(options, &trainer, &exit_code, &words)) {
        goto fail;
    }
    exit_code = gk_train(options, rank, trainer);
    goto out;
fail:
    gk_daemon_early_death((int)options->settings.launcher_fd, "WORKER-EXIT", exit_code, words.text);
out:
    gk_trainer_close(trainer);
    return exit_code;
}

int main(int argc, char **argv)
{
    struct gk_worker_options options;
    struct gk_config *config = NULL;
    struct gk_words words;
    int exit_code = GK_EXIT_USAGE;
    const struct gk_config_args args = {.program = gk_worker_program(),
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &options,
                                        .values_bytes = sizeof(options)};
    enum gk_err err;

    gk_process_begin();
    err = gk_config_load(&args, &config, &exit_code, &words);
    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    if (err) {
        (void)fprintf(stderr, "gkps-worker: %s\n", words.text);
        return exit_code;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* a launcher that is gone is found by other means */
    options.config = config;
    exit_code = run(&options);
    gk_config_free(config);
    return exit_code;
}
