/* The bounds of every wait of the launcher: who is late, and what follows.
 *
 * A wait is measured by the launcher's clock.  When the launcher itself stood still (stopped by a
 * signal, or blocked by a reader of its output), that time is nobody's delay: the marks from which
 * the waits are counted move on by it. */
#include "tool/launch_internal.h"

#include "common/exit.h"
#include "tool/child.h"

#include <inttypes.h>
#include <signal.h>

static void move_on(uint64_t *mark_us, uint64_t pause_us, uint64_t now_us)
{
    if (*mark_us > 0) { /* one that was set since the pause stays behind the clock */
        *mark_us = now_us - *mark_us < pause_us ? now_us : *mark_us + pause_us;
    }
}

void gk_launch_forgive(struct gk_launch *launch, uint64_t now_us)
{
    uint64_t pause_us = now_us - launch->looked_us;

    launch->looked_us = now_us;
    if (pause_us < GK_LAUNCH_PAUSE_US) {
        return;
    }
    gk_launch_say(launch, GK_LOG_INFO, "RUN-PAUSED",
                  "the launcher itself stood still for %" PRIu64 " s; no wait counts that",
                  pause_us / 1000000);
    move_on(&launch->since_us, pause_us, now_us);
    move_on(&launch->killed_us, pause_us, now_us);
    move_on(&launch->short_us, pause_us, now_us);
    for (uint32_t i = 0; i < launch->fleet.children_count; i++) {
        move_on(&launch->fleet.children[i].exit_us, pause_us, now_us);
        move_on(&launch->fleet.children[i].told_us, pause_us, now_us);
    }
    launch->tick_due = false; /* the next tick judges: the pipes are read by then */
}

/* A program of the user's may save something before it ends. */
static unsigned last_us(const struct gk_child *child)
{
    return child->guarded ? GK_LAUNCH_LAST_PROGRAM_US : GK_LAUNCH_LAST_US;
}

/* Whoever has told its last word has nothing to do but to end. */
static void check_last_words(struct gk_launch *launch, uint64_t now_us)
{
    char name[32];

    if (launch->killed_us > 0) {
        return;
    }
    for (uint32_t i = 0; i < launch->fleet.children_count; i++) {
        struct gk_child *child = &launch->fleet.children[i];

        if (child->done || child->exited || child->killed || child->told_us == 0 ||
            now_us - child->told_us < last_us(child)) {
            continue;
        }
        gk_child_name(child, name, sizeof(name));
        gk_launch_say(launch, GK_LOG_WARN, "RUN-KILLED",
                      "%s told its %s but did not end within %u s: killed", name,
                      child->death[0] ? "death" : "result", last_us(child) / 1000000);
        gk_child_signal(child, SIGKILL);
    }
}

/* Who is waited for in this state. */
static bool is_missing(const void *context, const struct gk_child *child)
{
    const struct gk_launch *launch = context;
    bool server = child->role == GK_ROLE_SERVER;

    switch (launch->state) {
    case GK_LAUNCH_SERVERS:
        return server && !child->address[0];
    case GK_LAUNCH_SUMMARIES:
        return server && !launch->tally->servers[child->index].summed;
    case GK_LAUNCH_WORKERS:
    case GK_LAUNCH_LINGER:
    case GK_LAUNCH_LOST:
    case GK_LAUNCH_DRAIN:
    case GK_LAUNCH_END:
        break;
    }
    return !child->done;
}

static void name_missing(const struct gk_launch *launch, char *ret, size_t ret_bytes)
{
    gk_fleet_name(&launch->fleet, is_missing, launch, ret, ret_bytes);
}

