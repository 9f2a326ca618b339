/* One loop over a descriptor of signals and the link, without threads and without memory of its
 * own: it has to hold when the machine is short of everything. */
#include "tool/guard.h"

#include "common/exit.h"
#include "common/net/clock.h"
#include "common/shown.h"
#include "tool/kin.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINK_FD = 3, ROUND_US = 20 * 1000 /* between two looks at who is left to be killed */ };

struct guard {
    pid_t program; /* and its process group */
    int status;
    bool ended;       /* the program */
    bool empty;       /* nobody is left */
    bool killing;     /* everybody, until nobody is left */
    uint64_t kill_us; /* begin with it then; 0: no plan */
    int signals;      /* descriptor */
    sigset_t listened, former;
};

static void tell_group(const struct guard *guard, int number)
{
    if (!guard->ended) { /* else the number may belong to others */
        (void)kill(-guard->program, number);
    }
}

/* Whoever stands still could not obey. */
static void tell_to_end(const struct guard *guard, int number)
{
    tell_group(guard, number);
    tell_group(guard, SIGCONT);
}

static void plan_kill(struct guard *guard, uint64_t wait_us)
{
    uint64_t at_us = gk_now_us() + wait_us;

    if (guard->kill_us == 0 || at_us < guard->kill_us) {
        guard->kill_us = at_us;
    }
}

/* Those below a child come to us when it is dead, and are next. */
static void kill_round(struct guard *guard)
{
    tell_group(guard, SIGKILL);
    gk_kin_signal(SIGKILL, NULL);
    guard->killing = true;
}

static void reap(struct guard *guard)
{
    bool had_ended = guard->ended;
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == guard->program) {
            guard->ended = true;
            guard->status = status;
        }
    }
    guard->empty = pid < 0 && errno == ECHILD;
    if (guard->ended && !had_ended && !guard->empty) {
        gk_kin_signal(SIGTERM, NULL);
        gk_kin_signal(SIGCONT, NULL);
        plan_kill(guard, GK_GUARD_OUTLIVE_US);
    }
}

static void take_signal(struct guard *guard, int number)
{
    switch (number) {
    case SIGCHLD:
        break; /* looked at in any case */
    case GK_GUARD_KILL:
        kill_round(guard);
        break;
    case GK_GUARD_STOP:
        tell_group(guard, SIGSTOP);
        break;
    case SIGCONT:
        tell_group(guard, SIGCONT);
        break;
    default:
        tell_to_end(guard, number);
        break;
    }
}

static void listen_for(struct guard *guard)
{
    static const int numbers[] = {SIGCHLD, SIGTERM,       SIGINT,        SIGHUP,
                                  SIGQUIT, GK_GUARD_KILL, GK_GUARD_STOP, SIGCONT};

    (void)sigemptyset(&guard->listened);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)sigaddset(&guard->listened, numbers[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &guard->listened, &guard->former);
    guard->signals = signalfd(-1, &guard->listened, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* In the child: it has nothing of ours. */
static int become(const struct guard *guard, pid_t parent, char **command)
{
    (void)setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) {
        return GK_EXIT_INTERNAL;
    }
    (void)signal(SIGXFSZ, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &guard->former, NULL);
    (void)execvp(command[0], command);
    (void)fprintf(stderr, "gkps: cannot run '%s': %s%s\n", gk_shown(command[0]).text,
                  strerror(errno), errno == ENOENT ? " (or what its first line names)" : "");
    return GK_EXIT_CONFIG;
}

static void look(struct guard *guard, struct pollfd *fds)
{
    struct signalfd_siginfo info;
    uint64_t now_us = gk_now_us();
    int wait_ms = -1;

    if (guard->killing) {
        wait_ms = ROUND_US / 1000;
    } else if (guard->kill_us > 0) {
        wait_ms = guard->kill_us > now_us ? (int)((guard->kill_us - now_us) / 1000) + 1 : 0;
    }
    (void)poll(fds, 2, wait_ms);
    while (read(guard->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        take_signal(guard, (int)info.ssi_signo);
    }
    if (fds[1].revents & (POLLHUP | POLLERR | POLLNVAL)) { /* the launcher has gone */
        fds[1].fd = -1;
        fds[1].revents = 0;
        tell_to_end(guard, SIGTERM);
        plan_kill(guard, GK_GUARD_GRACE_US);
    }
    reap(guard);
    if (!guard->empty &&
        (guard->killing || (guard->kill_us > 0 && gk_now_us() >= guard->kill_us))) {
        kill_round(guard);
    }
}

/* As the program has ended: for the launcher it is the program. */
static int end_as(const struct guard *guard)
{
    const struct rlimit none = {0, 0};
    int number;

    if (WIFEXITED(guard->status)) {
        return WEXITSTATUS(guard->status);
    }
    number = WTERMSIG(guard->status);
    (void)setrlimit(RLIMIT_CORE, &none); /* what there was to dump, the program has */
    (void)signal(number, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &guard->former, NULL);
    (void)raise(number);
    return 128 + number;
}

int gk_tool_guard(int argc, char **argv)
{
    struct guard guard = {.signals = -1};
    struct pollfd fds[2] = {{.events = POLLIN}, {.fd = LINK_FD}};
    pid_t self = getpid();

    if (argc < 2) {
        return GK_EXIT_USAGE;
    }
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* without it the group is all that can be reached */
    listen_for(&guard);
    fds[0].fd = guard.signals;
    guard.program = guard.signals < 0 ? -1 : fork();
    if (guard.program == 0) {
        _exit(become(&guard, self, argv + 1));
    }
    if (guard.program < 0) {
        (void)fprintf(stderr, "gkps: cannot run '%s': %s\n", gk_shown(argv[1]).text,
                      strerror(errno));
        return GK_EXIT_RETRY;
    }
    (void)setpgid(guard.program, guard.program); /* whoever of us is first */
    while (!guard.ended || !guard.empty) {
        look(&guard, fds);
    }
    return end_as(&guard);
}
