#include "worker/lib/engine.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "common/net/compute.h"
#include "common/net/fault.h"
#include "common/net/timer.h"
#include "worker/lib/engine_internal.h"
#include "worker/lib/requests.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINGER_MS = 1000 };

static void feed(struct gk_engine *engine, const struct gk_worker_event *event)
{
    gk_feed_put(&engine->feed, event);
}

static void check_alarms(struct gk_engine *engine)
{
    uint64_t missed_wakes = 0;

    for (uint32_t i = 0; i < engine->peers_count; i++) {
        missed_wakes += gk_zsock_stats(engine->peers[i].zsock)->missed_wakes;
    }
    gk_daemon_alarm(&engine->daemon, missed_wakes, gk_compute_mode_corrections(engine->compute));
}

static void run_step(void *context, void *job)
{
    struct gk_engine *engine = context;

    gk_flat_step(engine->setup->flat, job);
}

static void report_step(struct gk_engine *engine, const struct gk_flat_step *step)
{
    const struct gk_report_step report = {.step = step->step,
                                          .samples = step->skip ? 0 : step->samples,
                                          .loss = engine->loss,
                                          .selected = step->selected,
                                          .compute_us = engine->compute_us,
                                          .select_us = step->select_us};

    gk_report_step(&engine->report, &report, gk_now_us());
}

static void step_done(void *context, void *job)
{
    struct gk_engine *engine = context;
    struct gk_flat_step *step = job;
    struct gk_worker_event event = {.kind = GK_WORKER_STEP_DONE,
                                    .push = step->push,
                                    .exit_code = step->exit_code,
                                    .words = step->words.text};

    engine->selected = step->selected;
    if (step->push) {
        report_step(engine, step);
        step->push = NULL; /* the core takes it */
    }
    feed(engine, &event);
}

static void start_step(struct gk_engine *engine)
{
    struct gk_compute_job job = {.run = run_step, .done = step_done, .job = &engine->step};
    enum gk_err err;

    if (engine->step.step > 0) { /* version 1 exists: INIT cannot come again */
        gk_flat_drop_initial(engine->setup->flat);
    }
    err = gk_compute_submit(engine->compute, &job);
    GK_ASSERT(!err); /* one computation at a time: the queue cannot be full */
}

enum gk_err gk_engine_set_rank(struct gk_engine *engine, uint32_t rank, struct gk_words *words)
{
    char who[32];

    (void)snprintf(who, sizeof(who), "worker %" PRIu32, rank);
    gk_log_who(who);
    engine->report.rank = rank;
    return gk_flat_set_rank(engine->setup->flat, rank, words);
}

static void take_rank(struct gk_engine *engine, uint32_t rank)
{
    gk_log(GK_LOG_INFO, "WORKER-RANK", "shard 0 assigned rank %" PRIu32, rank);
    if (gk_engine_set_rank(engine, rank, &engine->words)) {
        gk_engine_on_failed(engine, GK_EXIT_INTERNAL, engine->words.text);
    }
}

static void set_next(struct gk_engine *engine, enum gk_turn turn, uint64_t version)
{
    engine->next = turn;
    engine->next_version = version;
    if (turn == GK_TURN_STEP && !engine->job_begun) {
        engine->job_begun = true;
        engine->report.started_us = gk_now_us();
        engine->report.ended_us = engine->report.started_us;
    }
}

static void compute_closed(void *context)
{
    struct gk_engine *engine = context;

    gk_timer_close(engine->timer);
}

/* All but the wake-up, which others may use until gk_engine_close(). */
void gk_engine_shut_down(struct gk_engine *engine)
{
    if (engine->closing) {
        return;
    }
    engine->closing = true;
    for (uint32_t i = 0; i < engine->peers_count; i++) {
        if (engine->peers[i].zsock) {
            gk_zsock_close(engine->peers[i].zsock, LINGER_MS);
        }
    }
    if (engine->compute) {
        gk_compute_close(engine->compute, compute_closed);
    } else {
        gk_timer_close(engine->timer);
    }
    gk_daemon_close(&engine->daemon);
}

static void end(struct gk_engine *engine, const struct gk_worker_action *action)
{
    const struct gk_engine_setup *setup = engine->setup;

    engine->exit_code = action->exit_code;
    engine->words = action->words;
    if (action->exit_code == GK_EXIT_OK) {
        gk_log(GK_LOG_INFO, "WORKER-DONE", "%s", action->words.text);
        engine->report.left_before = gk_worker_left_before(engine->core);
        gk_report_summary(&engine->report, gk_worker_stats(engine->core));
    } else {
        gk_daemon_death(&engine->daemon, "WORKER-EXIT", action->exit_code, action->words.text);
    }
    gk_engine_shut_down(engine);
    set_next(engine, GK_TURN_ENDED, gk_worker_version(engine->core));
    if (setup->ended && action->exit_code != GK_EXIT_OK && !engine->unwanted) {
        setup->ended(setup->ended_context, action->exit_code, action->words.text);
    }
}

