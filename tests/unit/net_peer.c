/* Goal: a DEALER gets through to its server, whatever was at the address before.
 * Method: plain TCP listeners that speak what no gkps server speaks, all at once, each under a
 * DEALER of its own; ZeroMQ gives up on most of them.  Each must be tried again, and when a true
 * ROUTER takes the place of the stranger a message must come through. */
#include "tests/unit/net_support.h"

#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>

#define GREETING(mechanism)                                                                        \
    "\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" mechanism "\0" /* no server of CURVE */                     \
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define NULL_MECHANISM "NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define CURVE_MECHANISM "CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define TOO_LARGE "\x02\0\0\x01\0\0\0\0\0"
#define READY "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"

struct kind {
    const char *what, *bytes;
    size_t size;
    bool hangs_up;
    bool handshakes; /* and then says TOO_LARGE */
};

#define SAYS(bytes) bytes, sizeof(bytes) - 1

static const struct kind kinds[] = {
    {"HTTP", SAYS("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
     false, false},
    {"HTTP that hangs up",
     SAYS("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), true,
     false},
    {"SSH", SAYS("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"), false, false},
    {"zeros", SAYS("\0\0\0\0\0\0\0\0\0\0\0\0"), false, false},
    {"ones", SAYS("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), false, false},
    {"another mechanism", SAYS(GREETING(CURVE_MECHANISM)), false, false},
    {"no READY", SAYS(GREETING(NULL_MECHANISM) "\x04\x05\x04NONE"), false, false},
    {"a frame beyond the limit", SAYS(GREETING(NULL_MECHANISM) READY), false, true},
    {"nothing, and hangs up", SAYS(""), true, false},
};

enum { STRANGERS = sizeof(kinds) / sizeof(kinds[0]), MECHANISM = 5 };

struct stranger {
    struct kind kind;
    char address[64];
    int reserved, listener, fd;
    uint64_t accepted;
    ssize_t heard; /* on this connection */
    struct net_endpoint dealer, router;
};

static struct stranger strangers[STRANGERS];

static uv_loop_t loop;

static void drop(struct stranger *stranger)
{
    if (stranger->fd >= 0) {
        close(stranger->fd);
        stranger->fd = -1;
    }
}

/* The handshake is done when our own greeting and more has come. */
static void go_on(struct stranger *stranger)
{
    char bytes[256];
    ssize_t got = stranger->fd >= 0 && stranger->kind.handshakes
                      ? recv(stranger->fd, bytes, sizeof(bytes), MSG_DONTWAIT)
                      : 0;

    stranger->heard += got > 0 ? got : 0;
    if (got > 0 && stranger->heard > (ssize_t)sizeof(GREETING(NULL_MECHANISM)) - 1) {
        (void)send(stranger->fd, TOO_LARGE, sizeof(TOO_LARGE) - 1, MSG_NOSIGNAL);
    }
}

/* Accept, speak; a connection that ended is closed with the next one. */
static void serve(struct stranger *stranger)
{
    int fd = accept(stranger->listener, NULL, NULL);

    if (fd < 0) {
        go_on(stranger);
        return;
    }
    drop(stranger);
    stranger->fd = fd;
    stranger->heard = 0;
    stranger->accepted++;
    cr_assert_eq(send(fd, stranger->kind.bytes, stranger->kind.size, MSG_NOSIGNAL),
                 (ssize_t)stranger->kind.size);
    if (stranger->kind.hangs_up) {
        drop(stranger);
    }
}

static bool all_tried_again(void)
{
    bool all = true;

    for (int i = 0; i < STRANGERS; i++) {
        serve(&strangers[i]);
        all = all && strangers[i].accepted >= 2;
    }
    return all;
}

static int port_of(const char *address)
{
    return atoi(strrchr(address, ':') + 1);
}

/* The reserved descriptor stays as it is, so that the port stays ours between the lives. */
static void open_stranger(struct stranger *stranger, void *zmq)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;

    stranger->fd = -1;
    stranger->reserved = net_reserve(stranger->address, sizeof(stranger->address));
    stranger->listener = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_port = htons((uint16_t)port_of(stranger->address));
    cr_assert_eq(setsockopt(stranger->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    cr_assert_eq(bind(stranger->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(listen(stranger->listener, 8), 0);
    cr_assert_eq(fcntl(stranger->listener, F_SETFL, O_NONBLOCK), 0);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, stranger->address, &stranger->dealer);
}

/* A message that was under way to a stranger is lost; as every user of the socket does, this one
 * asks again. */
static bool all_through(void)
{
    static uint64_t asked_ms;
    bool again = uv_now(&loop) >= asked_ms + 200;
    bool all = true;

    asked_ms = again ? uv_now(&loop) : asked_ms;
    for (int i = 0; i < STRANGERS; i++) {
        bool through = strangers[i].router.messages > 0;

        if (!through && again) {
            (void)net_send_number(strangers[i].dealer.zsock, 0, 1, 4);
        }
        all = all && through;
    }
    return all;
}

Test(net_peer, strangers_then_a_server)
{
    void *zmq = gk_net_context();

    cr_assert_not_null(zmq);
    cr_assert_eq(uv_loop_init(&loop), 0);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i].kind = kinds[i];
        open_stranger(&strangers[i], zmq);
    }
    NET_RUN_UNTIL(&loop, all_tried_again());
    for (int i = 0; i < STRANGERS; i++) {
        struct stranger *stranger = &strangers[i];

        cr_expect_eq(stranger->dealer.up > 0, stranger->kind.handshakes, "%s", stranger->kind.what);
        close(stranger->listener);
        drop(stranger);
        NET_RUN_UNTIL(&loop, net_try_open(&loop, zmq, GK_ZSOCK_ROUTER, stranger->address,
                                          &stranger->router) == GK_OK);
    }
    NET_RUN_UNTIL(&loop, all_through());
    for (int i = 0; i < STRANGERS; i++) {
        struct stranger *stranger = &strangers[i];

        cr_expect(stranger->dealer.strange == 0 || !stranger->kind.handshakes, "%s",
                  stranger->kind.what);
        net_close(&loop, &stranger->dealer);
        net_close(&loop, &stranger->router);
        close(stranger->reserved);
    }
    cr_expect_gt(strangers[MECHANISM].dealer.strange, 0, "%s", kinds[MECHANISM].what);
    net_end(&loop, zmq);
}
