/* The life of one run on this machine: servers, then workers, then the end, whatever it is.
 *
 *   SERVERS ---> WORKERS ---> SUMMARIES ---> LINGER ---> END
 *      |           |  |           |             |         ^
 *      |           |  +-> LOST    |             |         |
 *      |           |        |     |             |         |
 *      +-----------+--------+-----+-------------+-> DRAIN-+
 *
 * SERVERS    servers run; wait until each has told its address (bound: --deadline)
 * WORKERS    workers run until all have ended with code 0 (their waits have bounds of their own)
 * SUMMARIES  the workers are gone; the servers owe their summaries (bound)
 * LINGER     everything is known; servers that still answer duplicates are told to stop (bound)
 * LOST       --restart always: a worker found that a shard is lost; the others find it too (bound)
 * DRAIN      a child died or a signal came: everybody is told to stop, workers first (bound, then
 *            SIGKILL)
 *
 * With --restart always a child that dies in SERVERS or WORKERS is started again after a while,
 * unless another life would end the same way (restart.h).  With a state directory it goes on where
 * it was, and also a server that dies in SUMMARIES comes back.  Without one a server comes back at
 * its old address and without its state; whether the job can live with that is for the workers to
 * say: before version 1 they begin it again, later they end with LOST_SHARD.  When no worker is
 * left that could say so, the launcher does.
 *
 * With a command the workers are copies of a program of the user's.  One that has ended with code 0
 * is over, whatever it has told: without a word of gkps from any of them there was nothing to do
 * (65), and a rank that others wait for in vain ends the run.
 *
 * In every state a child that has told its last word (a worker its summary, any its death) has to
 * end (bound, then SIGKILL); a program that has left the job may do what else it likes.  Every
 * bound that is missed names the child.  Nothing of ours is left running when this returns; when
 * the launcher itself is killed the children see the end of their link and stop by themselves.
 */
#ifndef GK_TOOL_LAUNCH_H
#define GK_TOOL_LAUNCH_H

#include "common/words.h"
#include "tool/console.h"
#include "tool/progress.h"
#include "tool/tally.h"
#include "tool/run_options.h"

enum {                                 /* microseconds */
       GK_LAUNCH_TICK_US = 100 * 1000, /* also the least time between two drawings of the bar */
       GK_LAUNCH_GRACE_US = 5 * 1000 * 1000, /* from SIGTERM to SIGKILL */
       GK_LAUNCH_SERVERS_US =
           2500 * 1000, /* DRAIN: servers wait so long for the workers to leave */
       GK_LAUNCH_LOST_US = 5 * 1000 * 1000, /* LOST: more than the others take to connect again */
       GK_LAUNCH_SUMMARIES_US = 15 * 1000 * 1000,    /* SUMMARIES: more than a server lingers */
       GK_LAUNCH_LAST_US = 10 * 1000 * 1000,         /* from a child's last word to SIGKILL */
       GK_LAUNCH_LAST_PROGRAM_US = 60 * 1000 * 1000, /* ... from the death of a user's program */
       GK_LAUNCH_PAUSE_US = 3 * 1000 * 1000, /* without a look at the clock: a pause of ours */
       GK_LAUNCH_REAP_US = 5 * 1000 * 1000,  /* after SIGKILL: then the system is in trouble */
};

struct gk_faults_stage;

struct gk_launch_plan {
    const struct gk_run_config *run;
    const char *server_program; /* path, or name to look for in PATH */
    const char *worker_program;
    struct gk_console *console;
    const struct gk_faults_stage *stage; /* NULL: no fault script judges this run */
};

/* Run it all; blocks.  The exit code of the run; `tally` (initialised for S and N) holds what was
 * told.  Logs what went wrong, once. */
int gk_launch_run(const struct gk_launch_plan *plan, struct gk_tally *tally);

#endif
