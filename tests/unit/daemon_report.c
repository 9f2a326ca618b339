/* Goal: what a worker tells its launcher: progress while somebody reads it, the summary in any
 * case. Method: a socketpair is the launcher, which reads at once, or only when all is said. */
#include "worker/lib/report.h"

#include "common/net/daemon.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEPS = 2000, STEP_US = 250 * 1000 };

struct heard {
    int progress, eval, summary;
    int after_summary;
};

static uv_loop_t loop;
static int launcher;

static void on_stop(void *context, int exit_code, const char *words)
{
    (void)context;
    (void)exit_code;
    (void)words;
}

/* Whole lines that are there now. */
static void hear(struct heard *heard)
{
    static char text[1 << 20];
    static size_t used;
    ssize_t got;

    while ((got = recv(launcher, text + used, sizeof(text) - used, MSG_DONTWAIT)) > 0) {
        char *line = text, *end;

        used += (size_t)got;
        while ((end = memchr(line, '\n', used - (size_t)(line - text))) != NULL) {
            *end = 0;
            heard->after_summary += heard->summary;
            heard->progress += strstr(line, "\"progress\"") != NULL;
            heard->eval += strstr(line, "\"eval\"") != NULL;
            heard->summary += strstr(line, "\"summary\"") != NULL;
            line = end + 1;
        }
        used -= (size_t)(line - text);
        memmove(text, line, used);
    }
}

static void train(bool stopped, struct heard *ret_heard)
{
    struct gk_daemon daemon_ = {.stop = on_stop};
    struct gk_worker_report report = {.daemon = &daemon_};
    struct gk_worker_stats stats = {0};
    struct gk_words words;
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    launcher = fds[0];
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(gk_daemon_open(&daemon_, &loop, fds[1], &words), GK_OK);
    for (uint64_t i = 0; i < STEPS; i++) {
        struct gk_report_step step = {.step = i, .samples = 1};
        struct gk_report_eval eval = {.step = i};

        gk_report_step(&report, &step, (i + 1) * STEP_US);
        gk_report_eval(&report, &eval);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        if (!stopped) {
            hear(ret_heard);
        }
    }
    gk_report_summary(&report, &stats);
    gk_daemon_close(&daemon_);
    gk_daemon_end_loop(&loop); /* at once: there is room for the summary */
    hear(ret_heard);
    (void)close(launcher);
}

Test(daemon_report, launcher_that_reads)
{
    struct heard heard = {0};

    train(false, &heard);
    cr_expect_eq(heard.progress, STEPS);
    cr_expect_eq(heard.eval, STEPS);
    cr_expect_eq(heard.summary, 1);
    cr_expect_eq(heard.after_summary, 0);
}

Test(daemon_report, launcher_that_is_stopped)
{
    struct heard heard = {0};

    train(true, &heard);
    cr_expect(heard.progress > 0 && heard.progress < STEPS / 10, "%d", heard.progress);
    cr_expect(heard.eval < STEPS / 10, "%d", heard.eval);
    cr_expect_eq(heard.summary, 1);
    cr_expect_eq(heard.after_summary, 0);
}
