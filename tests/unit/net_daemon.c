/* Goal: a daemon hears of signals and of its launcher's end, and a death is one line: told to the
 * launcher, or logged where there is none.
 * Method: a socketpair is the launcher, a pipe the log; signals are raised for real. */
#include "common/net/daemon.h"

#include "common/exit.h"
#include "common/log.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static uv_loop_t loop;
static struct gk_daemon daemon_;
static int launcher, log_fd;
static int stopped; /* exit code of the last stop */
static char stop_words[64];

static void on_stop(void *context, int exit_code, const char *words)
{
    cr_assert_eq(context, &loop);
    stopped = exit_code;
    (void)snprintf(stop_words, sizeof(stop_words), "%s", words);
}

/* What has been written so far: "" when nothing has. */
static const char *text_of(int fd)
{
    static char text[4096];
    ssize_t bytes = read(fd, text, sizeof(text) - 1);

    text[bytes > 0 ? bytes : 0] = 0;
    return text;
}

static int pair(int *ret_theirs)
{
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    cr_assert_eq(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    *ret_theirs = fds[1];
    return fds[0];
}

static void start(bool linked)
{
    struct gk_words words;
    int fds[2], theirs = 0;

    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    log_fd = fds[0];
    gk_log_open("test", GK_LOG_TEXT, GK_LOG_INFO, fds[1]);
    if (linked) {
        launcher = pair(&theirs);
    }
    stopped = 0;
    cr_assert_eq(uv_loop_init(&loop), 0);
    daemon_ = (struct gk_daemon){.stop = on_stop, .context = &loop};
    cr_assert_eq(gk_daemon_open(&daemon_, &loop, theirs, &words), GK_OK, "%s", words.text);
    cr_assert_eq(daemon_.link != NULL, linked);
}

static void finish(void)
{
    gk_daemon_close(&daemon_);
    gk_daemon_close(&daemon_);
    gk_daemon_end_loop(&loop);
}

Test(net_daemon, signals)
{
    static const int numbers[] = {SIGINT, SIGTERM};

    for (int i = 0; i < 2; i++) {
        start(true); /* the link keeps the loop running */
        cr_assert_eq(raise(numbers[i]), 0);
        while (stopped == 0) {
            (void)uv_run(&loop, UV_RUN_ONCE);
        }
        cr_expect_eq(stopped, 128 + numbers[i]);
        cr_expect(strstr(stop_words, i == 0 ? "SIGINT" : "SIGTERM"));
        finish();
        (void)close(launcher);
    }
}

Test(net_daemon, launcher_that_dies)
{
    start(true);
    (void)close(launcher);
    while (stopped == 0) {
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
    cr_expect_eq(stopped, GK_EXIT_PEER);
    cr_expect(strstr(stop_words, "launcher"));
    finish();
}

Test(net_daemon, no_socket)
{
    struct gk_words words;

    cr_assert_eq(uv_loop_init(&loop), 0);
    daemon_ = (struct gk_daemon){.stop = on_stop, .context = &loop};
    cr_assert_eq(gk_daemon_open(&daemon_, &loop, 777, &words), GK_E_INVALID);
    cr_expect(strstr(words.text, "777"), "%s", words.text);
    finish();
}

Test(net_daemon, death_with_a_launcher)
{
    const char *text;

    start(true);
    gk_daemon_death(&daemon_, "TEST-DEATH", 69, "nobody \"came\"");
    finish();
    text = text_of(launcher);
    cr_expect(strstr(text, "\"death\"") && strstr(text, "69") &&
                  strstr(text, "nobody \\\"came\\\""),
              "%s", text);
    cr_expect_str_eq(text_of(log_fd), "", "the launcher says it");
}

Test(net_daemon, death_without_a_launcher)
{
    const char *text;

    start(false);
    gk_daemon_death(&daemon_, "TEST-DEATH", 69, "nobody came");
    text = text_of(log_fd);
    cr_expect(strstr(text, "ERROR") && strstr(text, "TEST-DEATH nobody came (exit code 69)"), "%s",
              text);
    gk_daemon_death(&daemon_, "TEST-DEATH", GK_EXIT_SIGTERM, "stopped");
    text = text_of(log_fd);
    cr_expect(strstr(text, "INFO") && !strstr(text, "ERROR"), "%s", text);
    finish();
}

/* Words that JSON does not take cannot be told: then they are logged. */
Test(net_daemon, death_that_cannot_be_told)
{
    start(true);
    gk_daemon_death(&daemon_, "TEST-DEATH", 64, "--rank: '\xff'");
    finish();
    cr_expect_str_eq(text_of(launcher), "");
    cr_expect(strstr(text_of(log_fd), "ERROR"));
    (void)close(launcher);
}

static int told(void)
{
    int lines = 0;

    for (const char *text = text_of(launcher); *text; text = text_of(launcher)) {
        for (; *text; text++) {
            lines += *text == '\n';
        }
    }
    return lines;
}

/* A launcher that is stopped: what can be done without is left out, the rest waits for it, and
 * after a death not for long. */
Test(net_daemon, launcher_that_is_stopped)
{
    enum { LINES = 5000 };

    for (int dies = 0; dies < 2; dies++) {
        int mentioned;

        start(true);
        for (int i = 0; i < LINES; i++) {
            gk_daemon_mention(&daemon_, json_pack("{s:s}", "event", "progress"));
        }
        mentioned = told();
        cr_expect(mentioned > 5 && mentioned < LINES / 10, "%d", mentioned);
        for (int i = 0; i < LINES; i++) {
            gk_daemon_tell(&daemon_, json_pack("{s:s}", "event", "note"));
        }
        if (dies) {
            gk_daemon_death(&daemon_, "TEST-DEATH", 69, "nobody came");
        }
        gk_daemon_close(&daemon_);
        cr_assert_neq(uv_run(&loop, UV_RUN_NOWAIT), 0);
        cr_expect_eq(uv_backend_timeout(&loop) > 0, dies, "a time limit after a death alone");
        for (int lines = 0; lines < LINES + dies;) {
            lines += told();
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
        gk_daemon_end_loop(&loop);
        (void)close(launcher);
    }
}

/* Whoever waits for such a launcher still ends at a signal. */
Test(net_daemon, signal_ends_the_waiting)
{
    int ends[2], status = 0;
    char byte = 0;
    pid_t pid;

    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        start(true);
        for (int i = 0; i < 5000; i++) {
            gk_daemon_tell(&daemon_, json_pack("{s:s}", "event", "note"));
        }
        gk_daemon_close(&daemon_);
        _exit(write(ends[1], &byte, 1) == 1 ? uv_run(&loop, UV_RUN_DEFAULT) : 2);
    }
    cr_assert_eq(read(ends[0], &byte, 1), 1);
    cr_assert_eq(kill(pid, SIGTERM), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "%d", status);
}

Test(net_daemon, early_death)
{
    const char *text;
    int theirs, file;

    start(false);
    launcher = pair(&theirs);
    gk_daemon_early_death(theirs, "TEST-EARLY", 65, "no data");
    text = text_of(launcher);
    cr_expect(strstr(text, "no data") && text[strlen(text) - 1] == '\n', "%s", text);
    cr_expect_str_eq(text_of(log_fd), "");
    gk_daemon_early_death(0, "TEST-EARLY", 65, "no data");
    cr_expect(strstr(text_of(log_fd), "TEST-EARLY no data"));
    file = open("/dev/null", O_RDWR);
    gk_daemon_early_death(file, "TEST-EARLY", 65, "no data");
    cr_expect(strstr(text_of(log_fd), "TEST-EARLY no data"), "no launcher is there");
    (void)close(launcher);
    gk_daemon_early_death(theirs, "TEST-EARLY", 65, "no data");
    cr_expect(strstr(text_of(log_fd), "TEST-EARLY no data"),
              "nor is a dead one, which is no signal");
    finish();
}

Test(net_daemon, alarms_are_said_once)
{
    const char *text;

    start(false);
    gk_daemon_alarm(&daemon_, 0, 0);
    cr_expect_str_eq(text_of(log_fd), "");
    gk_daemon_alarm(&daemon_, 1, 0);
    text = text_of(log_fd);
    cr_expect(strstr(text, "WARN") && strstr(text, "NET-WAKE-MISSED") && !strstr(text, "MODE"),
              "%s", text);
    gk_daemon_alarm(&daemon_, 2, 1);
    text = text_of(log_fd);
    cr_expect(strstr(text, "NET-FLOAT-MODE") && !strstr(text, "WAKE"), "%s", text);
    gk_daemon_alarm(&daemon_, 3, 2);
    cr_expect_str_eq(text_of(log_fd), "");
    finish();
}

Test(net_daemon, exit_codes)
{
    cr_expect_eq(gk_daemon_exit_code(GK_E_NOMEM), GK_EXIT_INTERNAL);
    cr_expect_eq(gk_daemon_exit_code(GK_E_BUSY), GK_EXIT_RETRY);
    cr_expect_eq(gk_daemon_exit_code(GK_E_LIMIT), GK_EXIT_RETRY);
    cr_expect_eq(gk_daemon_exit_code(GK_E_INVALID), GK_EXIT_CONFIG);
}
