/* Goal: what one socket does when its peers behave: whole messages in order, events, addresses,
 * clean ends. Method: ROUTER and DEALER on one loop, on ports that the system chooses; conditions
 * are waited for with a deadline, never for a time. */
#include "tests/unit/net_support.h"

#include <criterion/criterion.h>

#include <stdio.h>

static uv_loop_t loop;

static void *start(void)
{
    void *zmq = gk_net_context();

    cr_assert_not_null(zmq);
    cr_assert_eq(uv_loop_init(&loop), 0);
    return zmq;
}

static void check_pattern(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                          uint32_t parts_count)
{
    (void)route;
    cr_assert_eq(parts_count, 3);
    cr_assert_eq(parts[0]->size, 8);
    cr_assert_eq(parts[2]->size, 0);
    for (size_t i = 0; i < parts[1]->size; i++) {
        cr_assert_eq(parts[1]->data[i], (uint8_t)(i * 7 + parts[1]->size));
    }
    *(size_t *)at->more = parts[1]->size;
}

Test(net_zsock, echo_of_many_sizes)
{
    static const size_t sizes[] = {
        0, 1, 5, 32, 33, 511, 512, 513, 8000, 8191, 8192, 65537, 1000001, 1 << 20, 2 * 1024 * 1024};
    void *zmq = start();
    size_t seen = 0;
    struct net_endpoint router = {.echo = true}, dealer = {.on_message = check_pattern};

    dealer.more = &seen;
    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealer);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct gk_buf *parts[3] = {net_buf(8), net_buf(sizes[i]), net_buf(0)};

        for (size_t j = 0; j < sizes[i]; j++) {
            parts[1]->data[j] = (uint8_t)(j * 7 + sizes[i]);
        }
        cr_assert_eq(gk_zsock_send(dealer.zsock, 0, parts, 3), GK_OK);
        for (int j = 0; j < 3; j++) {
            gk_buf_unref(parts[j]);
        }
        NET_RUN_UNTIL(&loop, dealer.messages == i + 1);
        cr_assert_eq(seen, sizes[i]);
        cr_assert_eq(dealer.route, 0);
        cr_assert_neq(router.route, 0);
    }
    cr_assert_eq(dealer.up, 1);
    cr_assert_eq(dealer.down, 0);
    cr_assert_eq(gk_zsock_stats(dealer.zsock)->bytes_in, gk_zsock_stats(dealer.zsock)->bytes_out);
    cr_assert_eq(gk_zsock_stats(router.zsock)->messages_in, router.messages);
    cr_assert_eq(gk_zsock_pending(dealer.zsock), 0);
    net_close(&loop, &dealer);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

static void check_order(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                        uint32_t parts_count)
{
    uint32_t *next = at->more;
    uint32_t number;

    (void)route;
    (void)parts_count;
    memcpy(&number, parts[0]->data, sizeof(number));
    cr_assert_eq(number, *next);
    (*next)++;
}

/* A full outbox refuses; the sender goes on when there is room. */
static uint32_t send_numbers(struct gk_zsock *zsock, uint32_t from, uint32_t end)
{
    while (from < end && net_send_number(zsock, 0, from, 64 + from % 3000) == GK_OK) {
        from++;
    }
    return from;
}

Test(net_zsock, order_per_peer)
{
    enum { MESSAGES = 2000, PEERS = 2 };
    void *zmq = start();
    uint32_t next[PEERS] = {0}, sent[PEERS] = {0};
    struct net_endpoint router = {.echo = true};
    struct net_endpoint dealers[PEERS] = {{.on_message = check_order}, {.on_message = check_order}};

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    for (int i = 0; i < PEERS; i++) {
        dealers[i].more = &next[i];
        net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealers[i]);
    }
    while (sent[0] < MESSAGES || sent[1] < MESSAGES) {
        uint64_t before = router.messages;
        uint32_t heard = next[0] + next[1];

        for (int i = 0; i < PEERS; i++) {
            /* No more on the way than the echo can queue, so that none is dropped. */
            if (sent[i] - next[i] < GK_OUTBOX_MESSAGES_MAX / 2) {
                uint32_t end = sent[i] + 50 < MESSAGES ? sent[i] + 50 : MESSAGES;

                sent[i] = send_numbers(dealers[i].zsock, sent[i], end);
            }
        }
        NET_RUN_UNTIL(&loop, router.messages > before || next[0] + next[1] > heard ||
                                 sent[0] + sent[1] == 2 * MESSAGES);
    }
    NET_RUN_UNTIL(&loop, next[0] == MESSAGES && next[1] == MESSAGES);
    cr_assert_eq(gk_zsock_stats(router.zsock)->dropped_out, 0);
    for (int i = 0; i < PEERS; i++) {
        net_close(&loop, &dealers[i]);
    }
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

static void send_next(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                      uint32_t parts_count)
{
    if (at->messages < 300) {
        (void)gk_zsock_send(at->zsock, route, parts, parts_count);
    }
}

/* One message at a time over an idle loop: were any wake left to the watchdog, this would take
 * minutes. */
