#include "worker/shell.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "common/net/compute.h"
#include "common/net/daemon.h"
#include "common/net/fault.h"
#include "common/net/feed.h"
#include "common/net/timer.h"
#include "common/net/zsock.h"
#include "worker/core/worker.h"
#include "worker/keeper.h"
#include "worker/report.h"
#include "worker/requests.h"

#include <uv.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MAX = 16, LINGER_MS = 1000 };

struct shell;

struct peer { /* context of one shard's socket */
    struct shell *shell;
    uint32_t shard;
    struct gk_zsock *zsock;
};

struct made_init { /* what MAKE_INIT came to */
    enum gk_err err;
    uint64_t id;
    struct gk_words words;
};

struct shell {
    const struct gk_worker_options *options;
    struct gk_trainer *trainer;
    uv_loop_t loop;
    struct gk_daemon daemon;
    struct gk_timer *timer;
    void *zmq;
    struct peer *peers;
    uint32_t peers_count;
    struct gk_compute *compute;
    struct gk_worker_config config;
    struct gk_worker *core;
    struct gk_worker_actions *actions;
    struct gk_worker_report report;

    struct gk_worker_event events[EVENTS_MAX];
    struct gk_feed feed;

    struct gk_trainer_step step;
    struct gk_trainer_eval eval;
    struct made_init init;
    struct gk_keeper keeper;
    struct gk_words words; /* of an event that waits */
    bool closing, job_begun;
    int exit_code;
};

static void feed(struct shell *shell, const struct gk_worker_event *event)
{
    gk_feed_put(&shell->feed, event);
}

/* Loop thread. */
static void check_alarms(struct shell *shell)
{
    uint64_t missed_wakes = 0;

    for (uint32_t i = 0; i < shell->peers_count; i++) {
        missed_wakes += gk_zsock_stats(shell->peers[i].zsock)->missed_wakes;
    }
    gk_daemon_alarm(&shell->daemon, missed_wakes, gk_compute_mode_corrections(shell->compute));
}

/* The computations, on the compute thread; their answers, on the loop thread. */

static void run_step(void *context, void *job)
{
    struct shell *shell = context;

    gk_trainer_step(shell->trainer, job);
}

static void step_done(void *context, void *job)
{
    struct shell *shell = context;
    struct gk_trainer_step *step = job;
    struct gk_worker_event event = {.kind = GK_WORKER_STEP_DONE,
                                    .push = step->push,
                                    .exit_code = step->exit_code,
                                    .words = step->words.text};

    if (step->push) {
        gk_report_step(&shell->report, step, gk_now_us());
        step->push = NULL; /* the core takes it */
    }
    feed(shell, &event);
}

static void run_eval(void *context, void *job)
{
    struct shell *shell = context;

    gk_trainer_evaluate(shell->trainer, job);
}

static void eval_done(void *context, void *job)
{
    struct shell *shell = context;
    struct gk_worker_event event = {.kind = GK_WORKER_EVALUATED};

    gk_report_eval(&shell->report, job);
    gk_log(GK_LOG_INFO, "WORKER-EVAL", "step %" PRIu64 ": test accuracy %.4f, loss %.4f",
           shell->eval.step, shell->eval.accuracy, shell->eval.loss);
    feed(shell, &event);
}

static void run_init(void *context, void *job)
{
    struct shell *shell = context;
    struct made_init *init = job;

    init->err = gk_trainer_make_init(shell->trainer, &init->id, &init->words);
}

static void init_done(void *context, void *job)
{
    struct shell *shell = context;
    const struct made_init *init = job;
    struct gk_worker_event event = {.kind = GK_WORKER_INIT_MADE, .init_id = init->id};
    struct gk_worker_event stop = {.kind = GK_WORKER_STOP,
                                   .exit_code =
                                       init->err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_DATA,
                                   .words = init->words.text};

    feed(shell, init->err ? &stop : &event);
}

static void submit(struct shell *shell, const struct gk_compute_job *job)
{
    enum gk_err err = gk_compute_submit(shell->compute, job);

    GK_ASSERT(!err); /* one computation at a time: the queue cannot be full */
}

/* Actions. */

static enum gk_err set_rank(struct shell *shell, uint32_t rank, struct gk_words *words)
{
    char who[32];

    (void)snprintf(who, sizeof(who), "worker %" PRIu32, rank);
    gk_log_who(who);
    shell->report.rank = rank;
    return gk_trainer_set_rank(shell->trainer, rank, words);
}

