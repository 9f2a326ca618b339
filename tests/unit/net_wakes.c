/* Goal: the loop wakes for every message, keeps its other duties under a flood, and knows when it
 * missed something. Method: messages that arrive at chosen points of a turn, a count of what is
 * received in one turn, a peer at full speed. Where the watchdog would hide a lost wake, the time
 * until a message is read is limited to less than its second. */
#include "tests/unit/net_support.h"

#include "common/net/zsock_internal.h"

#include <criterion/criterion.h>

#include <poll.h>
#include <pthread.h>

static uv_loop_t loop;

static void *start(void)
{
    void *zmq = gk_net_context();

    cr_assert_not_null(zmq);
    cr_assert_eq(uv_loop_init(&loop), 0);
    return zmq;
}

/* The timers of NET_RUN_UNTIL close in a turn that does not block; after it only the watchdogs turn
 * the loop. */
static void forget_helpers(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    uv_run(&loop, UV_RUN_NOWAIT);
}

static void restart_watchdog(struct net_endpoint *at)
{
    uv_timer_again(&at->zsock->watchdog);
}

/* Until the descriptor of the socket says that something has arrived. */
static void await_signal(struct net_endpoint *at)
{
    struct pollfd fd = {.fd = gk_zsock_socket_fd(at->zsock->socket), .events = POLLIN};

    cr_assert_eq(poll(&fd, 1, (int)(NET_PATIENCE_US / 1000)), 1);
}

struct raw { /* a plain ROUTER with a DEALER of ours connected to it */
    struct net_endpoint *dealer;
    void *zmq;
    void *router;
    char id[5]; /* of the DEALER */
    bool armed;
};

