/* Plain system calls instead of an event loop: the child process is a copy of this one and opens
 * its own.  Signals are read from a descriptor and handed on to the launcher, except those that the
 * terminal gave to both of us.  As "subreaper" of the system, this process inherits the daemons
 * that a killed launcher leaves behind, and so knows when they are gone. */
#include "tool/faults_judge.h"

#include "common/exit.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "tool/faults_expect.h"
#include "tool/json.h"
#include "tool/kin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LINE_BYTES = 4096,             /* of the log, to look for texts in; the rest of a line is not */
    ENDED_US = 1000 * 1000,        /* nobody is left so long after a launcher that ended */
    ORPHANS_US = 20 * 1000 * 1000, /* ... that was killed: its daemons notice, drain and exit */
    STOP_US = 15 * 1000 * 1000,    /* from SIGTERM to SIGKILL for a launcher that is late */
    POLL_US = 20 * 1000,
};

struct line { /* an unfinished one */
    char text[LINE_BYTES];
    size_t used;
};

struct trial {
    const struct gk_faults_trial *setup;
    struct gk_faults_stage stage;
    struct gk_faults_outcome *outcome;
    pid_t launcher;
    int log_fd, report_fd, signal_fd; /* -1: at its end */
    sigset_t signals, former;
    struct line log, report;
    uint64_t begin_us, thaw_us, late_us; /* 0: not */
    bool interrupted;
    bool killed; /* the launcher, by a signal */
};

static void take_log_line(struct trial *trial, const char *text)
{
    const struct gk_faults_expect *expect = &trial->setup->faults->expect;

    for (uint32_t i = 0; i < expect->says_count; i++) {
        if (strstr(text, expect->says[i])) {
            trial->outcome->said[i] = true;
        }
    }
}

static void take_report_line(struct trial *trial, const char *text)
{
    struct gk_faults_outcome *outcome = trial->outcome;
    json_t *object = json_loads(text, 0, NULL);
    char event[16];
    uint64_t fault = gk_json_u64(object, "fault", GK_FAULTS_MAX);

    gk_json_text(object, "event", event, sizeof(event));
    if (strcmp(event, "done") == 0 && fault < GK_FAULTS_MAX) {
        outcome->done[fault]++;
    } else if (strcmp(event, "freeze") == 0) {
        trial->thaw_us = gk_now_us() + gk_json_u64(object, "us", 0);
    } else if (strcmp(event, "result") == 0) {
        outcome->told = true;
        outcome->complete = gk_json_bool(object, "complete");
        outcome->hashed = gk_json_bool(object, "hashed");
        (void)gk_json_hex64(object, "model_hash", &outcome->model_hash);
        outcome->lost = gk_json_u64(object, "lost", 0);
        outcome->restarts = gk_json_u64(object, "restarts", 0);
    }
    json_decref(object);
}

static void feed(struct trial *trial, struct line *line, const char *data, size_t size,
                 void (*take)(struct trial *trial, const char *text))
{
    for (size_t i = 0; i < size; i++) {
        if (data[i] == '\n') {
            line->text[line->used] = '\0';
            take(trial, line->text);
            line->used = 0;
        } else if (line->used + 1 < sizeof(line->text)) {
            line->text[line->used++] = data[i];
        }
    }
}

/* Bytes that came; 0: none now; -1: the end, and the descriptor is closed. */
static ssize_t read_some(int *fd, char *data, size_t room)
{
    ssize_t n = read(*fd, data, room);

    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return 0;
    }
    if (n <= 0) {
        (void)close(*fd);
        *fd = -1;
        return -1;
    }
    return n;
}

/* True: there may be more. */
static bool read_log(struct trial *trial)
{
    char data[LINE_BYTES];
    ssize_t n = read_some(&trial->log_fd, data, sizeof(data));

    if (n > 0) {
        ssize_t written = write(STDERR_FILENO, data, (size_t)n);

        (void)written; /* a reader that is gone wanted no more */
        feed(trial, &trial->log, data, (size_t)n, take_log_line);
    }
    return n > 0;
}

static bool read_report(struct trial *trial)
{
    char data[LINE_BYTES];
    ssize_t n = read_some(&trial->report_fd, data, sizeof(data));

    if (n > 0) {
        feed(trial, &trial->report, data, (size_t)n, take_report_line);
    }
    return n > 0;
}

