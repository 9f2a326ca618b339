#include "tool/run_command.h"

#include "common/exit.h"
#include "common/shown.h"
#include "tool/json.h"
#include "tool/state_dir.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What only gkps-worker understands. */
static const char *const refused[] = {"model", "data", "batch", "init", "eval-every"};

/* What the launcher and the servers need, in the option table. */
static const char *const groups_of_ours[] = {"Cluster", "State", "Output"};

/* ... but for what the workers take as well. */
static const char *const shared[] = {"deadline", "log-format", "log-level"};

/* ... also where nobody gave it: a run says less than a worker alone. */
static const char *const always[] = {"log-level"};

static bool is_one_of(const char *text, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

#define IS_ONE_OF(text, list) is_one_of(text, list, sizeof(list) / sizeof((list)[0]))

static bool is_of_training(const struct gk_option *option)
{
    return !IS_ONE_OF(option->group, groups_of_ours);
}

/* What the program finds in its environment; NULL: it was not given, or is not for it. */
static const char *handed_on(const struct gk_run_config *run, const struct gk_option *option)
{
    bool takes = is_of_training(option) || IS_ONE_OF(option->name, shared);
    const char *text = gk_config_text(run->config, option->name);
    bool said = gk_run_given(run, option->name) || IS_ONE_OF(option->name, always);

    return takes && said && text && *text ? text : NULL;
}

bool gk_run_is_command(const struct gk_run_config *run)
{
    return run->command_count > 0;
}

const char *gk_run_command_refuses(const struct gk_run_config *run)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (gk_run_given(run, refused[i])) {
            return refused[i];
        }
    }
    return NULL;
}

/* errno of starting this file. */
static int judge(const char *path)
{
    struct stat stat_of;

    if (stat(path, &stat_of) != 0) {
        return errno;
    }
    if (S_ISDIR(stat_of.st_mode)) {
        return EISDIR;
    }
    return access(path, X_OK) == 0 ? 0 : errno;
}

/* As execvp looks for it: a file that may not be executed counts when no other is found. */
static int judge_in_path(const char *name)
{
    const char *at = getenv("PATH");
    int found = ENOENT;

    for (at = at ? at : "/bin:/usr/bin"; *at;) {
        size_t length = strcspn(at, ":");
        char path[GK_STATE_PATH_BYTES];
        int error = ENOENT;

        if ((size_t)snprintf(path, sizeof(path), "%.*s%s%s", (int)length, at, length ? "/" : "",
                             name) < sizeof(path)) {
            error = judge(path);
        }
        if (error == 0) {
            return 0;
        }
        found = error == EACCES ? error : found;
        at += length + (at[length] == ':');
    }
    return found;
}

enum gk_err gk_run_command_check(const struct gk_run_config *run, int *ret_exit,
                                 struct gk_words *words)
{
    const char *name = run->command_count > 0 ? run->command[0] : NULL;
    bool has_folder = name && strchr(name, '/');
    int error;

    if (!name) {
        return GK_OK;
    }
    if (!*name) {
        gk_words_set(words, "the command behind -- is empty");
        *ret_exit = GK_EXIT_USAGE;
        return GK_E_CONFIG;
    }
    error = has_folder ? judge(name) : judge_in_path(name);
    if (error == 0) {
        return GK_OK;
    }
    gk_words_set(words, "cannot run '%s': %s", gk_shown(name).text,
                 error == ENOENT && !has_folder ? "there is no such program in PATH"
                 : error == EACCES              ? "it may not be executed"
                                                : strerror(error));
    *ret_exit = GK_EXIT_CONFIG;
    return GK_E_CONFIG;
}

static bool is_plain(const char *word)
{
    static const char signs[] = "_-./:=,+@%^";

    for (const char *at = word; *at; at++) {
        if (!isalnum((unsigned char)*at) && (unsigned char)*at < 128 && !strchr(signs, *at)) {
            return false;
        }
    }
    return *word != '\0';
}

void gk_run_command_text(const struct gk_run_config *run, char *ret, size_t ret_bytes)
{
    size_t used = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < run->command_count && used + 1 < ret_bytes; i++) {
        struct gk_shown word = gk_shown(run->command[i]);
        const char *quote = is_plain(word.text) ? "" : "'";

        if (used + strlen(word.text) + 8 > ret_bytes) {
            (void)snprintf(ret + used, ret_bytes - used, " ...");
            return;
        }
        (void)snprintf(ret + used, ret_bytes - used, "%s%s%s%s", i ? " " : "", quote, word.text,
                       quote);
        used += strlen(ret + used);
    }
}

bool gk_run_command_leaves_open(const struct gk_run_config *run, const struct gk_option *option)
{
    return gk_run_is_command(run) && is_of_training(option) && !gk_run_given(run, option->name);
}

json_t *gk_run_command_json(const struct gk_run_config *run)
{
    json_t *list = run->command_count > 0 ? json_array() : json_null();
    bool failed = list == NULL;

    for (size_t i = 0; i < run->command_count && !failed; i++) {
        failed = json_array_append_new(list, gk_json_string(run->command[i])) != 0;
    }
    if (failed) {
        json_decref(list);
        return NULL;
    }
    return list;
}

void gk_run_command_options(const struct gk_run_config *run, char *ret, size_t ret_bytes)
{
    const struct gk_option *option;
    size_t used = 0;

    ret[0] = '\0';
    for (size_t i = 0; (option = gk_run_option(i)) && used + 1 < ret_bytes; i++) {
        const char *text = is_of_training(option) ? handed_on(run, option) : NULL;

        if (text) {
            (void)snprintf(ret + used, ret_bytes - used, "%s%s %s", used ? ", " : "", option->name,
                           gk_shown(text).text);
            used += strlen(ret + used);
        }
    }
}

