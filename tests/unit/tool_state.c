/* Goal: the folder of a run is told apart from somebody else's, its daemons are found in order, and
 * only what is ours is removed; the options in it count where the command line says nothing, and
 * another job is refused by the option that differs.
 * Method: folders made here, with files of our names and of others. */
#include "common/exit.h"
#include "tool/run_child.h"
#include "tool/run_job.h"
#include "tool/state_dir.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char path[64];
};

static struct folder folder_new(void)
{
    struct folder folder;

    (void)snprintf(folder.path, sizeof(folder.path), "/tmp/gkps-state-XXXXXX");
    cr_assert(mkdtemp(folder.path));
    return folder;
}

static void put(const struct folder *folder, const char *name)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    if (name[strlen(name) - 1] == '/') {
        cr_assert(mkdir(path, 0777) == 0, "%s", path);
        return;
    }
    file = fopen(path, "w");
    cr_assert(file && fputs("12345", file) >= 0 && fclose(file) == 0, "%s", path);
}

static void drop(const struct folder *folder, const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    cr_assert(remove(path) == 0, "%s", path);
}

static void put_job(const struct folder *folder)
{
    static const char *const names[] = {
        "LOCK",
        "job.json",
        "server-0/",
        "server-0/JOB",
        "server-0/LOCK",
        "server-10/",
        "server-10/JOB",
        "server-0/wal-0-25.log",
        "server-0/snap-0-25",
        "server-2/",
        "server-0/snap-1-50.damaged",
        "server-0/fold.tmp",
        "worker-1/",
        "worker-1/slot",
        "worker-1/LOCK",
        "worker-0/",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        put(folder, names[i]);
    }
}

Test(state, daemons_are_found_in_order)
{
    static const char *const order[] = {"server-0", "server-2", "server-10", "worker-0",
                                        "worker-1"};
    struct folder folder = folder_new();
    struct gk_state_folders found = {0};
    struct gk_words words = {""};
    char path[256];

    cr_assert_eq(gk_state_find(folder.path, &found, &words), GK_E_NOTFOUND);
    put_job(&folder);
    put(&folder, "server-02/"); /* no name that we would write */
    cr_assert(gk_state_find(folder.path, &found, &words) == GK_OK, "%s", words.text);
    cr_assert_eq(found.count, 5);
    for (size_t i = 0; i < found.count; i++) {
        cr_assert(strcmp(strrchr(found.list[i].path, '/') + 1, order[i]) == 0, "%s",
                  found.list[i].path);
        cr_assert_eq(found.list[i].server, i < 3);
    }
    gk_state_folders_fini(&found);
    (void)snprintf(path, sizeof(path), "%s/worker-1", folder.path);
    cr_assert(gk_state_find(path, &found, &words) == GK_OK && found.count == 1);
    cr_assert(strcmp(found.list[0].path, path) == 0 && !found.list[0].server);
    gk_state_folders_fini(&found);
    drop(&folder, "server-02");
    cr_assert(gk_state_remove(folder.path, &words) == GK_OK, "%s", words.text);
    drop(&folder, "LOCK");
    cr_assert(rmdir(folder.path) == 0);
}

Test(state, only_ours_is_removed)
{
    static const char *const others[] = {
        "notes",
        "server-0/wal-0-25.log.bak",
        "server-0/wal--25.log",
        "worker-1/JOB",
        "server-0/slot",
        "server-0/sub/",
        "worker-3",
        "job.json~",
        "server-0/snap-",
        "server-0/wal-0-.log",
    };
    struct folder folder = folder_new();
    struct gk_state_content content;
    struct gk_words words = {""};

    put_job(&folder);
    cr_assert(gk_state_look(folder.path, &content, &words) == GK_OK);
    cr_assert(content.unknown[0] == '\0', "%s", content.unknown);
    cr_assert(content.servers == 3 && content.workers == 2 && content.job);
    cr_assert(content.files == 10 && content.bytes == 50);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        put(&folder, others[i]);
        cr_assert(gk_state_look(folder.path, &content, &words) == GK_OK);
        cr_assert(strncmp(others[i], content.unknown, strlen(content.unknown)) == 0 &&
                      content.unknown[0],
                  "%s: '%s'", others[i], content.unknown);
        drop(&folder, others[i]);
    }
    cr_assert(gk_state_remove(folder.path, &words) == GK_OK, "%s", words.text);
    drop(&folder, "LOCK"); /* held by whoever removes the rest */
    cr_assert(rmdir(folder.path) == 0, "something is left");
}

