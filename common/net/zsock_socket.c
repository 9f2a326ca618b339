/* Making the ZeroMQ sockets: addresses, options, and the words when something is wrong with them.
 */
#include "common/net/zsock_internal.h"

#include "common/net/process.h"

#include <zmq.h>

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum {
    IO_THREADS = 1,
    FILES_OF_SOCKETS = 12, /* of the first socket, which starts ZeroMQ's threads too */
    SOCKETS_MAX = 4096,    /* three per zsock: itself and the two ends of its monitor pair */
    RECONNECT_MS = 50,
    RECONNECT_MS_MAX = 1000,
    CONNECT_TIMEOUT_MS = 5000, /* the system's own is minutes */
    KEEPALIVE_IDLE_S = 10,
    KEEPALIVE_INTERVAL_S = 5,
    KEEPALIVE_COUNT = 3,
    UNANSWERED_MS = 15000, /* sent data without acknowledgement ends a connection */
    BACKLOG = GK_WORKERS_MAX,
    PORT_MAX = 65535,
};

/* ZeroMQ aborts when the descriptors of its threads cannot be had. */
void *gk_net_context(void)
{
    void *zmq = gk_process_files_free(FILES_OF_SOCKETS) ? zmq_ctx_new() : NULL;

    if (zmq && (zmq_ctx_set(zmq, ZMQ_IO_THREADS, IO_THREADS) != 0 ||
                zmq_ctx_set(zmq, ZMQ_MAX_SOCKETS, SOCKETS_MAX) != 0)) {
        (void)zmq_ctx_term(zmq); /* without sockets it cannot block */
        zmq = NULL;
    }
    return zmq;
}

void gk_net_context_free(void *zmq)
{
    if (zmq) {
        while (zmq_ctx_term(zmq) != 0 && zmq_errno() == EINTR) {
        }
    }
}

static bool port_good(const char *port, bool bind)
{
    uint32_t value = 0;

    if (bind && strcmp(port, "*") == 0) {
        return true;
    }
    if (strlen(port) == 0 || strlen(port) > 5 || strspn(port, "0123456789") != strlen(port)) {
        return false;
    }
    for (; *port; port++) {
        value = value * 10 + (uint32_t)(*port - '0');
    }
    return value <= PORT_MAX && (bind || value > 0);
}

enum gk_err gk_zsock_address_check(const char *address, bool bind, struct gk_words *words)
{
    static const char scheme[] = "tcp://";
    const char *host = address + sizeof(scheme) - 1;
    const char *colon = strrchr(address, ':');
    const char *wrong = NULL;

    if (strncmp(address, scheme, sizeof(scheme) - 1) != 0) {
        wrong = "it does not begin with tcp://";
    } else if (strlen(address) >= GK_ZSOCK_ADDRESS_BYTES) {
        wrong = "it is too long";
    } else if (colon < host) {
        wrong = "it has no port";
    } else if (colon == host) {
        wrong = "it has no host";
    } else if (!port_good(colon + 1, bind)) {
        wrong = bind ? "its port is not a number up to 65535 or *"
                     : "its port is not a number from 1 to 65535";
    } else if (!bind && strncmp(host, "*:", 2) == 0) {
        wrong = "* is no host to connect to";
    } else if (strcspn(host, " /;@\t") != strlen(host)) {
        wrong = "it has characters that no address has";
    } else if (memchr(host, ':', (size_t)(colon - host)) && host[0] != '[') {
        wrong = "an IPv6 host stands in brackets";
    } else if ((host[0] == '[') != (colon[-1] == ']')) {
        wrong = "its brackets do not match";
    }
    if (wrong) {
        gk_words_set(words, "address %s: %s; give tcp://HOST:PORT, for example tcp://%s", address,
                     wrong, bind ? "127.0.0.1:*" : "10.0.0.1:7070");
        return GK_E_INVALID;
    }
    return GK_OK;
}

static enum gk_err explain_address(const char *address, bool bind, int error,
                                   struct gk_words *words)
{
    switch (error) {
    case EADDRINUSE:
        gk_words_set(words,
                     "%s: the port is in use by another program; stop it, or choose another port "
                     "(* lets the system choose)",
                     address);
        return GK_E_BUSY;
    case ENODEV:
    case EADDRNOTAVAIL:
        gk_words_set(words,
                     "%s: this machine has no such address or interface; give one of its own "
                     "addresses, or * for all",
                     address);
        return GK_E_INVALID;
    case EACCES:
    case EPERM:
        gk_words_set(words, "%s: no permission; choose a port above 1023", address);
        return GK_E_IO;
    case EINVAL:
        gk_words_set(words, "%s: not a valid address; give tcp://HOST:PORT", address);
        return GK_E_INVALID;
    case EMFILE:
    case ENFILE:
        gk_words_set(words, "%s: no file descriptors left; raise the limit (ulimit -n)", address);
        return GK_E_LIMIT;
    default:
        gk_words_set(words, "%s: cannot %s: %s", address, bind ? "listen" : "connect",
                     zmq_strerror(error));
        return GK_E_IO;
    }
}

/* Whether the socket is of IPv6.  Such a socket serves both families, but asks for the IPv6 address
 * of a name first, where a server that was told a name, or "all", may not listen; and it shows
 * 127.0.0.1 as [::ffff:127.0.0.1]. */
