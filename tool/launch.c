#include "tool/launch.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "tool/args.h"
#include "tool/child.h"
#include "tool/fleet.h"
#include "tool/json.h"

#include <uv.h>

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ; /* POSIX: not declared by any header */

enum launch_state {
    LAUNCH_SERVERS,
    LAUNCH_WORKERS,
    LAUNCH_SUMMARIES,
    LAUNCH_LINGER,
    LAUNCH_DRAIN,
    LAUNCH_END
};

enum { SIGNALS_COUNT = 3 };

struct launch {
    const struct gk_launch_plan *plan;
    const struct gk_run_options *options;
    struct gk_tally *tally;
    struct gk_progress progress;
    uv_loop_t loop;
    uv_timer_t tick;
    uv_signal_t signals[SIGNALS_COUNT];
    uint32_t signals_count;
    struct gk_fleet fleet;
    struct gk_args environment;
    enum launch_state state;
    uint64_t since_us;    /* of the state */
    uint64_t killed_us;   /* SIGKILL was sent; 0: not yet */
    bool servers_stopped; /* SIGTERM was sent to them */
    bool interrupted;     /* a signal came */
    int code;             /* of the run; -1: not decided */
};

static void start_workers(struct launch *launch);

/* Every log line goes through here, so that none is written into a bar. */
static void say(struct launch *launch, enum gk_log_level level, const char *id, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

static void say(struct launch *launch, enum gk_log_level level, const char *id, const char *format,
                ...)
{
    char text[2 * GK_WORDS_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    gk_console_clear(launch->plan->console);
    gk_log(level, id, "%s", text);
}

static bool may_follow(enum launch_state from, enum launch_state to)
{
    static const unsigned next[] = {
        [LAUNCH_SERVERS] = 1u << LAUNCH_WORKERS | 1u << LAUNCH_DRAIN,
        [LAUNCH_WORKERS] = 1u << LAUNCH_SUMMARIES | 1u << LAUNCH_DRAIN,
        [LAUNCH_SUMMARIES] = 1u << LAUNCH_LINGER | 1u << LAUNCH_DRAIN,
        [LAUNCH_LINGER] = 1u << LAUNCH_END | 1u << LAUNCH_DRAIN,
        [LAUNCH_DRAIN] = 1u << LAUNCH_END,
        [LAUNCH_END] = 0,
    };

    return (next[from] & 1u << to) != 0;
}

static void set_state(struct launch *launch, enum launch_state state)
{
    GK_ASSERT(may_follow(launch->state, state));
    launch->state = state;
    launch->since_us = gk_now_us();
}

static void end_when_empty(struct launch *launch)
{
    if (gk_fleet_empty(&launch->fleet)) {
        set_state(launch, LAUNCH_END);
        uv_stop(&launch->loop);
    }
}

static void kill_all(struct launch *launch)
{
    launch->killed_us = gk_now_us();
    gk_fleet_signal(&launch->fleet, GK_ROLE_WORKER, SIGKILL);
    gk_fleet_signal(&launch->fleet, GK_ROLE_SERVER, SIGKILL);
}

static void stop_servers(struct launch *launch)
{
    launch->servers_stopped = true;
    gk_fleet_signal(&launch->fleet, GK_ROLE_SERVER, SIGTERM);
}

/* Workers first: one that leaves cleanly needs its servers for that. */
static void drain(struct launch *launch, int code)
{
    if (launch->code < 0) {
        launch->code = code;
    }
    set_state(launch, LAUNCH_DRAIN);
    gk_fleet_signal(&launch->fleet, GK_ROLE_WORKER, SIGTERM);
    if (gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0) {
        stop_servers(launch);
    }
    end_when_empty(launch);
}

static bool servers_summed(const struct launch *launch)
{
    for (uint32_t i = 0; i < launch->tally->servers_count; i++) {
        if (!launch->tally->servers[i].summed) {
            return false;
        }
    }
    return true;
}

static void linger_when_summed(struct launch *launch)
{
    if (launch->state == LAUNCH_SUMMARIES && servers_summed(launch)) {
        set_state(launch, LAUNCH_LINGER);
        stop_servers(launch);
        end_when_empty(launch);
    }
}

/* It ended well: with code 0 and after it told its result. */
static bool ended_well(const struct launch *launch, const struct gk_child *child)
{
    bool summed = child->role == GK_ROLE_SERVER ? launch->tally->servers[child->index].summed
                                                : launch->tally->workers[child->index].summed;

    return summed && child->exit_status == 0 && child->term_signal == 0;
}

/* A server that was told to stop after its work may say so in its exit code. */
static bool stopped_well(const struct gk_child *child)
{
    return (child->term_signal == 0 &&
            (child->exit_status == 0 || child->exit_status == GK_EXIT_SIGTERM)) ||
           child->term_signal == SIGTERM;
}

static void fail_child(struct launch *launch, const struct gk_child *child)
{
    struct gk_words words;

    gk_child_reason(child, &words);
    say(launch, GK_LOG_ERROR, "RUN-CHILD-DIED", "%s; the run ends", words.text);
    drain(launch, gk_child_code(child));
}

static void on_child_done(void *context, struct gk_child *child)
{
    struct launch *launch = context;
    struct gk_words words;

    switch (launch->state) {
    case LAUNCH_SERVERS:
    case LAUNCH_WORKERS:
    case LAUNCH_SUMMARIES:
        if (!ended_well(launch, child)) {
            fail_child(launch, child);
        } else if (launch->state == LAUNCH_WORKERS &&
                   gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0) {
            set_state(launch, LAUNCH_SUMMARIES);
            linger_when_summed(launch);
        }
        break;
    case LAUNCH_LINGER:
        if (!stopped_well(child)) {
            gk_child_reason(child, &words);
            say(launch, GK_LOG_ERROR, "RUN-CHILD-DIED", "%s, after its work was done", words.text);
            launch->code = gk_child_code(child);
        }
        end_when_empty(launch);
        break;
    case LAUNCH_DRAIN:
        if (!launch->servers_stopped && gk_fleet_running(&launch->fleet, GK_ROLE_WORKER) == 0) {
            stop_servers(launch);
        }
        end_when_empty(launch);
        break;
    case LAUNCH_END:
        break;
    }
}

static bool take_endpoint(struct launch *launch, struct gk_child *child, const json_t *object)
{
    const char *address = json_string_value(json_object_get(object, "address"));

    if (!address || strlen(address) >= GK_RUN_ADDRESS_BYTES || strpbrk(address, ", \t\n")) {
        say(launch, GK_LOG_ERROR, "RUN-ENDPOINT-BAD",
            "server %u told an address that makes no sense", child->index);
        return false;
    }
    gk_json_text(object, "address", child->address, sizeof(child->address));
    return true;
}

static void draw(struct launch *launch, uint64_t now_us)
{
    struct gk_console *console = launch->plan->console;
    char text[GK_PROGRESS_BYTES + 64];

    if (launch->options->quiet || launch->state == LAUNCH_DRAIN || launch->state == LAUNCH_END) {
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

static void take_progress(struct launch *launch)
{
    uint64_t now_us = gk_now_us();

    launch->progress.accuracy = launch->tally->accuracy;
    gk_progress_set(&launch->progress, gk_tally_step(launch->tally), gk_tally_loss(launch->tally),
                    now_us);
    if (!launch->plan->console->bar) {
        draw(launch, now_us);
    }
}

static void on_child_line(void *context, struct gk_child *child, const json_t *object)
{
    struct launch *launch = context;

    switch (gk_tally_line(launch->tally, child->role, child->index, object)) {
    case GK_TALLY_ENDPOINT:
        if (launch->state != LAUNCH_SERVERS) {
            break;
        }
        if (!take_endpoint(launch, child, object)) {
            drain(launch, GK_EXIT_INTERNAL);
        } else if (gk_fleet_endpoints(&launch->fleet) == launch->tally->servers_count) {
            start_workers(launch);
        }
        break;
    case GK_TALLY_PROGRESS:
    case GK_TALLY_EVAL:
        take_progress(launch);
        break;
    case GK_TALLY_SUMMARY:
        take_progress(launch);
        linger_when_summed(launch);
        break;
    case GK_TALLY_DEATH:
        gk_json_text(object, "words", child->death, sizeof(child->death));
        break;
    case GK_TALLY_OTHER:
        break;
    }
}

static void before_output(void *context)
{
    struct launch *launch = context;

    gk_console_clear(launch->plan->console);
}

static const struct gk_child_callbacks child_callbacks = {
    .line = on_child_line,
    .before_output = before_output,
    .done = on_child_done,
};

static int start_code(enum gk_err err)
{
    switch ((int)err) {
    case GK_E_NOTFOUND:
        return GK_EXIT_CONFIG;
    case GK_E_LIMIT:
        return GK_EXIT_RETRY;
    default:
        return GK_EXIT_INTERNAL;
    }
}

static bool start_child(struct launch *launch, struct gk_child *child, struct gk_args *args)
{
    const struct gk_launch_plan *plan = launch->plan;
    struct gk_child_start start = {
        .program = child->role == GK_ROLE_SERVER ? plan->server_program : plan->worker_program,
        .args = args->v,
        .environment = launch->environment.v,
        .capture = plan->console->bar && isatty(STDERR_FILENO) == 1,
    };
    struct gk_words words;
    enum gk_err err;

    if (args->failed || launch->environment.failed) {
        gk_words_set(&words, "out of memory");
        err = GK_E_NOMEM;
    } else {
        err = gk_child_start(&launch->loop, child, &start, &child_callbacks, launch, &words);
    }
    gk_args_fini(args);
    if (err) {
        say(launch, GK_LOG_ERROR, "RUN-START-FAILED", "%s", words.text);
        drain(launch, start_code(err));
    }
    return err == GK_OK;
}

static void start_servers(struct launch *launch)
{
    for (uint32_t i = 0; i < launch->tally->servers_count; i++) {
        struct gk_args args = {0};

        gk_run_server_args(launch->plan->run, launch->plan->server_program, i, &args);
        if (!start_child(launch, &launch->fleet.children[i], &args)) {
            return;
        }
    }
}

static void start_workers(struct launch *launch)
{
    const char *servers[GK_SERVERS_MAX];
    uint32_t servers_count = launch->tally->servers_count;

    set_state(launch, LAUNCH_WORKERS);
    for (uint32_t i = 0; i < servers_count; i++) {
        servers[i] = launch->fleet.children[i].address;
    }
    for (uint32_t i = 0; i < launch->tally->workers_count; i++) {
        struct gk_args args = {0};

        gk_run_worker_args(launch->plan->run, launch->plan->worker_program, servers, i, false,
                           &args);
        if (!start_child(launch, &launch->fleet.children[servers_count + i], &args)) {
            return;
        }
    }
}

/* Who is waited for in this state. */
static bool is_missing(const void *context, const struct gk_child *child)
{
    const struct launch *launch = context;
    bool server = child->role == GK_ROLE_SERVER;

    switch (launch->state) {
    case LAUNCH_SERVERS:
        return server && !child->address[0];
    case LAUNCH_SUMMARIES:
        return server && !launch->tally->servers[child->index].summed;
    case LAUNCH_WORKERS:
    case LAUNCH_LINGER:
    case LAUNCH_DRAIN:
    case LAUNCH_END:
        break;
    }
    return !child->done;
}

static void name_missing(const struct launch *launch, char *ret, size_t ret_bytes)
{
    gk_fleet_name(&launch->fleet, is_missing, launch, ret, ret_bytes);
}

static void check_stop_bounds(struct launch *launch, uint64_t now_us)
{
    uint64_t waited_us = now_us - launch->since_us;
    char missing[64];

    if (launch->state == LAUNCH_DRAIN && !launch->servers_stopped &&
        waited_us > GK_LAUNCH_SERVERS_US) {
        stop_servers(launch);
    }
    if (launch->killed_us == 0 && waited_us > GK_LAUNCH_GRACE_US) {
        name_missing(launch, missing, sizeof(missing));
        say(launch, GK_LOG_WARN, "RUN-KILLED", "%s did not stop within %d s: killed", missing,
            GK_LAUNCH_GRACE_US / 1000000);
        kill_all(launch);
    } else if (launch->killed_us > 0 && now_us - launch->killed_us > GK_LAUNCH_REAP_US) {
        name_missing(launch, missing, sizeof(missing));
        say(launch, GK_LOG_ERROR, "RUN-STUCK", "%s cannot be killed and is left behind", missing);
        launch->code = GK_EXIT_INTERNAL;
        set_state(launch, LAUNCH_END);
        uv_stop(&launch->loop);
    }
}

static void check_bounds(struct launch *launch, uint64_t now_us)
{
    uint64_t waited_us = now_us - launch->since_us;
    char missing[64];

    switch (launch->state) {
    case LAUNCH_SERVERS:
        if (waited_us > launch->options->deadline * 1000000) {
            name_missing(launch, missing, sizeof(missing));
            say(launch, GK_LOG_ERROR, "RUN-SERVER-LATE",
                "%s did not tell its address within %" PRIu64 " s", missing,
                launch->options->deadline);
            drain(launch, GK_EXIT_PEER);
        }
        break;
    case LAUNCH_WORKERS:
        break; /* the daemons' own deadlines hold, and name whom they wait for */
    case LAUNCH_SUMMARIES:
        if (waited_us > GK_LAUNCH_SUMMARIES_US) {
            name_missing(launch, missing, sizeof(missing));
            say(launch, GK_LOG_ERROR, "RUN-SUMMARY-LATE",
                "%s did not sum up within %d s after the last worker", missing,
                GK_LAUNCH_SUMMARIES_US / 1000000);
            drain(launch, GK_EXIT_PEER);
        }
        break;
    case LAUNCH_LINGER:
    case LAUNCH_DRAIN:
        check_stop_bounds(launch, now_us);
        break;
    case LAUNCH_END:
        break;
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct launch *launch = timer->data;
    uint64_t now_us = gk_now_us();

    gk_fleet_tick(&launch->fleet, now_us);
    check_bounds(launch, now_us);
    draw(launch, now_us);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct launch *launch = handle->data;

    if (launch->state == LAUNCH_END) {
        return;
    }
    if (launch->interrupted || launch->state == LAUNCH_DRAIN) {
        say(launch, GK_LOG_WARN, "RUN-KILLED", "stopping at once");
        kill_all(launch);
        launch->interrupted = true;
        return;
    }
    launch->interrupted = true;
    say(launch, GK_LOG_WARN, "RUN-STOPPING", "%s: stopping all daemons (once more: at once)",
        number == SIGINT ? "interrupted" : "told to stop");
    launch->code = number == SIGINT ? GK_EXIT_SIGINT : GK_EXIT_SIGTERM;
    drain(launch, launch->code);
}

static void open_signals(struct launch *launch)
{
    static const int numbers[SIGNALS_COUNT] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action;

    for (uint32_t i = 0; i < SIGNALS_COUNT; i++) {
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

static enum gk_err launch_init(struct launch *launch, const struct gk_launch_plan *plan,
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
    gk_run_environment((const char *const *)environ, &launch->environment);
    gk_progress_init(&launch->progress, launch->options->steps, gk_now_us());
    launch->state = LAUNCH_SERVERS;
    launch->since_us = gk_now_us();
    (void)uv_timer_init(&launch->loop, &launch->tick); /* cannot fail */
    launch->tick.data = launch;
    (void)uv_timer_start(&launch->tick, on_tick, GK_LAUNCH_TICK_US / 1000,
                         GK_LAUNCH_TICK_US / 1000);
    open_signals(launch);
    return GK_OK;
}

static void launch_fini(struct launch *launch)
{
    uv_close((uv_handle_t *)&launch->tick, NULL);
    for (uint32_t i = 0; i < launch->signals_count; i++) {
        uv_close((uv_handle_t *)&launch->signals[i], NULL);
    }
    if (gk_fleet_empty(&launch->fleet)) {
        while (uv_run(&launch->loop, UV_RUN_DEFAULT) != 0) {
            /* A stop that was asked for before the loop ran ends the first call. */
        }
        GK_ASSERT(uv_loop_close(&launch->loop) == 0);
        gk_fleet_fini(&launch->fleet);
    } /* else: a child that cannot be killed still owns handles; the process ends anyway */
    gk_args_fini(&launch->environment);
}

int gk_launch_run(const struct gk_launch_plan *plan, struct gk_tally *tally)
{
    struct launch launch;

    if (launch_init(&launch, plan, tally) != GK_OK) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "out of memory");
        return GK_EXIT_INTERNAL;
    }
    start_servers(&launch);
    while (launch.state != LAUNCH_END) {
        (void)uv_run(&launch.loop, UV_RUN_DEFAULT);
    }
    gk_console_clear(plan->console);
    launch_fini(&launch);
    return launch.code < 0 ? GK_EXIT_OK : launch.code;
}
