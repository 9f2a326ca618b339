#include "tool/launch_internal.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/net/clock.h"
#include "common/net/process.h"
#include "tool/child.h"
#include "tool/run_command.h"
#include "tool/units.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

void gk_launch_say(struct gk_launch *launch, enum gk_log_level level, const char *id,
                   const char *format, ...)
{
    char text[2 * GK_WORDS_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    gk_console_clear(launch->plan->console);
    gk_log(level, id, "%s", text);
}

void gk_launch_note(struct gk_launch *launch, const struct gk_child *child, const char *text)
{
    struct gk_console *console = launch->plan->console;
    char name[32];

    /* A later life would say the same again. */
    if (launch->options->quiet || child->restart.count > 0 || !text[0]) {
        return;
    }
    gk_child_name(child, name, sizeof(name));
    gk_console_clear(console);
    (void)fprintf(console->out, "%s: %s\n", name, text);
    (void)fflush(console->out);
}

static bool may_follow(enum gk_launch_state from, enum gk_launch_state to)
{
    static const unsigned next[] = {
        [GK_LAUNCH_SERVERS] = 1u << GK_LAUNCH_WORKERS | 1u << GK_LAUNCH_DRAIN,
        [GK_LAUNCH_WORKERS] =
            1u << GK_LAUNCH_SUMMARIES | 1u << GK_LAUNCH_LOST | 1u << GK_LAUNCH_DRAIN,
        [GK_LAUNCH_SUMMARIES] = 1u << GK_LAUNCH_LINGER | 1u << GK_LAUNCH_DRAIN,
        [GK_LAUNCH_LINGER] = 1u << GK_LAUNCH_END | 1u << GK_LAUNCH_DRAIN,
        [GK_LAUNCH_LOST] = 1u << GK_LAUNCH_DRAIN,
        [GK_LAUNCH_DRAIN] = 1u << GK_LAUNCH_END,
        [GK_LAUNCH_END] = 0,
    };

    return (next[from] & 1u << to) != 0;
}

void gk_launch_set(struct gk_launch *launch, enum gk_launch_state state)
{
    GK_ASSERT(may_follow(launch->state, state));
    launch->state = state;
    launch->since_us = gk_now_us();
}

static void end_when_empty(struct gk_launch *launch)
{
    if (gk_fleet_empty(&launch->fleet)) {
        gk_launch_set(launch, GK_LAUNCH_END);
        uv_stop(&launch->loop);
    }
}

void gk_launch_kill(struct gk_launch *launch)
{
    launch->killed_us = gk_now_us();
    gk_fleet_signal(&launch->fleet, GK_ROLE_WORKER, SIGKILL);
    gk_fleet_signal(&launch->fleet, GK_ROLE_SERVER, SIGKILL);
}

void gk_launch_stop_servers(struct gk_launch *launch)
{
    launch->servers_stopped = true;
    gk_fleet_signal(&launch->fleet, GK_ROLE_SERVER, SIGTERM);
}

/* Workers first: one that leaves cleanly needs its servers for that. */
void gk_launch_drain(struct gk_launch *launch, int code)
{
    if (launch->code < 0) {
        launch->code = code;
    }
    gk_launch_set(launch, GK_LAUNCH_DRAIN);
    gk_launch_faults_end(launch);
    gk_fleet_cancel(&launch->fleet);
    gk_fleet_signal(&launch->fleet, GK_ROLE_WORKER, SIGTERM);
    if (gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0) {
        gk_launch_stop_servers(launch);
    }
    end_when_empty(launch);
}

static bool servers_summed(const struct gk_launch *launch)
{
    for (uint32_t i = 0; i < launch->tally->servers_count; i++) {
        if (!launch->tally->servers[i].summed) {
            return false;
        }
    }
    return true;
}

void gk_launch_summed(struct gk_launch *launch)
{
    if (launch->state == GK_LAUNCH_SUMMARIES && servers_summed(launch)) {
        gk_launch_set(launch, GK_LAUNCH_LINGER);
        gk_launch_stop_servers(launch);
        end_when_empty(launch);
    }
}

bool gk_launch_workers_ended(const struct gk_launch *launch)
{
    return gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0 &&
           gk_fleet_restarting(&launch->fleet, GK_ROLE_WORKER) == 0;
}

static void end_workers(struct gk_launch *launch)
{
    if (launch->state == GK_LAUNCH_WORKERS && gk_launch_workers_ended(launch)) {
        gk_launch_set(launch, GK_LAUNCH_SUMMARIES);
        gk_launch_summed(launch);
    }
}

static bool summed(const struct gk_launch *launch, const struct gk_child *child)
{
    return child->role == GK_ROLE_SERVER ? launch->tally->servers[child->index].summed
                                         : launch->tally->workers[child->index].summed;
}

/* A server that was told to stop after its work may say so in its exit code. */
static bool stopped_well(const struct gk_child *child)
{
    return (child->term_signal == 0 &&
            (child->exit_status == 0 || child->exit_status == GK_EXIT_SIGTERM)) ||
           child->term_signal == SIGTERM;
}

/* What keeps a child from its work, be it alive or between two lives. */
static const char *trouble(const struct gk_child *child)
{
    bool tries_again = child->done && child->exit_status == GK_EXIT_RETRY && !child->term_signal;

    return !child->trouble[0] && tries_again ? child->death : child->trouble;
}

int gk_launch_cause(const struct gk_launch *launch, struct gk_words *ret)
{
    char name[32];

    gk_words_set(ret, "%s", "");
    for (uint32_t i = 0; i < launch->fleet.children_count; i++) {
        const struct gk_child *child = &launch->fleet.children[i];

        if (trouble(child)[0]) {
            gk_child_name(child, name, sizeof(name));
            gk_words_set(ret, "; %s: %s", name, trouble(child));
            return GK_EXIT_RETRY;
        }
    }
    return GK_EXIT_PEER;
}

void gk_launch_end_lost(struct gk_launch *launch)
{
    struct gk_words cause;
    int code = gk_launch_cause(launch, &cause);

    if (launch->emptied) {
        gk_launch_say(
            launch, GK_LOG_ERROR, "RUN-LOST-SHARD",
            "LOST_SHARD: server %u died, and its shard of the model with it; the run ends",
            launch->emptied->index);
    } else {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-LOST-PEER", "a peer is lost%s; the run ends",
                      cause.text);
    }
    gk_launch_drain(launch, launch->emptied ? GK_EXIT_PEER : code);
}

