/* The canary: wake on the descriptor, receive until EAGAIN, send wherever one likes.  It looks
 * right and goes deaf; it is here to show that the test would notice. */
#include "tests/net/dealer.h"

#include <zmq.h>

#include <stdio.h>
#include <stdlib.h>

struct dealer {
    uv_loop_t *loop;
    uv_poll_t poll;
    void *zmq;
    void *socket;
    uint64_t replies;
};

static void on_wake(uv_poll_t *handle, int status, int events)
{
    struct dealer *dealer = handle->data;
    char part[64];

    (void)status;
    (void)events;
    while (zmq_recv(dealer->socket, part, sizeof(part), ZMQ_DONTWAIT) >= 0) {
        dealer->replies++;
    }
}

struct dealer *dealer_open(uv_loop_t *loop, const char *address)
{
    struct dealer *dealer = calloc(1, sizeof(*dealer));
    size_t size = sizeof(int);
    int linger = 0;
    int fd;

    if (!dealer) {
        exit(2);
    }
    dealer->loop = loop;
    dealer->zmq = zmq_ctx_new();
    dealer->socket = zmq_socket(dealer->zmq, ZMQ_DEALER);
    if (zmq_setsockopt(dealer->socket, ZMQ_LINGER, &linger, sizeof(linger)) != 0 ||
        zmq_connect(dealer->socket, address) != 0 ||
        zmq_getsockopt(dealer->socket, ZMQ_FD, &fd, &size) != 0 ||
        uv_poll_init(loop, &dealer->poll, fd) != 0 ||
        uv_poll_start(&dealer->poll, UV_READABLE, on_wake) != 0) {
        (void)fprintf(stderr, "cannot open the naive dealer\n");
        exit(2);
    }
    dealer->poll.data = dealer;
    return dealer;
}

void dealer_send(struct dealer *dealer)
{
    char part[20] = {0};

    if (zmq_send(dealer->socket, part, sizeof(part), ZMQ_DONTWAIT) < 0) {
        (void)fprintf(stderr, "cannot send\n");
        exit(2);
    }
}

uint64_t dealer_replies(const struct dealer *dealer)
{
    return dealer->replies;
}

void dealer_close(struct dealer *dealer)
{
    uv_close((uv_handle_t *)&dealer->poll, NULL);
    (void)uv_run(dealer->loop, UV_RUN_DEFAULT);
    (void)zmq_close(dealer->socket);
    (void)zmq_ctx_term(dealer->zmq);
    free(dealer);
}
