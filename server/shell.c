/* Around the core: what comes in becomes an event, actions are performed in their order.
 *
 * Arithmetic and the allocation of a job's memory run on the compute thread, one job at a time;
 * everything else on the loop thread.  A copy of parameters (PARAMS) is made while its action is
 * performed, so it cannot meet the APPLY of a later action; the core asks for none while an APPLY
 * runs. */
#include "server/shell.h"

#include "common/assert.h"
#include "common/backend.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "common/net/compute.h"
#include "common/net/daemon.h"
#include "common/net/feed.h"
#include "common/net/timer.h"
#include "common/net/zsock.h"
#include "server/copies.h"
#include "server/core/server.h"
#include "server/journal.h"
#include "server/memory.h"
#include "server/replies.h"
#include "server/status.h"
#include "server/work.h"

#include <uv.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MAX = 16, LINGER_MS = 1000 };

struct shell {
    uv_loop_t loop;
    struct gk_daemon daemon;
    struct gk_timer *timer;
    void *zmq;
    struct gk_zsock *zsock;
    const char *state_dir;
    struct gk_journal *journal; /* NULL: state in memory only */
    uint32_t threads_open;      /* compute, journal: while the process ends */
    struct gk_work work;

    struct gk_server_config config;
    struct gk_server *core;
    struct gk_server_actions *actions;
    struct gk_copies copies;
    bool diverged; /* a parameter is not finite: told to stop */

    struct gk_server_event events[EVENTS_MAX];
    struct gk_feed feed;

    uint64_t started_us;
    bool closing, summed, troubled;
    int exit_code;
};

static void feed(struct shell *shell, const struct gk_server_event *event)
{
    gk_feed_put(&shell->feed, event);
}

static void check_alarms(struct shell *shell)
{
    gk_daemon_alarm(&shell->daemon, gk_zsock_stats(shell->zsock)->missed_wakes,
                    gk_compute_mode_corrections(shell->work.compute));
}

static void work_done(void *context, const struct gk_server_event *event)
{
    check_alarms(context);
    feed(context, event);
}

/* Messages out. */

/* Finite sums can still add up to parameters that are not: the workers would refuse them and wait
 * for ever. */
static void send_params(struct shell *shell, struct gk_server_action *action)
{
    static const struct gk_server_event diverged = {
        .kind = GK_SERVER_STOP,
        .exit_code = GK_EXIT_DATA,
        .words = "a parameter is not finite: the training has diverged; a smaller learning rate or "
                 "gradient clipping would help",
    };
    uint32_t crc = 0;
    struct gk_buf *copy =
        gk_copies_get(&shell->copies, action->u.params.values, action->u.params.count, &crc);

    if (shell->copies.diverged) {
        gk_buf_unref(copy);
        if (!shell->diverged) { /* one step may ask for many copies */
            shell->diverged = true;
            feed(shell, &diverged);
        }
        return;
    }
    gk_replies_send_frame(shell->zsock, action, copy, crc);
}

static struct gk_buf *status_of(const struct shell *shell)
{
    struct gk_server_facts facts = {
        .config = &shell->config,
        .core = shell->core,
        .now_us = gk_now_us(),
        .started_us = shell->started_us,
        .net = gk_zsock_stats(shell->zsock),
        .mode_corrections = gk_compute_mode_corrections(shell->work.compute),
        .state_dir = shell->state_dir,
    };

    if (shell->journal) {
        gk_journal_stats(shell->journal, &facts.store);
    }

    return gk_server_status(&facts);
}

/* Actions. */

static void threads_closed(void *context)
{
    struct shell *shell = context;

    if (--shell->threads_open == 0) {
        gk_timer_close(shell->timer);
    }
}

static void shut_down(struct shell *shell)
{
    if (shell->closing) {
        return;
    }
    shell->closing = true;
    if (shell->zsock) {
        gk_zsock_close(shell->zsock, LINGER_MS);
    }
    if (shell->work
            .compute) { /* a library or a disk may have hung; the core's timer is free by now */
        gk_timer_arm(shell->timer, gk_now_us() + GK_DAEMON_COMPUTE_US);
        shell->threads_open = shell->journal ? 2 : 1;
        gk_compute_close(shell->work.compute, threads_closed);
        gk_journal_close(shell->journal);
    } else {
        gk_timer_close(shell->timer);
    }
    gk_daemon_close(&shell->daemon);
}

