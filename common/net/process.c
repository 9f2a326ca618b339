#include "common/net/process.h"

#include <fcntl.h>
#include <signal.h>
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