/* Each worker has its own word on why it cannot go on. */
static void say_lost(struct gk_launch *launch, const struct gk_child *child)
{
    struct gk_words words;

    if (child->role == GK_ROLE_WORKER && (gk_child_status(child) != 0 || child->term_signal != 0)) {
        gk_child_reason(child, &words);
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-CHILD-DIED", "%s", words.text);
    }
    if (gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0) {
        gk_launch_end_lost(launch);
    }
}

/* What is gone with this life, in words. */
static const char *loss(const struct gk_launch *launch, const struct gk_child *child)
{
    if (launch->state == GK_LAUNCH_SERVERS) {
        return "";
    }
    if (launch->options->state_dir) {
        return ", from its state directory";
    }
    return child->role == GK_ROLE_SERVER ? " at the same address, without its shard of the model"
                                         : ", with an empty residual";
}

/* True: another life will come. */
static bool plan_restart(struct gk_launch *launch, struct gk_child *child, const char *reason)
{
    uint64_t now_us = gk_now_us();

    if (gk_restart_is_futile(gk_child_status(child), child->term_signal) ||
        !gk_restart_plan(&child->restart, now_us)) {
        return false;
    }
    gk_launch_say(launch, GK_LOG_WARN, "RUN-RESTART", "%s; starts again in %s%s", reason,
                  gk_unit_seconds((double)(child->restart.due_us - now_us) / 1e6).text,
                  loss(launch, child));
    if (launch->state == GK_LAUNCH_SERVERS) {
        child->address[0] = '\0'; /* nobody knows it yet: any other will do */
    } else if (child->role == GK_ROLE_SERVER && !launch->options->state_dir) {
        launch->emptied = child;
    }
    if (launch->state == GK_LAUNCH_SUMMARIES) {
        launch->since_us = now_us; /* its next life needs as long as any */
    }
    return true;
}

