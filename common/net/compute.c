/* A thread, a ring of jobs and a wake-up.
 *
 * Jobs enter the ring on the loop thread, `run` walks it on the compute thread, `done` on the loop
 * thread again; each of the three positions only grows, submitted >= finished >= reported, so that
 * order needs no care.  The mutex guards the first two and `stop`; the third belongs to the loop
 * thread. */
#include "common/net/compute.h"

#include <uv.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

struct gk_compute {
    void *context;
    void (*closed)(void *context);
    uv_thread_t thread;
    uv_async_t wake; /* of the loop: a job has finished, or the thread ends */
    uv_mutex_t mutex;
    uv_cond_t work; /* of the thread: a job was submitted, or it shall stop */
    struct gk_compute_job ring[GK_COMPUTE_JOBS_MAX];
    uint64_t submitted;
    uint64_t finished;
    uint64_t reported;
    bool stop;    /* asked for */
    bool stopped; /* the thread has seen it and touches nothing any more */
    bool closing;
    atomic_ullong corrections;
};

/* A library that sets flush-to-zero (some do when they are loaded) would change the bits of every
 * sum. */
static void check_mode(struct gk_compute *compute)
{
#if defined(__x86_64__)
    enum {
        MODE_DEFAULT = 0x1f80,
        FLAGS_MASK = 0x3f
    }; /* all exceptions masked, to nearest, no FTZ, no DAZ */
    unsigned mode = _mm_getcsr() & ~(unsigned)FLAGS_MASK;

    if (mode != MODE_DEFAULT) {
        _mm_setcsr(MODE_DEFAULT);
        atomic_fetch_add(&compute->corrections, 1);
    }
#else
    (void)compute;
#endif
}

/* Wait for the next job.  False: stop. */
static bool next_job(struct gk_compute *compute, struct gk_compute_job *ret_job)
{
    bool found;

    uv_mutex_lock(&compute->mutex);
    while (!compute->stop && compute->finished == compute->submitted) {
        uv_cond_wait(&compute->work, &compute->mutex);
    }
    found = !compute->stop;
    if (found) {
        *ret_job = compute->ring[compute->finished % GK_COMPUTE_JOBS_MAX];
    } else {
        compute->stopped = true;
    }
    uv_mutex_unlock(&compute->mutex);
    return found;
}

static void compute_main(void *arg)
{
    struct gk_compute *compute = arg;
    struct gk_compute_job job;

    while (next_job(compute, &job)) {
        check_mode(compute);
        job.run(compute->context, job.job);
        uv_mutex_lock(&compute->mutex);
        compute->finished++;
        uv_mutex_unlock(&compute->mutex);
        (void)uv_async_send(
            &compute->wake); /* fails only on a closed handle, which it is not before the join */
    }
    (void)uv_async_send(&compute->wake);
}

static void on_closed(uv_handle_t *handle)
{
    struct gk_compute *compute = handle->data;
    void (*closed)(void *context) = compute->closed;
    void *context = compute->context;

    uv_cond_destroy(&compute->work);
    uv_mutex_destroy(&compute->mutex);
    free(compute);
    if (closed) {
        closed(context);
    }
}

/* Wakes coalesce: everything that has finished is reported, however many there were. */
static void on_wake(uv_async_t *handle)
{
    struct gk_compute *compute = handle->data;
    uint64_t finished;
    bool stopped;

    uv_mutex_lock(&compute->mutex);
    finished = compute->finished;
    stopped = compute->stopped;
    uv_mutex_unlock(&compute->mutex);
    while (!compute->closing && compute->reported < finished) {
        struct gk_compute_job job = compute->ring[compute->reported % GK_COMPUTE_JOBS_MAX];

        compute->reported++; /* first, so that `done` may submit into a ring that was full */
        job.done(compute->context, job.job);
    }
    if (stopped && !uv_is_closing((uv_handle_t *)handle)) {
        (void)uv_thread_join(&compute->thread); /* it is past its last statement but one */
        uv_close((uv_handle_t *)handle, on_closed);
    }
}

enum gk_err gk_compute_open(struct uv_loop_s *loop, void *context, struct gk_compute **ret_compute,
                            struct gk_words *words)
{
    struct gk_compute *compute = calloc(1, sizeof(*compute));
    int rc = UV_ENOMEM;

    if (!compute) {
        goto out;
    }
    compute->context = context;
    atomic_init(&compute->corrections, 0);
    rc = uv_mutex_init(&compute->mutex);
    if (rc != 0) {
        goto out_free;
    }
    rc = uv_cond_init(&compute->work);
    if (rc != 0) {
        goto out_mutex;
    }
    rc = uv_async_init(loop, &compute->wake, on_wake);
    if (rc != 0) {
        goto out_cond;
    }
    compute->wake.data = compute;
    rc = uv_thread_create(&compute->thread, compute_main, compute);
    if (rc != 0) {
        uv_close((uv_handle_t *)&compute->wake, on_closed); /* frees it in the loop's next turn */
        goto out;
    }
    *ret_compute = compute;
    return GK_OK;

out_cond:
    uv_cond_destroy(&compute->work);
out_mutex:
    uv_mutex_destroy(&compute->mutex);
out_free:
    free(compute);
out:
    gk_words_set(words, "cannot start the compute thread: %s", uv_strerror(rc));
    return rc == UV_ENOMEM ? GK_E_NOMEM : GK_E_LIMIT;
}

enum gk_err gk_compute_submit(struct gk_compute *compute, const struct gk_compute_job *job)
{
    if (compute->closing) {
        return GK_E_CLOSED;
    }
    if (gk_compute_pending(compute) == GK_COMPUTE_JOBS_MAX) {
        return GK_E_LIMIT;
    }
    uv_mutex_lock(&compute->mutex);
    compute->ring[compute->submitted % GK_COMPUTE_JOBS_MAX] = *job;
    compute->submitted++;
    uv_cond_signal(&compute->work);
    uv_mutex_unlock(&compute->mutex);
    return GK_OK;
}

uint32_t gk_compute_pending(const struct gk_compute *compute)
{
    /* The loop thread alone writes both. */
    return (uint32_t)(compute->submitted - compute->reported);
}

uint64_t gk_compute_mode_corrections(const struct gk_compute *compute)
{
    return atomic_load(&compute->corrections);
}

void gk_compute_close(struct gk_compute *compute, void (*closed)(void *context))
{
    if (!compute || compute->closing) {
        return;
    }
    compute->closing = true;
    compute->closed = closed;
    uv_mutex_lock(&compute->mutex);
    compute->stop = true;
    uv_cond_signal(&compute->work);
    uv_mutex_unlock(&compute->mutex);
}
