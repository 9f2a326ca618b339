/* Goal: `gkps run` starts servers before workers, ends with the right code and one clear reason
 * however a child ends, and leaves no process behind, even when it is killed itself. Method: the
 * real launcher in a child process; shell scripts that speak the link play the daemons, found by
 * PATH.  Whether everybody is gone is seen from the error pipe, which all of them inherit: it ends
 * when the last one does. */
#include "common/exit.h"
#include "tool/commands.h"

#include <criterion/criterion.h>

#include <jansson.h>
#include <uv.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[] = "/tmp/gkps-launch-XXXXXX";

/* A server tells address and result at once, then waits to be stopped or for its launcher to die.
 */
static const char server_script[] =
    "#!/bin/sh\n"
    "here=${0%/*}; again=\n"
    "for a; do case $a in --shard=*) shard=${a#*=};; --bind=tcp://127.0.0.1:[0-9]*) again=1;; "
    "esac; "
    "done\n"
    "[ \"$FAKE\" = late ] && [ $shard = 1 ] && read x <$here/begun\n"
    "[ \"$FAKE\" = mute -o \"$FAKE\" = odd ] || echo "
    "'{\"event\":\"endpoint\",\"address\":\"tcp://127.0.0.1:'$((shard+7))'\"}' >&3\n"
    "[ \"$FAKE\" = odd ] && echo '{\"event\":\"endpoint\",\"address\":\"a,b\"}' >&3\n"
    "[ \"$FAKE\" = server-dies ] && [ $shard = 1 ] && kill -KILL $$\n"
    /* Its death waits for the workers, their end for its next life. */
    "if [ \"$FAKE\" = lost ]; then\n"
    "  [ $shard = 1 ] && [ ! $again ] && read x <$here/begun && kill -KILL $$\n"
    "  [ $shard = 1 ] && echo >$here/back0 && echo >$here/back1\n"
    "  exec cat <&3 >/dev/null\n"
    "fi\n"
    "case \"$FAKE$shard$again\" in\n"
    "gone1) read x <$here/begun && kill -KILL $$;;\n"
    "gone11) echo >$here/back0; echo >$here/back1; exec cat <&3 >/dev/null;;\n"
    "swept1) read x <$here/begun && kill -KILL $$;;\n"
    "gone*|swept*) exec cat <&3 >/dev/null;;\n"
    "early*) exec cat <&3 >/dev/null;;\n"
    "full0) echo '{\"event\":\"trouble\",\"words\":\"No space left on device\"}' >&3\n"
    "  echo >$here/begun; exec cat <&3 >/dev/null;;\n"
    "full1) read x <$here/begun\n"
    "  echo '{\"event\":\"death\",\"code\":69,\"words\":\"missing rank 0\"}' >&3; exit 69;;\n"
    "esac\n"
    "echo "
    "'{\"event\":\"summary\",\"version\":5,\"model_hash\":\"00000000000000f'$shard'\",\"pushes\":"
    "10,"
    "\"applied\":10}' >&3\n"
    "exec cat <&3 >/dev/null\n";