static void check_stop_bounds(struct gk_launch *launch, uint64_t now_us)
{
    uint64_t waited_us = now_us - launch->since_us;
    char missing[64];

    if (launch->state == GK_LAUNCH_DRAIN && !launch->servers_stopped &&
        waited_us > GK_LAUNCH_SERVERS_US) {
        gk_launch_stop_servers(launch);
    }
    if (launch->killed_us == 0 && waited_us > GK_LAUNCH_GRACE_US) {
        name_missing(launch, missing, sizeof(missing));
        gk_launch_say(launch, GK_LOG_WARN, "RUN-KILLED", "%s did not stop within %d s: killed",
                      missing, GK_LAUNCH_GRACE_US / 1000000);
        gk_launch_kill(launch);
    } else if (launch->killed_us > 0 && now_us - launch->killed_us > GK_LAUNCH_REAP_US) {
        name_missing(launch, missing, sizeof(missing));
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-STUCK", "%s cannot be killed and is left behind",
                      missing);
        launch->code = GK_EXIT_INTERNAL;
        gk_launch_set(launch, GK_LAUNCH_END);
        uv_stop(&launch->loop);
    }
}

/* A worker that is done while the job is not; NULL: none. */
static const struct gk_child *ended_short(const struct gk_launch *launch)
{
    for (uint32_t i = launch->tally->servers_count; i < launch->fleet.children_count; i++) {
        const struct gk_child *child = &launch->fleet.children[i];

        if (child->done && child->exit_status == 0 && child->term_signal == 0 &&
            gk_tally_short(launch->tally, child->index)) {
            return child;
        }
    }
    return NULL;
}

/* Its servers may have been told by a former life that it has left: then they finish.  If they wait
 * for it, nothing else in the run would ever end: the others hear their servers. */
static void check_short(struct gk_launch *launch, uint64_t now_us)
{
    const struct gk_child *child = ended_short(launch);

    if (!child) {
        launch->short_us = 0;
        return;
    }
    if (launch->short_us == 0 || launch->progress.change_us > launch->short_us) {
        launch->short_us = now_us;
    }
    if (now_us - launch->short_us > launch->options->deadline * 1000000) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-WORKER-SHORT",
                      "rank %" PRIu32 " has ended %s, but the servers have not finished the job "
                      "within %" PRIu64 " s; the run ends",
                      child->index,
                      launch->tally->workers[child->index].left_before
                          ? "because its state directory says that it had left"
                          : "before the last step",
                      launch->options->deadline);
        gk_launch_drain(launch, GK_EXIT_PEER);
    }
}

void gk_launch_check_bounds(struct gk_launch *launch, uint64_t now_us)
{
    uint64_t waited_us = now_us - launch->since_us;
    struct gk_words cause;
    char missing[64];
    int code;

    check_last_words(launch, now_us);
    switch (launch->state) {
    case GK_LAUNCH_SERVERS:
        if (waited_us > launch->options->deadline * 1000000) {
            name_missing(launch, missing, sizeof(missing));
            gk_launch_say(launch, GK_LOG_ERROR, "RUN-SERVER-LATE",
                          "%s did not tell its address within %" PRIu64 " s", missing,
                          launch->options->deadline);
            gk_launch_drain(launch, GK_EXIT_PEER);
        }
        break;
    case GK_LAUNCH_WORKERS:
        check_short(launch, now_us); /* else the daemons' own deadlines hold */
        break;
    case GK_LAUNCH_SUMMARIES:
        if (waited_us > GK_LAUNCH_SUMMARIES_US) {
            name_missing(launch, missing, sizeof(missing));
            code = gk_launch_cause(launch, &cause);
            gk_launch_say(launch, GK_LOG_ERROR, "RUN-SUMMARY-LATE",
                          "%s did not sum up within %d s after the last worker%s", missing,
                          GK_LAUNCH_SUMMARIES_US / 1000000, cause.text);
            gk_launch_drain(launch, code);
        }
        break;
    case GK_LAUNCH_LOST:
        if (waited_us > GK_LAUNCH_LOST_US) {
            gk_launch_end_lost(launch);
        }
        break;
    case GK_LAUNCH_LINGER:
    case GK_LAUNCH_DRAIN:
        check_stop_bounds(launch, now_us);
        break;
    case GK_LAUNCH_END:
        break;
    }
}
