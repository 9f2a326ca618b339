#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "tool/probe.h"

#include "common/limits.h"
#include "common/net/clock.h"
#include "common/net/zsock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ZeroMQ's signature and version: a server of it has said the same by then, a server of something
 * else may complain about it in its own words. */
static const char greeting[] = {'\xff', 0, 0, 0, 0, 0, 0, 0, 1, '\x7f', 3, 0};

/* HOST and PORT of tcp://HOST:PORT, without brackets.  The text is well-formed by now. */
static bool take_apart(const char *address, char *ret_host, char *ret_port)
{
    const char *host = strstr(address, "://"), *colon;
    size_t length;

    host = host ? host + 3 : address;
    colon = strrchr(host, ':');
    if (!colon || strlen(host) >= GK_ZSOCK_ADDRESS_BYTES) {
        return false;
    }
    length = (size_t)(colon - host);
    if (length >= 2 && host[0] == '[') {
        host++;
        length -= 2;
    }
    memcpy(ret_host, host, length);
    ret_host[length] = '\0';
    memcpy(ret_port, colon + 1, strlen(colon + 1) + 1);
    return true;
}

static enum gk_probe_result error_result(int error)
{
    switch (error) {
    case ECONNREFUSED:
        return GK_PROBE_REFUSED;
    case ECONNRESET:
    case EPIPE:
        return GK_PROBE_CLOSED;
    case ETIMEDOUT:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EACCES:
    case EPERM:
        return GK_PROBE_UNREACHABLE;
    default:
        return GK_PROBE_UNKNOWN;
    }
}

/* A socket that is connecting; -1: the result is known. */
static int start(const struct gk_probe *probe)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    char host[GK_ZSOCK_ADDRESS_BYTES], port[GK_ZSOCK_ADDRESS_BYTES];
    struct addrinfo *list = NULL;
    int fd;

    *probe->result = GK_PROBE_UNKNOWN;
    if (!take_apart(probe->address, host, port)) {
        return -1;
    }
    if (getaddrinfo(host, port, &hints, &list) != 0) {
        *probe->result = GK_PROBE_NAME;
        return -1;
    }
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS) {
        *probe->result = error_result(errno);
        (void)close(fd);
        fd = -1;
    } else if (fd >= 0) {
        *probe->result = GK_PROBE_UNREACHABLE; /* unless we hear better */
    }
    freeaddrinfo(list);
    return fd;
}

/* True: there is more to wait for. */
static bool go_on(const struct gk_probe *probe, struct pollfd *at)
{
    int error = 0;
    socklen_t size = sizeof(error);
    char bytes[16];
    ssize_t n;

    if (at->events == POLLOUT) {
        if (getsockopt(at->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
            *probe->result = error_result(error);
            return false;
        }
        (void)send(at->fd, greeting, sizeof(greeting), MSG_NOSIGNAL); /* the reading will show */
        *probe->result = GK_PROBE_SILENT;
        at->events = POLLIN;
        return true;
    }
    n = recv(at->fd, bytes, sizeof(bytes), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (n < 0) {
        *probe->result = error_result(errno);
    } else if (n == 0) {
        *probe->result = GK_PROBE_CLOSED;
    } else {
        *probe->result = bytes[0] == greeting[0] ? GK_PROBE_ZMTP : GK_PROBE_OTHER;
    }
    return false;
}

static void finish(struct pollfd *at)
{
    if (at->fd >= 0) {
        (void)close(at->fd);
        at->fd = -1; /* poll() looks away */
    }
}

void gk_probe(const struct gk_probe *probes, uint32_t count, int wait_ms)
{
    struct pollfd polls[GK_SERVERS_MAX];
    uint64_t end_us;
    uint32_t open = 0;

    count = count < GK_SERVERS_MAX ? count : GK_SERVERS_MAX;
    for (uint32_t i = 0; i < count; i++) {
        polls[i] = (struct pollfd){.fd = start(&probes[i]), .events = POLLOUT};
        open += polls[i].fd >= 0;
    }
    end_us = gk_now_us() + (uint64_t)wait_ms * 1000;
    while (open > 0) {
        uint64_t now_us = gk_now_us();
        int left_ms = now_us < end_us ? (int)((end_us - now_us) / 1000) : 0;

        if (left_ms == 0 || poll(polls, count, left_ms) <= 0) {
            break; /* a signal ends the waiting, too: the words are a service, no duty */
        }
        for (uint32_t i = 0; i < count; i++) {
            if (polls[i].fd >= 0 && polls[i].revents != 0 && !go_on(&probes[i], &polls[i])) {
                finish(&polls[i]);
                open--;
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        finish(&polls[i]);
    }
}

const char *gk_probe_words(enum gk_probe_result result)
{
    switch (result) {
    case GK_PROBE_NAME:
        return ": the name of the host is not known";
    case GK_PROBE_REFUSED:
        return ": no server is there: nobody listens on this port";
    case GK_PROBE_UNREACHABLE:
        return ": the host cannot be reached, or does not answer";
    case GK_PROBE_SILENT:
        return ": somebody listens there but says nothing: a stopped or stuck server, or another "
               "program";
    case GK_PROBE_CLOSED:
        return ": somebody listens there but hangs up: no gkps server";
    case GK_PROBE_ZMTP:
        return ": ZeroMQ is there but does not let us in: busy, stuck, or no gkps server";
    case GK_PROBE_OTHER:
        return ": another program is there, which speaks another protocol";
    case GK_PROBE_UNKNOWN:
        break;
    }
    return ": no answer, and no reason is known";
}
