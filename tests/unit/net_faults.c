/* Goal: what one socket does when its peers misbehave: die in the middle, do not read, flood, send
 * noise. Method: plain ZeroMQ sockets, plain TCP and killed processes as peers; memory is counted
 * by buffers that know when they are released.  Conditions are waited for with a deadline, never
 * for a time. */
#include "tests/unit/net_support.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <sys/wait.h>

static uv_loop_t loop;

static void *start(void)
{
    void *zmq = gk_net_context();

    cr_assert_not_null(zmq);
    cr_assert_eq(uv_loop_init(&loop), 0);
    (void)signal(SIGPIPE, SIG_IGN);
    return zmq;
}

/* A process that says hello to the address it reads from the pipe and then reads `reads` messages;
 * killed by the test. */
static pid_t fork_peer(int *ret_pipe, int reads)
{
    int ends[2];
    pid_t pid;

    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        char address[128] = {0};
        void *zmq = zmq_ctx_new();
        void *dealer = zmq_socket(zmq, ZMQ_DEALER);
        char byte;

        close(ends[1]);
        if (read(ends[0], address, sizeof(address) - 1) <= 0 || zmq_connect(dealer, address) != 0 ||
            zmq_send(dealer, "hello", 5, 0) != 5) {
            _exit(1);
        }
        while (reads-- > 0) {
            (void)zmq_recv(dealer, &byte, 1, 0);
        }
        pause();
        _exit(0);
    }
    close(ends[0]);
    *ret_pipe = ends[1];
    return pid;
}

/* The flood goes on over the death of the peer: `gone` is told, the outbox goes, every buffer comes
 * back. */
Test(net_faults, peer_killed_in_a_flood)
{
    int peer_pipe;
    pid_t peer = fork_peer(&peer_pipe, 20);
    void *zmq = start();
    struct net_endpoint router = {0};
    uint32_t number = 0;
    bool killed = false;
    const char *address;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    address = gk_zsock_address(router.zsock);
    cr_assert_eq(write(peer_pipe, address, strlen(address)), (ssize_t)strlen(address));
    NET_RUN_UNTIL(&loop, router.messages == 1);
    while (router.gone == 0) {
        (void)net_send_number(router.zsock, router.route, number++, 200 * 1000);
        uv_run(&loop, UV_RUN_NOWAIT);
        if (!killed && gk_zsock_stats(router.zsock)->blocked > 0) {
            cr_assert_eq(kill(peer, SIGKILL), 0);
            cr_assert_eq(waitpid(peer, NULL, 0), peer);
            killed = true;
        }
    }
    cr_assert(killed);
    cr_assert_eq(router.gone_route, router.route);
    cr_assert_eq(gk_zsock_pending(router.zsock), 0);
    cr_assert_gt(gk_zsock_stats(router.zsock)->dropped_out, 0);
    cr_assert_eq(gk_zsock_stats(router.zsock)->messages_out +
                     gk_zsock_stats(router.zsock)->dropped_out,
                 number);
    NET_RUN_UNTIL(&loop, atomic_load(&net_bufs_live) == 0);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    close(peer_pipe);
}

/* A peer that does not read fills its own outbox and no more; when it reads, everything that was
 * accepted arrives. */