static void leave(struct shell *shell, const struct gk_server_action *action)
{
    shell->exit_code = action->u.exit.code;
    if (shell->exit_code == GK_EXIT_OK) {
        gk_log(GK_LOG_INFO, action->u.exit.id, "%s", action->words.text);
    } else {
        gk_daemon_death(&shell->daemon, action->u.exit.id, shell->exit_code, action->words.text);
    }
    shut_down(shell);
}

static void write_record(struct shell *shell, const struct gk_server_action *action)
{
    struct gk_server_event written = {.kind = GK_SERVER_WRITE_DONE, .op = action->op};

    if (action->u.record->type == GK_RECORD_INIT) {
        gk_copies_forget(&shell->copies); /* they may be of a former init */
    }
    if (shell->journal) {
        gk_journal_write(shell->journal, action->op, action->u.record);
    } else {
        feed(shell, &written); /* there is nothing to wait for */
    }
}

static void perform(struct shell *shell, struct gk_server_action *action)
{
    switch (action->kind) {
    case GK_SERVER_SEND:
        gk_replies_send(shell->zsock, action->route, &action->msg);
        break;
    case GK_SERVER_PARAMS:
        send_params(shell, action);
        break;
    case GK_SERVER_STATUS:
        gk_replies_send_frame(shell->zsock, action, status_of(shell), 0);
        break;
    case GK_SERVER_SETUP:
        gk_copies_forget(&shell->copies);
        gk_work_submit(&shell->work, action);
        break;
    case GK_SERVER_SUM:
    case GK_SERVER_HASH:
    case GK_SERVER_PIN:
        gk_work_submit(&shell->work, action);
        break;
    case GK_SERVER_WRITE:
        write_record(shell, action);
        break;
    case GK_SERVER_FRAME:
        gk_replies_send_frame(shell->zsock, action,
                              gk_buf_copy(action->u.bytes.data, action->u.bytes.count), 0);
        break;
    case GK_SERVER_UNPIN:
        gk_pins_drop(&shell->work.pins, action->u.unpin);
        break;
    case GK_SERVER_APPLY:
        gk_copies_forget(&shell->copies);
        gk_work_submit(&shell->work, action);
        break;
    case GK_SERVER_ARM_TIMER:
        gk_timer_arm(shell->timer, action->u.at_us);
        break;
    case GK_SERVER_TRACE:
        gk_log(action->u.trace.level, action->u.trace.id, "%s", action->words.text);
        break;
    case GK_SERVER_EXIT:
        leave(shell, action);
        break;
    case GK_SERVER_ACTION_KINDS_COUNT:
        GK_ASSERT(false && "no action");
        break;
    }
}

/* The launcher knows then what is behind a peer that is missing somewhere else. */
static void tell_trouble(struct shell *shell, const struct gk_server_view *view)
{
    if (view->disk_full != shell->troubled && !shell->closing) {
        shell->troubled = view->disk_full;
        gk_daemon_tell(&shell->daemon, json_pack("{s:s, s:s}", "event", "trouble", "words",
                                                 view->disk_full ? view->disk_full_words : ""));
    }
}

/* Once, when the model's hash is known: the launcher may tell us to stop from then on. */
static void tell_summary(struct shell *shell, const struct gk_server_view *view)
{
    if (view->hashed && !shell->summed) {
        shell->summed = true;
        gk_daemon_tell(&shell->daemon, gk_server_summary(&shell->config, shell->core));
    }
}

static void step(void *context, void *item)
{
    struct shell *shell = context;
    struct gk_server_event *event = item;
    struct gk_server_view view;

    event->now_us = gk_now_us();
    gk_server_step(shell->core, event, shell->actions);
    for (uint32_t i = 0; i < shell->actions->count; i++) {
        perform(shell, &shell->actions->list[i]);
    }
    shell->actions->count = 0;
    if (event->kind == GK_SERVER_HASH_DONE || event->kind == GK_SERVER_WRITE_DONE) {
        gk_server_view(shell->core, &view);
        tell_trouble(shell, &view);
        tell_summary(shell, &view);
    }
}