Test(net_zsock, ping_pong_needs_no_watchdog)
{
    void *zmq = start();
    struct net_endpoint router = {.echo = true}, dealer = {.on_message = send_next};
    uint64_t start_us;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealer);
    NET_RUN_UNTIL(&loop, dealer.up == 1);
    start_us = gk_now_us();
    cr_assert_eq(net_send_number(dealer.zsock, 0, 1, 4), GK_OK);
    while (dealer.messages < 300 && gk_now_us() - start_us < NET_PATIENCE_US) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    cr_assert_eq(dealer.messages, 300);
    cr_assert_lt(gk_now_us() - start_us, 10 * 1000 * 1000);
    net_close(&loop, &dealer);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

/* Messages queued before there is anybody wait and arrive; what a close with linger left behind
 * arrives too. */
Test(net_zsock, early_sends_and_linger)
{
    void *zmq = start();
    struct net_endpoint router = {0}, dealer = {0};
    char address[128];
    int reserved = net_reserve(address, sizeof(address));

    net_open(&loop, zmq, GK_ZSOCK_DEALER, address, &dealer);
    for (uint32_t i = 0; i < 10; i++) {
        cr_assert_eq(net_send_number(dealer.zsock, 0, i, 4), GK_OK);
    }
    NET_RUN_UNTIL(&loop, gk_zsock_stats(dealer.zsock)->blocked == 1);
    cr_assert_eq(gk_zsock_pending(dealer.zsock), 10);
    net_open(&loop, zmq, GK_ZSOCK_ROUTER, address, &router);
    NET_RUN_UNTIL(&loop, router.messages == 10);
    cr_assert_eq(dealer.up, 1);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 10, 1 << 20), GK_OK);
    gk_zsock_close(dealer.zsock, 5000);
    gk_zsock_close(dealer.zsock, 0); /* idempotent: the first one counts */
    gk_zsock_close(NULL, 0);
    NET_RUN_UNTIL(&loop, router.messages == 11 && dealer.closed == 1);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    close(reserved);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

Test(net_zsock, busy_port)
{
    void *zmq = start();
    struct net_endpoint router = {0}, other = {0};
    struct gk_words words = {{0}};

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    cr_assert_eq(strncmp(gk_zsock_address(router.zsock), "tcp://127.0.0.1:", 16), 0);
    cr_assert_eq(gk_zsock_open(&(struct gk_zsock_setup){.loop = &loop,
                                                        .zmq = zmq,
                                                        .type = GK_ZSOCK_ROUTER,
                                                        .address = gk_zsock_address(router.zsock),
                                                        .callbacks = &net_callbacks,
                                                        .context = &other},
                               &other.zsock, &words),
                 GK_E_BUSY);
    cr_assert_not_null(strstr(words.text, gk_zsock_address(router.zsock)));
    cr_assert_not_null(strstr(words.text, "in use"));
    cr_assert_null(other.zsock);
    cr_assert_eq(other.errors + other.closed, 0);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}

Test(net_zsock, bad_addresses)
{
    static const struct {
        enum gk_zsock_type type;
        const char *address, *says;
    } cases[] = {
        {GK_ZSOCK_ROUTER, "", "tcp://"},
        {GK_ZSOCK_ROUTER, "127.0.0.1:7070", "tcp://"},
        {GK_ZSOCK_ROUTER, "udp://127.0.0.1:7070", "tcp://"},
        {GK_ZSOCK_ROUTER, "ipc://socket", "tcp://"},
        {GK_ZSOCK_ROUTER, "tcp://", "no port"},
        {GK_ZSOCK_ROUTER, "tcp://127.0.0.1", "no port"},
        {GK_ZSOCK_ROUTER, "tcp://:7070", "no host"},
        {GK_ZSOCK_ROUTER, "tcp://127.0.0.1:", "its port"},
        {GK_ZSOCK_ROUTER, "tcp://127.0.0.1:http", "its port"},
        {GK_ZSOCK_ROUTER, "tcp://127.0.0.1:65536", "its port"},
        {GK_ZSOCK_ROUTER, "tcp://127.0.0.1:-1", "its port"},
        {GK_ZSOCK_ROUTER, "tcp://127.0.0.1:123456789012345678901", "its port"},
        {GK_ZSOCK_ROUTER, "tcp://::1:7070", "brackets"},
        {GK_ZSOCK_ROUTER, "tcp://[::1:7070", "brackets"},
        {GK_ZSOCK_ROUTER, "tcp://no.such.host.invalid:7070", "no such address"},
        {GK_ZSOCK_ROUTER, "tcp://192.0.2.1:7070", "no such address"},
        {GK_ZSOCK_DEALER, "tcp://127.0.0.1:*", "its port"},
        {GK_ZSOCK_DEALER, "tcp://127.0.0.1:0", "its port"},
        {GK_ZSOCK_DEALER, "tcp://*:7070", "host"},
        {GK_ZSOCK_DEALER, "tcp://a b:7070", "characters"},
        {GK_ZSOCK_DEALER, "tcp://me@host:7070", "characters"},
    };
    void *zmq = start();
    char longest[600];
    struct net_endpoint at = {0};
    struct gk_words words;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&words, 0, sizeof(words));
        cr_assert_eq(gk_zsock_open(&(struct gk_zsock_setup){.loop = &loop,
                                                            .zmq = zmq,
                                                            .type = cases[i].type,
                                                            .address = cases[i].address,
                                                            .callbacks = &net_callbacks,
                                                            .context = &at},
                                   &at.zsock, &words),
                     GK_E_INVALID, "%s", cases[i].address);
        cr_assert_not_null(strstr(words.text, cases[i].says), "%s: %s", cases[i].address,
                           words.text);
        cr_assert_not_null(strstr(words.text, cases[i].address));
    }
    memset(longest, 'a', sizeof(longest));
    memcpy(longest, "tcp://", 6);
    memcpy(longest + sizeof(longest) - 4, ":70", 4);
    cr_assert_eq(net_try_open(&loop, zmq, GK_ZSOCK_DEALER, longest, &at), GK_E_INVALID);
    cr_assert_null(at.zsock);
    net_end(&loop, zmq);
}