static void add_option(struct gk_args *ret, const char *option, const char *text)
{
    char name[64] = "GKPS_";
    size_t used = strlen(name);

    for (; *option && used + 1 < sizeof(name); option++, used++) {
        name[used] = (char)(*option == '-' ? '_' : toupper((unsigned char)*option));
    }
    name[used] = '\0';
    gk_args_add(ret, "%s=%s", name, text);
}

/* Of the variables that say which process it is, a former value must not get through. */
static bool is_replaced(const char *variable)
{
    static const char *const names[] = {
        "RANK=",
        "LOCAL_RANK=",
        "GROUP_RANK=",
        "WORLD_SIZE=",
        "LOCAL_WORLD_SIZE=",
        "MASTER_ADDR=",
        "MASTER_PORT=",
        "GKPS_RANK=",
        "GKPS_TAKEOVER=",
        "GKPS_LAUNCHER_FD=",
        "GKPS_ALLOW_FAULTS=",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(variable, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return gk_run_configures(variable);
}

/* A program may change its folder before it opens its state. */
static void add_state_dir(const struct gk_run_config *run, uint32_t rank, struct gk_args *ret)
{
    char here[GK_STATE_PATH_BYTES] = "", folder[GK_STATE_PATH_BYTES];

    gk_state_path(run->options.state_dir, GK_ROLE_WORKER, rank, folder, sizeof(folder));
    if (folder[0] != '/' && !getcwd(here, sizeof(here))) {
        here[0] = '\0';
    }
    gk_args_add(ret, "GKPS_STATE_DIR=%s%s%s", here, here[0] ? "/" : "", folder);
}

/* How many devices a copy sees: CUDA counts those of the user's choice from 0. */
static uint32_t count_visible(const char *chosen, uint32_t gpus)
{
    uint32_t count = 0;

    if (!chosen || gpus == 0) {
        return gpus;
    }
    for (const char *at = chosen; *at && *at != '-';) { /* what follows a wrong one is ignored */
        count++;
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return count;
}

struct chosen { /* by the user, in the environment */
    bool threads, device;
    const char *gpus; /* NULL: not set */
};

static void add_machine(const struct gk_run_config *run, const struct gk_run_place *place,
                        const struct chosen *chosen, struct gk_args *ret)
{
    const struct gk_run_machine *machine = place->machine;
    uint32_t gpus = count_visible(chosen->gpus, machine->gpus);
    uint64_t threads = machine->cores / run->options.workers;

    if (!chosen->threads) {
        gk_args_add(ret, "OMP_NUM_THREADS=%" PRIu64, threads > 0 ? threads : 1);
    }
    if (!chosen->device && gpus > 0) {
        gk_args_add(ret, "GKPS_DEVICE=cuda:%" PRIu32, place->index % gpus);
    } else if (!chosen->device) {
        gk_args_add(ret, "GKPS_DEVICE=cpu");
    }
}

static void add_place(const struct gk_run_config *run, const struct gk_run_place *place,
                      struct gk_args *ret)
{
    char addresses[GK_RUN_ADDRESSES_BYTES];

    gk_run_child_addresses(run, place->servers, addresses, sizeof(addresses));
    gk_args_add(ret, "GKPS_SERVERS=%s", addresses);
    gk_args_add(ret, "GKPS_RANK=%" PRIu32, place->index);
    gk_args_add(ret, "GKPS_WORKERS=%" PRIu64, run->options.workers);
    gk_args_add(ret, "GKPS_JOB=%s", run->options.job);
    gk_args_add(ret, "GKPS_LAUNCHER_FD=3");
    if (place->takeover) {
        gk_args_add(ret, "GKPS_TAKEOVER=true");
    }
    if (place->faults) {
        gk_args_add(ret, "GKPS_ALLOW_FAULTS=true");
    }
    if (run->options.state_dir) {
        add_state_dir(run, place->index, ret);
    }
    gk_args_add(ret, "RANK=%" PRIu32, place->index);
    gk_args_add(ret, "LOCAL_RANK=%" PRIu32, place->index);
    gk_args_add(ret, "GROUP_RANK=0");
    gk_args_add(ret, "WORLD_SIZE=%" PRIu64, run->options.workers);
    gk_args_add(ret, "LOCAL_WORLD_SIZE=%" PRIu64, run->options.workers);
    gk_args_add(ret, "MASTER_ADDR=127.0.0.1");
    gk_args_add(ret, "MASTER_PORT=%u", (unsigned)place->machine->port);
}

void gk_run_command_environment(const struct gk_run_config *run, const struct gk_run_place *place,
                                const char *const *environment, struct gk_args *ret)
{
    struct chosen chosen = {.threads = false};
    const struct gk_option *option;

    for (; *environment; environment++) {
        const char *variable = *environment;

        if (is_replaced(variable)) {
            continue;
        }
        chosen.threads = chosen.threads || strncmp(variable, "OMP_NUM_THREADS=", 16) == 0;
        chosen.device = chosen.device || strncmp(variable, "GKPS_DEVICE=", 12) == 0;
        if (strncmp(variable, "CUDA_VISIBLE_DEVICES=", 21) == 0) {
            chosen.gpus = variable + 21;
        }
        gk_args_add(ret, "%s", variable);
    }
    add_place(run, place, ret);
    add_machine(run, place, &chosen, ret);
    for (size_t i = 0; (option = gk_run_option(i)); i++) {
        const char *text = handed_on(run, option);

        if (text) {
            add_option(ret, option->name, text);
        }
    }
}