static void take_rank(struct shell *shell, uint32_t rank)
{
    struct gk_worker_event stop = {.kind = GK_WORKER_STOP, .exit_code = GK_EXIT_INTERNAL};

    gk_log(GK_LOG_INFO, "WORKER-RANK", "shard 0 assigned rank %" PRIu32, rank);
    if (set_rank(shell, rank, &shell->words)) {
        stop.words = shell->words.text;
        feed(shell, &stop);
    }
}

static void make_init(struct shell *shell)
{
    struct gk_compute_job job = {.run = run_init, .done = init_done, .job = &shell->init};

    submit(shell, &job);
}

static void start_step(struct shell *shell, uint64_t step)
{
    struct gk_compute_job job = {.run = run_step, .done = step_done, .job = &shell->step};

    if (!shell->job_begun) {
        shell->job_begun = true;
        shell->report.started_us = gk_now_us();
        shell->report.ended_us = shell->report.started_us;
    }
    if (step > 0) {
        gk_trainer_drop_initial(shell->trainer); /* version 1 exists: INIT cannot come again */
    }
    memset(&shell->step, 0, sizeof(shell->step));
    shell->step.step = step;
    submit(shell, &job);
}

static void start_eval(struct shell *shell, uint64_t step)
{
    struct gk_compute_job job = {.run = run_eval, .done = eval_done, .job = &shell->eval};

    shell->eval.step = step;
    submit(shell, &job);
}

static void on_timer(void *context)
{
    struct shell *shell = context;
    struct gk_worker_event event = {.kind = GK_WORKER_TICK};

    if (shell->closing) {
        gk_daemon_abandon("WORKER-ABANDONED", shell->exit_code);
    }
    check_alarms(shell);
    feed(shell, &event);
}

static void compute_closed(void *context)
{
    struct shell *shell = context;

    gk_timer_close(shell->timer);
}

static void shut_down(struct shell *shell)
{
    if (shell->closing) {
        return;
    }
    shell->closing = true;
    for (uint32_t i = 0; i < shell->peers_count; i++) {
        if (shell->peers[i].zsock) {
            gk_zsock_close(shell->peers[i].zsock, LINGER_MS);
        }
    }
    if (shell->compute) { /* a library may have hung there; the core's timer is free by now */
        gk_timer_arm(shell->timer, gk_now_us() + GK_DAEMON_COMPUTE_US);
        gk_compute_close(shell->compute, compute_closed);
    } else {
        gk_timer_close(shell->timer);
    }
    gk_daemon_close(&shell->daemon);
}

static void leave(struct shell *shell, const struct gk_worker_action *action)
{
    shell->exit_code = action->exit_code;
    if (action->exit_code == GK_EXIT_OK) {
        gk_log(GK_LOG_INFO, "WORKER-DONE", "%s", action->words.text);
        shell->report.left_before = gk_worker_left_before(shell->core);
        gk_report_summary(&shell->report, gk_worker_stats(shell->core));
    } else {
        gk_daemon_death(&shell->daemon, "WORKER-EXIT", action->exit_code, action->words.text);
    }
    shut_down(shell);
}

static void perform(struct shell *shell, struct gk_worker_action *action)
{
    switch (action->kind) {
    case GK_WORKER_SEND:
        gk_requests_send(&shell->report, shell->peers[action->shard].zsock, &action->msg);
        break;
    case GK_WORKER_SEND_INIT:
        gk_requests_send_init(&shell->report, shell->peers[action->shard].zsock, shell->trainer,
                              &action->msg);
        break;
    case GK_WORKER_RANK:
        take_rank(shell, action->rank);
        break;
    case GK_WORKER_MAKE_INIT:
        make_init(shell);
        break;
    case GK_WORKER_STEP:
        start_step(shell, action->step);
        break;
    case GK_WORKER_PERSIST:
        gk_keeper_persist(&shell->keeper, shell->compute, &action->memory);
        break;
    case GK_WORKER_REMEMBER:
        gk_keeper_remember(&shell->keeper, &action->identity);
        break;
    case GK_WORKER_INSTALL:
        gk_trainer_install(shell->trainer, action->lo, action->hi,
                           (const float *)(const void *)action->buf->data);
        shell->report.ended_us = gk_now_us();
        break;
    case GK_WORKER_EVALUATE:
        start_eval(shell, action->step);
        break;
    case GK_WORKER_RESET:
        gk_keeper_reset(&shell->keeper);
        break;
    case GK_WORKER_ARM_TIMER:
        gk_timer_arm(shell->timer, action->at_us);
        break;
    case GK_WORKER_TRACE:
        gk_log(action->level, action->id, "%s", action->words.text);
        break;
    case GK_WORKER_EXIT:
        leave(shell, action);
        break;
    }
}

