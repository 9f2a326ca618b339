#include "worker/lib/engine.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/net/clock.h"
#include "worker/lib/engine_internal.h"

#include <stdlib.h>
#include <time.h>

void gk_engine_lock(struct gk_engine *engine)
{
    (void)pthread_mutex_lock(&engine->shared.mutex); /* fails for a broken mutex only */
}

void gk_engine_unlock(struct gk_engine *engine)
{
    (void)pthread_mutex_unlock(&engine->shared.mutex);
}

/* The engine's thread. */

void gk_engine_drop_kept(struct gk_engine *engine)
{
    struct gk_engine_shared *shared = &engine->shared;

    for (uint32_t i = 0; i < shared->kept_count; i++) {
        gk_buf_unref(shared->kept[i].buf);
    }
    shared->kept_count = 0;
}

void gk_engine_take(struct gk_engine *engine, const struct gk_worker_action *action)
{
    struct gk_engine_shared *shared = &engine->shared;
    const struct gk_range range = {.lo = action->lo, .hi = action->hi};
    enum gk_err err = GK_OK;

    gk_engine_lock(engine);
    if (shared->kept_version != action->step) {
        gk_engine_drop_kept(engine);
        shared->kept_version = action->step;
    }
    if (shared->install) {
        err = gk_flat_install(engine->setup->flat, action->plane, range,
                              (const float *)(const void *)action->buf->data, &engine->words);
    } else {
        GK_ASSERT(shared->kept_count < shared->kept_room);
        shared->kept[shared->kept_count++] = (struct gk_engine_kept){
            .plane = action->plane, .range = range, .buf = gk_buf_ref(action->buf)};
    }
    gk_engine_unlock(engine);
    engine->report.ended_us = gk_now_us();
    if (err) { /* the event waits for the end of the step that this is an action of */
        gk_engine_on_failed(engine, GK_EXIT_INTERNAL, engine->words.text);
    }
}

/* It is about to end: another turn would say that all has gone well. */
static bool is_failing(const struct gk_engine *engine)
{
    return engine->fails || engine->shared.asked == GK_ASKED_FAIL;
}

void gk_engine_publish(struct gk_engine *engine)
{
    struct gk_engine_shared *shared = &engine->shared;

    if (engine->next == GK_TURN_LIBRARY) {
        return;
    }
    gk_engine_lock(engine);
    if (engine->next != GK_TURN_ENDED && is_failing(engine)) {
        gk_engine_unlock(engine);
        return;
    }
    shared->view.turn = engine->next;
    shared->view.version = engine->next_version;
    shared->view.rank = engine->report.rank;
    shared->view.selected = engine->selected;
    shared->view.stopped = engine->stopped;
    shared->view.exit_code = engine->exit_code;
    shared->view.words = engine->words;
    shared->view.left_before = gk_worker_left_before(engine->core);
    shared->view.stats = *gk_worker_stats(engine->core);
    shared->view.residuals_lost = shared->view.stats.residuals_lost;
    shared->view.report = engine->report;
    shared->turned_us = gk_now_us();
    (void)pthread_cond_broadcast(&shared->turned);
    gk_engine_unlock(engine);
    engine->next = GK_TURN_LIBRARY;
}

/* The program's thread. */

static void wake(struct gk_engine *engine)
{
    (void)uv_async_send(&engine->wake); /* fails only on a closed handle, which it is not */
}

static struct timespec after_ms(int64_t ms)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += (time_t)(ms / 1000);
    at.tv_nsec += (long)(ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static void ask(struct gk_engine *engine, enum gk_engine_asked asked)
{
    engine->shared.asked = asked;
    if (engine->shared.view.turn != GK_TURN_ENDED) {
        engine->shared.view.turn = GK_TURN_LIBRARY;
    }
}

static void ask_to_fail(struct gk_engine *engine, int exit_code, const struct gk_words *words)
{
    engine->shared.fail_code = exit_code;
    engine->shared.fail_words = *words;
    ask(engine, GK_ASKED_FAIL);
    wake(engine);
}

/* What the device refuses ends the rank. */
static enum gk_err install_kept(struct gk_engine *engine)
{
    struct gk_engine_shared *shared = &engine->shared;
    struct gk_words words;
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < shared->kept_count && !err; i++) {
        err = gk_flat_install(engine->setup->flat, shared->kept[i].plane, shared->kept[i].range,
                              (const float *)(const void *)shared->kept[i].buf->data, &words);
    }
    gk_engine_drop_kept(engine);
    if (err) {
        ask_to_fail(engine, GK_EXIT_INTERNAL, &words);
    }
    return err;
}