static void raw_open(struct raw *raw, void *zmq, struct net_endpoint *dealer)
{
    int patience_ms = (int)(NET_PATIENCE_US / 1000);
    char address[128];

    raw->dealer = dealer;
    raw->zmq = zmq_ctx_new();
    raw->router = zmq_socket(raw->zmq, ZMQ_ROUTER);
    cr_assert_not_null(raw->router);
    zmq_setsockopt(raw->router, ZMQ_LINGER, &(int){0}, sizeof(int));
    zmq_setsockopt(raw->router, ZMQ_RCVTIMEO, &patience_ms, sizeof(patience_ms));
    cr_assert_eq(zmq_bind(raw->router, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(raw->router, ZMQ_LAST_ENDPOINT, address, &(size_t){sizeof(address)});
    net_open(&loop, zmq, GK_ZSOCK_DEALER, address, dealer);
    cr_assert_eq(net_send_number(dealer->zsock, 0, 1, 4), GK_OK);
    NET_RUN_UNTIL(&loop, gk_zsock_stats(dealer->zsock)->messages_out == 1);
    cr_assert_eq(zmq_recv(raw->router, raw->id, sizeof(raw->id), 0), 5);
    cr_assert_eq(zmq_recv(raw->router, address, sizeof(address), 0), 4);
    forget_helpers();
}

static void raw_reply(struct raw *raw)
{
    cr_assert_eq(zmq_send(raw->router, raw->id, sizeof(raw->id), ZMQ_SNDMORE), 5);
    cr_assert_eq(zmq_send(raw->router, "late", 4, 0), 4);
}

static void raw_close(struct raw *raw)
{
    zmq_close(raw->router);
    zmq_ctx_term(raw->zmq);
}

static void arrive(uv_timer_t *timer)
{
    struct raw *raw = timer->data;

    raw_reply(raw);
    await_signal(raw->dealer);
}

/* A message arrives after check and before prepare, whose look at ZMQ_EVENTS takes its signal: the
 * loop must not sleep. */
Test(net_wakes, arrival_before_prepare)
{
    void *zmq = start();
    struct net_endpoint dealer = {0};
    struct raw raw = {0};
    uv_timer_t timer;

    raw_open(&raw, zmq, &dealer);
    uv_timer_init(&loop, &timer);
    timer.data = &raw;
    for (uint64_t i = 1; i <= 10; i++) {
        uint64_t start_us = gk_now_us();

        restart_watchdog(&dealer);
        uv_timer_start(&timer, arrive, 1, 0);
        while (dealer.messages < i) {
            uv_run(&loop, UV_RUN_ONCE);
        }
        cr_assert_lt(gk_now_us() - start_us, 900 * 1000);
    }
    uv_close((uv_handle_t *)&timer, NULL);
    net_close(&loop, &dealer);
    net_end(&loop, zmq);
    raw_close(&raw);
}

/* Runs after the socket's own prepare, which no other module may do: a message arrives, its signal
 * is taken away, and the loop goes to sleep. */
static void swallow_signal(uv_prepare_t *handle)
{
    struct raw *raw = handle->data;
    int events;

    if (!raw->armed) {
        return;
    }
    raw->armed = false;
    raw_reply(raw);
    do {
        await_signal(raw->dealer);
        zmq_getsockopt(raw->dealer->zsock->socket, ZMQ_EVENTS, &events, &(size_t){sizeof(events)});
    } while (!(events & ZMQ_POLLIN));
}

/* The watchdog finds such a message within its second and says so. */
Test(net_wakes, missed_wake_is_counted)
{
    void *zmq = start();
    struct net_endpoint dealer = {0};
    struct raw raw = {0};
    uv_prepare_t prepare;
    uint64_t start_us;

    uv_prepare_init(&loop, &prepare); /* before the socket's, so that it runs after it */
    prepare.data = &raw;
    uv_prepare_start(&prepare, swallow_signal);
    raw_open(&raw, zmq, &dealer);
    raw.armed = true;
    restart_watchdog(&dealer); /* a short sleep would not count */
    start_us = gk_now_us();
    while (dealer.messages == 0 && gk_now_us() - start_us < NET_PATIENCE_US) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    cr_assert_eq(dealer.messages, 1);
    cr_assert_eq(gk_zsock_stats(dealer.zsock)->missed_wakes, 1);
    gk_zsock_close(dealer.zsock, 0);
    uv_close((uv_handle_t *)&prepare, NULL);
    net_end(&loop, zmq);
    raw_close(&raw);
}

static void send_to_other(struct net_endpoint *at, uint64_t route)
{
    struct net_endpoint *other = at->more;

    (void)route;
    cr_assert_eq(net_send_number(other->zsock, 0, 7, 4), GK_OK);
}

/* `gone` comes out of prepare.  What it sends on another socket, whose own prepare has run in this
 * turn, must not wait for something else to wake the loop.  Both orders of the two sockets, one of
 * them is the hard one. */
Test(net_wakes, send_out_of_prepare)
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
        forget_helpers();
        restart_watchdog(&sink);
        restart_watchdog(&router);
        restart_watchdog(&dealer);
        cr_assert_eq(net_send_number(router.zsock, (UINT64_C(1) << 32) | 5, 1, 4), GK_OK);
        start_us = gk_now_us();
        while (sink.messages == 0) {
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

struct turn {
    uint64_t messages, bytes; /* in this turn */
    uint64_t messages_max, bytes_max;
    uint64_t work_us; /* for each message */
};

static void count_in_turn(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                          uint32_t parts_count)
{
    struct turn *turn = at->more;
    uint64_t end_us = gk_now_us() + turn->work_us;

    (void)route;
    (void)parts_count;
    turn->messages++;
    turn->bytes += parts[0]->size;
    while (gk_now_us() < end_us) {
    }
}

static void end_turn(uv_prepare_t *handle)
{
    struct turn *turn = handle->data;

    turn->messages_max = turn->messages > turn->messages_max ? turn->messages : turn->messages_max;
    turn->bytes_max = turn->bytes > turn->bytes_max ? turn->bytes : turn->bytes_max;
    turn->messages = 0;
    turn->bytes = 0;
}

enum { BUDGET_PEERS = 8 };

/* Several peers fill ZeroMQ's queues while the loop stands; then it runs.  What one turn takes
 * stays within the budget, `limit` messages, although `waiting` of them are there. */
static void check_budget(size_t part_bytes, uint64_t work_us, uint64_t limit, uint64_t waiting)
{
    void *zmq = start(), *peer_zmq = zmq_ctx_new();
    void *peers[BUDGET_PEERS];
    struct turn turn = {.work_us = work_us};
    struct net_endpoint router = {.on_message = count_in_turn};
    char *part = calloc(1, part_bytes);
    uv_prepare_t prepare;

    router.more = &turn;
    uv_prepare_init(&loop, &prepare);
    prepare.data = &turn;
    uv_prepare_start(&prepare, end_turn);
    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    for (int i = 0; i < BUDGET_PEERS; i++) {
        peers[i] = net_raw(peer_zmq, ZMQ_DEALER, gk_zsock_address(router.zsock));
        for (uint64_t j = 0; j < waiting / BUDGET_PEERS; j++) {
            cr_assert_gt(zmq_send(peers[i], part, part_bytes, 0), 0);
        }
    }
    NET_RUN_UNTIL(&loop, router.messages == waiting);
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_leq(turn.messages_max, limit);
    cr_assert_leq(turn.bytes_max, GK_TURN_BYTES_MAX + part_bytes);
    for (int i = 0; i < BUDGET_PEERS; i++) {
        zmq_close(peers[i]);
    }
    zmq_ctx_term(peer_zmq);
    free(part);
    uv_close((uv_handle_t *)&prepare, NULL);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

Test(net_wakes, budget_of_one_turn)
{
    check_budget(10, 0, GK_TURN_MESSAGES_MAX, 8000);
    check_budget(GK_FRAME_BYTES_MAX, 0, GK_TURN_BYTES_MAX / GK_FRAME_BYTES_MAX, 64);
    check_budget(10, 1000, 1 + GK_TURN_US_MAX / 1000, 400);
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
Test(net_wakes, timers_fire_in_a_flood)
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