static const char worker_script[] =
    "#!/bin/sh\n"
    "here=${0%/*}; again=\n"
    "for a; do case $a in --rank=*) rank=${a#*=};; --servers=*) servers=${a#*=};; --takeover) "
    "again=1;; esac; done\n"
    "[ $servers = tcp://127.0.0.1:7,tcp://127.0.0.1:8 ] || exit 99\n"
    "case $FAKE$rank$again in\n"
    "note*) echo '{\"event\":\"note\",\"words\":\"opened\\u0007it\"}' >&3;;\n"
    "once1) kill -KILL $$;;\n"
    "twice0|twice1) exit 3;;\n"
    "lost0|lost1) [ $rank = 0 ] && echo >$here/begun; read x <$here/back$rank\n"
    "  echo '{\"event\":\"death\",\"code\":69,\"words\":\"LOST_SHARD: gone\"}' >&3; exit 69;;\n"
    "gone0|gone1) echo '{\"event\":\"progress\",\"step\":1,\"loss\":1}' >&3\n"
    "  [ $rank = 0 ] && echo >$here/begun; read x <$here/back$rank; kill -KILL $$;;\n"
    "swept0|swept1) echo '{\"event\":\"progress\",\"step\":1,\"loss\":1}' >&3; kill -KILL $$;;\n"
    "swept01) echo >$here/begun; exec cat <&3 >/dev/null;;\n"
    "gone*|swept*) exec cat <&3 >/dev/null;;\n"
    "refuse*) echo '{\"event\":\"death\",\"code\":78,\"words\":\"there is no model x\"}' >&3; exit "
    "78;;\n"
    "segv1) kill -SEGV $$;;\n"
    "code1) exit 3;;\n"
    "silent1) exit 0;;\n"
    "early0|full*) exec cat <&3 >/dev/null;;\n"
    "early1) echo '{\"event\":\"summary\",\"steps\":0,\"left_before\":true}' >&3; exit 0;;\n"
    "garbage*) echo 'this is no JSON' >&3; echo '[]' >&3;;\n"
    "hang*) echo '{\"event\":\"progress\",\"step\":4,\"loss\":1}' >&3; exec cat <&3 >/dev/null;;\n"
    "deaf*) trap '' TERM; echo '{\"event\":\"progress\",\"step\":4,\"loss\":1}' >&3; cat <&3 "
    ">/dev/null; exit 0;;\n"
    "esac\n"
    "[ \"$FAKE\" = segv -o \"$FAKE\" = code -o \"$FAKE\" = silent ] && exec cat <&3 >/dev/null\n"
    "echo '{\"event\":\"progress\",\"step\":5,\"loss\":0.5}' >&3\n"
    "echo "
    "'{\"event\":\"summary\",\"steps\":5,\"samples\":10,\"seconds\":2,\"loss\":0.5,\"accuracy\":0."
    "75}' >&3\n"
    "[ $FAKE$rank = stuck1 ] && exec cat <&3 >/dev/null\n"
    "exit 0\n";

struct launched {
    pid_t pid;
    FILE *out, *err;
    char text[8192]; /* of err */
};

static void write_script(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    chmod(path, 0755);
}

static void setup(void)
{
    char path[1024];

    cr_assert_not_null(mkdtemp(folder));
    write_script("gkps-server", server_script);
    write_script("gkps-worker", worker_script);
    snprintf(path, sizeof(path), "%s:/usr/bin:/bin", folder);
    setenv("PATH", path, 1);
}

