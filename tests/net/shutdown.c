/* Goal: a daemon's shell may be told to stop at any moment, with messages on their way in and out
 * and computations running and queued: nothing is touched from two threads at once, no callback
 * comes after its thing was closed, and the loop ends and closes.  For ThreadSanitizer and
 * AddressSanitizer.
 * Method: rounds of one server and two clients, each a thread with all that a daemon opens (loop,
 * socket, compute thread, timer, signals, link to a launcher).  A request is summed on the compute
 * thread on both sides.  Each is told to stop after a random number of events, by a signal to the
 * process, or by the end of its link, whatever comes first.  The seed is an argument; without one
 * it is drawn.  Prints the seed and "N passed, N failed". */
#include "common/buf.h"
#include "common/net/clock.h"
#include "common/net/compute.h"
#include "common/net/link.h"
#include "common/net/signals.h"
#include "common/net/timer.h"
#include "common/net/zsock.h"
#include "common/rng.h"

#include <pthread.h>
#include <uv.h>

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ROUNDS = 60,
    CLIENTS = 2,
    OUTSTANDING = 6, /* requests of one client */
    EVENTS_FEW = 8,  /* hardly more than connecting takes */
    EVENTS_MAX = 400,
    PART_BYTES = 60 * 1000,
    TIMER_US = 300,
    ROUND_US = 30 * 1000, /* the longest wait for a signal or the end of a link */
    DEADLINE_S = 100,
};

struct job {
    uint64_t route;
    struct gk_buf *request, *reply;
    struct job *next; /* of all jobs of a life: freed when no thread can touch them */
};

struct daemon { /* one life */
    uint64_t seed;
    uint32_t index; /* 0: the server */
    uint64_t draws;
    uint64_t events_left;
    uv_loop_t loop;
    void *zmq;
    struct gk_zsock *zsock;
    struct gk_compute *compute;
    struct gk_timer *timer;
    struct gk_signals *signals;
    struct gk_link *link;
    struct job *jobs;
    const char *address; /* to connect to; NULL: bind */
    char bound[128];
    int link_end; /* the daemon's */
    bool closing;
    uint32_t zsock_closed, compute_closed, link_closed;
    pthread_t thread;
};

static atomic_uint passed, failed;
static atomic_uint ended; /* lives of this round */

/* What the lives were told by and what was on its way then: a round in which nothing is proves
 * nothing. */
static atomic_uint by_budget, by_signal, by_link, with_jobs, with_messages;

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

static uint64_t draw(struct daemon *daemon, uint64_t bound)
{
    struct gk_rng rng = {
        .seed = daemon->seed, .purpose = GK_RNG_IDENTITY, .a = daemon->index, .b = 0};

    return gk_rng_below(&rng, daemon->draws++, bound);
}

/* Everything that has a callback of its own is told to close in one go, as the shells do it. */
static void shut_down(struct daemon *daemon);

/* Every callback passes here; the last one that is allowed stops the daemon from within. */
static void count_event(struct daemon *daemon)
{
    check(!daemon->closing, "no callback after the close");
    daemon->events_left--;
    if (daemon->events_left == 0) {
        atomic_fetch_add(&by_budget, 1);
        shut_down(daemon);
    }
}

static void run_job(void *context, void *item)
{
    struct job *job = item;
    uint64_t sum = 0;

    (void)context;
    for (size_t i = 0; i < job->request->size; i++) {
        sum = sum * 31 + job->request->data[i];
    }
    memcpy(job->reply->data + 8, &sum, sizeof(sum));
}

static void job_done(void *context, void *item)
{
    struct daemon *daemon = context;
    struct job *job = item;

    (void)gk_zsock_send(daemon->zsock, job->route, &job->reply, 1); /* the peer may be gone */
    count_event(daemon);
}

/* A server answers requests, a client makes the next one of the answer. */
static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    static const struct gk_compute_job none;
    struct daemon *daemon = context;
    struct gk_compute_job compute_job = none;
    struct job *job = calloc(1, sizeof(*job));

    (void)parts_count;
    require(job != NULL, "memory");
    job->next = daemon->jobs;
    daemon->jobs = job;
    job->route = route;
    job->request = gk_buf_ref(parts[0]);
    job->reply = gk_buf_new(16 + draw(daemon, PART_BYTES));
    require(job->reply != NULL, "memory");
    compute_job.run = run_job;
    compute_job.done = job_done;
    compute_job.job = job;
    check(gk_compute_submit(daemon->compute, &compute_job) == GK_OK, "submit");
    count_event(daemon);
}

