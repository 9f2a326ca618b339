#define _GNU_SOURCE /* F_DUPFD_CLOEXEC is in POSIX, eventfd is not */
#include "common/net/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

void gk_process_begin(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR | O_NOCTTY);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) {
        (void)close(fd);
    }
    (void)signal(SIGXFSZ, SIG_IGN);
}

/* Open descriptors until there are `count`; how many there are then. */
static uint32_t take(int *fds, uint32_t have, uint32_t count)
{
    while (have < count) {
        int fd = have == 0 ? eventfd(0, EFD_CLOEXEC) : fcntl(fds[0], F_DUPFD_CLOEXEC, 0);

        if (fd < 0) {
            break;
        }
        fds[have++] = fd;
    }
    return have;
}

static void give_back(int *fds, uint32_t have)
{
    while (have > 0) {
        (void)close(fds[--have]);
    }
}

bool gk_process_files_free(uint32_t count)
{
    int fds[GK_PROCESS_FILES_FREE_MAX];
    uint32_t have;

    count = count < GK_PROCESS_FILES_FREE_MAX ? count : GK_PROCESS_FILES_FREE_MAX;
    have = take(fds, 0, count);
    give_back(fds, have);
    return have == count;
}

enum gk_err gk_process_files(uint32_t needed, struct gk_words *words)
{
    int *fds = calloc(needed + 1, sizeof(*fds));
    struct rlimit limit = {.rlim_cur = 0}, raised;
    uint32_t have, first;

    if (!fds) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    first = have = take(fds, 0, needed);
    if (have < needed && getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        raised = limit;
        raised.rlim_cur += needed - have;
        if (raised.rlim_cur > limit.rlim_max) {
            raised.rlim_cur = limit.rlim_max;
        }
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
            have = take(fds, have, needed);
        }
    }
    give_back(fds, have);
    free(fds);
    if (have == needed) {
        return GK_OK;
    }
    gk_words_set(words,
                 "too few file descriptors: %" PRIu64 " are needed, the limit is %" PRIu64
                 "; raise it (ulimit -Hn)",
                 (uint64_t)limit.rlim_cur - first + needed, (uint64_t)limit.rlim_max);
    return GK_E_LIMIT;
}
