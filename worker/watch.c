#include "worker/watch.h"

#include "common/net/clock.h"
#include "common/net/daemon.h"
#include "worker/include/gkps.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct gk_watch {
    pthread_t thread;
    int wake; /* descriptor */
    pthread_mutex_t mutex;
    struct gkps *gkps; /* NULL: not yet */
    int stop_code;     /* of the first signal; 0: none */
    int end_code;      /* of what has ended; 0: nothing has */
    uint64_t ended_us;
    bool close;
};

/* For the handler, which any thread of any library may run. */
static atomic_int caught_number, caught_wake = -1;

static void write_wake(int fd)
{
    const uint64_t one = 1;

    (void)!write(fd, &one, sizeof(one)); /* it cannot be full */
}

static void on_signal(int number)
{
    int kept_errno = errno;
    int fd = atomic_load(&caught_wake);

    atomic_store(&caught_number, number);
    if (fd >= 0) {
        write_wake(fd);
    }
    errno = kept_errno;
}

static void handle_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL); /* fails only for numbers that are no signals */
    (void)sigaction(SIGTERM, &action, NULL);
}

static void look_at_signals(struct gk_watch *watch)
{
    int number = atomic_load(&caught_number);

    if (number == 0 || watch->stop_code) {
        return;
    }
    watch->stop_code = 128 + number;
    if (watch->gkps) {
        gkps_stop(watch->gkps, watch->stop_code);
    } else { /* something else takes long */
        watch->end_code = watch->stop_code;
        watch->ended_us = gk_now_us();
    }
}

static void woken(struct gk_watch *watch)
{
    uint64_t count;

    (void)!read(watch->wake, &count, sizeof(count)); /* only so that it is not readable any more */
}

/* Milliseconds until the computation has had its time; -1: it may go on. */
static int left_ms(const struct gk_watch *watch)
{
    uint64_t gone_us = watch->end_code ? gk_now_us() - watch->ended_us : 0;

    if (!watch->end_code) {
        return -1;
    }
    return gone_us >= GK_DAEMON_COMPUTE_US ? 0 : (int)((GK_DAEMON_COMPUTE_US - gone_us) / 1000) + 1;
}

static void *watch_main(void *argument)
{
    struct gk_watch *watch = argument;
    struct pollfd wake = {.fd = watch->wake, .events = POLLIN};
    bool close = false;
    int timeout_ms = -1;

    while (!close) {
        if (poll(&wake, 1, timeout_ms) > 0) {
            woken(watch);
        }
        (void)pthread_mutex_lock(&watch->mutex); /* fails for a broken mutex only */
        look_at_signals(watch);
        close = watch->close;
        timeout_ms = left_ms(watch);
        if (!close && timeout_ms == 0) {
            gk_daemon_abandon("WORKER-ABANDONED", watch->end_code);
        }
        (void)pthread_mutex_unlock(&watch->mutex);
    }
    return NULL;
}

static void drop(struct gk_watch *watch)
{
    if (watch->wake >= 0) {
        (void)close(watch->wake);
    }
    (void)pthread_mutex_destroy(&watch->mutex);
    free(watch);
}

enum gk_err gk_watch_open(struct gk_watch **ret_watch)
{
    struct gk_watch *watch = calloc(1, sizeof(*watch));

    if (!watch) {
        return GK_E_NOMEM;
    }
    (void)pthread_mutex_init(&watch->mutex, NULL);
    watch->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watch->wake < 0 || pthread_create(&watch->thread, NULL, watch_main, watch) != 0) {
        drop(watch);
        return GK_E_LIMIT;
    }
    atomic_store(&caught_wake, watch->wake);
    handle_signals(on_signal);
    *ret_watch = watch;
    return GK_OK;
}

void gk_watch_handle(struct gk_watch *watch, struct gkps *gkps)
{
    (void)pthread_mutex_lock(&watch->mutex);
    watch->gkps = gkps;
    if (watch->stop_code) {
        gkps_stop(gkps, watch->stop_code);
    }
    (void)pthread_mutex_unlock(&watch->mutex);
}

void gk_watch_ended(void *argument, int exit_code, const char *words)
{
    struct gk_watch *watch = argument;

    (void)words;
    (void)pthread_mutex_lock(&watch->mutex);
    watch->end_code = exit_code;
    watch->ended_us = gk_now_us();
    (void)pthread_mutex_unlock(&watch->mutex);
    write_wake(watch->wake);
}

void gk_watch_close(struct gk_watch *watch)
{
    if (!watch) {
        return;
    }
    handle_signals(SIG_DFL); /* what is left to do may wait for a launcher that is stopped */
    atomic_store(&caught_wake, -1);
    (void)pthread_mutex_lock(&watch->mutex);
    watch->close = true;
    (void)pthread_mutex_unlock(&watch->mutex);
    write_wake(watch->wake);
    (void)pthread_join(watch->thread, NULL);
    drop(watch);
}