static void on_gone(void *context, uint64_t route)
{
    (void)route;
    check(!((struct daemon *)context)->closing, "no callback after the close");
}

static void on_peer(void *context, enum gk_zsock_event event)
{
    (void)event;
    check(!((struct daemon *)context)->closing, "no callback after the close");
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    (void)context;
    (void)err;
    check(false, words);
}

static void on_zsock_closed(void *context)
{
    ((struct daemon *)context)->zsock_closed++;
}

static void on_compute_closed(void *context)
{
    ((struct daemon *)context)->compute_closed++;
}

static void on_link_closed(void *context)
{
    ((struct daemon *)context)->link_closed++;
}

static void on_timer(void *context)
{
    struct daemon *daemon = context;
    json_t *line = json_pack("{s:s, s:i}", "event", "progress", "left", (int)daemon->events_left);

    gk_link_send(daemon->link, line);
    json_decref(line);
    gk_timer_arm(daemon->timer, gk_now_us() + TIMER_US);
    count_event(daemon);
}

static void on_signal(void *context, int number)
{
    struct daemon *daemon = context;

    check(number == SIGTERM && !daemon->closing, "a signal before the close");
    atomic_fetch_add(&by_signal, !daemon->closing);
    shut_down(daemon);
}

static void on_link_ended(void *context)
{
    struct daemon *daemon = context;

    check(!daemon->closing, "no end of the link after the close");
    atomic_fetch_add(&by_link, !daemon->closing);
    shut_down(daemon);
}

static void shut_down(struct daemon *daemon)
{
    if (daemon->closing) {
        return;
    }
    daemon->closing = true;
    atomic_fetch_add(&with_jobs, gk_compute_pending(daemon->compute) > 0);
    atomic_fetch_add(&with_messages, gk_zsock_pending(daemon->zsock) > 0);
    gk_timer_close(daemon->timer);
    gk_signals_close(daemon->signals);
    gk_zsock_close(daemon->zsock, draw(daemon, 2) ? 20 : 0);
    gk_compute_close(daemon->compute, on_compute_closed);
    gk_link_close(daemon->link, on_link_closed);
}

static void open_daemon(struct daemon *daemon)
{
    static const struct gk_zsock_callbacks zsock_callbacks = {.message = on_message,
                                                              .event = on_peer,
                                                              .gone = on_gone,
                                                              .error = on_error,
                                                              .closed = on_zsock_closed};
    static const struct gk_link_callbacks link_callbacks = {.ended = on_link_ended};
    struct gk_words words = {.text = ""};

    require(uv_loop_init(&daemon->loop) == 0, "loop");
    daemon->events_left = 1 + draw(daemon, draw(daemon, 8) ? EVENTS_MAX : EVENTS_FEW);
    daemon->zmq = gk_net_context();
    require(gk_link_open(&daemon->loop, daemon->link_end, &link_callbacks, daemon, &daemon->link,
                         &words) == GK_OK &&
                gk_signals_open(&daemon->loop, on_signal, daemon, &daemon->signals, &words) ==
                    GK_OK &&
                gk_timer_open(&daemon->loop, on_timer, daemon, &daemon->timer) == GK_OK &&
                gk_compute_open(&daemon->loop, daemon, &daemon->compute, &words) == GK_OK,
            words.text);
    require(gk_zsock_open(&(struct gk_zsock_setup){.loop = &daemon->loop,
                                                   .zmq = daemon->zmq,
                                                   .type = daemon->address ? GK_ZSOCK_DEALER
                                                                           : GK_ZSOCK_ROUTER,
                                                   .address = daemon->address ? daemon->address
                                                                              : "tcp://127.0.0.1:*",
                                                   .callbacks = &zsock_callbacks,
                                                   .context = daemon},
                          &daemon->zsock, &words) == GK_OK,
            words.text);
    gk_timer_arm(daemon->timer, gk_now_us() + TIMER_US);
}

static void send_requests(struct daemon *daemon)
{
    for (int i = 0; i < OUTSTANDING; i++) {
        struct gk_buf *part = gk_buf_new(16 + draw(daemon, PART_BYTES));

        require(part != NULL, "memory");
        check(gk_zsock_send(daemon->zsock, 0, &part, 1) == GK_OK, "send");
        gk_buf_unref(part);
    }
}

