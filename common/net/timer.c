#include "common/net/timer.h"

#include "common/net/clock.h"

#include <uv.h>

#include <stdbool.h>
#include <stdlib.h>

struct gk_timer {
    uv_timer_t handle;
    void (*fire)(void *context);
    void *context;
    uint64_t at_us;
};

static void on_timer(uv_timer_t *handle);

/* libuv counts whole milliseconds from when its turn began, so that it may be early by some; then
 * it is asked again. */
static void start(struct gk_timer *timer)
{
    uint64_t now_us = gk_now_us();
    uint64_t wait_us = timer->at_us > now_us ? timer->at_us - now_us : 0;

    (void)uv_timer_start(&timer->handle, on_timer, wait_us / 1000 + (wait_us % 1000 != 0), 0);
}

static void on_timer(uv_timer_t *handle)
{
    struct gk_timer *timer = handle->data;

    if (gk_now_us() < timer->at_us) {
        start(timer);
    } else {
        timer->fire(timer->context);
    }
}

enum gk_err gk_timer_open(struct uv_loop_s *loop, void (*fire)(void *context), void *context,
                          struct gk_timer **ret_timer)
{
    struct gk_timer *timer = calloc(1, sizeof(*timer));

    if (!timer) {
        return GK_E_NOMEM;
    }
    timer->fire = fire;
    timer->context = context;
    (void)uv_timer_init(loop, &timer->handle); /* cannot fail */
    timer->handle.data = timer;
    *ret_timer = timer;
    return GK_OK;
}

void gk_timer_arm(struct gk_timer *timer, uint64_t at_us)
{
    if (uv_is_closing((uv_handle_t *)&timer->handle)) {
        return;
    }
    timer->at_us = at_us;
    if (at_us == 0 || at_us == UINT64_MAX) {
        (void)uv_timer_stop(&timer->handle);
    } else {
        start(timer);
    }
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void gk_timer_close(struct gk_timer *timer)
{
    if (timer && !uv_is_closing((uv_handle_t *)&timer->handle)) {
        uv_close((uv_handle_t *)&timer->handle, on_closed);
    }
}
