#include "tool/commands.h"

#include "common/exit.h"
#include "common/shown.h"
#include "common/stdout.h"
#include "tool/guard.h"

#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"run", gk_tool_run, "Train one model on this machine with one command."},
    {"status", gk_tool_status, "Ask running servers how the job is doing."},
    {"inspect", gk_tool_inspect, "Read and check the state directories of a job."},
    {"export", gk_tool_export, "Write the model of a job as a file that others read."},
    {"rewind", gk_tool_rewind, "Take all shards of a stopped job back to one version."},
    {"repair", gk_tool_repair, "What can be done for a shard that lost its disk."},
};

enum { COMMANDS_COUNT = sizeof(commands) / sizeof(commands[0]) };

/* What was printed has arrived, or the exit code and a line say that it has not. */
static int finish(void)
{
    struct gk_words words;

    if (gk_stdout_flush(stdout, &words) == GK_E_IO) {
        (void)fprintf(stderr, "gkps: %s\n", words.text);
        return GK_EXIT_IO;
    }
    return GK_EXIT_OK;
}

static void print_help(FILE *out)
{
    (void)fprintf(out, "gkps: a parameter server for sparse gradients.\n"
                       "\n"
                       "Usage: gkps COMMAND [options]\n"
                       "\n"
                       "Commands:\n");
    for (size_t i = 0; i < COMMANDS_COUNT; i++) {
        (void)fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    }
    (void)fprintf(
        out,
        "\n"
        "gkps COMMAND --help shows the options of a command.  gkps --version shows the version.\n");
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMANDS_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    (void)fprintf(stderr, "gkps: there is no command '%s'; there are:", gk_shown(name).text);
    for (size_t i = 0; i < COMMANDS_COUNT; i++) {
        (void)fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    }
    (void)fprintf(stderr, " (gkps --help)\n");
    return GK_EXIT_USAGE;
}

static int help(const char *name)
{
    static char ask[] = "--help";
    char *argv[] = {NULL, ask, NULL};
    const struct command *command = name ? find_command(name) : NULL;

    if (name && !command) {
        return unknown_command(name);
    }
    if (command) {
        argv[0] = ask; /* skipped */
        return command->run(2, argv);
    }
    print_help(stdout);
    return finish();
}

int gk_tool_main(int argc, char **argv)
{
    const struct command *command;

    if (argc < 2) {
        print_help(stderr);
        return GK_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        return help(argc > 2 ? argv[2] : NULL);
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("gkps %s\n", GK_VERSION);
        return finish();
    }
    if (strcmp(argv[1], GK_GUARD_NAME) == 0) {
        return gk_tool_guard(argc - 1, argv + 1);
    }
    command = find_command(argv[1]);
    return command ? command->run(argc - 1, argv + 1) : unknown_command(argv[1]);
}
