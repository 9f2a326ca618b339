/* Shared by the tests of common/net: a loop with a deadline, an endpoint that counts what happens
 * to it, buffers that count their releases, and plain ZeroMQ peers that misbehave on request. */
#ifndef GK_TESTS_UNIT_NET_SUPPORT_H
#define GK_TESTS_UNIT_NET_SUPPORT_H

#include "common/buf.h"
#include "common/net/clock.h"
#include "common/net/zsock.h"

#include <criterion/criterion.h>
#include <uv.h>
#include <zmq.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NET_PATIENCE_US (UINT64_C(20) * 1000 * 1000) /* a busy machine under a sanitizer */

struct net_endpoint {
    struct gk_zsock *zsock;
    uint64_t messages;
    uint64_t bytes;
    uint64_t route; /* of the last message */
    uint32_t parts; /* of the last message */
    uint64_t up, down, strange, rejected, cut, full, gone, errors, closed;
    uint64_t gone_route;
    bool echo;
    void (*on_message)(struct net_endpoint *at, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count);
    void (*on_gone)(struct net_endpoint *at, uint64_t route);
    void *more; /* the test's own */
};

static inline void net_on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                                  uint32_t parts_count)
{
    struct net_endpoint *at = context;

    cr_assert(parts_count >= 1 && parts_count <= GK_PARTS_MAX);
    cr_assert(at->closed == 0);
    at->messages++;
    at->route = route;
    at->parts = parts_count;
    for (uint32_t i = 0; i < parts_count; i++) {
        cr_assert_eq((uintptr_t)parts[i]->data % 8, 0);
        at->bytes += parts[i]->size;
    }
    if (at->echo) {
        (void)gk_zsock_send(at->zsock, route, parts, parts_count);
    }
    if (at->on_message) {
        at->on_message(at, route, parts, parts_count);
    }
}

static inline void net_on_event(void *context, enum gk_zsock_event event)
{
    struct net_endpoint *at = context;

    at->up += event == GK_ZSOCK_UP;
    at->down += event == GK_ZSOCK_DOWN;
    at->strange += event == GK_ZSOCK_STRANGER;
    at->rejected += event == GK_ZSOCK_REJECTED;
    at->cut += event == GK_ZSOCK_CUT;
    at->full += event == GK_ZSOCK_FULL;
}

static inline void net_on_gone(void *context, uint64_t route)
{
    struct net_endpoint *at = context;

    at->gone++;
    at->gone_route = route;
    if (at->on_gone) {
        at->on_gone(at, route);
    }
}

static inline void net_on_error(void *context, enum gk_err err, const char *words)
{
    struct net_endpoint *at = context;

    (void)err;
    cr_log_error("%s", words);
    at->errors++;
}

static inline void net_on_closed(void *context)
{
    struct net_endpoint *at = context;

    at->closed++;
}

static const struct gk_zsock_callbacks net_callbacks = {
    .message = net_on_message,
    .event = net_on_event,
    .gone = net_on_gone,
    .error = net_on_error,
    .closed = net_on_closed,
};

static inline enum gk_err net_try_open(uv_loop_t *loop, void *zmq, enum gk_zsock_type type,
                                       const char *address, struct net_endpoint *at)
{
    struct gk_words words = {{0}};

    return gk_zsock_open(&(struct gk_zsock_setup){.loop = loop,
                                                  .zmq = zmq,
                                                  .type = type,
                                                  .address = address,
                                                  .callbacks = &net_callbacks,
                                                  .context = at},
                         &at->zsock, &words);
}

static inline void net_open(uv_loop_t *loop, void *zmq, enum gk_zsock_type type,
                            const char *address, struct net_endpoint *at)
{
    cr_assert_eq(net_try_open(loop, zmq, type, address, at), GK_OK);
}

static inline void net_on_limit(uv_timer_t *timer)
{
    (void)timer; /* only keeps the loop turning, so that the condition is looked at */
}

