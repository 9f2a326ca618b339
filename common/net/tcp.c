/* Alone in its file: the kernel's header knows more than the C library's, and they exclude each
 * other. */
#include "common/net/tcp.h"

#include <linux/tcp.h>

#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

bool gk_tcp_cookie(int fd, uint64_t *ret)
{
    socklen_t size = sizeof(*ret);

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, ret, &size) == 0 && size == sizeof(*ret);
}

bool gk_tcp_received(int fd, uint64_t *ret)
{
    struct tcp_info info;
    socklen_t size = sizeof(info);

    memset(&info, 0, sizeof(info));
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received)) {
        return false; /* an older system */
    }
    *ret = info.tcpi_bytes_received;
    return true;
}

void gk_tcp_cut(int fd)
{
    const struct linger reset = {.l_onoff = 1};

    /* Neither can fail but for a connection that has ended by itself.  Without the reset a peer
     * that waits for room would go on waiting for a minute. */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)shutdown(fd, SHUT_RDWR);
}