static void perform(struct gk_engine *engine, struct gk_worker_action *action)
{
    switch (action->kind) {
    case GK_WORKER_SEND:
        gk_requests_send(&engine->report, engine->peers[action->shard].zsock, &action->msg);
        break;
    case GK_WORKER_SEND_INIT:
        gk_requests_send_init(&engine->report, engine->peers[action->shard].zsock,
                              engine->setup->flat, &action->msg);
        break;
    case GK_WORKER_RANK:
        take_rank(engine, action->rank);
        break;
    case GK_WORKER_MAKE_INIT:
        set_next(engine, GK_TURN_INIT, 0);
        break;
    case GK_WORKER_STEP:
        set_next(engine, GK_TURN_STEP, action->step);
        break;
    case GK_WORKER_PERSIST:
        gk_keeper_persist(&engine->keeper, engine->compute, &action->memory);
        break;
    case GK_WORKER_REMEMBER:
        gk_keeper_remember(&engine->keeper, &action->identity);
        break;
    case GK_WORKER_INSTALL:
        gk_engine_take(engine, action);
        break;
    case GK_WORKER_EVALUATE:
        set_next(engine, GK_TURN_LAST, action->step);
        break;
    case GK_WORKER_RESET:
        gk_keeper_reset(&engine->keeper);
        break;
    case GK_WORKER_ARM_TIMER:
        gk_timer_arm(engine->timer, action->at_us);
        break;
    case GK_WORKER_TRACE:
        gk_log(action->level, action->id, "%s", action->words.text);
        break;
    case GK_WORKER_EXIT:
        end(engine, action);
        break;
    }
}

void gk_engine_step_core(void *context, void *item)
{
    struct gk_engine *engine = context;
    struct gk_worker_event *event = item;

    event->now_us = gk_now_us();
    gk_worker_step(engine->core, event, engine->actions);
    for (uint32_t i = 0; i < engine->actions->count; i++) {
        perform(engine, &engine->actions->list[i]);
    }
    gk_worker_actions_clear(engine->actions);
    gk_engine_publish(engine);
}

void gk_engine_on_timer(void *context)
{
    struct gk_engine *engine = context;
    struct gk_worker_event event = {.kind = GK_WORKER_TICK};

    if (engine->closing) { /* a computation that ends late: the sockets may be gone */
        return;
    }
    check_alarms(engine);
    feed(engine, &event);
}

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct gk_engine_peer *peer = context;
    struct gk_engine *engine = peer->engine;
    struct gk_worker_event event = {.kind = GK_WORKER_MESSAGE, .shard = peer->shard};
    struct gk_msg msg;
    struct gk_words words;
    enum gk_err err = gk_msg_from_wire(parts, parts_count, &msg, &words);

    (void)route;
    if (err) {
        event.kind = GK_WORKER_BAD_MESSAGE;
        event.words = words.text;
        feed(engine, &event);
        return;
    }
    gk_report_message(&engine->report, &msg, parts, parts_count);
    event.msg = &msg;
    feed(engine, &event);
    gk_msg_clear(&msg);
}

static void on_event(void *context, enum gk_zsock_event what)
{
    struct gk_engine_peer *peer = context;
    struct gk_worker_event event = {.kind = GK_WORKER_PEER_UP, .shard = peer->shard};

    if (what == GK_ZSOCK_STRANGER) { /* the log bounds how often it is said */
        gk_log(GK_LOG_WARN, "WORKER-STRANGER",
               "shard %" PRIu32 " at %s: what is there is no gkps server (it speaks another "
               "protocol); trying again",
               peer->shard, gk_zsock_address(peer->zsock));
        return;
    }
    if (what == GK_ZSOCK_DOWN) {
        event.kind = GK_WORKER_PEER_DOWN;
    } else if (what != GK_ZSOCK_UP) {
        return;
    }
    feed(peer->engine, &event);
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    struct gk_engine_peer *peer = context;
    struct gk_worker_event event = {
        .kind = GK_WORKER_STOP, .exit_code = GK_EXIT_INTERNAL, .words = words};

    gk_log(GK_LOG_ERROR, "WORKER-SOCKET", "socket of shard %" PRIu32 " failed: %s (%s)",
           peer->shard, words, gk_err_text(err));
    feed(peer->engine, &event);
}

void gk_engine_on_failed(void *context, int exit_code, const char *words)
{
    struct gk_engine *engine = context;
    struct gk_worker_event event = {.kind = GK_WORKER_STOP, .exit_code = exit_code, .words = words};

    engine->fails = true;
    feed(engine, &event);
}

