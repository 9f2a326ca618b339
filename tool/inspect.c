/* `gkps inspect`: read state directories, check everything in them, say what there is. */
#include "tool/inspect.h"

#include "common/config.h"
#include "common/exit.h"
#include "common/stdout.h"
#include "tool/commands.h"
#include "tool/json.h"
#include "tool/state_dir.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { DIRS_MAX = 1024 };

struct inspect_options {
    bool json, records;
};

#define AT(member) offsetof(struct inspect_options, member)

static const struct gk_option options_table[] = {
    {"json", GK_OPTION_BOOL, AT(json), "false", NULL, 0, 0, NULL, "Print one JSON object.", NULL,
     NULL},
    {"records", GK_OPTION_BOOL, AT(records), "false", NULL, 0, 0, NULL, "List every record.", NULL,
     NULL},
};

static const struct gk_program program = {
    .name = "gkps inspect",
    .summary = "Read the state directories of servers and workers, or of a whole run, and check "
               "every checksum and hash in them. Nothing is written, and a server may be running.",
    .usage = "DIR... [options]",
    .notes = "Examples:\n"
             "  gkps inspect job1\n"
             "  gkps inspect job1/server-0 --records\n"
             "\n"
             "A torn tail is what a crash leaves at the end of a log; the next start cuts it.\n"
             "\n"
             "Exit codes: 0 nothing is damaged, 64 usage, 65 something is damaged, 74 the output "
             "cannot be\n"
             "written, 78 a folder cannot be read or holds no state.\n",
    .options = options_table,
    .options_count = sizeof(options_table) / sizeof(options_table[0]),
    .positional_max = DIRS_MAX,
};

static bool is_ok(const json_t *object)
{
    return json_is_true(json_object_get(object, "ok"));
}

static int show(const json_t *list, bool json)
{
    bool ok = true, damaged = false;
    const json_t *object;
    char *text;
    size_t i;

    json_array_foreach(list, i, object)
    {
        ok = ok && is_ok(object);
        damaged =
            damaged || (!is_ok(object) && !json_is_true(json_object_get(object, "unreadable")));
        if (!json) {
            gk_inspect_print(object, stdout);
        }
    }
    if (json) {
        json_t *all = json_pack("{s:O, s:b}", "directories", list, "ok", (int)ok);

        text = gk_json_dump(all, true);
        json_decref(all);
        if (!text) {
            return GK_EXIT_INTERNAL;
        }
        (void)fputs(text, stdout);
        free(text);
    }
    return ok ? GK_EXIT_OK : damaged ? GK_EXIT_DATA : GK_EXIT_CONFIG;
}

static int inspect(const struct inspect_options *options, const struct gk_state_folders *folders)
{
    json_t *list = json_array();
    struct gk_words words;
    int code = GK_EXIT_OK;

    for (size_t i = 0; i < folders->count && code == GK_EXIT_OK; i++) {
        const struct gk_state_folder *folder = &folders->list[i];

        if (json_array_append_new(list, folder->server
                                            ? gk_inspect_server(folder->path, options->records)
                                            : gk_inspect_worker(folder->path)) != 0) {
            code = GK_EXIT_INTERNAL;
        }
    }
    code = code ? code : show(list, options->json);
    json_decref(list);
    if (code == GK_EXIT_INTERNAL) {
        (void)fprintf(stderr, "gkps inspect: out of memory\n");
    }
    if (gk_stdout_flush(stdout, &words) == GK_E_IO) {
        (void)fprintf(stderr, "gkps inspect: %s\n", words.text);
        return GK_EXIT_IO;
    }
    return code;
}

int gk_tool_inspect(int argc, char **argv)
{
    struct inspect_options options;
    const struct gk_config_args args = {.program = &program,
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &options,
                                        .values_bytes = sizeof(options)};
    struct gk_state_folders folders = {0};
    struct gk_config *config = NULL;
    const char *const *dirs;
    struct gk_words words;
    size_t count;
    int code = GK_EXIT_USAGE;
    enum gk_err err = gk_config_load(&args, &config, &code, &words);

    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that has gone is no error */
    count = err ? 0 : gk_config_positional(config, &dirs);
    if (!err && count == 0) {
        gk_words_set(&words, "which folder? gkps inspect DIR...");
        err = GK_E_CONFIG;
        code = GK_EXIT_USAGE;
    }
    for (size_t i = 0; i < count && !err; i++) {
        err = gk_state_find(dirs[i], &folders, &words);
        code = GK_EXIT_CONFIG;
    }
    if (err) {
        (void)fprintf(stderr, "gkps inspect: %s\n", words.text);
    } else {
        code = inspect(&options, &folders);
    }
    gk_state_folders_fini(&folders);
    gk_config_free(config);
    return code;
}