static void read_signals(struct trial *trial)
{
    struct signalfd_siginfo info;

    while (read(trial->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        trial->interrupted = true;
        if (info.ssi_code != SI_KERNEL && trial->launcher > 0) {
            (void)kill(trial->launcher, (int)info.ssi_signo); /* else the terminal gave it one */
        }
        if (trial->launcher > 0) {
            (void)kill(trial->launcher, SIGCONT);
        }
    }
}

static void look(struct trial *trial, int wait_ms)
{
    struct pollfd fds[3] = {{.fd = trial->log_fd, .events = POLLIN},
                            {.fd = trial->report_fd, .events = POLLIN},
                            {.fd = trial->signal_fd, .events = POLLIN}};

    if (poll(fds, 3, wait_ms) <= 0) {
        return;
    }
    if (fds[0].revents) {
        (void)read_log(trial);
    }
    if (fds[1].revents) {
        (void)read_report(trial);
    }
    if (fds[2].revents) {
        read_signals(trial);
    }
}

/* In the child: everything that was opened for the judge goes. */
static int be_launcher(struct trial *trial, pid_t judge, int log_fd)
{
    /* Whoever kills the judge means the run.  It may be gone by now. */
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != judge) {
        return GK_EXIT_INTERNAL;
    }
    (void)close(trial->log_fd);
    (void)close(trial->report_fd);
    (void)close(trial->signal_fd);
    (void)sigprocmask(SIG_SETMASK, &trial->former, NULL);
    if (dup2(log_fd, STDERR_FILENO) < 0) {
        return GK_EXIT_INTERNAL;
    }
    (void)close(log_fd);
    return trial->setup->launch(trial->setup->context, &trial->stage);
}

static bool make_pipe(int *ret_read, int *ret_write)
{
    int ends[2];

    if (pipe(ends) != 0) {
        return false;
    }
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *ret_read = ends[0];
    *ret_write = ends[1];
    return true;
}

static void close_all(struct trial *trial)
{
    int *const fds[] = {&trial->log_fd, &trial->report_fd, &trial->signal_fd};

    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
        }
        *fds[i] = -1;
    }
    (void)sigprocmask(SIG_SETMASK, &trial->former, NULL);
}

static bool start(struct trial *trial)
{
    int log_fd = -1, report_fd = -1;
    pid_t judge = getpid();

    (void)sigemptyset(&trial->signals);
    (void)sigaddset(&trial->signals, SIGINT);
    (void)sigaddset(&trial->signals, SIGTERM);
    (void)sigaddset(&trial->signals, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &trial->signals, &trial->former);
    trial->signal_fd = signalfd(-1, &trial->signals, SFD_NONBLOCK | SFD_CLOEXEC);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* without it a leak shows nowhere, no more */
    if (trial->signal_fd < 0 || !make_pipe(&trial->log_fd, &log_fd) ||
        !make_pipe(&trial->report_fd, &report_fd)) {
        goto fail;
    }
    (void)fflush(NULL); /* or the child would write it once more */
    trial->stage.report_fd = report_fd;
    trial->launcher = fork();
    if (trial->launcher == 0) {
        int code = be_launcher(trial, judge, log_fd);

        (void)fflush(NULL);
        _exit(code);
    }
fail:
    if (log_fd >= 0) {
        (void)close(log_fd);
    }
    if (report_fd >= 0) {
        (void)close(report_fd);
    }
    return trial->launcher > 0;
}

/* A launcher that is late is told to stop, and killed when it does not. */
static void check_late(struct trial *trial, uint64_t now_us)
{
    uint64_t within_us = trial->setup->faults->expect.within_us;

    if (trial->late_us == 0 && now_us - trial->begin_us > within_us) {
        trial->late_us = now_us;
        trial->outcome->late = true;
        (void)kill(trial->launcher, SIGTERM);
        (void)kill(trial->launcher, SIGCONT);
    } else if (trial->late_us > 0 && now_us - trial->late_us > STOP_US) {
        (void)kill(trial->launcher, SIGKILL);
    }
}

static void take_end(struct trial *trial, int status)
{
    trial->killed = WIFSIGNALED(status);
    trial->outcome->exit_code = trial->killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    trial->launcher = 0;
}

/* Reap whoever has ended.  True: children are left. */
static bool reap(struct trial *trial)
{
    int status;
    pid_t pid;

    for (;;) {
        pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0 && pid == trial->launcher) {
            take_end(trial, status);
        } else if (pid <= 0) {
            return pid == 0 || errno != ECHILD;
        }
    }
}

/* Until nobody is left; who outlives the launcher for long is a leak.  A launcher that was killed
 * has not thawed whom it froze, and who stands still cannot notice that it is gone. */