void gk_engine_on_stop(void *context, int exit_code, const char *words)
{
    struct gk_engine *engine = context;

    engine->stopped = true;
    gk_engine_on_failed(engine, exit_code, words);
}

const struct gk_zsock_callbacks gk_engine_socket_callbacks = {
    .message = on_message, .event = on_event, .error = on_error};

/* Trouble on purpose, by a fault script. */
void gk_engine_on_command(void *context, const json_t *line)
{
    struct gk_engine *engine = context;
    struct gk_fault_command command;
    struct gk_words words;

    if (gk_fault_command_read(line, &command, &words)) {
        gk_log(GK_LOG_WARN, "WORKER-COMMAND", "the launcher's command is not understood: %s",
               words.text);
        return;
    }
    for (uint32_t i = 0; i < engine->peers_count; i++) {
        if (command.peer == -1 || command.peer == i) {
            gk_fault_set(gk_zsock_fault(engine->peers[i].zsock), &command);
        }
    }
}

void gk_engine_on_kept(void *context)
{
    struct gk_worker_event event = {.kind = GK_WORKER_PERSISTED};

    feed(context, &event);
}

/* What the program left for us to say. */
static void tell(struct gk_engine *engine, struct gk_engine_note *notes,
                 const struct gk_report_eval *eval)
{
    struct gk_engine_note *oldest_first = NULL;

    while (notes) {
        struct gk_engine_note *note = notes;

        notes = note->next;
        note->next = oldest_first;
        oldest_first = note;
    }
    while (oldest_first) {
        struct gk_engine_note *note = oldest_first;

        oldest_first = note->next;
        gk_report_note(&engine->report, note->words.text);
        free(note);
    }
    if (eval) {
        gk_report_eval(&engine->report, eval);
    }
}

static void do_asked(struct gk_engine *engine, enum gk_engine_asked asked, uint64_t init_id)
{
    struct gk_worker_event event = {.kind = GK_WORKER_INIT_MADE, .init_id = init_id};

    switch (asked) {
    case GK_ASKED_NOTHING:
        break;
    case GK_ASKED_INIT_MADE:
        feed(engine, &event);
        break;
    case GK_ASKED_STEP:
        start_step(engine);
        break;
    case GK_ASKED_LEAVE:
        event.kind = gk_worker_phase(engine->core) == GK_PHASE_COMPUTING ? GK_WORKER_LEAVE
                                                                         : GK_WORKER_EVALUATED;
        feed(engine, &event);
        break;
    case GK_ASKED_FAIL: /* written before it was asked for, and not again */
        gk_engine_on_failed(engine, engine->shared.fail_code, engine->shared.fail_words.text);
        break;
    }
}

void gk_engine_on_wake(uv_async_t *handle)
{
    struct gk_engine *engine = handle->data;
    struct gk_engine_shared *shared = &engine->shared;
    struct gk_report_eval eval;
    struct gk_engine_note *notes;
    enum gk_engine_asked asked;
    uint64_t init_id;
    bool eval_told, close;
    int stop_code = atomic_load(&engine->stop_code);

    gk_engine_lock(engine);
    asked = shared->asked;
    shared->asked = GK_ASKED_NOTHING;
    init_id = shared->init_id;
    if (asked == GK_ASKED_STEP) {
        engine->step = shared->step;
        engine->loss = shared->loss;
        engine->compute_us = gk_now_us() - shared->turned_us;
    }
    notes = shared->notes;
    shared->notes = NULL;
    eval = shared->eval;
    eval_told = shared->eval_told;
    shared->eval_told = false;
    close = shared->close;
    gk_engine_unlock(engine);

    tell(engine, notes, eval_told ? &eval : NULL);
    if (stop_code != 0 && !engine->closing) {
        gk_engine_on_stop(engine, stop_code,
                          stop_code == GK_EXIT_SIGINT    ? "stopped by SIGINT"
                          : stop_code == GK_EXIT_SIGTERM ? "stopped by SIGTERM"
                                                         : "stopped");
    }
    if (!engine->closing) {
        do_asked(engine, asked, init_id);
    }
    if (close) {
        if (!engine->closing) {
            engine->unwanted = true;
            gk_engine_on_failed(
                engine, GK_EXIT_INTERNAL,
                "closed before it left: the others wait for the next life of this rank");
        }
        uv_close((uv_handle_t *)handle, NULL);
    }
}

void *gk_engine_main(void *argument)
{
    struct gk_engine *engine = argument;
    struct gk_worker_event start = {.kind = GK_WORKER_START};

    gk_report_open(&engine->report);
    feed(engine, &start);
    (void)uv_run(&engine->loop, UV_RUN_DEFAULT);
    return NULL;
}