static int wants_ipv6(const char *address, bool bind)
{
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char host[GK_ZSOCK_ADDRESS_BYTES];
    struct in_addr ignored;
    const char *start = address + strlen("tcp://");
    size_t length = (size_t)(strrchr(address, ':') - start);

    memcpy(host, start, length);
    host[length] = 0;
    if (host[0] == '[' || inet_pton(AF_INET, host, &ignored) == 1) {
        return host[0] == '[';
    }
    if (bind || getaddrinfo(host, NULL, &hints, &list) != 0) {
        return 1;
    }
    freeaddrinfo(list);
    return 0;
}

static enum gk_err set_options(void *socket, enum gk_zsock_type type, const char *address)
{
    const struct {
        int option, value;
    } options[] = {
        {ZMQ_LINGER, 0}, /* the default waits for ever */
        {ZMQ_IPV6, wants_ipv6(address, type == GK_ZSOCK_ROUTER)},
        {ZMQ_SNDHWM, GK_ZSOCK_SEND_HWM},
        {ZMQ_RCVHWM, GK_ZSOCK_RECEIVE_HWM},
        {ZMQ_HANDSHAKE_IVL, GK_HANDSHAKE_MS},
        {ZMQ_RECONNECT_IVL, RECONNECT_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX},
        {ZMQ_CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S},
        {ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT},
        {ZMQ_TCP_MAXRT, UNANSWERED_MS},
        {ZMQ_BACKLOG, BACKLOG},
        /* A ROUTER says so when it cannot send; a DEALER queues for connections that exist, not for
           hopes. */
        {type == GK_ZSOCK_ROUTER ? ZMQ_ROUTER_MANDATORY : ZMQ_IMMEDIATE, 1},
    };
    const int64_t frame_bytes_max = GK_FRAME_BYTES_MAX;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (zmq_setsockopt(socket, options[i].option, &options[i].value, sizeof(int)) != 0) {
            return GK_E_UNSUPPORTED;
        }
    }
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_bytes_max, sizeof(frame_bytes_max)) != 0) {
        return GK_E_UNSUPPORTED;
    }
    return GK_OK;
}

static enum gk_err monitor_open(struct gk_zsock *zsock)
{
    const int zero = 0;
    char name[64];

    zsock->monitor = zmq_socket(zsock->zmq, ZMQ_PAIR);
    if (!zsock->monitor) {
        return GK_E_LIMIT;
    }
    /* The time makes the name new even where memory of a socket that ZeroMQ is still closing is
     * used again. */
    (void)snprintf(name, sizeof(name), "inproc://gk-monitor-%p-%" PRIx64, (void *)zsock,
                   uv_hrtime());
    /* ZeroMQ writes events with a blocking send that holds a lock we need for closing: it must
     * always have room. */
    if (zmq_setsockopt(zsock->monitor, ZMQ_RCVHWM, &zero, sizeof(zero)) != 0 ||
        zmq_setsockopt(zsock->monitor, ZMQ_LINGER, &zero, sizeof(zero)) != 0 ||
        zmq_socket_monitor(zsock->socket, name, gk_zsock_monitor_mask(zsock->type)) != 0 ||
        zmq_connect(zsock->monitor, name) != 0) {
        return GK_E_IO;
    }
    return GK_OK;
}

enum gk_err gk_zsock_socket_open(struct gk_zsock *zsock, const char *address,
                                 struct gk_words *words)
{
    bool bind = zsock->type == GK_ZSOCK_ROUTER;
    size_t address_bytes = sizeof(zsock->address);
    enum gk_err err = gk_zsock_address_check(address, bind, words);

    if (err) {
        return err;
    }
    if (!gk_process_files_free(FILES_OF_SOCKETS)) {
        return explain_address(address, bind, EMFILE, words);
    }
    zsock->socket = zmq_socket(zsock->zmq, bind ? ZMQ_ROUTER : ZMQ_DEALER);
    err = zsock->socket ? set_options(zsock->socket, zsock->type, address) : GK_E_LIMIT;
    if (!err) {
        err = monitor_open(zsock);
    }
    if (err) {
        gk_words_set(words, "%s: cannot make a ZeroMQ socket: %s", address,
                     zmq_strerror(zmq_errno()));
        goto out;
    }
    if ((bind ? zmq_bind(zsock->socket, address) : zmq_connect(zsock->socket, address)) != 0 ||
        zmq_getsockopt(zsock->socket, ZMQ_LAST_ENDPOINT, zsock->address, &address_bytes) != 0) {
        err = explain_address(address, bind, zmq_errno(), words);
    }
out:
    if (err) {
        gk_zsock_socket_close(zsock, 0);
    }
    return err;
}

int gk_zsock_socket_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof(fd);

    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

void gk_zsock_socket_close(struct gk_zsock *zsock, int linger_ms)
{
    if (zsock->socket) {
        /* The writing end goes first: an event for a pair that nobody reads would block ZeroMQ's
         * thread.  Failures leave nothing that could be done about them. */
        (void)zmq_socket_monitor(zsock->socket, NULL, 0);
        (void)zmq_setsockopt(zsock->socket, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
        (void)zmq_close(zsock->socket);
        zsock->socket = NULL;
    }
    if (zsock->monitor) {
        (void)zmq_close(zsock->monitor);
        zsock->monitor = NULL;
    }
}