Test(state, one_holds_the_lock)
{
    struct folder folder = folder_new();
    struct gk_words words = {""};
    int fd = -1, other = -1;

    cr_assert(!gk_state_is_locked(folder.path));
    cr_assert(gk_state_lock(folder.path, &fd, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_state_is_locked(folder.path));
    cr_assert_eq(gk_state_lock(folder.path, &other, &words), GK_E_BUSY);
    cr_assert(strstr(words.text, "in use"));
    (void)close(fd);
    cr_assert(!gk_state_is_locked(folder.path));
    drop(&folder, "LOCK");
    cr_assert(rmdir(folder.path) == 0);
}

Test(state, the_locker_is_told)
{
    /* In memory: file systems in layers may have other numbers in the system's table. */
    char path[] = "/dev/shm/gkps-state-XXXXXX", lock[64];
    struct gk_words words = {""};
    int fd = -1;

    cr_assert(mkdtemp(path));
    cr_assert_eq(gk_state_locker(path), 0);
    cr_assert(gk_state_lock(path, &fd, &words) == GK_OK, "%s", words.text);
    cr_expect_eq(gk_state_locker(path), getpid());
    (void)close(fd);
    cr_expect_eq(gk_state_locker(path), 0);
    (void)snprintf(lock, sizeof(lock), "%s/LOCK", path);
    cr_assert(remove(lock) == 0 && rmdir(path) == 0);
}

static enum gk_err load(struct gk_run_config *run, const struct folder *folder,
                        const char *const *flags, int *ret_code, struct gk_words *words)
{
    char state[128];
    char *argv[16] = {(char *)"run", state};
    int argc = 2;

    (void)snprintf(state, sizeof(state), "--state-dir=%s", folder->path);
    for (; *flags; flags++) {
        argv[argc++] = (char *)*flags;
    }
    return gk_run_config_load(run, argc, argv, ret_code, words);
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static bool has(const struct gk_args *args, const char *prefix, const char *end)
{
    for (size_t i = 0; i < args->count; i++) {
        size_t length = strlen(args->v[i]);

        if (strncmp(args->v[i], prefix, strlen(prefix)) == 0 && length >= strlen(end) &&
            strcmp(args->v[i] + length - strlen(end), end) == 0) {
            return true;
        }
    }
    return false;
}

Test(state, the_job_is_in_its_folder)
{
    static const struct {
        const char *flag, *words;
    } others[] = {
        {"--lr=0.2", "--lr 0.070, not 0.2"},       {"--seed=5", "--seed 9, not 5"},
        {"--model=softmax", "fnn3, not softmax"},  {"--job=b", "--job a, not b"},
        {"--servers=2", "--servers 3, not 2"},     {"--batch=33", "--batch 32, not 33"},
        {"--density=0.02", "--density 0.01, not"}, {"--steps=1", "--steps 1000, not 1"},
    };
    static const char *const servers[] = {"a", "b", "c"};
    struct folder folder = folder_new();
    struct gk_run_config run;
    struct gk_args args = {0};
    struct gk_words words = {""};
    int code = -1;

    cr_assert(load(&run, &folder, FLAGS("--job=a", "--servers=3", "--lr=0.070", "--seed=9"), &code,
                   &words) == GK_OK,
              "%s", words.text);
    cr_assert(run.options.restart == GK_RUN_RESTART_ALWAYS,
              "restarts are the default with a state");
    cr_assert(gk_run_job_write(&run, &words) == GK_OK, "%s", words.text);
    gk_run_config_fini(&run);

    cr_assert(load(&run, &folder, FLAGS("--restart=never", "--sync=never"), &code, &words) == GK_OK,
              "%s", words.text);
    cr_assert(strcmp(run.options.job, "a") == 0 && run.options.servers == 3);
    cr_assert(run.options.seed == 9 && run.options.restart == GK_RUN_RESTART_NEVER);
    gk_run_server_args(&run, "/bin/x", 2, "", &args);
    cr_assert(has(&args, "--state-dir=", "/server-2") && has(&args, "--sync=", "never"));
    gk_args_fini(&args);
    gk_run_worker_args(&run, "/bin/x", servers, 1, false, &args);
    cr_assert(has(&args, "--state-dir=", "/worker-1"));
    cr_assert(has(&args, "--lr=0.070", ""), "by the text that the user wrote");
    gk_args_fini(&args);
    gk_run_config_fini(&run);

    cr_assert(load(&run, &folder, FLAGS("--lr=0.07", "--eval-every=5"), &code, &words) == GK_OK,
              "the same number: %s", words.text);
    gk_run_config_fini(&run);
    /* Nothing has begun: another job may take the place. */
    cr_assert(load(&run, &folder, FLAGS("--seed=5"), &code, &words) == GK_OK, "%s", words.text);
    cr_assert(run.replace && run.options.seed == 5 && run.options.servers == 2, "all is anew");
    gk_run_config_fini(&run);
    put(&folder, "server-1/"); /* a shard that nobody can read may have begun */
    put(&folder, "server-1/JOB");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        cr_assert(load(&run, &folder, FLAGS(others[i].flag), &code, &words) != GK_OK);
        cr_assert(code == GK_EXIT_CONFIG && strstr(words.text, others[i].words), "%s: %s",
                  others[i].flag, words.text);
        cr_assert(load(&run, &folder, FLAGS(others[i].flag, "--fresh"), &code, &words) == GK_OK,
                  "%s", words.text);
        cr_assert(run.options.seed == (strstr(others[i].flag, "seed") ? 5 : 1), "all is anew");
        gk_run_config_fini(&run);
    }
    drop(&folder, "server-1/JOB");
    drop(&folder, "server-1");
    drop(&folder, "job.json");
    cr_assert(rmdir(folder.path) == 0);
}

Test(state, a_command_is_part_of_the_job)
{
    static const struct {
        const char *const flags[6];
        const char *words; /* NULL: the same job */
    } cases[] = {
        {{"--quiet"}, NULL},
        {{"--", "sh", "-c", "a b"}, NULL},
        {{"--density=0.1", "--", "sh", "-c", "a b"}, NULL},
        {{"--density=0.2"}, "--density 0.1, not 0.2"},
        {{"--lr=0.1"}, "--lr unset, not 0.1"}, /* the program chose, whatever our default is */
        {{"--model=fnn3"}, "--model unset, not fnn3"},
        {{"--", "sh", "-c", "a"}, "of sh -c 'a b', not of sh -c a"},
        {{"--", "sh"}, "of sh -c 'a b', not of sh"},
    };
    struct folder folder = folder_new();
    struct gk_run_config run;
    struct gk_words words = {""};
    int code = -1;

    cr_assert(load(&run, &folder, FLAGS("--job=a", "--density=0.1", "--", "sh", "-c", "a b"), &code,
                   &words) == GK_OK,
              "%s", words.text);
    cr_assert(gk_run_job_write(&run, &words) == GK_OK, "%s", words.text);
    gk_run_config_fini(&run);
    put(&folder, "server-1/");
    put(&folder, "server-1/JOB");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum gk_err err = load(&run, &folder, cases[i].flags, &code, &words);

        cr_assert_eq(err != GK_OK, cases[i].words != NULL, "case %zu: %s", i, words.text);
        if (err) {
            cr_assert(code == GK_EXIT_CONFIG && strstr(words.text, cases[i].words), "case %zu: %s",
                      i, words.text);
            continue;
        }
        cr_assert(run.command_count == 3 && strcmp(run.command[2], "a b") == 0);
        cr_assert(gk_run_given(&run, "density") && !gk_run_given(&run, "lr"));
        gk_run_config_fini(&run);
    }
    drop(&folder, "server-1/JOB");
    drop(&folder, "server-1");
    drop(&folder, "job.json");
    cr_assert(rmdir(folder.path) == 0);
}

