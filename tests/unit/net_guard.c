/* Goal: no peer makes ZeroMQ hold more than a peer of ours would: a message without end is cut off,
 * whatever is slow or large within the protocol's limits is not, and who reads nothing is owed a
 * bounded number of bytes.  Method: plain TCP that speaks just enough ZMTP; the counters of the
 * socket and the end of the connection tell. */
#include "tests/unit/net_support.h"

#include <errno.h>
#include <signal.h>
#include <sys/ioctl.h>

enum { MORE = 1, LONG_SIZE = 2, FRAME_BYTES = 1 << 20 };

static uv_loop_t loop;
static uint8_t zeros[FRAME_BYTES];

static void *start(struct net_endpoint *router)
{
    void *zmq = gk_net_context();

    cr_assert_not_null(zmq);
    cr_assert_eq(uv_loop_init(&loop), 0);
    (void)signal(SIGPIPE, SIG_IGN);
    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", router);
    return zmq;
}

static void put(int fd, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;

    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_DONTWAIT);

        cr_assert(sent > 0 || errno == EAGAIN, "%s", strerror(errno));
        at += sent > 0 ? sent : 0;
        size -= sent > 0 ? (size_t)sent : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
    }
}

/* A connection whose handshake is done: ZMTP 3.0, NULL, DEALER. */
static int connect_dealer(const char *address)
{
    static const uint8_t greeting[64] = {0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    static const char ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6DEALER";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int waiting = 0;

    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    cr_assert_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    put(fd, greeting, sizeof(greeting));
    put(fd, ready, sizeof(ready) - 1);
    NET_RUN_UNTIL(&loop, ioctl(fd, FIONREAD, &waiting) == 0 && waiting > 64);
    return fd;
}

static void put_head(int fd, uint8_t flags, uint64_t size)
{
    uint8_t head[9] = {flags | LONG_SIZE};

    for (int i = 0; i < 8; i++) {
        head[1 + i] = (uint8_t)(size >> 8 * (7 - i));
    }
    put(fd, head, sizeof(head));
}

/* The connection is ended after a bounded number of bytes, with a word; the others go on. */
Test(net_guard, message_without_end)
{
    enum { FRAMES_MAX = 200 };
    struct net_endpoint router = {.echo = true}, other = {0};
    void *zmq = start(&router);
    const struct gk_zsock_stats *stats = gk_zsock_stats(router.zsock);
    int fd = connect_dealer(gk_zsock_address(router.zsock));
    bool ended = false;
    int frames = 0;

    while (!ended && frames < FRAMES_MAX) {
        size_t left = 9 + sizeof(zeros);
        uint8_t head[9] = {MORE | LONG_SIZE, [6] = FRAME_BYTES >> 16};

        while (left > 0 && !ended) {
            bool in_head = left > sizeof(zeros);
            ssize_t sent = send(fd, in_head ? head : zeros, in_head ? 9 : left, MSG_DONTWAIT);

            ended = sent < 0 && errno != EAGAIN;
            left -= sent > 0 ? (size_t)sent : 0;
            uv_run(&loop, UV_RUN_NOWAIT);
        }
        frames++;
    }
    cr_assert(ended, "still there after %d MiB", frames);
    cr_assert_eq(stats->cut, 1);
    cr_assert_eq(router.cut, 1);
    cr_assert_eq(router.messages, 0);
    close(fd);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &other);
    cr_assert_eq(net_send_number(other.zsock, 0, 1, 100), GK_OK);
    NET_RUN_UNTIL(&loop, other.messages == 1);
    net_close(&loop, &other);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

/* The largest message there is, piece by piece, over many turns of the guard. */
Test(net_guard, slow_is_not_endless)
{
    enum { PIECES = 8, PART_BYTES = GK_FRAME_BYTES_MAX };
    struct net_endpoint router = {0};
    void *zmq = start(&router);
    int fd = connect_dealer(gk_zsock_address(router.zsock));

    for (uint32_t part = 0; part < GK_PARTS_MAX; part++) {
        put_head(fd, part + 1 < GK_PARTS_MAX ? MORE : 0, PART_BYTES);
        for (uint32_t i = 0; i < PIECES; i++) {
            put(fd, zeros, PART_BYTES / PIECES);
            uv_run(&loop, UV_RUN_ONCE); /* sleeps until the next turn of the guard */
        }
    }
    NET_RUN_UNTIL(&loop, router.messages == 1);
    cr_assert_eq(router.bytes, GK_PARTS_MAX * (uint64_t)PART_BYTES);
    cr_assert_eq(gk_zsock_stats(router.zsock)->cut, 0);
    close(fd);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

/* Much more than any connection may make ZeroMQ hold, but in messages that end; small frames too,
 * whose heads are as large as they are. */
Test(net_guard, much_is_not_endless)
{
    enum { LARGE = 150, SMALL = 20000 };
    struct net_endpoint router = {0};
    void *zmq = start(&router);
    int fd = connect_dealer(gk_zsock_address(router.zsock));
    static uint8_t small[3 * SMALL];

    for (uint32_t i = 0; i < SMALL; i++) {
        small[3 * i + 1] = 1;
    }
    put(fd, small, sizeof(small));
    for (uint32_t i = 0; i < LARGE; i++) {
        put_head(fd, 0, sizeof(zeros));
        put(fd, zeros, sizeof(zeros));
    }
    NET_RUN_UNTIL(&loop, router.messages == SMALL + LARGE);
    cr_assert_eq(gk_zsock_stats(router.zsock)->cut, 0);
    close(fd);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

/* A hundred unfinished messages, none of them too large: strangers together have a limit, too. */
Test(net_guard, many_unfinished)
{
    enum { PEERS = 24, BYTES = 8 << 20 };
    struct net_endpoint router = {0};
    void *zmq = start(&router);
    const struct gk_zsock_stats *stats = gk_zsock_stats(router.zsock);
    int fds[PEERS];
    int ended = 0;

    for (int i = 0; i < PEERS; i++) {
        fds[i] = connect_dealer(gk_zsock_address(router.zsock));
        for (int part = 0; part < BYTES / FRAME_BYTES && stats->cut == 0; part++) {
            put_head(fds[i], MORE, sizeof(zeros));
            put(fds[i], zeros, sizeof(zeros));
        }
    }
    NET_RUN_UNTIL(&loop, stats->cut > 0);
    for (int i = 0; i < PEERS; i++) {
        uint8_t bytes[256];
        ssize_t got;

        do {
            got = recv(fds[i], bytes, sizeof(bytes), MSG_DONTWAIT);
        } while (got > 0);
        ended += got == 0 || errno != EAGAIN;
        close(fds[i]);
    }
    cr_assert(ended > 0 && ended < PEERS, "%d", ended);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

/* Chunks of a megabyte for a peer that reads none: what waits for it is bounded in bytes. */
Test(net_guard, bytes_owed)
{
    enum { REFUSED = 10 };
    struct net_endpoint router = {0};
    void *zmq = start(&router);
    int fd = connect_dealer(gk_zsock_address(router.zsock));
    uint32_t refused = 0;

    put(fd, "\0\1x", 3);
    NET_RUN_UNTIL(&loop, router.messages == 1);
    while (refused < REFUSED) {
        enum gk_err err = net_send_number(router.zsock, router.route, 0, FRAME_BYTES);

        cr_assert(err == GK_OK || err == GK_E_LIMIT);
        refused += err == GK_E_LIMIT;
        cr_assert_leq(gk_zsock_pending(router.zsock), GK_OUTBOX_BYTES_MAX / FRAME_BYTES);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    cr_assert_leq(atomic_load(&net_bufs_live), GK_OUTBOX_BYTES_MAX / FRAME_BYTES + 24);
    close(fd);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}
