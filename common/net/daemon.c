#include "common/net/daemon.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/log.h"

#include <uv.h>

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_signal(void *context, int number)
{
    struct gk_daemon *daemon = context;

    daemon->stop(daemon->context, 128 + number,
                 number == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM");
}

static void on_line(void *context, const json_t *object)
{
    struct gk_daemon *daemon = context;

    if (daemon->command) {
        daemon->command(daemon->context, object);
    }
}

static void on_ended(void *context)
{
    struct gk_daemon *daemon = context;

    daemon->stop(daemon->context, GK_EXIT_PEER, "the launcher is gone");
}

enum gk_err gk_daemon_open(struct gk_daemon *daemon, struct uv_loop_s *loop, int launcher_fd,
                           struct gk_words *words)
{
    static const struct gk_link_callbacks callbacks = {.line = on_line, .ended = on_ended};
    enum gk_err err = GK_OK;

    if (!daemon->no_signals) {
        err = gk_signals_open(loop, on_signal, daemon, &daemon->signals, words);
    }
    if (err || launcher_fd == 0) {
        return err;
    }
    return gk_link_open(loop, launcher_fd, &callbacks, daemon, &daemon->link, words);
}

void gk_daemon_close(struct gk_daemon *daemon)
{
    if (daemon->signals) {
        gk_signals_close(daemon->signals);
        daemon->signals = NULL;
    }
    if (daemon->died) {
        gk_link_close(daemon->link, NULL);
    } else {
        gk_link_finish(daemon->link, NULL);
    }
    daemon->link = NULL;
}

void gk_daemon_tell(const struct gk_daemon *daemon, json_t *line)
{
    if (line) {
        gk_link_send(daemon->link, line);
        json_decref(line);
    }
}

void gk_daemon_mention(const struct gk_daemon *daemon, json_t *line)
{
    if (gk_link_heard(daemon->link)) {
        gk_daemon_tell(daemon, line);
    } else {
        json_decref(line);
    }
}

static json_t *death_line(int exit_code, const char *words)
{
    return json_pack("{s:s, s:i, s:s}", "event", "death", "code", exit_code, "words", words);
}

static void log_death(const char *id, bool told, int exit_code, const char *words)
{
    bool stopped = exit_code == GK_EXIT_SIGINT || exit_code == GK_EXIT_SIGTERM;
    enum gk_log_level level = told ? GK_LOG_DEBUG : stopped ? GK_LOG_INFO : GK_LOG_ERROR;

    gk_log(level, id, "%s (exit code %d)", words, exit_code);
}

void gk_daemon_death(struct gk_daemon *daemon, const char *id, int exit_code, const char *words)
{
    json_t *line = death_line(exit_code, words); /* NULL also for words that JSON does not take */

    daemon->died = true;
    log_death(id, daemon->link && line, exit_code, words);
    gk_daemon_tell(daemon, line);
}

void gk_daemon_early_death(int launcher_fd, const char *id, int exit_code, const char *words)
{
    json_t *line = death_line(exit_code, words);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    size_t bytes = text ? strlen(text) : 0;
    bool told = false;

    if (launcher_fd > 0 && bytes > 0) {
        text[bytes++] = '\n'; /* in the place of the terminator */
        told = send(launcher_fd, text, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
    }
    log_death(id, told, exit_code, words);
    free(text);
    json_decref(line);
}

void gk_daemon_alarm(struct gk_daemon *daemon, uint64_t missed_wakes, uint64_t mode_corrections)
{
    if (missed_wakes > 0 && !daemon->wakes_said) {
        daemon->wakes_said = true;
        gk_log(GK_LOG_WARN, "NET-WAKE-MISSED",
               "a message waited without waking the loop (%" PRIu64
               " so far): nothing is lost, but this is slow; please report it",
               missed_wakes);
    }
    if (mode_corrections > 0 && !daemon->mode_said) {
        daemon->mode_said = true;
        gk_log(GK_LOG_WARN, "NET-FLOAT-MODE",
               "a library changed the floating-point mode of the compute thread (%" PRIu64
               " times so far): it was put right, but results up to then may differ in their bits",
               mode_corrections);
    }
}

void gk_daemon_abandon(const char *id, int exit_code)
{
    gk_log(GK_LOG_WARN, id,
           "a computation has not ended %d s after the rest; ending without it (exit code %d)",
           GK_DAEMON_COMPUTE_US / 1000000, exit_code);
    _exit(exit_code);
}

int gk_daemon_exit_code(enum gk_err err)
{
    if (err == GK_E_NOMEM) {
        return GK_EXIT_INTERNAL;
    }
    return err == GK_E_BUSY || err == GK_E_LIMIT ? GK_EXIT_RETRY : GK_EXIT_CONFIG;
}

void gk_daemon_end_loop(struct uv_loop_s *loop)
{
    int err;

    (void)uv_run(loop, UV_RUN_DEFAULT);
    err = uv_loop_close(loop);
    GK_ASSERT(err == 0);
}
