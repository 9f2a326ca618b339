/* The lives of the children: how they are started, and started again, and what they tell. */
#include "tool/launch_internal.h"

#include "common/exit.h"
#include "common/limits.h"
#include "common/net/clock.h"
#include "tool/child.h"
#include "tool/json.h"

#include <string.h>
#include <unistd.h>

static bool take_endpoint(struct gk_launch *launch, struct gk_child *child, const json_t *object)
{
    const char *address = json_string_value(json_object_get(object, "address"));

    if (!address || strlen(address) >= GK_RUN_ADDRESS_BYTES || strpbrk(address, ", \t\n")) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-ENDPOINT-BAD",
                      "server %u told an address that makes no sense", child->index);
        return false;
    }
    gk_json_text(object, "address", child->address, sizeof(child->address));
    return true;
}

/* The ports were chosen by the system: say how to ask for them. */
static void say_addresses(struct gk_launch *launch)
{
    struct gk_console *console = launch->plan->console;

    if (launch->options->quiet) {
        return;
    }
    gk_console_clear(console);
    (void)fprintf(console->out, "to watch it: gkps status --watch --server ");
    for (uint32_t i = 0; i < launch->tally->servers_count; i++) {
        (void)fprintf(console->out, "%s%s", i > 0 ? "," : "", launch->fleet.children[i].address);
    }
    (void)fprintf(console->out, "\n");
    (void)fflush(console->out);
}

static void take_progress(struct gk_launch *launch)
{
    uint64_t now_us = gk_now_us();

    launch->progress.accuracy = launch->tally->accuracy;
    gk_progress_set(&launch->progress, gk_tally_step(launch->tally), gk_tally_loss(launch->tally),
                    now_us);
    if (!launch->plan->console->bar) {
        gk_launch_draw(launch, now_us);
    }
    gk_launch_faults_tick(launch);
}

static void start_workers(struct gk_launch *launch);

static void on_child_line(void *context, struct gk_child *child, const json_t *object)
{
    struct gk_launch *launch = context;
    bool first = child->role == GK_ROLE_WORKER && !launch->tally->workers[child->index].opened;
    char note[GK_WORDS_BYTES];

    switch (gk_tally_line(launch->tally, child->role, child->index, object)) {
    case GK_TALLY_ENDPOINT:
        if (launch->state != GK_LAUNCH_SERVERS) {
            break; /* the next life of a server is where the former was */
        }
        if (!take_endpoint(launch, child, object)) {
            gk_launch_drain(launch, GK_EXIT_INTERNAL);
        } else if (gk_fleet_endpoints(&launch->fleet) == launch->tally->servers_count) {
            say_addresses(launch);
            start_workers(launch);
        }
        break;
    case GK_TALLY_PROGRESS:
    case GK_TALLY_EVAL:
        take_progress(launch);
        break;
    case GK_TALLY_SUMMARY:
        take_progress(launch);
        /* A server still answers duplicates, a program may have other things to do. */
        if (child->role == GK_ROLE_WORKER && !child->guarded) {
            child->told_us = gk_now_us();
        }
        gk_launch_summed(launch);
        break;
    case GK_TALLY_NOTE:
        gk_json_text(object, "words", note, sizeof(note));
        gk_launch_note(launch, child, note);
        break;
    case GK_TALLY_TROUBLE:
        gk_json_text(object, "words", child->trouble, sizeof(child->trouble));
        break;
    case GK_TALLY_DEATH:
        gk_json_text(object, "words", child->death, sizeof(child->death));
        child->death_code = (int)(gk_json_u64(object, "code", 0) & 0xff);
        child->told_us = gk_now_us();
        break;
    case GK_TALLY_OTHER:
        break;
    }
    if (first) {
        gk_launch_command_opened(launch);
    }
}

static void before_output(void *context)
{
    struct gk_launch *launch = context;

    gk_console_clear(launch->plan->console);
}

static void on_child_done(void *context, struct gk_child *child)
{
    gk_launch_child_done(context, child);
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

/* Takes what the child is. */
static bool start_child(struct gk_launch *launch, struct gk_child *child, struct gk_run_child *what)
{
    const struct gk_launch_plan *plan = launch->plan;
    struct gk_child_start start = {
        .program = what->program,
        .args = what->args.v,
        .environment = what->environment.v,
        .guarded = what->guarded,
        .capture = plan->console->bar && isatty(STDERR_FILENO) == 1,
        .prefix = what->prefix,
        .out = plan->console->out,
    };
    struct gk_words words;
    enum gk_err err;

    if (what->args.failed || what->environment.failed) {
        gk_words_set(&words, "out of memory");
        err = GK_E_NOMEM;
    } else {
        err = gk_child_start(&launch->loop, child, &start, &child_callbacks, launch, &words);
    }
    gk_run_child_fini(what);
    if (err) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-START-FAILED", "%s", words.text);
        gk_launch_drain(launch, start_code(err));
    } else {
        gk_launch_faults_born(launch, child);
    }
    return err == GK_OK;
}

static bool start_server(struct gk_launch *launch, struct gk_child *child)
{
    const struct gk_run_place place = {
        .index = child->index, .faults = launch->faults != NULL, .address = child->address};
    struct gk_run_child what = {0};

    gk_run_child_server(launch->plan->run, launch->plan->server_program, &place, &what);
    return start_child(launch, child, &what);
}

static bool start_worker(struct gk_launch *launch, struct gk_child *child, bool takeover)
{
    const char *servers[GK_SERVERS_MAX];
    const struct gk_run_place place = {.index = child->index,
                                       .faults = launch->faults != NULL,
                                       .servers = servers,
                                       .takeover = takeover,
                                       .machine = &launch->machine};
    struct gk_run_child what = {0};

    for (uint32_t i = 0; i < launch->tally->servers_count; i++) {
        servers[i] = launch->fleet.children[i].address;
    }
    gk_run_child_worker(launch->plan->run, launch->plan->worker_program, &place, &what);
    return start_child(launch, child, &what);
}

void gk_launch_start_servers(struct gk_launch *launch)
{
    for (uint32_t i = 0; i < launch->tally->servers_count; i++) {
        if (!start_server(launch, &launch->fleet.children[i])) {
            return;
        }
    }
}

static void start_workers(struct gk_launch *launch)
{
    gk_launch_set(launch, GK_LAUNCH_WORKERS);
    for (uint32_t i = launch->tally->servers_count; i < launch->fleet.children_count; i++) {
        if (!start_worker(launch, &launch->fleet.children[i], false)) {
            return;
        }
    }
}

void gk_launch_restart_due(struct gk_launch *launch, uint64_t now_us)
{
    for (uint32_t i = 0; i < launch->fleet.children_count; i++) {
        struct gk_child *child = &launch->fleet.children[i];
        bool server = child->role == GK_ROLE_SERVER;
        bool again = child->restart.started_us > 0; /* else a fault script planned its start */

        if (!gk_restart_is_due(&child->restart, now_us) || child->closing > 0) {
            continue;
        }
        if (again) {
            gk_tally_restart(launch->tally, child->role, child->index);
        }
        if (server ? !start_server(launch, child) : !start_worker(launch, child, again)) {
            return;
        }
    }
}
