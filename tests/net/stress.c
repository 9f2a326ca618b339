/* Goal: what crosses threads in common/net is ordered: buffers that ZeroMQ releases on its own
 * thread, the compute thread's jobs, several loops in one process.  For ThreadSanitizer and
 * AddressSanitizer. Method: one server loop with a ROUTER that hands each message to its compute
 * thread, which sums it and makes the reply; three client loops that check the sums, and now and
 * then close their socket in the middle and open a new one. Prints "N passed, N failed". */
#include "common/buf.h"
#include "common/net/clock.h"
#include "common/net/compute.h"
#include "common/net/zsock.h"

#include <pthread.h>
#include <uv.h>

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLIENTS = 3,
    LIVES = 4,       /* sockets of one client, one after the other */
    REPLIES = 150,   /* checked in each life */
    OUTSTANDING = 4, /* requests of one client */
    PART_BYTES = 40 * 1000,
    DEADLINE_S = 100,
};

struct job {
    uint64_t route;
    struct gk_buf *request;
    struct gk_buf *reply; /* number, sum */
};

struct server {
    uv_loop_t loop;
    uv_async_t stop;
    void *zmq;
    struct gk_zsock *zsock;
    struct gk_compute *compute;
    pthread_t thread;
    bool stopping;
    char address[128];
};

struct client {
    pthread_t thread;
    uv_loop_t loop;
    void *zmq;
    struct gk_zsock *zsock;
    const char *address;
    uint32_t index;
    uint32_t number;
    uint32_t replies; /* in this life */
    uint64_t sums[OUTSTANDING];
    bool closed;
};

static atomic_uint passed, failed;

static void check(bool good, const char *what)
{
    if (good) {
        atomic_fetch_add(&passed, 1);
    } else {
        atomic_fetch_add(&failed, 1);
        (void)fprintf(stderr, "FAIL: %s\n", what);
    }
}

static void require(bool good, const char *what)
{
    if (!good) {
        (void)fprintf(stderr, "cannot go on: %s\n", what);
        exit(2);
    }
}

static uint64_t sum_bytes(const struct gk_buf *buf)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < buf->size; i++) {
        sum = sum * 31 + buf->data[i];
    }
    return sum;
}

static void run_job(void *context, void *arg)
{
    struct job *job = arg;
    uint64_t sum = sum_bytes(job->request);

    (void)context;
    job->reply = gk_buf_new(1000); /* large enough to be sent without a copy */
    require(job->reply != NULL, "memory");
    memcpy(job->reply->data, job->request->data, sizeof(uint32_t));
    memcpy(job->reply->data + 8, &sum, sizeof(sum));
}

static void on_compute_closed(void *context)
{
    struct server *server = context;

    gk_zsock_close(server->zsock, 0);
}

/* Requests of clients that are gone are still worked on when the server is told to stop. */
static void stop_when_idle(struct server *server)
{
    if (server->stopping && gk_compute_pending(server->compute) == 0) {
        gk_compute_close(server->compute, on_compute_closed);
    }
}

static void job_done(void *context, void *arg)
{
    struct server *server = context;
    struct job *job = arg;

    (void)gk_zsock_send(server->zsock, job->route, &job->reply, 1);
    gk_buf_unref(job->reply);
    gk_buf_unref(job->request);
    free(job);
    stop_when_idle(server);
}

static void on_request(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct server *server = context;
    struct job *job = server->stopping ? NULL : calloc(1, sizeof(*job));
    const struct gk_compute_job compute_job = {.run = run_job, .done = job_done, .job = job};

    (void)parts_count;
    if (server->stopping) {
        return;
    }
    require(job != NULL, "memory");
    job->route = route;
    job->request = gk_buf_ref(parts[0]);
    check(gk_compute_submit(server->compute, &compute_job) == GK_OK, "submit");
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    (void)context;
    (void)err;
    check(false, words);
}

static void on_stop(uv_async_t *handle)
{
    struct server *server = handle->data;

    check(gk_zsock_stats(server->zsock)->missed_wakes == 0, "no missed wakes at the server");
    uv_close((uv_handle_t *)handle, NULL);
    server->stopping = true;
    stop_when_idle(server);
}

static void *server_main(void *arg)
{
    struct server *server = arg;

    check(uv_run(&server->loop, UV_RUN_DEFAULT) == 0, "the server's loop ends");
    check(uv_loop_close(&server->loop) == 0, "the server's loop closes");
    gk_net_context_free(server->zmq);
    return NULL;
}

