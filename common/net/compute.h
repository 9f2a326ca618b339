/* One thread for heavy arithmetic beside a loop: jobs run in order, one at a time; each ends
 * with a callback on the loop thread.  The thread checks at each job's start that the
 * floating-point mode is the default one (no flush-to-zero). */
#ifndef GK_COMMON_NET_COMPUTE_H
#define GK_COMMON_NET_COMPUTE_H

#include "common/err.h"
#include "common/words.h"

#include <stdint.h>

struct uv_loop_s;
struct gk_compute;

struct gk_compute_job {
    void (*run)(void *context, void *job);  /* on the compute thread */
    void (*done)(void *context, void *job); /* on the loop thread */
    void *job;                              /* the caller's, alive until done */
};

enum { GK_COMPUTE_JOBS_MAX = 16 };

/* Start the thread; `context` goes to `run` and `done`.  GK_E_NOMEM; GK_E_LIMIT: the system has no
 * thread or descriptor left; words say which.  Loop thread. */
enum gk_err gk_compute_open(struct uv_loop_s *loop, void *context, struct gk_compute **ret_compute,
                            struct gk_words *words);

/* Loop thread only.  GK_E_LIMIT: GK_COMPUTE_JOBS_MAX are pending already.  GK_E_CLOSED: after
 * close. */
enum gk_err gk_compute_submit(struct gk_compute *compute, const struct gk_compute_job *job);

/* Jobs submitted whose `done` has not been called. */
uint32_t gk_compute_pending(const struct gk_compute *compute);

/* How often a job found the floating-point mode changed, by a library or a job before it, and
 * put it right.  Any thread. */
uint64_t gk_compute_mode_corrections(const struct gk_compute *compute);

/* Finish the running job, forget the queued ones, join the thread; then `closed(context)` on the
 * loop thread, after which memory of the jobs may be released: no `done` is called any more.
 * Does not block.  Idempotent.  Accepts NULL. */
void gk_compute_close(struct gk_compute *compute, void (*closed)(void *context));

#endif
