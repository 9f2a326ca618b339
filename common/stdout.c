#include "common/stdout.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* Also when the write that found it out was somebody else's, whose errno is gone. */
static bool reader_is_gone(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};

    return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLERR) != 0;
}

enum gk_err gk_stdout_flush(FILE *out, struct gk_words *words)
{
    int error = 0;

    if (fflush(out) != 0) {
        error = errno;
    } else if (!ferror(out)) {
        return GK_OK;
    }
    if (error == EPIPE || reader_is_gone(fileno(out))) {
        return GK_E_CLOSED;
    }
    gk_words_set(words, "%s cannot be written%s%s",
                 fileno(out) == STDERR_FILENO ? "standard error" : "standard output",
                 error ? ": " : "", error ? strerror(error) : "");
    return GK_E_IO;
}
