#include "common/exit.h"
#include "common/log.h"
#include "common/net/process.h"
#include "common/net/daemon.h"
#include "worker/shell.h"

#include <inttypes.h>
#include <stdio.h>

static int run(const struct gk_worker_options *options)
{
    struct gk_addresses addresses = {.count = 0};
    struct gk_trainer *trainer = NULL;
    struct gk_words words;
    uint32_t rank = 0;
    int exit_code = GK_EXIT_USAGE;
    char who[32];

    gk_log_open("worker", options->log_format, options->log_level, 2);
    if (gk_worker_options_check(options, &exit_code, &words) ||
        gk_worker_options_rank(options, &rank, &exit_code, &words) ||
        gk_worker_options_addresses(options, &addresses, &exit_code, &words)) {
        goto fail;
    }
    if (gk_process_files(GK_PROCESS_FILES + GK_PROCESS_FILES_PER_SOCKET * addresses.count,
                         &words)) {
        exit_code = GK_EXIT_RETRY;
        goto fail;
    }
    if (rank != GK_RANK_ANY) {
        (void)snprintf(who, sizeof(who), "worker %" PRIu32, rank);
        gk_log_who(who);
    }
    if (gk_trainer_open(options, addresses.count, &trainer, &exit_code, &words)) {
        goto fail;
    }
    exit_code = gk_worker_run(options, rank, &addresses, trainer);
    goto out;
fail:
    gk_daemon_early_death((int)options->launcher_fd, "WORKER-EXIT", exit_code, words.text);
out:
    gk_trainer_close(trainer);
    gk_addresses_fini(&addresses);
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
    options.config = config;
    exit_code = run(&options);
    gk_config_free(config);
    return exit_code;
}