Test(net_faults, reader_that_does_not_read)
{
    enum { REFUSED = 200, PART_BYTES = 100 * 1000 };
    void *zmq = start(), *peer_zmq = zmq_ctx_new();
    struct net_endpoint router = {0}, other = {0};
    const struct gk_zsock_stats *stats;
    uint32_t accepted = 0, refused = 0, at;
    char *got = malloc(PART_BYTES);
    void *peer;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    stats = gk_zsock_stats(router.zsock);
    peer = net_raw(peer_zmq, ZMQ_DEALER, gk_zsock_address(router.zsock));
    cr_assert_eq(zmq_send(peer, "hello", 5, 0), 5);
    NET_RUN_UNTIL(&loop, router.messages == 1);
    while (refused < REFUSED) {
        enum gk_err err = net_send_number(router.zsock, router.route, accepted, PART_BYTES);

        cr_assert(err == GK_OK || err == GK_E_LIMIT);
        accepted += err == GK_OK;
        refused += err == GK_E_LIMIT;
        cr_assert_leq(gk_zsock_pending(router.zsock), GK_OUTBOX_MESSAGES_MAX);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    cr_assert_eq(stats->dropped_out, refused);
    cr_assert_gt(stats->blocked, 0);

    /* The others are served meanwhile. */
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &other);
    router.echo = true;
    for (uint32_t i = 0; i < 20; i++) {
        cr_assert_eq(net_send_number(other.zsock, 0, i, 100), GK_OK);
        NET_RUN_UNTIL(&loop, other.messages == i + 1);
    }

    for (at = 0; at < accepted;) {
        int size = zmq_recv(peer, got, PART_BYTES, ZMQ_DONTWAIT);

        if (size > 0) {
            uint32_t number;

            memcpy(&number, got, sizeof(number));
            cr_assert_eq(number, at);
            at++;
        } else {
            NET_RUN_UNTIL(&loop, zmq_poll(&(zmq_pollitem_t){.socket = peer, .events = ZMQ_POLLIN},
                                          1, 0) == 1);
        }
    }
    cr_assert_eq(gk_zsock_pending(router.zsock), 0);
    zmq_close(peer);
    zmq_ctx_term(peer_zmq);
    free(got);
    net_close(&loop, &other);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

/* The peer goes and comes back at the same address: DOWN, UP, and the socket works as before. */
Test(net_faults, reconnect)
{
    void *zmq = start();
    char address[128];
    int reserved = net_reserve(address, sizeof(address));
    struct net_endpoint dealer = {0};

    net_open(&loop, zmq, GK_ZSOCK_DEALER, address, &dealer);
    for (uint32_t life = 1; life <= 3; life++) {
        struct net_endpoint router = {.echo = true};
        uint64_t ups = dealer.up, downs = dealer.down, before = dealer.messages;

        /* The last life's listener may still be on its way out, on ZeroMQ's thread. */
        NET_RUN_UNTIL(&loop, net_try_open(&loop, zmq, GK_ZSOCK_ROUTER, address, &router) == GK_OK);
        NET_RUN_UNTIL(&loop, dealer.up > ups);
        while (dealer.messages == before) { /* a message to the life before is lost */
            if (gk_zsock_pending(dealer.zsock) == 0) {
                cr_assert_eq(net_send_number(dealer.zsock, 0, life, 1000), GK_OK);
            }
            uv_run(&loop, UV_RUN_ONCE);
        }
        net_close(&loop, &router);
        NET_RUN_UNTIL(&loop, dealer.down > downs && dealer.up == dealer.down);
        NET_RUN_UNTIL(&loop, atomic_load(&net_bufs_live) == 0);
    }
    net_close(&loop, &dealer);
    net_end(&loop, zmq);
    close(reserved);
}

static int tcp_connect(const char *address)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    cr_assert_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

#define NOISE(text, reported)                                                                      \
    {                                                                                              \
        text, sizeof(text) - 1, reported                                                           \
    }

/* Whatever stray programs say to our port does not become a message, is counted, and harms nobody
 * else.  The one exception: ZeroMQ ends a connection that begins with a zero byte without reporting
 * a failed handshake. */
Test(net_faults, noise)
{
    static const struct {
        const char *bytes;
        size_t size;
        bool reported;
    } cases[] = {
        NOISE("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: probe\r\nAccept: */*\r\n\r\n",
              true),
        NOISE("GET /metrics HTTP/1.1\r\nHost: a.long.name.of.some.host.example.com:7070\r\n"
              "User-Agent: Prometheus/2.42\r\nAccept: text/plain;version=0.0.4;q=1\r\n"
              "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n",
              true),
        NOISE("SSH-2.0-OpenSSH_9.2p1\r\n", true),
        NOISE("\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", true),
        NOISE("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x07garbage after a greeting", true),
        NOISE("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", true),
        NOISE("\x00\x00\x00\x00\x00\x00\x00\x00", false),
        NOISE("", true),
    };
    void *zmq = start();
    struct net_endpoint router = {.echo = true}, dealer = {0};
    uint64_t rejected = 0;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int fd = tcp_connect(gk_zsock_address(router.zsock));

        cr_assert_eq(write(fd, cases[i].bytes, cases[i].size), (ssize_t)cases[i].size);
        close(fd);
        NET_RUN_UNTIL(&loop, router.rejected > rejected || !cases[i].reported);
        rejected = router.rejected;
        cr_assert_eq(router.messages, 0, "case %zu", i);
    }
    cr_assert_eq(gk_zsock_stats(router.zsock)->rejected, router.rejected);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealer);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 1, 4), GK_OK);
    NET_RUN_UNTIL(&loop, dealer.messages == 1);
    net_close(&loop, &dealer);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

static void send_parts(void *socket, int count)
{
    for (int i = 0; i < count; i++) {
        cr_assert_eq(zmq_send(socket, "part", 4, i + 1 < count ? ZMQ_SNDMORE : 0), 4);
    }
}