static void wait_for_orphans(struct trial *trial)
{
    uint64_t limit_us = trial->killed ? ORPHANS_US : ENDED_US;
    uint64_t end_us = gk_now_us() + limit_us;
    bool left = reap(trial);
    struct gk_words ignored = {""};

    if (left) {
        gk_kin_signal(SIGCONT, &ignored);
    }
    while (left && gk_now_us() < end_us) {
        look(trial, POLL_US / 1000);
        left = reap(trial);
    }
    if (left) {
        gk_kin_signal(SIGKILL, &trial->outcome->leaked);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {
        }
    }
    while (trial->log_fd >= 0 && read_log(trial)) {
        /* What they wrote last is there: they have ended. */
    }
}

static bool attempt(const struct gk_faults_trial *setup, const struct gk_faults *faults,
                    struct gk_faults_outcome *outcome, bool *ret_interrupted)
{
    struct trial *trial = calloc(1, sizeof(*trial));
    struct rusage usage;
    bool started;

    if (!trial) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "out of memory");
        return false;
    }
    *trial =
        (struct trial){.setup = setup,
                       .stage = {.faults = faults, .state_dir = faults ? setup->state_dir : NULL},
                       .outcome = outcome,
                       .log_fd = -1,
                       .report_fd = -1,
                       .signal_fd = -1,
                       .begin_us = gk_now_us()};
    started = start(trial);
    if (!started) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "no process for a run under faults: %s",
               strerror(errno));
    }
    while (trial->launcher > 0) {
        uint64_t now_us = gk_now_us();

        look(trial, POLL_US / 1000);
        if (trial->thaw_us > 0 && now_us >= trial->thaw_us) {
            trial->thaw_us = 0;
            (void)kill(trial->launcher, SIGCONT);
        }
        check_late(trial, now_us);
        (void)reap(trial);
    }
    if (started) {
        while (trial->report_fd >= 0 && read_report(trial)) {
            /* All that it told is there; a child that was being started may hold the other end. */
        }
        wait_for_orphans(trial);
    }
    if (getrusage(RUSAGE_CHILDREN, &usage) == 0) {
        outcome->memory_bytes = (uint64_t)usage.ru_maxrss * 1024;
    }
    *ret_interrupted = trial->interrupted;
    close_all(trial);
    free(trial);
    return started;
}

static void say_failed(void *context, uint32_t line, const char *words)
{
    const struct gk_faults_trial *const *setup = context;
    const struct gk_faults *faults = (*setup)->faults;

    if (line > 0) {
        gk_log(GK_LOG_ERROR, "RUN-EXPECTED", "%s:%" PRIu32 ": %s", faults->name, line, words);
    } else {
        gk_log(GK_LOG_ERROR, "RUN-EXPECTED", "%s: %s", faults->name, words);
    }
}

static int verdict(const struct gk_faults_trial *setup, const struct gk_faults_outcome *outcome)
{
    uint32_t count = gk_faults_expect_count(setup->faults);
    uint32_t failed = gk_faults_expect(setup->faults, outcome, say_failed, &setup);
    uint64_t done = 0;

    if (failed > 0) {
        return GK_EXIT_INTERNAL;
    }
    for (uint32_t i = 0; i < setup->faults->faults_count; i++) {
        done += outcome->done[i];
    }
    if (setup->out) {
        (void)fprintf(setup->out,
                      "%s: %" PRIu64 " fault%s done, the run ended with code %d, all %" PRIu32
                      " expectations hold\n",
                      setup->faults->name, done, done == 1 ? "" : "s", outcome->exit_code, count);
        (void)fflush(setup->out);
    }
    return GK_EXIT_OK;
}

int gk_faults_judge(const struct gk_faults_trial *setup)
{
    struct gk_faults_outcome calm = {0}, outcome = {0};
    bool interrupted = false;

    if (setup->faults->expect.hash_line > 0) {
        if (!attempt(setup, NULL, &calm, &interrupted)) {
            return GK_EXIT_INTERNAL;
        }
        if (interrupted || calm.exit_code != GK_EXIT_OK || calm.late) {
            gk_log(GK_LOG_ERROR, "RUN-UNDISTURBED",
                   "the run without faults, which is to be compared with, ended with code %d",
                   calm.exit_code);
            return calm.exit_code ? calm.exit_code : GK_EXIT_INTERNAL;
        }
        outcome.compared = calm.told && calm.hashed;
        outcome.undisturbed_hash = calm.model_hash;
    }
    if (!attempt(setup, setup->faults, &outcome, &interrupted)) {
        return GK_EXIT_INTERNAL;
    }
    return interrupted ? outcome.exit_code : verdict(setup, &outcome);
}