/* What comes in. */

static void on_timer(void *context)
{
    struct shell *shell = context;
    struct gk_server_event event = {.kind = GK_SERVER_TICK};

    if (shell->closing) {
        gk_daemon_abandon("SERVER-ABANDONED", shell->exit_code);
    }
    check_alarms(shell);
    feed(shell, &event);
}

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct gk_server_event event = {.kind = GK_SERVER_MESSAGE, .route = route};
    struct gk_msg msg;
    struct gk_words words;
    enum gk_err err = gk_msg_from_wire(parts, parts_count, &msg, &words);

    if (err) {
        event.kind = GK_SERVER_BAD_MESSAGE;
        event.header = &msg.h;
        event.err = err;
        event.words = words.text;
        feed(context, &event);
        return;
    }
    event.msg = &msg;
    feed(context, &event);
    gk_msg_clear(&msg);
}

static void on_gone(void *context, uint64_t route)
{
    struct gk_server_event event = {.kind = GK_SERVER_PEER_GONE, .route = route};

    feed(context, &event);
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    struct gk_server_event event = {
        .kind = GK_SERVER_STOP, .exit_code = GK_EXIT_INTERNAL, .words = words};

    gk_log(GK_LOG_ERROR, "SERVER-SOCKET", "the socket failed: %s (%s)", words, gk_err_text(err));
    feed(context, &event);
}

/* Noise on the port: counted in STATUS.  The log bounds how often it is said. */
static void on_event(void *context, enum gk_zsock_event what)
{
    const struct shell *shell = context;

    if (what == GK_ZSOCK_REJECTED) {
        gk_log(GK_LOG_INFO, "SERVER-REJECTED",
               "a connection ended in its handshake: it was no worker and no gkps tool (%" PRIu64
               " so far)",
               gk_zsock_stats(shell->zsock)->rejected);
    } else if (what == GK_ZSOCK_CUT) {
        gk_log(GK_LOG_WARN, "SERVER-CUT",
               "a connection was ended for the memory that it took (%" PRIu64 " so far)",
               gk_zsock_stats(shell->zsock)->cut);
    } else if (what == GK_ZSOCK_FULL) {
        gk_log(GK_LOG_WARN, "SERVER-FILES",
               "no file descriptors left for new connections (%" PRIu64
               " turned away so far): raise the limit (ulimit -n), or find out who connects",
               gk_zsock_stats(shell->zsock)->turned_away);
    }
}

static void on_journal(void *context, const struct gk_server_event *event)
{
    feed(context, event);
}

static void on_journal_failed(void *context, int exit_code, const char *words)
{
    struct gk_server_event event = {.kind = GK_SERVER_STOP, .exit_code = exit_code, .words = words};

    feed(context, &event);
}

/* Trouble on purpose, by a fault script; that of messages is the workers'. */
static void on_command(void *context, const json_t *line)
{
    struct shell *shell = context;
    const char *fault = json_string_value(json_object_get(line, "fault"));

    if (!fault || strcmp(fault, "disk-full") != 0 || !shell->journal) {
        gk_log(GK_LOG_WARN, "SERVER-COMMAND", "the launcher's command is not understood");
    } else if (!shell->closing) {
        gk_journal_fill(shell->journal, json_is_true(json_object_get(line, "on")));
    }
}

static void on_stop(void *context, int exit_code, const char *words)
{
    struct gk_server_event event = {.kind = GK_SERVER_STOP, .exit_code = exit_code, .words = words};

    feed(context, &event);
}

/* Opening and closing. */

