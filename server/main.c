#include "common/exit.h"
#include "common/log.h"
#include "common/net/daemon.h"
#include "common/net/process.h"
#include "server/shell.h"

#include <inttypes.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct gk_server_options options;
    struct gk_config *config = NULL;
    struct gk_words words;
    int exit_code = GK_EXIT_USAGE;
    const struct gk_config_args args = {.program = gk_server_program(),
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &options,
                                        .values_bytes = sizeof(options)};
    enum gk_err err;
    char who[32];

    gk_process_begin();
    err = gk_config_load(&args, &config, &exit_code, &words);
    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    if (err) {
        (void)fprintf(stderr, "gkps-server: %s\n", words.text);
        return exit_code;
    }
    options.config = config;
    (void)snprintf(who, sizeof(who), "server %" PRIu64, options.shard);
    gk_log_open(who, (enum gk_log_format)options.log_format, (enum gk_log_level)options.log_level,
                2);
    if (gk_process_files(GK_PROCESS_FILES + (uint32_t)options.workers, &words) != GK_OK) {
        exit_code = GK_EXIT_RETRY;
        gk_daemon_early_death((int)options.launcher_fd, "SERVER-EXIT", exit_code, words.text);
    } else {
        exit_code = gk_server_run(&options);
    }
    gk_config_free(config);
    return exit_code;
}