static void server_start(struct server *server)
{
    static const struct gk_zsock_callbacks callbacks = {.message = on_request, .error = on_error};
    struct gk_words words = {{0}};

    require(uv_loop_init(&server->loop) == 0, "loop");
    require(uv_async_init(&server->loop, &server->stop, on_stop) == 0, "async");
    server->stop.data = server;
    server->zmq = gk_net_context();
    require(gk_zsock_open(&(struct gk_zsock_setup){.loop = &server->loop,
                                                   .zmq = server->zmq,
                                                   .type = GK_ZSOCK_ROUTER,
                                                   .address = "tcp://127.0.0.1:*",
                                                   .callbacks = &callbacks,
                                                   .context = server},
                          &server->zsock, &words) == GK_OK,
            words.text);
    require(gk_compute_open(&server->loop, server, &server->compute, &words) == GK_OK, words.text);
    (void)snprintf(server->address, sizeof(server->address), "%s", gk_zsock_address(server->zsock));
    require(pthread_create(&server->thread, NULL, server_main, server) == 0, "thread");
}

static void send_request(struct client *client)
{
    size_t size = 8 + (client->number * 7919u + client->index * 104729u) % PART_BYTES;
    struct gk_buf *part = gk_buf_new(size);

    require(part != NULL, "memory");
    for (size_t i = 0; i < size; i++) {
        part->data[i] = (uint8_t)(i * 11 + client->number + client->index);
    }
    memcpy(part->data, &client->number, sizeof(client->number));
    client->sums[client->number % OUTSTANDING] = sum_bytes(part);
    client->number++;
    check(gk_zsock_send(client->zsock, 0, &part, 1) == GK_OK, "send");
    gk_buf_unref(part);
}

static void on_reply(void *context, uint64_t route, struct gk_buf *const *parts,
                     uint32_t parts_count)
{
    struct client *client = context;
    uint32_t number;
    uint64_t sum;

    (void)route;
    (void)parts_count;
    memcpy(&number, parts[0]->data, sizeof(number));
    memcpy(&sum, parts[0]->data + 8, sizeof(sum));
    check(sum == client->sums[number % OUTSTANDING], "the sum");
    client->replies++;
    if (client->replies == REPLIES) {
        gk_zsock_close(client->zsock, 0); /* with requests on the way */
    } else if (client->replies < REPLIES) {
        send_request(client);
    }
}

static void on_client_closed(void *context)
{
    ((struct client *)context)->closed = true;
}

static void client_life(struct client *client)
{
    static const struct gk_zsock_callbacks callbacks = {
        .message = on_reply, .error = on_error, .closed = on_client_closed};
    struct gk_words words = {{0}};

    client->replies = 0;
    client->closed = false;
    require(gk_zsock_open(&(struct gk_zsock_setup){.loop = &client->loop,
                                                   .zmq = client->zmq,
                                                   .type = GK_ZSOCK_DEALER,
                                                   .address = client->address,
                                                   .callbacks = &callbacks,
                                                   .context = client},
                          &client->zsock, &words) == GK_OK,
            words.text);
    for (int i = 0; i < OUTSTANDING; i++) {
        send_request(client);
    }
    (void)uv_run(&client->loop, UV_RUN_DEFAULT);
    check(client->closed, "closed");
    check(client->replies == REPLIES, "all replies");
}

static void *client_main(void *arg)
{
    struct client *client = arg;

    require(uv_loop_init(&client->loop) == 0, "loop");
    client->zmq = gk_net_context();
    for (int life = 0; life < LIVES; life++) {
        client_life(client);
    }
    check(uv_loop_close(&client->loop) == 0, "the client's loop closes");
    gk_net_context_free(client->zmq);
    return NULL;
}

int main(void)
{
    static struct server server;
    static struct client clients[CLIENTS];
    uint64_t start_us = gk_now_us();

    server_start(&server);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i].address = server.address;
        clients[i].index = i;
        require(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]) == 0, "thread");
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        (void)pthread_join(clients[i].thread, NULL);
    }
    (void)uv_async_send(&server.stop);
    (void)pthread_join(server.thread, NULL);
    check(gk_now_us() - start_us < DEADLINE_S * UINT64_C(1000) * 1000, "in time");
    (void)printf("%u passed, %u failed\n", atomic_load(&passed), atomic_load(&failed));
    return atomic_load(&failed) == 0 ? 0 : 1;
}