static enum gk_err open_core(struct shell *shell, const struct gk_server_options *options,
                             bool local, struct gk_words *words)
{
    struct gk_server_config *config = &shell->config;
    enum gk_err err;

    *config = (struct gk_server_config){
        .job = options->job,
        .shard = (uint32_t)options->shard,
        .servers = (uint32_t)options->servers,
        .workers = (uint32_t)options->workers,
        .memory_bytes = gk_server_options_memory(options),
        .deadline_us = options->deadline_s * 1000 * 1000,
        .local = local,
    };
    shell->started_us = gk_now_us();
    shell->work.done = work_done;
    shell->work.context = shell;
    shell->actions = calloc(1, sizeof(*shell->actions));
    err = shell->actions ? gk_random_bytes(&config->seed, sizeof(config->seed)) : GK_E_NOMEM;
    if (!err) {
        err = gk_server_new(config, &shell->core);
    }
    if (err) {
        gk_words_set(words, "cannot start: %s", gk_err_text(err));
        return err;
    }
    err = gk_vector_cpu((enum gk_cpu)options->cpu, &shell->work.ops, words);
    if (err == GK_E_UNSUPPORTED) {
        (void)gk_config_blame(options->config, "cpu", words);
    }
    return err ? err : shell->work.ops->open(&shell->work.queue, words);
}

/* Memory for a shard that was recovered; the compute thread does not run yet. */
static enum gk_err allocate(void *context, const struct gk_image *image,
                            struct gk_server_memory *ret_memory, struct gk_words *words)
{
    struct shell *shell = context;
    struct gk_server_setup setup;
    enum gk_err err = gk_server_size(shell->core, image, &setup, words);

    err = err ? err
              : gk_server_memory_alloc(shell->work.ops, shell->work.queue, &setup,
                                       &shell->work.memory, words);
    if (!err) {
        *ret_memory = shell->work.memory;
    }
    return err;
}

static enum gk_err open_state(struct shell *shell, const struct gk_server_options *options,
                              struct gk_words *words)
{
    const struct gk_journal_setup setup = {.options = options,
                                           .ops = shell->work.ops,
                                           .allocate = allocate,
                                           .event = on_journal,
                                           .failed = on_journal_failed,
                                           .closed = threads_closed,
                                           .context = shell};
    uint64_t began_us = gk_now_us();
    struct gk_recovered found;
    enum gk_err err;

    if (!options->state_dir) {
        return GK_OK;
    }
    shell->state_dir = options->state_dir;
    err = gk_journal_open(&setup, &shell->journal, &found, words);
    err = err ? err : gk_server_resume(shell->core, found.image, &found.memory, words);
    if (err) {
        return err;
    }
    if (found.cut.text[0]) {
        gk_log(GK_LOG_WARN, "SERVER-LOG-CUT", "%s", found.cut.text);
    }
    gk_log(GK_LOG_INFO, "SERVER-STATE-DIR",
           "%s: life %" PRIu32 ", version %" PRIu64 " from a snapshot and %" PRIu64
           " records in %.3f s",
           options->state_dir, found.image->incarnation + 1, found.image->version, found.records,
           (double)(gk_now_us() - began_us) / 1e6);
    return GK_OK;
}

static enum gk_err open_handles(struct shell *shell, struct gk_words *words)
{
    enum gk_err err;

    gk_words_set(words, "no memory for a timer");
    err = gk_timer_open(&shell->loop, on_timer, shell, &shell->timer);
    err = err ? err : gk_compute_open(&shell->loop, shell, &shell->work.compute, words);
    return err || !shell->journal ? err : gk_journal_start(shell->journal, &shell->loop, words);
}

static enum gk_err open_socket(struct shell *shell, const char *address, struct gk_words *words)
{
    static const struct gk_zsock_callbacks callbacks = {
        .message = on_message, .event = on_event, .gone = on_gone, .error = on_error};
    enum gk_err err;

    shell->zmq = gk_net_context();
    if (!shell->zmq) {
        gk_words_set(words, "no memory for a socket");
        return GK_E_NOMEM;
    }
    err = gk_zsock_open(&(struct gk_zsock_setup){.loop = &shell->loop,
                                                 .zmq = shell->zmq,
                                                 .type = GK_ZSOCK_ROUTER,
                                                 .address = address,
                                                 .callbacks = &callbacks,
                                                 .context = shell},
                        &shell->zsock, words);
    if (!err) {
        gk_zsock_expect(shell->zsock, shell->config.workers);
    }
    return err;
}

