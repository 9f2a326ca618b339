/* What launch.c (states, signals), launch_bounds.c (waits), launch_children.c (lives) and
 * launch_command.c (ends of a program of the user's) share. */
#ifndef GK_TOOL_LAUNCH_INTERNAL_H
#define GK_TOOL_LAUNCH_INTERNAL_H

#include "common/log.h"
#include "tool/fleet.h"
#include "tool/launch.h"
#include "tool/launch_faults.h"
#include "tool/run_child.h"

#include <uv.h>

enum gk_launch_state {
    GK_LAUNCH_SERVERS,
    GK_LAUNCH_WORKERS,
    GK_LAUNCH_SUMMARIES,
    GK_LAUNCH_LINGER,
    GK_LAUNCH_LOST,
    GK_LAUNCH_DRAIN,
    GK_LAUNCH_END
};

enum { GK_LAUNCH_SIGNALS = 3 };

struct gk_launch {
    const struct gk_launch_plan *plan;
    const struct gk_run_options *options;
    struct gk_tally *tally;
    struct gk_progress progress;
    uv_loop_t loop;
    uv_timer_t tick;
    bool tick_due; /* the timer has fired; acted on behind the reading */
    uv_check_t after_reading;
    uint64_t looked_us; /* the clock, when it was looked at last */
    uv_signal_t signals[GK_LAUNCH_SIGNALS];
    uint32_t signals_count;
    struct gk_fleet fleet;
    struct gk_run_machine machine; /* where there is a command */
    bool inherits;                 /* whoever loses his guard is our child then */
    bool orphans;                  /* ... and there may be some */
    enum gk_launch_state state;
    uint64_t since_us;  /* of the state */
    uint64_t killed_us; /* SIGKILL was sent; 0: not yet */
    uint64_t short_us;  /* since then a worker has ended too early, and no step was done; 0: none */
    const struct gk_child *emptied;  /* the last server that came back without its state */
    bool model_lost;                 /* ... after the job had begun */
    bool servers_stopped;            /* SIGTERM was sent to them */
    bool interrupted;                /* a signal came */
    int code;                        /* of the run; -1: not decided */
    struct gk_launch_faults *faults; /* NULL: no fault script */
};

/* launch.c */

/* Every line goes through these, so that none is written into a bar. */
void gk_launch_say(struct gk_launch *launch, enum gk_log_level level, const char *id,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));
void gk_launch_note(struct gk_launch *launch, const struct gk_child *child, const char *text);
void gk_launch_draw(struct gk_launch *launch, uint64_t now_us);

void gk_launch_set(struct gk_launch *launch, enum gk_launch_state state);
void gk_launch_drain(struct gk_launch *launch, int code);
void gk_launch_summed(struct gk_launch *launch);                             /* a summary came */
void gk_launch_child_done(struct gk_launch *launch, struct gk_child *child); /* it has ended */

void gk_launch_kill(struct gk_launch *launch);         /* everybody */
void gk_launch_stop_servers(struct gk_launch *launch); /* SIGTERM */
void gk_launch_end_lost(struct gk_launch *launch);
/* What is behind a peer that is missing, as a child has told it: "; server 0: WORDS", or "".
 * Returns the code of the run: GK_EXIT_PEER, or that of the cause. */
int gk_launch_cause(const struct gk_launch *launch, struct gk_words *ret);
bool gk_launch_workers_ended(const struct gk_launch *launch); /* none lives, none will */

/* launch_command.c: all of it does nothing where the workers are gkps-worker. */

/* What the copies share.  False, and said: a port is not to be had. */
bool gk_launch_command_open(struct gk_launch *launch);
/* End whoever has come to us because his guard was killed. */
void gk_launch_command_sweep(struct gk_launch *launch);
void gk_launch_command_close(struct gk_launch *launch); /* ... at the end: all of them */
/* A worker has ended with code 0 and without a summary.  True: that is all there is to it, for now,
 * or the run ends. */
bool gk_launch_command_ended(struct gk_launch *launch, const struct gk_child *child);
/* A worker may have told something for the first time: is it one that others wait for in vain? */
void gk_launch_command_opened(struct gk_launch *launch);

/* launch_bounds.c */

/* A long time since the last look at the clock was our own pause: no wait counts it. */
void gk_launch_forgive(struct gk_launch *launch, uint64_t now_us);
void gk_launch_check_bounds(struct gk_launch *launch, uint64_t now_us);

/* launch_children.c: a start that fails drains the run. */
void gk_launch_start_servers(struct gk_launch *launch);
void gk_launch_restart_due(struct gk_launch *launch, uint64_t now_us);

#endif