static void teardown(void)
{
    char path[256];
    static const char *const names[] = {"gkps-server", "gkps-worker", "s.json",
                                        "begun",       "back0",       "back1"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

TestSuite(launch, .init = setup, .fini = teardown);

static void launch(struct launched *ret, const char *fake, const char *flag)
{
    char *argv[] = {(char *)"gkps",      (char *)"run", (char *)"--workers=2",
                    (char *)"--steps=5", (char *)flag,  NULL};
    int out[2], err[2];

    cr_assert(uv_pipe(out, 0, 0) == 0 && uv_pipe(err, 0, 0) == 0);
    fflush(stdout);
    ret->pid = fork();
    if (ret->pid == 0) {
        setenv("FAKE", fake, 1);
        signal(SIGINT, SIG_DFL);
        dup2(out[1], 1);
        dup2(err[1], 2);
        int code = gk_tool_main(flag ? 5 : 4, argv);
        fflush(stdout);
        _exit(code);
    }
    close(out[1]);
    close(err[1]);
    ret->out = fdopen(out[0], "r");
    ret->err = fdopen(err[0], "r");
    ret->text[0] = '\0';
}

/* Everything of the error pipe up to a line with `wanted`, or to the end. */
static void read_until(struct launched *launched, const char *wanted)
{
    size_t used = strlen(launched->text);

    while (fgets(launched->text + used, (int)(sizeof(launched->text) - used), launched->err)) {
        if (wanted && strstr(launched->text + used, wanted)) {
            return;
        }
        used += strlen(launched->text + used);
    }
    cr_assert(!wanted, "no %s in: %s", wanted ? wanted : "", launched->text);
}

static int end(struct launched *launched)
{
    int status;

    read_until(launched, NULL); /* returns when every descendant is gone */
    cr_assert_eq(waitpid(launched->pid, &status, 0), launched->pid);
    fclose(launched->out);
    fclose(launched->err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool says(const struct launched *launched, const char *words)
{
    return strstr(launched->text, words) != NULL;
}

Test(launch, good_run_sums_up)
{
    struct launched launched;
    char flag[300], line[256], all[4096] = "";
    json_t *summary;

    snprintf(flag, sizeof(flag), "--summary=%s/s.json", folder);
    launch(&launched, "good", flag);
    while (fgets(line, sizeof(line), launched.out)) {
        strcat(all, line);
    }
    cr_assert_eq(end(&launched), GK_EXIT_OK, "%s", launched.text);
    cr_assert_not_null(strstr(all, "step 5/5 (100 %)"), "%s", all);
    cr_assert_not_null(strstr(all, "accuracy          75.00 %"), "%s", all);
    cr_assert_not_null(strstr(all, "summary saved to "), "%s", all);
    cr_assert_str_empty(launched.text);
    summary = json_load_file(flag + strlen("--summary="), 0, NULL);
    cr_assert_not_null(summary);
    cr_assert_str_eq(json_string_value(json_object_get(summary, "model_hash")), "00000000000001e1");
    cr_assert_eq(json_integer_value(json_object_get(summary, "samples")), 20);
    json_decref(summary);
}

Test(launch, summary_alone_on_standard_output)
{
    struct launched launched;
    json_t *summary;

    launch(&launched, "good", "--summary=-");
    summary = json_loadf(launched.out, 0, NULL);
    cr_assert_not_null(summary);
    json_decref(summary);
    cr_assert_eq(end(&launched), GK_EXIT_OK, "%s", launched.text);
    cr_assert(says(&launched, "accuracy"));
}

Test(launch, unknown_lines_are_ignored)
{
    struct launched launched;

    launch(&launched, "garbage", "--quiet");
    cr_assert_eq(end(&launched), GK_EXIT_OK, "%s", launched.text);
    cr_assert_str_empty(launched.text);
}

Test(launch, a_death_ends_the_run)
{
    static const struct {
        const char *fake, *words;
        int code;
    } cases[] = {
        {"refuse", "ended with code 78: there is no model x", GK_EXIT_CONFIG},
        {"segv", "worker 1 was killed by SIGSEGV", GK_EXIT_INTERNAL},
        {"code", "worker 1 ended with code 3", GK_EXIT_INTERNAL},
        {"silent", "worker 1 ended with code 0 but told no result", GK_EXIT_INTERNAL},
        {"server-dies", "server 1 was killed by SIGKILL", GK_EXIT_INTERNAL},
        {"odd", "told an address that makes no sense", GK_EXIT_INTERNAL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct launched launched;
        int code;

        launch(&launched, cases[i].fake, NULL);
        code = end(&launched);
        cr_assert_eq(code, cases[i].code, "%s: %d: %s", cases[i].fake, code, launched.text);
        cr_assert(says(&launched, cases[i].words), "%s: %s", cases[i].fake, launched.text);
        cr_assert_null(strchr(strchr(launched.text, '\n') + 1, '\n'), "more than one line: %s",
                       launched.text);
    }
}

static bool prints(struct launched *launched, const char *words)
{
    char line[512];
    bool found = false;

    while (fgets(line, sizeof(line), launched->out)) {
        found = found || strstr(line, words);
    }
    return found;
}

Test(launch, a_dead_worker_is_started_again)
{
    static const struct {
        const char *fake, *words, *table;
    } cases[] = {
        {"once", "worker 1 was killed by SIGKILL", "  restarts          1 ("},
        {"twice", "worker 0 ended with code 3; starts again in 100 ms, with an empty residual",
         "  restarts          2 ("},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct launched launched;

        launch(&launched, cases[i].fake, "--restart=always");
        cr_assert(prints(&launched, cases[i].table), "%s", cases[i].fake);
        cr_assert_eq(end(&launched), GK_EXIT_OK, "%s: %s", cases[i].fake, launched.text);
        cr_assert(says(&launched, cases[i].words), "%s: %s", cases[i].fake, launched.text);
    }
}

Test(launch, no_new_life_where_it_would_not_help)
{
    struct launched launched;

    launch(&launched, "refuse", "--restart=always");
    cr_assert_eq(end(&launched), GK_EXIT_CONFIG, "%s", launched.text);
    cr_assert(says(&launched, "ended with code 78: there is no model x; the run ends"), "%s",
              launched.text);
    cr_assert(!says(&launched, "RUN-RESTART"));
}

Test(launch, a_dead_server_ends_the_run_when_all_workers_have_said_so)
{
    static const char *const fifos[] = {"begun", "back0", "back1"};
    struct launched launched;
    char path[256];

    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, fifos[i]);
        cr_assert_eq(mkfifo(path, 0600), 0);
    }
    launch(&launched, "lost", "--restart=always");
    cr_assert_eq(end(&launched), GK_EXIT_PEER, "%s", launched.text);
    cr_assert(says(&launched, "server 1 was killed by SIGKILL") &&
                  says(&launched, "starts again in 100 ms at the same address, without its shard"),
              "%s", launched.text);
    cr_assert(says(&launched, "worker 0 ended with code 69: LOST_SHARD: gone\n") &&
                  says(&launched, "worker 1 ended with code 69: LOST_SHARD: gone\n"),
              "%s", launched.text);
    cr_assert(says(&launched, "LOST_SHARD: server 1 died"), "%s", launched.text);
}

/* Without a state dir a server's death ends the job, also when no worker lives to find it out:
 * whether the workers die behind the server or before it. */
Test(launch, a_job_that_nobody_remembers_does_not_begin_again)
{
    static const char *const fakes[] = {"gone", "swept"}, *const fifos[] = {"begun", "back0",
                                                                            "back1"};

    for (int i = 0; i < 2; i++) {
        struct launched launched;
        char path[256];

        for (int j = 0; j < 3; j++) {
            snprintf(path, sizeof(path), "%s/%s", folder, fifos[j]);
            unlink(path);
            cr_assert_eq(mkfifo(path, 0600), 0);
        }
        launch(&launched, fakes[i], "--restart=always");
        cr_assert_eq(end(&launched), GK_EXIT_PEER, "%s: %s", fakes[i], launched.text);
        cr_assert(says(&launched, "RUN-LOST-SHARD LOST_SHARD: ") &&
                      says(&launched,
                           "; server 1 has lost its shard of the model, and no worker is "
                           "left that took part in the job; the run ends\n"),
                  "%s: %s", fakes[i], launched.text);
    }
}

Test(launch, notes_are_lines_of_their_own)
{
    struct launched launched;

    launch(&launched, "note", NULL);
    cr_assert(prints(&launched, "worker 1: opened?it\n"));
    cr_assert_eq(end(&launched), GK_EXIT_OK, "%s", launched.text);
    launch(&launched, "note", "--quiet");
    cr_assert(!prints(&launched, "opened"));
    cr_assert_eq(end(&launched), GK_EXIT_OK);
}

/* One says that it had left, the others wait for it without end: not the launcher. */
Test(launch, a_worker_that_ended_too_early_is_named)
{
    struct launched launched;

    launch(&launched, "early", "--deadline=1");
    cr_assert_eq(end(&launched), GK_EXIT_PEER, "%s", launched.text);
    cr_assert(says(&launched, "rank 1 has ended because its state directory says that it had left, "
                              "but the servers have not finished the job within 1 s"),
              "%s", launched.text);
}

/* The one that gives up first is not the one that has the reason. */
Test(launch, a_full_disk_is_behind_a_missing_peer)
{
    static const struct {
        const char *fake, *flag, *words;
    } cases[] = {
        {"full", "--restart=never",
         "server 1 ended with code 69: missing rank 0; server 0: No space left on device; the run "
         "ends"},
        {"full", "--restart=always", "missing rank 0; server 0: No space left on device;"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct launched launched;
        char path[256];

        snprintf(path, sizeof(path), "%s/begun", folder);
        unlink(path);
        cr_assert_eq(mkfifo(path, 0600), 0);
        launch(&launched, cases[i].fake, cases[i].flag);
        cr_assert_eq(end(&launched), GK_EXIT_RETRY, "%zu: %s", i, launched.text);
        cr_assert(says(&launched, cases[i].words), "%zu: %s", i, launched.text);
    }
}

Test(launch, a_server_that_does_not_bind_is_named)
{
    struct launched launched;

    launch(&launched, "mute", "--deadline=1");
    cr_assert_eq(end(&launched), GK_EXIT_PEER);
    cr_assert(says(&launched, "server 0 and 1 more did not tell its address within 1 s"), "%s",
              launched.text);
}

/* Its results are known, and still nobody waits for it for ever. */
Test(launch, a_child_that_does_not_end_after_its_last_word_is_killed)
{
    struct launched launched;

    launch(&launched, "stuck", NULL);
    cr_assert_eq(end(&launched), GK_EXIT_INTERNAL, "%s", launched.text);
    cr_assert(says(&launched, "worker 1 told its result but did not end within 10 s: killed"), "%s",
              launched.text);
    cr_assert(says(&launched, "worker 1 had to be killed"), "%s", launched.text);
}

/* The stimulus is the time in which the launcher is stopped: longer than its deadline. */
Test(launch, a_pause_of_the_launcher_is_nobodys_delay)
{
    struct launched launched;
    char path[256];
    int go;

    snprintf(path, sizeof(path), "%s/begun", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    launch(&launched, "late", "--deadline=2");
    go = open(path, O_WRONLY); /* returns when the server waits */
    cr_assert_eq(kill(launched.pid, SIGSTOP), 0);
    cr_assert_eq(nanosleep(&(struct timespec){.tv_sec = 3, .tv_nsec = 500000000}, NULL), 0);
    cr_assert_eq(kill(launched.pid, SIGCONT), 0);
    cr_assert_eq(write(go, "\n", 1), 1);
    close(go);
    cr_assert_eq(end(&launched), GK_EXIT_OK, "%s", launched.text);
}

static void wait_for_progress(struct launched *launched)
{
    char line[256];

    while (fgets(line, sizeof(line), launched->out)) {
        if (strncmp(line, "step ", 5) == 0) {
            return;
        }
    }
    cr_assert_fail("no progress");
}

Test(launch, signals_stop_everybody)
{
    static const int numbers[] = {SIGINT, SIGTERM};

    for (int i = 0; i < 2; i++) {
        struct launched launched;

        launch(&launched, "hang", NULL);
        wait_for_progress(&launched);
        kill(launched.pid, numbers[i]);
        cr_assert_eq(end(&launched), 128 + numbers[i], "%s", launched.text);
        cr_assert(says(&launched, "stopping all daemons"));
    }
}

Test(launch, a_second_signal_kills)
{
    struct launched launched;

    launch(&launched, "deaf", NULL);
    wait_for_progress(&launched);
    kill(launched.pid, SIGINT);
    read_until(&launched, "RUN-STOPPING");
    kill(launched.pid, SIGINT);
    cr_assert_eq(end(&launched), GK_EXIT_SIGINT, "%s", launched.text);
    cr_assert(says(&launched, "at once"));
}

Test(launch, nobody_outlives_a_killed_launcher)
{
    struct launched launched;

    launch(&launched, "deaf", NULL);
    wait_for_progress(&launched);
    kill(launched.pid, SIGKILL);
    cr_assert_eq(end(&launched), -SIGKILL);
}

Test(launch, wrong_places_are_found)
{
    struct launched launched;
    char path[256];

    launch(&launched, "good", "--summary=/nonexistent/s.json");
    cr_assert_eq(end(&launched), GK_EXIT_CONFIG);
    cr_assert(says(&launched, "/nonexistent/s.json"));
    snprintf(path, sizeof(path), "%s/gkps-worker", folder);
    unlink(path);
    launch(&launched, "good", NULL); /* servers run already, and are stopped */
    cr_assert_eq(end(&launched), GK_EXIT_CONFIG);
    cr_assert(says(&launched, "cannot start gkps-worker"), "%s", launched.text);
    setenv("PATH", "/nonexistent", 1);
    launch(&launched, "good", NULL);
    cr_assert_eq(end(&launched), GK_EXIT_CONFIG);
    cr_assert(says(&launched, "cannot start gkps-server: it is neither beside gkps nor in PATH"),
              "%s", launched.text);
}

Test(launch, commands)
{
    static const struct {
        const char *word;
        int code;
    } cases[] = {{NULL, 64}, {"--help", 0}, {"help", 0}, {"--version", 0}, {"bogus", 64}};

    freopen("/dev/null", "w", stdout);
    freopen("/dev/null", "w", stderr);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *argv[] = {(char *)"gkps", (char *)cases[i].word, NULL};

        cr_assert_eq(gk_tool_main(cases[i].word ? 2 : 1, argv), cases[i].code);
    }
    char *help[] = {(char *)"gkps", (char *)"help", (char *)"run", NULL};
    cr_assert_eq(gk_tool_main(3, help), 0);
    help[2] = (char *)"bogus";
    cr_assert_eq(gk_tool_main(3, help), GK_EXIT_USAGE);
}
