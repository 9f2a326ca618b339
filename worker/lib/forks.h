/* Children of fork() that execute no other program, a loader of data for instance.  They may
 * outlive a parent that is killed, and then must not hold what its next life needs: the lock of the
 * state directory, which goes with the open file.  Any thread. */
#ifndef GK_WORKER_LIB_FORKS_H
#define GK_WORKER_LIB_FORKS_H

struct gk_engine;

/* From here to gk_forks_end() the child of a fork calls gk_engine_forget(). */
void gk_forks_begin(struct gk_engine *engine);

/* Also for an engine that was never given. */
void gk_forks_end(struct gk_engine *engine);

#endif
