/* What both daemons have around their shells: what ends them from outside (a signal, the death of
 * their launcher), what they say when they end, and alarms that are said once.  Part of the shells:
 * it logs.  Loop thread only, except where it says otherwise. */
#ifndef GK_COMMON_NET_DAEMON_H
#define GK_COMMON_NET_DAEMON_H

#include "common/err.h"
#include "common/net/link.h"
#include "common/net/signals.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_daemon {
    /* Given by the owner.  `stop` is called at each signal and when the launcher is gone, with the
     * exit code that goes with it, and words that stay. */
    void (*stop)(void *context, int exit_code, const char *words);
    /* A line of the launcher; borrowed.  NULL: nothing is heard. */
    void (*command)(void *context, const json_t *line);
    void *context;
    bool no_signals; /* they are somebody else's business, SIGPIPE as well */
    /* Zero at first. */
    struct gk_signals *signals;
    struct gk_link *link; /* NULL: no launcher */
    bool wakes_said, mode_said, died;
};

/* Watch the signals, and the launcher at descriptor `launcher_fd` (0: none).  GK_E_INVALID: that is
 * not an open socket; GK_E_NOMEM and GK_E_IO of the signals.  What was opened is closed by
 * gk_daemon_close(), also after a failure. */
enum gk_err gk_daemon_open(struct gk_daemon *daemon, struct uv_loop_s *loop, int launcher_fd,
                           struct gk_words *words);

/* Idempotent.  What was told is written first: after a death for a second at most, else as long as
 * the launcher lives, which may be stopped (Ctrl-Z); a signal ends the process meanwhile. */
void gk_daemon_close(struct gk_daemon *daemon);

/* One line to the launcher.  Takes the object; NULL: there was no memory for it, nothing is told.
 */
void gk_daemon_tell(const struct gk_daemon *daemon, json_t *line);

/* The same for a line that can be done without: not told while the launcher reads nothing. */
void gk_daemon_mention(const struct gk_daemon *daemon, json_t *line);

/* Why the process ends with this exit code, which is not 0: told to the launcher, which prints the
 * words, so that the log (under `id`) repeats them at DEBUG only; without a launcher logged, as an
 * ERROR unless it was a signal. */
void gk_daemon_death(struct gk_daemon *daemon, const char *id, int exit_code, const char *words);

/* The same before there is a loop: written to the launcher's descriptor, if it is a socket. */
void gk_daemon_early_death(int launcher_fd, const char *id, int exit_code, const char *words);

/* What must stay 0: wakes that a socket missed, and floating-point modes that a computation found
 * changed.  A WARN line when one of them no longer is; the numbers themselves are in STATUS. */
void gk_daemon_alarm(struct gk_daemon *daemon, uint64_t missed_wakes, uint64_t mode_corrections);

/* How long the end of a daemon waits for a computation that is under way. */
enum { GK_DAEMON_COMPUTE_US = 5 * 1000 * 1000 };

/* The computation did not end in that time: say so, and end the process as it is.  No destructor
 * runs and nothing is freed, for that thread may hold any lock of a library; what had to be told
 * has been told.  Does not return. */
_Noreturn void gk_daemon_abandon(const char *id, int exit_code);

/* The exit code of what could not be opened: 70 without memory, 75 while something is in use or a
 * limit of the system is reached, else 78.  Any thread. */
int gk_daemon_exit_code(enum gk_err err);

/* Run the loop until everything that was closed is gone, and close it. */
void gk_daemon_end_loop(struct uv_loop_s *loop);

#endif