static void step(void *context, void *item)
{
    struct shell *shell = context;
    struct gk_worker_event *event = item;

    event->now_us = gk_now_us();
    gk_worker_step(shell->core, event, shell->actions);
    for (uint32_t i = 0; i < shell->actions->count; i++) {
        perform(shell, &shell->actions->list[i]);
    }
    gk_worker_actions_clear(shell->actions);
}

/* What comes in. */

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct peer *peer = context;
    struct shell *shell = peer->shell;
    struct gk_worker_event event = {.kind = GK_WORKER_MESSAGE, .shard = peer->shard};
    struct gk_msg msg;
    struct gk_words words;
    enum gk_err err = gk_msg_from_wire(parts, parts_count, &msg, &words);

    (void)route;
    if (err) {
        event.kind = GK_WORKER_BAD_MESSAGE;
        event.words = words.text;
        feed(shell, &event);
        return;
    }
    gk_report_message(&shell->report, &msg, parts, parts_count);
    event.msg = &msg;
    feed(shell, &event);
    gk_msg_clear(&msg);
}

static void on_event(void *context, enum gk_zsock_event what)
{
    struct peer *peer = context;
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
    feed(peer->shell, &event);
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    struct peer *peer = context;
    struct gk_worker_event event = {
        .kind = GK_WORKER_STOP, .exit_code = GK_EXIT_INTERNAL, .words = words};

    gk_log(GK_LOG_ERROR, "WORKER-SOCKET", "socket of shard %" PRIu32 " failed: %s (%s)",
           peer->shard, words, gk_err_text(err));
    feed(peer->shell, &event);
}

static void on_stop(void *context, int exit_code, const char *words)
{
    struct gk_worker_event event = {.kind = GK_WORKER_STOP, .exit_code = exit_code, .words = words};

    feed(context, &event);
}

/* Trouble on purpose, by a fault script. */
static void on_command(void *context, const json_t *line)
{
    struct shell *shell = context;
    struct gk_fault_command command;
    struct gk_words words;

    if (gk_fault_command_read(line, &command, &words)) {
        gk_log(GK_LOG_WARN, "WORKER-COMMAND", "the launcher's command is not understood: %s",
               words.text);
        return;
    }
    for (uint32_t i = 0; i < shell->peers_count; i++) {
        if (command.peer == -1 || command.peer == i) {
            gk_fault_set(gk_zsock_fault(shell->peers[i].zsock), &command);
        }
    }
}

static void on_kept(void *context)
{
    struct gk_worker_event event = {.kind = GK_WORKER_PERSISTED};

    feed(context, &event);
}

/* Opening and closing. */

static enum gk_err open_sockets(struct shell *shell, const struct gk_addresses *addresses,
                                struct gk_words *words)
{
    static const struct gk_zsock_callbacks callbacks = {
        .message = on_message, .event = on_event, .error = on_error};
    struct gk_zsock_pair pair = {.us = shell->config.rank};
    const struct gk_zsock_pair *faults = shell->options->allow_faults ? &pair : NULL;

    shell->zmq = gk_net_context();
    shell->peers = calloc(addresses->count, sizeof(*shell->peers));
    if (!shell->zmq || !shell->peers) {
        gk_words_set(words, "no memory for sockets");
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < addresses->count; i++) {
        enum gk_err err;

        shell->peers[i].shell = shell;
        pair.peer = i;
        shell->peers[i].shard = i;
        shell->peers_count = i + 1;
        err = gk_zsock_open(&(struct gk_zsock_setup){.loop = &shell->loop,
                                                     .zmq = shell->zmq,
                                                     .type = GK_ZSOCK_DEALER,
                                                     .address = addresses->list[i],
                                                     .callbacks = &callbacks,
                                                     .context = &shell->peers[i],
                                                     .faults = faults},
                            &shell->peers[i].zsock, words);
        if (err) {
            return err;
        }
    }
    return GK_OK;
}

static enum gk_err open_core(struct shell *shell, uint32_t rank,
                             const struct gk_addresses *addresses, struct gk_words *words)
{
    const struct gk_worker_options *options = shell->options;
    struct gk_worker_config *config = &shell->config;
    const struct gk_spec *spec = gk_trainer_spec(shell->trainer);
    size_t spec_bytes;
    enum gk_err err;

    config->job = options->job;
    config->addresses = addresses->list;
    config->servers = addresses->count;
    config->workers = (uint32_t)options->workers;
    config->rank = rank;
    config->spec = spec;
    (void)gk_trainer_spec_bytes(shell->trainer, &spec_bytes, &config->spec_hash);
    config->model_signature = gk_spec_model_signature(spec);
    config->takeover = options->takeover;
    config->deadline_us = options->deadline_s * 1000 * 1000;
    config->eval_every = options->eval_every;
    config->evaluates = true;
    err = gk_random_bytes(&config->seed, sizeof(config->seed));
    if (!err) {
        err = gk_worker_new(config, &shell->core);
    }
    if (!err) {
        err = gk_worker_actions_new(config->servers, &shell->actions);
    }
    if (err) {
        gk_words_set(words, "cannot start: %s", gk_err_text(err));
    }
    shell->report.params_count = spec->params_count;
    shell->report.batch = options->batch;
    return err;
}

