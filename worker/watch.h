/* What ends gkps-worker from outside: signals, and a computation that does not end when everything
 * else has.  A thread of its own waits for both, since the program's thread computes. */
#ifndef GK_WORKER_WATCH_H
#define GK_WORKER_WATCH_H

#include "common/err.h"

struct gkps;
struct gk_watch;

/* SIGINT and SIGTERM are caught from here to gk_watch_close(); one at a time in a process.
 * GK_E_NOMEM; GK_E_LIMIT: no descriptor or thread. */
enum gk_err gk_watch_open(struct gk_watch **ret_watch);

/* What a signal stops; also one that came before.  Borrowed until gk_watch_close(). */
void gk_watch_handle(struct gk_watch *watch, struct gkps *gkps);

/* The library has ended: the program's thread has GK_DAEMON_COMPUTE_US to see that.  Any thread;
 * fits struct gkps_config. */
void gk_watch_ended(void *watch, int exit_code, const char *words);

/* The program's thread has seen it.  Accepts NULL. */
void gk_watch_close(struct gk_watch *watch);

#endif