/* Everything, or words and the exit code. */
static bool open_all(struct shell *shell, const struct gk_server_options *options,
                     struct gk_words *words)
{
    char address[GK_SERVER_ADDRESS_BYTES];
    bool local = false;
    enum gk_err err =
        gk_daemon_open(&shell->daemon, &shell->loop, (int)options->launcher_fd, words);

    if (err) {
        shell->exit_code = err == GK_E_INVALID
                               ? gk_config_blame(options->config, "launcher-fd", words)
                               : gk_daemon_exit_code(err);
        return false;
    }
    if (gk_server_options_check(options, &shell->exit_code, words) ||
        gk_server_options_address(options, address, &local, &shell->exit_code, words)) {
        return false;
    }
    err = open_core(shell, options, local, words);
    err = err ? err : open_state(shell, options, words);
    err = err ? err : open_handles(shell, words);
    err = err ? err : open_socket(shell, address, words);
    if (err) {
        shell->exit_code = gk_daemon_exit_code(err);
        return false;
    }
    shell->exit_code = GK_EXIT_INTERNAL;
    if (!local) {
        gk_log(GK_LOG_WARN, "SERVER-INSECURE",
               "INSECURE: %s is open to everybody who can reach it; nothing is encrypted or "
               "authenticated",
               gk_zsock_address(shell->zsock));
    }
    return true;
}

static void start(struct shell *shell)
{
    struct gk_server_event event = {.kind = GK_SERVER_START};
    const char *address = gk_zsock_address(shell->zsock);
    char endpoint[GK_SERVER_ADDRESS_BYTES];

    gk_log(GK_LOG_INFO, "SERVER-BOUND",
           "shard %" PRIu32 " of %" PRIu32 " of job '%s' listens on %s for %" PRIu32
           " workers (budget %" PRIu64 " MiB, %s)",
           shell->config.shard, shell->config.servers, shell->config.job, address,
           shell->config.workers, shell->config.memory_bytes >> 20,
           shell->work.ops->caps(shell->work.queue)->name);
    gk_server_options_endpoint(address, endpoint);
    gk_daemon_tell(&shell->daemon,
                   json_pack("{s:s, s:s}", "event", "endpoint", "address", endpoint));
    feed(shell, &event);
}

static void fini(struct shell *shell)
{
    gk_daemon_end_loop(&shell->loop);
    gk_net_context_free(shell->zmq);
    gk_journal_free(shell->journal);
    gk_server_free(shell->core);
    gk_copies_forget(&shell->copies);
    gk_pins_fini(&shell->work.pins);
    if (shell->work.queue) {
        gk_server_memory_free(shell->work.ops, shell->work.queue, &shell->work.memory);
        shell->work.ops->close(shell->work.queue);
    }
    free(shell->actions);
    free(shell);
}

int gk_server_run(const struct gk_server_options *options)
{
    struct shell *shell = calloc(1, sizeof(*shell));
    struct gk_words words;
    int exit_code;

    if (!shell || uv_loop_init(&shell->loop)) {
        free(shell);
        gk_log(GK_LOG_ERROR, "SERVER-EXIT", "no memory for the event loop");
        return GK_EXIT_INTERNAL;
    }
    shell->daemon = (struct gk_daemon){
        .stop = on_stop, .command = options->allow_faults ? on_command : NULL, .context = shell};
    shell->feed = (struct gk_feed){.events = shell->events,
                                   .event_bytes = sizeof(shell->events[0]),
                                   .room = EVENTS_MAX,
                                   .step = step,
                                   .context = shell};
    if (open_all(shell, options, &words)) {
        start(shell);
        (void)uv_run(&shell->loop, UV_RUN_DEFAULT);
    } else {
        gk_daemon_death(&shell->daemon, "SERVER-EXIT", shell->exit_code, words.text);
        shut_down(shell);
    }
    exit_code = shell->exit_code;
    fini(shell);
    return exit_code;
}