/* Too many parts, a routing id of the peer's choosing, a frame beyond the limit: dropped, counted,
 * and no more. */
Test(net_faults, messages_that_are_not_ours)
{
    void *zmq = start(), *peer_zmq = zmq_ctx_new();
    struct net_endpoint router = {0}, dealer = {0};
    void *peer, *named = zmq_socket(peer_zmq, ZMQ_DEALER);

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    peer = net_raw(peer_zmq, ZMQ_DEALER, gk_zsock_address(router.zsock));
    send_parts(peer, 1);
    send_parts(peer, 5);
    send_parts(peer, 4);
    send_parts(peer, 1000); /* more than one turn's budget */
    send_parts(peer, 2);
    NET_RUN_UNTIL(&loop, router.messages == 3);
    cr_assert_eq(router.parts, 2);
    cr_assert_eq(gk_zsock_stats(router.zsock)->dropped_in, 2);

    zmq_setsockopt(named, ZMQ_ROUTING_ID, "mine!", 5);
    zmq_setsockopt(named, ZMQ_LINGER, &(int){0}, sizeof(int));
    cr_assert_eq(zmq_connect(named, gk_zsock_address(router.zsock)), 0);
    send_parts(named, 3);
    NET_RUN_UNTIL(&loop, gk_zsock_stats(router.zsock)->dropped_in == 3);

    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealer);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 1, GK_FRAME_BYTES_MAX + 1), GK_OK);
    NET_RUN_UNTIL(&loop, dealer.up == 2);
    cr_assert_eq(dealer.down, 1);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 1, GK_FRAME_BYTES_MAX), GK_OK);
    NET_RUN_UNTIL(&loop, router.messages == 4);
    cr_assert_eq(router.bytes, 4 + 16 + 8 + GK_FRAME_BYTES_MAX);
    zmq_close(named);
    zmq_close(peer);
    zmq_ctx_term(peer_zmq);
    net_close(&loop, &dealer);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

/* A receiver that dies again and again under a DEALER that floods it: it never sees a piece of a
 * message. */
Test(net_faults, whole_messages_or_none)
{
    enum { LIVES = 12, PARTS = 4 };
    void *zmq = start(), *peer_zmq = zmq_ctx_new();
    char address[128];
    int reserved = net_reserve(address, sizeof(address));
    struct net_endpoint dealer = {0};
    uint32_t number = 0, received = 0;

    net_open(&loop, zmq, GK_ZSOCK_DEALER, address, &dealer);
    for (int life = 0; life < LIVES; life++) {
        void *router = zmq_socket(peer_zmq, ZMQ_ROUTER);
        int got = 0;

        zmq_setsockopt(router, ZMQ_LINGER, &(int){0}, sizeof(int));
        NET_RUN_UNTIL(&loop, zmq_bind(router, address) == 0);
        while (got < 5 + life) {
            struct gk_buf *parts[PARTS];
            uint32_t tags[PARTS] = {0};
            int part = -1, more = 1, size;

            for (int i = 0; i < PARTS; i++) {
                parts[i] = net_buf(20 * 1000);
                memcpy(parts[i]->data, &number, sizeof(number));
            }
            (void)gk_zsock_send(dealer.zsock, 0, parts, PARTS);
            for (int i = 0; i < PARTS; i++) {
                gk_buf_unref(parts[i]);
            }
            number++;
            uv_run(&loop, UV_RUN_NOWAIT);
            while (more) { /* part -1 is the routing id */
                uint32_t tag = 0;

                size = zmq_recv(router, &tag, sizeof(tag), ZMQ_DONTWAIT);
                if (size < 0) {
                    break;
                }
                cr_assert_lt(part, PARTS);
                if (part >= 0) {
                    tags[part] = tag;
                    cr_assert_eq(tag, tags[0]);
                }
                part++;
                zmq_getsockopt(router, ZMQ_RCVMORE, &more, &(size_t){sizeof(more)});
            }
            if (part >= 0) {
                cr_assert_eq(part, PARTS);
                got++;
                received++;
            }
        }
        /* libzmq 4.3.4 aborts when a connection breaks while its socket is closed amid a message,
         * without linger: the last receiver outlives the sender. */
        if (life == LIVES - 1) {
            net_close(&loop, &dealer);
            net_end(&loop, zmq);
        }
        zmq_close(router);
    }
    cr_assert_geq(received, LIVES * 5);
    zmq_ctx_term(peer_zmq);
    close(reserved);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}