static enum gk_err open_handles(struct shell *shell, struct gk_words *words)
{
    enum gk_err err;

    gk_words_set(words, "no memory for a timer");
    err = gk_timer_open(&shell->loop, on_timer, shell, &shell->timer);
    return err ? err : gk_compute_open(&shell->loop, shell, &shell->compute, words);
}

/* Everything, or words and the exit code. */
static bool open_all(struct shell *shell, uint32_t rank, const struct gk_addresses *addresses,
                     struct gk_words *words)
{
    const struct gk_worker_options *options = shell->options;
    enum gk_err err =
        gk_daemon_open(&shell->daemon, &shell->loop, (int)options->launcher_fd, words);

    if (err == GK_E_INVALID) {
        shell->exit_code = gk_config_blame(options->config, "launcher-fd", words);
        return false;
    }
    err = err ? err : open_core(shell, rank, addresses, words);
    err = err ? err
              : gk_keeper_open(&shell->keeper, options, &shell->config, shell->core, &rank, words);
    err = err ? err : open_handles(shell, words);
    if (!err && rank != GK_RANK_ANY) {
        err = set_rank(shell, rank, words);
    }
    err = err ? err : open_sockets(shell, addresses, words);
    shell->exit_code = err ? gk_daemon_exit_code(err) : GK_EXIT_INTERNAL;
    return !err;
}

static void fini(struct shell *shell)
{
    gk_daemon_end_loop(&shell->loop);
    gk_net_context_free(shell->zmq);
    gk_worker_actions_free(shell->actions);
    gk_worker_free(shell->core);
    gk_keeper_close(&shell->keeper);
    gk_push_free(shell->step.push); /* of a step that ended while we were closing */
    free(shell->peers);
    free(shell);
}

/* Rank 0 speaks for all: they opened the same. */
static void say_what_opened(struct shell *shell)
{
    const char *note = gk_trainer_data_note(shell->trainer);
    struct gk_words words;

    gk_trainer_describe(shell->trainer, &words);
    gk_log(GK_LOG_INFO, "WORKER-START", "%s", words.text);
    if (shell->config.rank != 0) {
        return;
    }
    gk_report_note(&shell->report, words.text);
    if (note[0]) {
        gk_log(GK_LOG_INFO, "WORKER-DATA", "%s", note);
        gk_report_note(&shell->report, note);
    }
}

int gk_worker_run(const struct gk_worker_options *options, uint32_t rank,
                  const struct gk_addresses *addresses, struct gk_trainer *trainer)
{
    struct gk_worker_event start = {.kind = GK_WORKER_START};
    struct shell *shell = calloc(1, sizeof(*shell));
    struct gk_words words;
    int exit_code;

    if (!shell || uv_loop_init(&shell->loop)) {
        free(shell);
        gk_log(GK_LOG_ERROR, "WORKER-EXIT", "no memory for the event loop");
        return GK_EXIT_INTERNAL;
    }
    shell->options = options;
    shell->trainer = trainer;
    shell->daemon = (struct gk_daemon){
        .stop = on_stop, .command = options->allow_faults ? on_command : NULL, .context = shell};
    shell->keeper = (struct gk_keeper){
        .trainer = trainer, .kept = on_kept, .failed = on_stop, .context = shell};
    shell->report.daemon = &shell->daemon;
    shell->report.every_step = options->allow_faults; /* a script may count them */
    shell->feed = (struct gk_feed){.events = shell->events,
                                   .event_bytes = sizeof(shell->events[0]),
                                   .room = EVENTS_MAX,
                                   .step = step,
                                   .context = shell};
    if (!open_all(shell, rank, addresses, &words)) {
        gk_daemon_death(&shell->daemon, "WORKER-EXIT", shell->exit_code, words.text);
        shut_down(shell);
    } else {
        say_what_opened(shell);
        feed(shell, &start);
        (void)uv_run(&shell->loop, UV_RUN_DEFAULT);
    }
    exit_code = shell->exit_code;
    fini(shell);
    return exit_code;
}