/* All is known already; but a death that nobody asked for is not hidden. */
static void late_death(struct gk_launch *launch, const struct gk_child *child)
{
    bool survives = launch->options->restart == GK_RUN_RESTART_ALWAYS;
    struct gk_words words;

    gk_child_reason(child, &words);
    gk_launch_say(launch, survives ? GK_LOG_WARN : GK_LOG_ERROR, "RUN-CHILD-DIED",
                  "%s, after its work was done", words.text);
    if (!survives) {
        launch->code = gk_child_code(child);
    }
}

/* A worker lives that has taken part in the job: it will say that a shard is lost. */
static bool has_witness(const struct gk_launch *launch)
{
    for (uint32_t i = launch->tally->servers_count; i < launch->fleet.children_count; i++) {
        const struct gk_child *child = &launch->fleet.children[i];

        if (!child->done && launch->tally->workers[child->index].reported) {
            return true;
        }
    }
    return false;
}

/* New workers and empty servers would begin the job again, as if nothing had been. */
static bool is_forgotten(struct gk_launch *launch, const struct gk_child *child)
{
    if (launch->state != GK_LAUNCH_WORKERS || launch->options->state_dir ||
        !gk_tally_begun(launch->tally)) {
        return false;
    }
    if (child->role == GK_ROLE_SERVER) {
        launch->emptied = child;
        launch->model_lost = true;
    }
    return launch->model_lost && !has_witness(launch);
}

static void end_with(struct gk_launch *launch, const struct gk_child *child, const char *reason,
                     const char *more)
{
    struct gk_words cause = {.text = ""};
    int code = gk_child_code(child);

    if (code == GK_EXIT_PEER) { /* whom it missed may be there, and held up */
        code = gk_launch_cause(launch, &cause);
    }
    gk_launch_say(launch, GK_LOG_ERROR, "RUN-CHILD-DIED", "%s%s%s; the run ends", reason, more,
                  cause.text);
    gk_launch_drain(launch, code);
}

/* --restart always: the run goes on if it can. */
static void survive(struct gk_launch *launch, struct gk_child *child, const char *reason)
{
    bool lost = child->role == GK_ROLE_WORKER && gk_child_status(child) == GK_EXIT_PEER;

    if (summed(launch, child)) {
        late_death(launch, child);
        end_workers(launch);
    } else if (launch->state == GK_LAUNCH_SUMMARIES && !launch->options->state_dir) {
        launch->emptied = child;
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-LOST-SHARD",
                      "LOST_SHARD: %s, and its shard of the model is gone; the run ends", reason);
        gk_launch_drain(launch, GK_EXIT_PEER);
    } else if (lost) {
        gk_launch_set(launch, GK_LAUNCH_LOST);
        gk_fleet_cancel(&launch->fleet);
        say_lost(launch, child);
    } else if (is_forgotten(launch, child)) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-LOST-SHARD",
                      "LOST_SHARD: %s; server %u has lost its shard of the model, and no worker "
                      "is left that took part in the job; the run ends",
                      reason, launch->emptied->index);
        gk_launch_drain(launch, GK_EXIT_PEER);
    } else if (!plan_restart(launch, child, reason)) {
        end_with(launch, child, reason,
                 child->restart.row == GK_RESTARTS_MAX ? ", and so did too many lives before it"
                                                       : "");
    }
}

static void on_death(struct gk_launch *launch, struct gk_child *child)
{
    struct gk_words words;

    gk_child_reason(child, &words);
    if (launch->options->restart == GK_RUN_RESTART_ALWAYS) {
        survive(launch, child, words.text);
    } else {
        end_with(launch, child, words.text, "");
    }
}

