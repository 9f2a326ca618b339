/* `gkps repair`: a shard that lost its disk, from what a worker holds of it.  Nothing to repair
 * from exists in this version: workers keep a residual and pushes, but no plane of the model.  So
 * it says that, and what can be done instead. */
#include "tool/commands.h"

#include "common/config.h"
#include "common/exit.h"
#include "common/limits.h"

#include <inttypes.h>
#include <stdio.h>

struct repair_options {
    uint64_t shard, worker;
};

#define AT(member) offsetof(struct repair_options, member)

static const struct gk_option options_table[] = {
    {"shard", GK_OPTION_UINT, AT(shard), NULL, NULL, 0, GK_SERVERS_MAX - 1, "I",
     "The shard that lost its disk.", NULL, NULL},
    {"from-worker", GK_OPTION_UINT, AT(worker), NULL, NULL, 0, GK_WORKERS_MAX - 1, "R",
     "The rank whose copy would be taken.", NULL, NULL},
};

static const struct gk_program program = {
    .name = "gkps repair",
    .summary = "Rebuild a shard that lost its disk from a worker that holds its planes. In this "
               "version no worker does: it says what can be done instead.",
    .usage = "--shard I --from-worker R",
    .notes = "What can be done: put a copy of the shard's folder back and take all shards back to "
             "its version\n"
             "(gkps rewind), or begin anew (gkps run --fresh). docs/rewind.md has more.\n"
             "\n"
             "Exit codes: 64 usage, 69 there is nothing to repair from.\n",
    .options = options_table,
    .options_count = sizeof(options_table) / sizeof(options_table[0]),
    .positional_max = 0,
};

int gk_tool_repair(int argc, char **argv)
{
    struct repair_options options;
    const struct gk_config_args args = {.program = &program,
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &options,
                                        .values_bytes = sizeof(options)};
    struct gk_config *config = NULL;
    struct gk_words words;
    int code = GK_EXIT_USAGE;
    enum gk_err err = gk_config_load(&args, &config, &code, &words);

    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    if (!err && (!gk_config_text(config, "shard") || !gk_config_text(config, "from-worker"))) {
        gk_words_set(&words, "which shard, from which worker? --shard I --from-worker R");
        code = GK_EXIT_USAGE;
    } else if (!err) {
        gk_words_set(&words,
                     "shard %" PRIu64 " cannot be rebuilt from worker %" PRIu64
                     ": workers keep no planes of the model in this version; put a copy of the "
                     "shard's folder back and take all shards back to its version (gkps rewind), "
                     "or begin anew (gkps run --fresh)",
                     options.shard, options.worker);
        code = GK_EXIT_PEER;
    }
    (void)fprintf(stderr, "gkps repair: %s\n", words.text);
    gk_config_free(config);
    return code;
}
