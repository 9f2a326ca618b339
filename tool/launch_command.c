/* How copies of a user's program end.  gkps-worker tells its result before it ends well; a program
 * may have no result to tell, and then it depends on the others what that means. */
#include "tool/launch_internal.h"

#include "common/exit.h"
#include "tool/kin.h"
#include "tool/machine.h"
#include "tool/ports.h"
#include "tool/run_command.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

enum { SWEEP_US = 10 * 1000, SWEEPS_MAX = 100 }; /* at the end of the run */

static void note_child(void *context, pid_t pid, const char *name)
{
    bool *has_children = context;

    (void)pid;
    (void)name;
    *has_children = true;
}

bool gk_launch_command_open(struct gk_launch *launch)
{
    bool has_children = false;
    uint16_t port;

    if (!gk_run_is_command(launch->plan->run)) {
        return true;
    }
    gk_kin_each(note_child, &has_children);
    /* A child that was there before us is nobody's orphan, but could not be told from one. */
    launch->inherits = !has_children && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    launch->machine.cores = gk_machine_cores();
    launch->machine.gpus = gk_machine_gpus("");
    if (!gk_ports_find(1, &port)) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-START-FAILED", "no port for MASTER_PORT");
        return false;
    }
    launch->machine.port = port;
    return true;
}

struct sweep {
    const struct gk_launch *launch;
    bool met;
};

static void end_stranger(void *context, pid_t pid, const char *name)
{
    struct sweep *sweep = context;

    (void)name;
    for (uint32_t i = 0; i < sweep->launch->fleet.children_count; i++) {
        const struct gk_child *child = &sweep->launch->fleet.children[i];

        if (child->started && !child->exited && child->process.pid == pid) {
            return;
        }
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, WNOHANG); /* the loop knows nothing of it */
    sweep->met = true;
}

/* A guard ends last of all, but not when somebody kills it. */
static bool guard_was_killed(const struct gk_launch *launch)
{
    for (uint32_t i = launch->tally->servers_count; i < launch->fleet.children_count; i++) {
        const struct gk_child *child = &launch->fleet.children[i];

        if (child->guarded && child->exited && child->term_signal == SIGKILL) {
            return true;
        }
    }
    return false;
}

void gk_launch_command_sweep(struct gk_launch *launch)
{
    struct sweep sweep = {.launch = launch};

    launch->orphans = launch->orphans || guard_was_killed(launch);
    if (launch->orphans && launch->inherits) {
        gk_kin_each(end_stranger, &sweep);
    }
    launch->orphans = sweep.met; /* those below one that is killed are the next to come */
}

void gk_launch_command_close(struct gk_launch *launch)
{
    const struct timespec pause = {.tv_nsec = SWEEP_US * 1000L};

    gk_launch_command_sweep(launch);
    for (uint32_t i = 0; i < SWEEPS_MAX && launch->orphans; i++) {
        (void)nanosleep(&pause, NULL); /* sooner does no harm */
        gk_launch_command_sweep(launch);
    }
}

/* Its last life has ended well, and none of its lives has said a word. */
static bool is_silent(const struct gk_launch *launch, const struct gk_child *child)
{
    return child->guarded && child->done && child->restart.due_us == 0 && child->exit_status == 0 &&
           child->term_signal == 0 && !launch->tally->workers[child->index].opened;
}

static bool any_opened(const struct gk_launch *launch)
{
    for (uint32_t i = 0; i < launch->tally->workers_count; i++) {
        if (launch->tally->workers[i].opened) {
            return true;
        }
    }
    return false;
}

static const struct gk_child *first_silent(const struct gk_launch *launch)
{
    for (uint32_t i = launch->tally->servers_count; i < launch->fleet.children_count; i++) {
        if (is_silent(launch, &launch->fleet.children[i])) {
            return &launch->fleet.children[i];
        }
    }
    return NULL;
}

void gk_launch_command_opened(struct gk_launch *launch)
{
    const struct gk_child *child = first_silent(launch);

    if (launch->state != GK_LAUNCH_WORKERS || !child) {
        return;
    }
    if (any_opened(launch)) {
        gk_launch_say(
            launch, GK_LOG_ERROR, "RUN-WORKER-MISSING",
            "worker %u ended with code 0 and never started with gkps, but others did: they "
            "would wait for rank %u; the run ends",
            child->index, child->index);
        gk_launch_drain(launch, GK_EXIT_PEER);
    } else if (gk_launch_workers_ended(launch)) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-NEVER-STARTED",
                      "the program never started with gkps: %u of %u copies ended with code 0, and "
                      "nothing was trained",
                      launch->tally->workers_count, launch->tally->workers_count);
        gk_launch_drain(launch, GK_EXIT_DATA);
    }
}

bool gk_launch_command_ended(struct gk_launch *launch, const struct gk_child *child)
{
    if (!child->guarded || child->exit_status != 0 || child->term_signal != 0 ||
        launch->tally->workers[child->index].summed) {
        return false;
    }
    if (is_silent(launch, child)) {
        gk_launch_command_opened(launch);
        return true;
    }
    gk_launch_say(
        launch, GK_LOG_ERROR, "RUN-WORKER-MISSING",
        "worker %u ended with code 0 but had not left the job, so that rank %u is missing "
        "for the others: a program has to call gkps_leave() (in Python: leave()) before it "
        "ends%s%s; the run ends",
        child->index, child->index, child->death[0] ? "; it told: " : "", child->death);
    gk_launch_drain(launch, GK_EXIT_PEER);
    return true;
}
