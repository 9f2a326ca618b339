#include "common/net/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
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

/* Numbers below the soft limit that no descriptor has, at most `wanted`.  Looked at rather than
 * taken: another thread may need one meanwhile. */
static uint64_t count_free(uint64_t wanted, uint64_t limit)
{
    uint64_t count = 0;

    for (int fd = 0; count < wanted && fd < INT_MAX && (uint64_t)fd < limit; fd++) {
        count += fcntl(fd, F_GETFD) < 0;
    }
    return count;
}

bool gk_process_files_free(uint32_t count)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) != 0 || count_free(count, limit.rlim_cur) == count;
}

enum gk_err gk_process_files(uint32_t needed, struct gk_words *words)
{
    struct rlimit limit, raised;
    uint64_t have;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return GK_OK; /* then there is nothing to raise either */
    }
    have = count_free(needed, limit.rlim_cur);
    if (have < needed && limit.rlim_cur < limit.rlim_max) {
        raised = limit;
        raised.rlim_cur += needed - have;
        if (raised.rlim_cur > limit.rlim_max) {
            raised.rlim_cur = limit.rlim_max;
        }
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
            have = count_free(needed, raised.rlim_cur);
        }
    }
    if (have == needed) {
        return GK_OK;
    }
    gk_words_set(words,
                 "too few file descriptors: %" PRIu64 " are needed, the limit is %" PRIu64
                 "; raise it (ulimit -Hn)",
                 (uint64_t)limit.rlim_cur - count_free(needed, limit.rlim_cur) + needed,
                 (uint64_t)limit.rlim_max);
    return GK_E_LIMIT;
}