enum gk_err gk_engine_wait(struct gk_engine *engine, int64_t timeout_ms, bool install)
{
    struct gk_engine_shared *shared = &engine->shared;
    struct timespec until = after_ms(timeout_ms);
    int error = 0;
    enum gk_err err;

    gk_engine_lock(engine);
    shared->install = install && install_kept(engine) == GK_OK;
    while (shared->view.turn == GK_TURN_LIBRARY && error == 0) {
        error = timeout_ms > 0 ? pthread_cond_timedwait(&shared->turned, &shared->mutex, &until)
                               : pthread_cond_wait(&shared->turned, &shared->mutex);
    }
    shared->install = false;
    err = shared->view.turn == GK_TURN_LIBRARY ? GK_E_TIMEOUT : GK_OK;
    gk_engine_unlock(engine);
    return err;
}

enum gk_err gk_engine_install(struct gk_engine *engine)
{
    enum gk_err err;

    gk_engine_lock(engine);
    err = install_kept(engine);
    gk_engine_unlock(engine);
    return err;
}

void gk_engine_view(struct gk_engine *engine, struct gk_engine_view *ret_view)
{
    gk_engine_lock(engine);
    *ret_view = engine->shared.view;
    gk_engine_unlock(engine);
}

bool gk_engine_remembers(const struct gk_engine *engine)
{
    return engine->keeper.remembers;
}

const void *gk_engine_aux(const struct gk_engine *engine)
{
    return engine->keeper.slot ? gk_slot_aux(engine->keeper.slot) : NULL;
}

void gk_engine_init_made(struct gk_engine *engine, uint64_t init_id)
{
    gk_engine_lock(engine);
    engine->shared.init_id = init_id;
    ask(engine, GK_ASKED_INIT_MADE);
    gk_engine_unlock(engine);
    wake(engine);
}

void gk_engine_step(struct gk_engine *engine, const struct gk_flat_step *step, double loss)
{
    gk_engine_lock(engine);
    gk_engine_drop_kept(engine); /* in exchange for what this step will bring */
    engine->shared.step = *step;
    engine->shared.loss = loss;
    ask(engine, GK_ASKED_STEP);
    gk_engine_unlock(engine);
    wake(engine);
}

void gk_engine_leave(struct gk_engine *engine)
{
    gk_engine_lock(engine);
    ask(engine, GK_ASKED_LEAVE);
    gk_engine_unlock(engine);
    wake(engine);
}

void gk_engine_fail(struct gk_engine *engine, int exit_code, const struct gk_words *words)
{
    gk_engine_lock(engine);
    ask_to_fail(engine, exit_code, words);
    gk_engine_unlock(engine);
}

void gk_engine_stop(struct gk_engine *engine, int exit_code)
{
    atomic_store(&engine->stop_code, exit_code ? exit_code : GK_EXIT_INTERNAL);
    wake(engine);
}

enum gk_err gk_engine_note(struct gk_engine *engine, const char *words)
{
    struct gk_engine_note *note = malloc(sizeof(*note));

    if (!note) {
        return GK_E_NOMEM;
    }
    gk_words_set(&note->words, "%s", words);
    gk_engine_lock(engine);
    note->next = engine->shared.notes;
    engine->shared.notes = note;
    gk_engine_unlock(engine);
    wake(engine);
    return GK_OK;
}

void gk_engine_eval(struct gk_engine *engine, const struct gk_report_eval *eval)
{
    gk_engine_lock(engine);
    engine->shared.eval = *eval;
    engine->shared.eval_told = true;
    gk_engine_unlock(engine);
    wake(engine);
}