Test(state, damaged_options_are_refused)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"options\": 3}",
        "{\"options\": {\"lr\": 0.1}}",
        "{\"options\": {\"quiet\": \"true\"}}",
        "{\"options\": {\"lr\": \"fast\"}}",
        "{\"options\": {\"seed\": \"1\", \"seed\": \"2\"}}",
        "{\"options\": {}, \"command\": []}",
        "{\"options\": {}, \"command\": \"sh\"}",
        "{\"options\": {}, \"command\": [\"sh\", 3]}",
    };
    struct folder folder = folder_new();

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct gk_run_config run;
        struct gk_words words = {""};
        char path[128];
        FILE *file;
        int code = -1;

        (void)snprintf(path, sizeof(path), "%s/job.json", folder.path);
        file = fopen(path, "w");
        cr_assert(file && fputs(texts[i], file) >= 0 && fclose(file) == 0);
        cr_assert(load(&run, &folder, FLAGS("--quiet"), &code, &words) != GK_OK, "%s", texts[i]);
        cr_assert(code == GK_EXIT_CONFIG && strstr(words.text, folder.path), "%s: %d, %s", texts[i],
                  code, words.text);
    }
    drop(&folder, "job.json");
    {
        struct gk_run_config run;
        struct gk_words words = {""};
        char path[128];
        int code = -1;

        (void)snprintf(path, sizeof(path), "%s/job.json", folder.path);
        cr_assert(mkfifo(path, 0600) == 0); /* nobody will ever write to it */
        cr_assert(load(&run, &folder, FLAGS("--quiet"), &code, &words) != GK_OK);
        cr_assert(code == GK_EXIT_CONFIG && strstr(words.text, "/job.json: is no regular file"),
                  "%d, %s", code, words.text);
    }
    drop(&folder, "job.json");
    cr_assert(rmdir(folder.path) == 0);
}
