#include "tests/net/echo.h"

#include <pthread.h>
#include <zmq.h>

#include <stdio.h>
#include <stdlib.h>

struct echo {
    void *zmq;
    void *router;
    void *stop; /* the thread's end of a pair; anything on it means stop */
    void *stop_sender;
    pthread_t thread;
    char address[128];
};

static void require(int good, const char *what)
{
    if (!good) {
        (void)fprintf(stderr, "cannot %s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(2);
    }
}

/* Every message that is there, part by part. */
static void echo_all(void *router)
{
    zmq_msg_t part;

    (void)zmq_msg_init(&part);
    while (zmq_msg_recv(&part, router, ZMQ_DONTWAIT) >= 0) {
        int flags = zmq_msg_more(&part) ? ZMQ_SNDMORE : 0;

        (void)zmq_msg_send(&part, router, flags);
        (void)zmq_msg_init(&part);
    }
    (void)zmq_msg_close(&part);
}

static void *echo_main(void *arg)
{
    struct echo *echo = arg;
    zmq_pollitem_t items[] = {{.socket = echo->router, .events = ZMQ_POLLIN},
                              {.socket = echo->stop, .events = ZMQ_POLLIN}};

    do {
        echo_all(echo->router);
        (void)zmq_poll(items, 2, -1);
    } while (!(items[1].revents & ZMQ_POLLIN));
    return NULL;
}

struct echo *echo_start(void)
{
    struct echo *echo = calloc(1, sizeof(*echo));
    size_t size = sizeof(echo->address);
    int linger = 0;

    require(echo != NULL, "allocate");
    echo->zmq = zmq_ctx_new();
    echo->router = zmq_socket(echo->zmq, ZMQ_ROUTER);
    require(echo->router != NULL, "make a socket");
    require(zmq_setsockopt(echo->router, ZMQ_LINGER, &linger, sizeof(linger)) == 0, "set linger");
    require(zmq_bind(echo->router, "tcp://127.0.0.1:*") == 0, "bind");
    require(zmq_getsockopt(echo->router, ZMQ_LAST_ENDPOINT, echo->address, &size) == 0, "get port");
    echo->stop = zmq_socket(echo->zmq, ZMQ_PAIR);
    echo->stop_sender = zmq_socket(echo->zmq, ZMQ_PAIR);
    require(zmq_bind(echo->stop, "inproc://stop") == 0, "bind the pair");
    require(zmq_connect(echo->stop_sender, "inproc://stop") == 0, "connect the pair");
    require(pthread_create(&echo->thread, NULL, echo_main, echo) == 0, "start a thread");
    return echo;
}

const char *echo_address(const struct echo *echo)
{
    return echo->address;
}

void echo_stop(struct echo *echo)
{
    require(zmq_send(echo->stop_sender, "", 0, 0) == 0, "stop the echo");
    (void)pthread_join(echo->thread, NULL);
    (void)zmq_close(echo->stop);
    (void)zmq_close(echo->stop_sender);
    (void)zmq_close(echo->router);
    (void)zmq_ctx_term(echo->zmq);
    free(echo);
}