static void *daemon_main(void *arg)
{
    struct daemon *daemon = arg;

    if (daemon->address) {
        send_requests(daemon);
    }
    check(uv_run(&daemon->loop, UV_RUN_DEFAULT) == 0, "the loop ends");
    check(daemon->zsock_closed == 1 && daemon->compute_closed == 1 && daemon->link_closed == 1,
          "each has closed once");
    check(uv_loop_close(&daemon->loop) == 0, "the loop closes");
    gk_net_context_free(daemon->zmq);
    for (struct job *next, *job = daemon->jobs; job; job = next) {
        next = job->next;
        gk_buf_unref(job->request);
        gk_buf_unref(job->reply);
        free(job);
    }
    atomic_fetch_add(&ended, 1);
    return NULL;
}

/* Opened here, so that the address of the server is known before its clients begin; the loop runs
 * on the daemon's own thread alone. */
static int start(struct daemon *daemon)
{
    uv_os_sock_t ends[2];

    require(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE) == 0, "link");
    daemon->link_end = ends[1];
    open_daemon(daemon);
    (void)snprintf(daemon->bound, sizeof(daemon->bound), "%s", gk_zsock_address(daemon->zsock));
    require(pthread_create(&daemon->thread, NULL, daemon_main, daemon) == 0, "thread");
    return ends[0];
}

static void run_round(uint64_t seed)
{
    static const struct daemon none;
    struct daemon daemons[1 + CLIENTS];
    int links[1 + CLIENTS];
    struct daemon chance = none; /* of the round itself */
    uint64_t end_us;

    chance.seed = seed;
    chance.index = 1 + CLIENTS;
    atomic_store(&ended, 0);
    for (uint32_t i = 0; i < 1 + CLIENTS; i++) {
        daemons[i] = none;
        daemons[i].seed = seed;
        daemons[i].index = i;
        daemons[i].address = i > 0 ? daemons[0].bound : NULL;
        links[i] = start(&daemons[i]);
    }
    end_us = gk_now_us() + draw(&chance, ROUND_US);
    while (gk_now_us() < end_us && atomic_load(&ended) < 1 + CLIENTS) {
        (void)sched_yield(); /* the moment is the stimulus */
    }
    if (draw(&chance, 2)) {
        (void)kill(getpid(), SIGTERM);
    }
    for (uint32_t i = 0; i < 1 + CLIENTS; i++) {
        (void)close(links[i]); /* whoever has not heard the signal */
    }
    for (uint32_t i = 0; i < 1 + CLIENTS; i++) {
        (void)pthread_join(daemons[i].thread, NULL);
    }
}

/* For the time between the last daemon's end and the signal: without any handler it would end us.
 */
static void on_stray_signal(void *context, int number)
{
    (void)context;
    (void)number;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : gk_now_us();
    uint64_t start_us = gk_now_us();
    struct gk_signals *signals;
    struct gk_words words;
    uv_loop_t loop;

    require(uv_loop_init(&loop) == 0, "loop");
    require(gk_signals_open(&loop, on_stray_signal, NULL, &signals, &words) == GK_OK, words.text);
    (void)printf("seed %" PRIu64 "\n", seed);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        run_round(seed + round);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    gk_signals_close(signals);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    check(uv_loop_close(&loop) == 0, "the loop of the signals closes");
    check(gk_now_us() - start_us < DEADLINE_S * UINT64_C(1000) * 1000, "in time");
    check(atomic_load(&by_budget) > 0 && atomic_load(&by_signal) > 0 && atomic_load(&by_link) > 0,
          "all ways to stop were taken");
    check(atomic_load(&with_jobs) > 0 && atomic_load(&with_messages) > 0,
          "something was on its way");
    (void)printf("stopped %u by events, %u by a signal, %u by the link; %u with computations, %u "
                 "with messages on their way\n",
                 atomic_load(&by_budget), atomic_load(&by_signal), atomic_load(&by_link),
                 atomic_load(&with_jobs), atomic_load(&with_messages));
    (void)printf("%u passed, %u failed\n", atomic_load(&passed), atomic_load(&failed));
    return atomic_load(&failed) == 0 ? 0 : 1;
}