static void close_now(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                      uint32_t parts_count)
{
    (void)route;
    (void)parts;
    (void)parts_count;
    gk_zsock_close(at->zsock, 0);
    cr_assert_eq(net_send_number(at->zsock, at->route, 0, 4), GK_E_CLOSED);
}

/* The owner closes in the first message's callback, with many more to read: none comes, `closed`
 * comes once. */
Test(net_zsock, close_in_a_callback)
{
    void *zmq = start();
    struct net_endpoint router = {.on_message = close_now}, dealer = {0};

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealer);
    for (uint32_t i = 0; i < 100; i++) {
        cr_assert_eq(net_send_number(dealer.zsock, 0, i, 4), GK_OK);
    }
    NET_RUN_UNTIL(&loop, router.closed == 1);
    cr_assert_eq(router.messages, 1);
    NET_RUN_UNTIL(&loop, dealer.down == 1);
    net_close(&loop, &dealer);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

/* The number of the next message, which a plain socket reads now; false: none is there. */
static bool read_number(void *raw, uint32_t *ret)
{
    zmq_msg_t frame;
    bool got;

    zmq_msg_init(&frame);
    got = zmq_msg_recv(&frame, raw, ZMQ_DONTWAIT) >= 0;
    if (got) {
        memcpy(ret, zmq_msg_data(&frame), sizeof(*ret));
    }
    zmq_msg_close(&frame);
    return got;
}

/* A peer that does not read is owed as many chunks as it may be; a heartbeat finds room all the
 * same, and goes before all chunks that ZeroMQ has not taken yet. */
Test(net_zsock, small_messages_pass_bulk)
{
    enum { HEARTBEAT = 1000000, HEARTBEATS = 3 };
    void *zmq = start();
    struct net_endpoint router = {0};
    uint32_t queued = 0, waiting, seen = 0, number, beats = 0;
    void *raw;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    raw = net_raw(zmq, ZMQ_DEALER, gk_zsock_address(router.zsock));
    cr_assert_eq(zmq_send(raw, "hello", 5, 0), 5);
    NET_RUN_UNTIL(&loop, router.messages == 1);
    for (uint32_t full = 0; full < 10;) {
        if (net_send_number(router.zsock, router.route, queued, GK_CHUNK_BYTES) == GK_OK) {
            queued++;
        } else {
            cr_assert_eq(gk_zsock_pending(router.zsock), GK_OUTBOX_BYTES_MAX / GK_CHUNK_BYTES);
            full++;
        }
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    waiting = (uint32_t)gk_zsock_pending(router.zsock);
    for (uint32_t i = 0; i < HEARTBEATS; i++) {
        cr_assert_eq(net_send_number(router.zsock, router.route, HEARTBEAT + i, 200), GK_OK);
    }
    while (seen < queued || beats < HEARTBEATS) {
        NET_RUN_UNTIL(&loop, read_number(raw, &number));
        if (number < HEARTBEAT) {
            cr_assert_eq(number, seen++);
        } else {
            cr_assert_eq(number, HEARTBEAT + beats++);
            cr_assert_leq(seen, queued - waiting, "%u of %u came first", seen, queued);
        }
    }
    zmq_close(raw);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}

/* So have those no bound alone: of a peer that reads nothing they are dropped, too. */
Test(net_zsock, small_messages_have_a_bound)
{
    void *zmq = start();
    struct net_endpoint router = {0};
    uint32_t refused = 0;
    void *raw;

    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    raw = net_raw(zmq, ZMQ_DEALER, gk_zsock_address(router.zsock));
    cr_assert_eq(zmq_send(raw, "hello", 5, 0), 5);
    NET_RUN_UNTIL(&loop, router.messages == 1);
    while (refused < 10) {
        refused += net_send_number(router.zsock, router.route, 0, 60000) != GK_OK;
        cr_assert_leq(gk_zsock_pending(router.zsock), GK_OUTBOX_SMALL_BYTES_MAX / 60000);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    zmq_close(raw);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}
