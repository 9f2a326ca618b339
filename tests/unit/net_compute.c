/* Goal: the compute thread runs jobs in order, one at a time, off the loop; reports them in order
 * on the loop; keeps the floating-point mode; ends cleanly at any moment. Method: jobs that note
 * what they see, gated by semaphores where the test needs one to be running. */
#include "common/net/compute.h"

#include "common/net/clock.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { JOBS = 100 };

struct state {
    uv_loop_t loop;
    struct gk_compute *compute;
    pthread_t loop_thread;
    atomic_int running;
    int runs, dones, closed; /* `runs` belongs to the compute thread until the close */
    int run_order[JOBS], done_order[JOBS];
    int submitted;
    bool close_in_done;
    uv_sem_t started, gate;
};

static int numbers[JOBS];

static void start(struct state *state)
{
    struct gk_words words;

    memset(state, 0, sizeof(*state));
    state->loop_thread = pthread_self();
    for (int i = 0; i < JOBS; i++) {
        numbers[i] = i;
    }
    cr_assert_eq(uv_loop_init(&state->loop), 0);
    cr_assert_eq(uv_sem_init(&state->started, 0), 0);
    cr_assert_eq(uv_sem_init(&state->gate, 0), 0);
    cr_assert_eq(gk_compute_open(&state->loop, state, &state->compute, &words), GK_OK);
}

static void on_closed(void *context)
{
    ((struct state *)context)->closed++;
}

static void finish(struct state *state)
{
    gk_compute_close(state->compute, on_closed);
    gk_compute_close(state->compute, NULL); /* idempotent: the first callback counts */
    cr_assert_eq(uv_run(&state->loop, UV_RUN_DEFAULT), 0);
    cr_assert_eq(state->closed, 1);
    cr_assert_eq(uv_loop_close(&state->loop), 0);
    uv_sem_destroy(&state->started);
    uv_sem_destroy(&state->gate);
}

static void run_note(void *context, void *job)
{
    struct state *state = context;

    cr_assert_eq(atomic_fetch_add(&state->running, 1), 0);
    cr_assert(!pthread_equal(pthread_self(), state->loop_thread));
    state->run_order[state->runs++] = *(int *)job;
    atomic_fetch_sub(&state->running, 1);
}

static void done_note(void *context, void *job)
{
    struct state *state = context;

    cr_assert(pthread_equal(pthread_self(), state->loop_thread));
    state->done_order[state->dones++] = *(int *)job;
}

static void done_and_next(void *context, void *job);

static enum gk_err submit(struct state *state, int number, void (*run)(void *, void *),
                          void (*done)(void *, void *))
{
    const struct gk_compute_job job = {.run = run, .done = done, .job = &numbers[number]};

    return gk_compute_submit(state->compute, &job);
}

static void done_and_next(void *context, void *job)
{
    struct state *state = context;

    done_note(context, job);
    if (state->submitted < JOBS) { /* into a ring that was full */
        cr_assert_eq(submit(state, state->submitted, run_note, done_and_next), GK_OK);
        state->submitted++;
    }
}

Test(net_compute, order)
{
    struct state state;

    start(&state);
    while (state.submitted < GK_COMPUTE_JOBS_MAX) {
        cr_assert_eq(submit(&state, state.submitted, run_note, done_and_next), GK_OK);
        state.submitted++;
    }
    while (state.dones < JOBS) {
        uv_run(&state.loop, UV_RUN_ONCE);
    }
    cr_assert_eq(gk_compute_pending(state.compute), 0);
    finish(&state);
    cr_assert_eq(state.runs, JOBS);
    for (int i = 0; i < JOBS; i++) {
        cr_assert_eq(state.run_order[i], i);
        cr_assert_eq(state.done_order[i], i);
    }
}

static void run_gated(void *context, void *job)
{
    struct state *state = context;

    (void)job;
    state->runs++;
    uv_sem_post(&state->started);
    uv_sem_wait(&state->gate);
}

Test(net_compute, limit)
{
    struct state state;

    start(&state);
    for (int i = 0; i < GK_COMPUTE_JOBS_MAX; i++) {
        cr_assert_eq(submit(&state, i, i == 0 ? run_gated : run_note, done_note), GK_OK);
    }
    uv_sem_wait(&state.started);
    cr_assert_eq(gk_compute_pending(state.compute), GK_COMPUTE_JOBS_MAX);
    cr_assert_eq(submit(&state, 50, run_note, done_note), GK_E_LIMIT);
    uv_sem_post(&state.gate);
    while (gk_compute_pending(state.compute) > 0) {
        uv_run(&state.loop, UV_RUN_ONCE);
    }
    cr_assert_eq(state.dones, GK_COMPUTE_JOBS_MAX);
    cr_assert_eq(submit(&state, 50, run_note, done_note), GK_OK);
    while (gk_compute_pending(state.compute) > 0) {
        uv_run(&state.loop, UV_RUN_ONCE);
    }
    finish(&state);
}

/* One job runs, others wait: the close does not block, the running one ends, the others never
 * start. */
Test(net_compute, close_while_running)
{
    struct state state;

    start(&state);
    cr_assert_eq(submit(&state, 0, run_gated, done_note), GK_OK);
    cr_assert_eq(submit(&state, 1, run_note, done_note), GK_OK);
    uv_sem_wait(&state.started);
    gk_compute_close(state.compute, on_closed);
    cr_assert_eq(submit(&state, 2, run_note, done_note), GK_E_CLOSED);
    uv_run(&state.loop, UV_RUN_NOWAIT);
    cr_assert_eq(state.closed, 0);
    uv_sem_post(&state.gate);
    finish(&state);
    cr_assert_eq(state.runs, 1);
    cr_assert_eq(state.dones, 0);
}

static void done_and_close(void *context, void *job)
{
    struct state *state = context;

    done_note(context, job);
    gk_compute_close(state->compute, on_closed);
}

Test(net_compute, close_in_done)
{
    struct state state;

    start(&state);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(submit(&state, i, run_note, done_and_close), GK_OK);
    }
    cr_assert_eq(uv_run(&state.loop, UV_RUN_DEFAULT), 0);
    cr_assert_eq(state.dones, 1);
    cr_assert_eq(state.closed, 1);
    cr_assert_eq(uv_loop_close(&state.loop), 0);
    gk_compute_close(NULL, on_closed);
}

#if defined(__x86_64__)
static void run_spoil(void *context, void *job)
{
    (void)context;
    (void)job;
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
}

static void run_denormal(void *context, void *job)
{
    struct state *state = context;
    volatile float tiny = 1e-38f;

    (void)job;
    tiny = tiny / 16;
    state->run_order[state->runs++] = tiny > 0 && (_mm_getcsr() & 0x8040) == 0;
}

Test(net_compute, floating_point_mode)
{
    struct state state;

    start(&state);
    cr_assert_eq(submit(&state, 0, run_denormal, done_note), GK_OK);
    cr_assert_eq(submit(&state, 1, run_spoil, done_note), GK_OK);
    cr_assert_eq(submit(&state, 2, run_denormal, done_note), GK_OK);
    cr_assert_eq(submit(&state, 3, run_denormal, done_note), GK_OK);
    while (state.dones < 4) {
        uv_run(&state.loop, UV_RUN_ONCE);
    }
    cr_assert_eq(gk_compute_mode_corrections(state.compute), 1);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(state.run_order[i], 1, "job %d", i);
    }
    finish(&state);
}
#endif
