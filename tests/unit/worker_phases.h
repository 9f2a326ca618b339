/* A worker core in each of its phases, and a process of its own for what should abort. */
#ifndef GK_TESTS_UNIT_WORKER_PHASES_H
#define GK_TESTS_UNIT_WORKER_PHASES_H

#include "worker_toy.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Two shards of two chunks of values, pushes of several chunks, two steps; rank 0, which evaluates
 * each version.  JOINING has asked for MAKE_INIT, EXCHANGING has pushes and pulls outstanding. */
static inline void phases_open(struct rig *rig, struct toy *toy, enum gk_worker_phase phase)
{
    rig_open(rig, (struct rig_options){.servers = 2,
                                       .workers = 2,
                                       .params = 128,
                                       .pull_floats = 32,
                                       .entries = 12,
                                       .chunk_floats = 2,
                                       .steps = 2,
                                       .evaluates = true,
                                       .eval_every = 1});
    toy_open(toy, rig);
    if (phase == GK_PHASE_IDLE) {
        return;
    }
    if (phase != GK_PHASE_JOINING) {
        toy_begun(toy, 0);
    }
    toy_join(toy);
    if (phase == GK_PHASE_COMPUTING || phase == GK_PHASE_JOINING) {
        return;
    }
    rig_step_done(rig);
    if (phase == GK_PHASE_PERSISTING) {
        return;
    }
    rig_persisted(rig);
    if (phase == GK_PHASE_EXCHANGING) {
        return;
    }
    toy_serve(toy);
    if (phase == GK_PHASE_EVALUATING) {
        return;
    }
    rig_evaluated(rig);
    toy_compute(toy);
    toy_serve(toy);
    rig_evaluated(rig);
    if (phase == GK_PHASE_LEAVING) {
        return;
    }
    toy_serve(toy);
}

static inline void phases_close(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

/* Run `what` in a child: true when it ended in an abort, with what it said; false when it came to
 * its end. */
static inline bool phases_aborts(void (*what)(void *context), void *context, char *ret_words,
                                 size_t words_bytes)
{
    int status = 0, ends[2];
    ssize_t said;
    pid_t child;

    cr_assert(pipe(ends) == 0);
    child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        what(context);
        _exit(0);
    }
    (void)close(ends[1]);
    said = read(ends[0], ret_words, words_bytes - 1);
    ret_words[said > 0 ? said : 0] = '\0';
    (void)close(ends[0]);
    cr_assert(waitpid(child, &status, 0) == child);
    cr_assert((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                  (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT),
              "status %x: %s", status, ret_words);
    return WIFSIGNALED(status);
}

#endif
