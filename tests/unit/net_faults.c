/* Goal: what one socket does when its peers misbehave: die in the middle, do not read, flood, send
 * noise. Method: plain ZeroMQ sockets, plain TCP and killed processes as peers; memory is counted
 * by buffers that know when they are released.  Conditions are waited for with a deadline, never
 * for a time. */
#include "tests/unit/net_support.h"

#include "common/net/zsock_internal.h"

#include <criterion/criterion.h>

#include <poll.h>
#include <pthread.h>
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
    enum { TRIES = 2000, PART_BYTES = 100 * 1000 };
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
    for (uint32_t i = 0; i < TRIES; i++) {
        enum gk_err err = net_send_number(router.zsock, router.route, accepted, PART_BYTES);

        cr_assert(err == GK_OK || err == GK_E_LIMIT);
        accepted += err == GK_OK;
        refused += err == GK_E_LIMIT;
        cr_assert_leq(gk_zsock_pending(router.zsock), GK_OUTBOX_MESSAGES_MAX);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    cr_assert_gt(refused, 0);
    cr_assert_eq(stats->dropped_out, refused);
    cr_assert_gt(stats->blocked, 0);
    cr_assert_eq(gk_zsock_pending(router.zsock), GK_OUTBOX_MESSAGES_MAX);

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

struct flood {
    const char *address;
    atomic_bool stop;
    uint64_t sent;
};

static void *flood_main(void *arg)
{
    struct flood *flood = arg;
    void *zmq = zmq_ctx_new();
    void *dealer = net_raw(zmq, ZMQ_DEALER, flood->address);
    int wait_ms = 50; /* how long a send may keep us from seeing `stop` */
    char part[100] = {0};

    zmq_setsockopt(dealer, ZMQ_SNDTIMEO, &wait_ms, sizeof(wait_ms));
    while (!atomic_load(&flood->stop)) {
        if (zmq_send(dealer, part, sizeof(part), 0) > 0) {
            flood->sent++;
        }
    }
    zmq_close(dealer);
    zmq_ctx_term(zmq);
    return NULL;
}

static void work_5_us(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                      uint32_t parts_count)
{
    uint64_t end_ns = uv_hrtime() + 5000;

    (void)at;
    (void)route;
    (void)parts;
    (void)parts_count;
    while (uv_hrtime() < end_ns) {
    }
}

static void count_tick(uv_timer_t *timer)
{
    (*(uint32_t *)timer->data)++;
}

/* One peer at full speed for a second of ours; a drain without budget fires the 10 ms timer once or
 * twice. */
Test(net_faults, timers_fire_in_a_flood)
{
    void *zmq = start();
    struct net_endpoint router = {.on_message = work_5_us};
    struct flood flood = {0};
    uint32_t ticks = 0;
    uv_timer_t timer;
    pthread_t thread;
    uint64_t start_us;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    flood.address = gk_zsock_address(router.zsock);
    cr_assert_eq(pthread_create(&thread, NULL, flood_main, &flood), 0);
    NET_RUN_UNTIL(&loop, router.messages > 100);
    uv_timer_init(&loop, &timer);
    timer.data = &ticks;
    uv_timer_start(&timer, count_tick, 10, 10);
    start_us = gk_now_us();
    while (gk_now_us() - start_us < 1000 * 1000) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    cr_assert_gt(ticks, 20, "%u ticks", ticks);
    cr_assert_gt(router.messages, 5000);
    atomic_store(&flood.stop, true);
    uv_close((uv_handle_t *)&timer, NULL);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    net_close(&loop, &router);
    net_end(&loop, zmq);
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

static void send_to_other(struct net_endpoint *at, uint64_t route)
{
    struct net_endpoint *other = at->more;

    (void)route;
    cr_assert_eq(net_send_number(other->zsock, 0, 7, 4), GK_OK);
}

/* `gone` comes out of prepare.  What it sends on another socket, whose own prepare has run in this
 * turn, must not wait for something else to wake the loop. */
Test(net_faults, send_out_of_prepare)
{
    for (int swapped = 0; swapped < 2; swapped++) {
        void *zmq = start();
        struct net_endpoint sink = {0}, router = {.on_gone = send_to_other}, dealer = {0};
        uint64_t start_us;

        router.more = &dealer;
        net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &sink);
        if (swapped) {
            net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
        }
        net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(sink.zsock), &dealer);
        if (!swapped) {
            net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
        }
        NET_RUN_UNTIL(&loop, dealer.up == 1);
        cr_assert_eq(net_send_number(router.zsock, (UINT64_C(1) << 32) | 5, 1, 4), GK_OK);
        start_us = gk_now_us();
        while (sink.messages ==
               0) { /* without a timer that would turn the loop, but the watchdogs */
            uv_run(&loop, UV_RUN_ONCE);
        }
        cr_assert_eq(router.gone, 1);
        cr_assert_lt(gk_now_us() - start_us, 900 * 1000);
        net_close(&loop, &dealer);
        net_close(&loop, &router);
        net_close(&loop, &sink);
        net_end(&loop, zmq);
    }
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

struct swallow {
    struct net_endpoint *dealer;
    void *peer;
    uint64_t route;
    bool armed;
};

/* Runs after the socket's own prepare, which no other module may do: a message arrives, its signal
 * is taken away, and the loop goes to sleep. */
static void swallow_signal(uv_prepare_t *handle)
{
    struct swallow *swallow = handle->data;
    struct gk_zsock *zsock = swallow->dealer->zsock;
    struct pollfd fd = {.fd = gk_zsock_socket_fd(zsock->socket), .events = POLLIN};
    int events;

    if (!swallow->armed) {
        return;
    }
    swallow->armed = false;
    cr_assert_eq(zmq_send(swallow->peer, &swallow->route, 5, ZMQ_SNDMORE), 5);
    cr_assert_eq(zmq_send(swallow->peer, "late", 4, 0), 4);
    do {
        cr_assert_eq(poll(&fd, 1, (int)(NET_PATIENCE_US / 1000)), 1);
        zmq_getsockopt(zsock->socket, ZMQ_EVENTS, &events, &(size_t){sizeof(events)});
    } while (!(events & ZMQ_POLLIN));
}

/* The watchdog finds such a message within its second and says so. */
Test(net_faults, missed_wake_is_counted)
{
    void *zmq, *peer_zmq = zmq_ctx_new();
    struct net_endpoint dealer = {0};
    struct swallow swallow = {.dealer = &dealer};
    uv_prepare_t prepare;
    char address[128];
    uint64_t start_us;

    zmq = start();
    uv_prepare_init(&loop, &prepare);
    prepare.data = &swallow;
    uv_prepare_start(&prepare, swallow_signal);
    swallow.peer = zmq_socket(peer_zmq, ZMQ_ROUTER);
    zmq_setsockopt(swallow.peer, ZMQ_LINGER, &(int){0}, sizeof(int));
    cr_assert_eq(zmq_bind(swallow.peer, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(swallow.peer, ZMQ_LAST_ENDPOINT, address, &(size_t){sizeof(address)});
    net_open(&loop, zmq, GK_ZSOCK_DEALER, address, &dealer);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 1, 4), GK_OK);
    NET_RUN_UNTIL(&loop, gk_zsock_stats(dealer.zsock)->messages_out == 1);
    zmq_setsockopt(swallow.peer, ZMQ_RCVTIMEO, &(int){20000}, sizeof(int));
    cr_assert_eq(zmq_recv(swallow.peer, &swallow.route, 5, 0), 5);
    uv_run(&loop,
           UV_RUN_NOWAIT); /* the helper's timer is closed; only watchdogs turn the loop now */
    swallow.armed = true;
    uv_timer_again(&dealer.zsock->watchdog); /* a whole second from now: a short sleep would not count */
    start_us = gk_now_us();
    while (dealer.messages == 0 && gk_now_us() - start_us < NET_PATIENCE_US) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    cr_assert_eq(dealer.messages, 1);
    cr_assert_eq(gk_zsock_stats(dealer.zsock)->missed_wakes, 1);
    gk_zsock_close(dealer.zsock, 0);
    uv_close((uv_handle_t *)&prepare, NULL);
    net_end(&loop, zmq);
    zmq_close(swallow.peer);
    zmq_ctx_term(peer_zmq);
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
        zmq_close(router);
    }
    cr_assert_geq(received, LIVES * 5);
    net_close(&loop, &dealer);
    net_end(&loop, zmq);
    zmq_ctx_term(peer_zmq);
    close(reserved);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}