void gk_launch_child_done(struct gk_launch *launch, struct gk_child *child)
{
    switch (launch->state) {
    case GK_LAUNCH_SERVERS:
    case GK_LAUNCH_WORKERS:
    case GK_LAUNCH_SUMMARIES:
        if (summed(launch, child) && child->exit_status == 0 && child->term_signal == 0) {
            end_workers(launch);
        } else if (!gk_launch_faults_died(launch, child) &&
                   !gk_launch_command_ended(launch, child)) {
            on_death(launch, child);
        }
        break;
    case GK_LAUNCH_LINGER:
        if (!stopped_well(child)) {
            late_death(launch, child);
        }
        end_when_empty(launch);
        break;
    case GK_LAUNCH_LOST:
        say_lost(launch, child);
        break;
    case GK_LAUNCH_DRAIN:
        if (!launch->servers_stopped && gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0) {
            gk_launch_stop_servers(launch);
        }
        end_when_empty(launch);
        break;
    case GK_LAUNCH_END:
        break;
    }
}

void gk_launch_draw(struct gk_launch *launch, uint64_t now_us)
{
    struct gk_console *console = launch->plan->console;
    char text[GK_PROGRESS_BYTES + 64];

    if (launch->options->quiet || launch->state >= GK_LAUNCH_LOST) {
        return;
    }
    if (console->bar) {
        gk_progress_bar(&launch->progress, now_us, gk_console_columns(console) - 1, text,
                        sizeof(text));
        gk_console_draw(console, text);
    } else if (gk_progress_line_due(&launch->progress, now_us)) {
        gk_progress_line(&launch->progress, now_us, text, sizeof(text));
        (void)fprintf(console->out, "%s\n", text);
        (void)fflush(console->out);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct gk_launch *launch = timer->data;

    launch->tick_due = true;
}

/* Behind the reading of this turn of the loop: a child is judged by what it has said, also when all
 * of us were stopped for a while. */
static void after_reading(uv_check_t *check)
{
    struct gk_launch *launch = check->data;
    uint64_t now_us = gk_now_us();

    gk_launch_forgive(launch, now_us);
    if (!launch->tick_due || launch->state == GK_LAUNCH_END) {
        return;
    }
    launch->tick_due = false;
    gk_launch_command_sweep(launch);
    gk_fleet_tick(&launch->fleet, now_us);
    now_us = gk_now_us(); /* the waits that begin with the end of a child are not of the future */
    gk_launch_check_bounds(launch, now_us);
    gk_launch_restart_due(launch, now_us);
    gk_launch_draw(launch, now_us);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct gk_launch *launch = handle->data;

    if (launch->state == GK_LAUNCH_END) {
        return;
    }
    if (launch->interrupted || launch->state == GK_LAUNCH_DRAIN) {
        gk_launch_say(launch, GK_LOG_WARN, "RUN-KILLED", "stopping at once");
        gk_launch_kill(launch);
        launch->interrupted = true;
        return;
    }
    launch->interrupted = true;
    gk_launch_say(launch, GK_LOG_WARN, "RUN-STOPPING",
                  "%s: stopping all daemons (once more: at once)",
                  number == SIGINT ? "interrupted" : "told to stop");
    launch->code = number == SIGINT ? GK_EXIT_SIGINT : GK_EXIT_SIGTERM;
    gk_launch_drain(launch, launch->code);
}

static void open_signals(struct gk_launch *launch)
{
    static const int numbers[GK_LAUNCH_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action;

    for (uint32_t i = 0; i < GK_LAUNCH_SIGNALS; i++) {
        uv_signal_t *handle = &launch->signals[launch->signals_count];

        /* nohup, and a shell's background jobs, ask for deafness: keep to it. */
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN) {
            continue;
        }
        if (uv_signal_init(&launch->loop, handle) != 0) {
            continue;
        }
        handle->data = launch;
        (void)uv_signal_start(handle, on_signal, numbers[i]);
        launch->signals_count++;
    }
}

static enum gk_err launch_init(struct gk_launch *launch, const struct gk_launch_plan *plan,
                               struct gk_tally *tally)
{
    memset(launch, 0, sizeof(*launch));
    launch->plan = plan;
    launch->options = &plan->run->options;
    launch->tally = tally;
    launch->code = -1;
    if (uv_loop_init(&launch->loop) != 0) {
        return GK_E_NOMEM;
    }
    if (gk_fleet_init(&launch->fleet, tally->servers_count, tally->workers_count) != GK_OK) {
        (void)uv_loop_close(&launch->loop);
        return GK_E_NOMEM;
    }
    gk_progress_init(&launch->progress, tally->steps, gk_now_us());
    launch->state = GK_LAUNCH_SERVERS;
    launch->since_us = gk_now_us();
    launch->looked_us = launch->since_us;
    (void)uv_timer_init(&launch->loop, &launch->tick); /* cannot fail */
    launch->tick.data = launch;
    (void)uv_timer_start(&launch->tick, on_tick, GK_LAUNCH_TICK_US / 1000,
                         GK_LAUNCH_TICK_US / 1000);
    (void)uv_check_init(&launch->loop, &launch->after_reading); /* cannot fail, nor can the next */
    launch->after_reading.data = launch;
    (void)uv_check_start(&launch->after_reading, after_reading);
    open_signals(launch);
    return GK_OK;
}

static void launch_fini(struct gk_launch *launch)
{
    int err;

    uv_close((uv_handle_t *)&launch->tick, NULL);
    uv_close((uv_handle_t *)&launch->after_reading, NULL);
    gk_launch_faults_close(launch);
    for (uint32_t i = 0; i < launch->signals_count; i++) {
        uv_close((uv_handle_t *)&launch->signals[i], NULL);
    }
    if (gk_fleet_empty(&launch->fleet)) {
        while (uv_run(&launch->loop, UV_RUN_DEFAULT) != 0) {
            /* A stop that was asked for before the loop ran ends the first call. */
        }
        err = uv_loop_close(&launch->loop);
        GK_ASSERT(err == 0); /* every handle was closed */
        gk_fleet_fini(&launch->fleet);
        gk_launch_faults_free(launch);
    } /* else: a child that cannot be killed still owns handles; the process ends anyway */
}

int gk_launch_run(const struct gk_launch_plan *plan, struct gk_tally *tally)
{
    uint32_t children = tally->servers_count + tally->workers_count;
    uint32_t outputs = gk_run_is_command(plan->run) ? tally->workers_count : 0;
    uint32_t files = GK_PROCESS_FILES + GK_PROCESS_FILES_PER_CHILD * children + outputs;
    struct gk_launch launch;
    struct gk_words words;

    if (gk_process_files(files, &words)) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "%s", words.text);
        return GK_EXIT_RETRY;
    }
    if (launch_init(&launch, plan, tally) != GK_OK) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "out of memory");
        return GK_EXIT_INTERNAL;
    }
    if (gk_launch_faults_open(&launch) != GK_OK) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "out of memory");
        gk_launch_drain(&launch, GK_EXIT_INTERNAL);
    }
    if (launch.state == GK_LAUNCH_SERVERS && !gk_launch_command_open(&launch)) {
        gk_launch_drain(&launch, GK_EXIT_RETRY);
    }
    if (launch.state == GK_LAUNCH_SERVERS && !gk_launch_faults_plan_start(&launch)) {
        gk_launch_start_servers(&launch);
    }
    while (launch.state != GK_LAUNCH_END) {
        (void)uv_run(&launch.loop, UV_RUN_DEFAULT);
    }
    gk_launch_command_close(&launch);
    gk_console_clear(plan->console);
    if (tally->restarts > 0) {
        tally->seconds = (double)(launch.progress.change_us - launch.progress.start_us) / 1e6;
    }
    launch_fini(&launch);
    return launch.code < 0 ? GK_EXIT_OK : launch.code;
}