/* Run the loop until the condition holds; fail the test when that takes too long. */
#define NET_RUN_UNTIL(loop, condition)                                                             \
    do {                                                                                           \
        uint64_t net_start = gk_now_us();                                                          \
        uv_timer_t *net_timer = net_turner(loop);                                                  \
        while (!(condition)) {                                                                     \
            cr_assert_lt(gk_now_us() - net_start, NET_PATIENCE_US, "never: %s", #condition);       \
            uv_run((loop), UV_RUN_ONCE);                                                           \
        }                                                                                          \
        net_turner_end(net_timer);                                                                 \
    } while (0)

/* Turns the loop ten times a second, ten times as often as the watchdog: too seldom to hide a deaf
 * socket in tests that measure their time. */
static inline uv_timer_t *net_turner(uv_loop_t *loop)
{
    uv_timer_t *timer = calloc(1, sizeof(*timer));

    cr_assert_not_null(timer);
    uv_timer_init(loop, timer);
    uv_timer_start(timer, net_on_limit, 100, 100);
    return timer;
}

static inline void net_free_handle(uv_handle_t *handle)
{
    free(handle);
}

static inline void net_turner_end(uv_timer_t *timer)
{
    uv_close((uv_handle_t *)timer, net_free_handle);
}

/* Close, run to the end, check that nothing was missed. */
static inline void net_close(uv_loop_t *loop, struct net_endpoint *at)
{
    cr_assert_eq(gk_zsock_stats(at->zsock)->missed_wakes, 0);
    cr_assert_eq(at->errors, 0);
    gk_zsock_close(at->zsock, 0);
    NET_RUN_UNTIL(loop, at->closed == 1);
    at->zsock = NULL;
}

static inline void net_end(uv_loop_t *loop, void *zmq)
{
    cr_assert_eq(uv_run(loop, UV_RUN_DEFAULT), 0);
    cr_assert_eq(uv_loop_close(loop), 0);
    gk_net_context_free(zmq);
}

/* Buffers that count: made and not yet released. */
static atomic_int net_bufs_live;

static inline void net_buf_release(struct gk_buf *buf)
{
    free(buf->data);
    free(buf);
    atomic_fetch_sub(&net_bufs_live, 1);
}

static inline struct gk_buf *net_buf(size_t size)
{
    struct gk_buf *buf = calloc(1, sizeof(*buf));

    cr_assert_not_null(buf);
    buf->data = calloc(1, size + 1);
    cr_assert_not_null(buf->data);
    buf->size = size;
    buf->release = net_buf_release;
    atomic_init(&buf->refs, 1);
    atomic_fetch_add(&net_bufs_live, 1);
    return buf;
}

/* One part of `size` bytes that begins with a number. */
static inline enum gk_err net_send_number(struct gk_zsock *zsock, uint64_t route, uint32_t number,
                                          size_t size)
{
    struct gk_buf *buf = net_buf(size < 4 ? 4 : size);
    enum gk_err err;

    memcpy(buf->data, &number, sizeof(number));
    err = gk_zsock_send(zsock, route, &buf, 1);
    gk_buf_unref(buf);
    return err;
}

/* A port of this test's own where nobody listens yet; a ROUTER can still bind to it.  Closed by the
 * caller. */
static inline int net_reserve(char *ret_address, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;

    cr_assert_geq(fd, 0);
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    snprintf(ret_address, size, "tcp://127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
    return fd;
}

/* A plain ZeroMQ socket, to be used blocking with a time limit. */
static inline void *net_raw(void *zmq, int type, const char *connect_to)
{
    void *socket = zmq_socket(zmq, type);
    int linger = 0;
    int patience_ms = (int)(NET_PATIENCE_US / 1000);

    cr_assert_not_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience_ms, sizeof(patience_ms));
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &patience_ms, sizeof(patience_ms));
    cr_assert_eq(zmq_connect(socket, connect_to), 0);
    return socket;
}

#endif
