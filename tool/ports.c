#include "tool/ports.h"

#include "common/assert.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

bool gk_ports_find(uint32_t count, uint16_t *ret_ports)
{
    int fds[GK_PORTS_MAX];
    uint32_t made = 0;
    bool good = true;

    GK_ASSERT(count <= GK_PORTS_MAX);
    for (; good && made < count; made++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        socklen_t length = sizeof(at);

        fds[made] = socket(AF_INET, SOCK_STREAM, 0);
        good = fds[made] >= 0 && bind(fds[made], (struct sockaddr *)&at, sizeof(at)) == 0 &&
               getsockname(fds[made], (struct sockaddr *)&at, &length) == 0;
        ret_ports[made] = good ? ntohs(at.sin_port) : 0;
    }
    while (made > 0) {
        made--;
        if (fds[made] >= 0) {
            (void)close(fds[made]);
        }
    }
    return good;
}
