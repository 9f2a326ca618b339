/* The folder of --state-dir before the start: whose it is, what is in it, and how far that job is.
 *
 * The directories of the shards say it all themselves; what is kept beside them are the options
 * (run_job.h) and the lock. */
#ifndef GK_TOOL_RUN_STATE_H
#define GK_TOOL_RUN_STATE_H

#include "tool/run_options.h"
#include "tool/tally.h"

#include <stdio.h>

struct gk_run_state {
    int lock;         /* -1: none */
    bool begun;       /* there is a version */
    bool whole;       /* every shard has one: nobody needs the initial parameters any more */
    bool finished;    /* all shards have seen the last rank leave: nothing is left to do */
    uint64_t version; /* the lowest of the shards */
};

/* Make or open the folder and lock it, remove what is in it (--fresh), wait for daemons of a former
 * run that are about to end, and look at the shards.  What is worth telling goes to `out` (NULL:
 * nowhere).  On failure words are one line and *ret_exit is the exit code; nothing is held. */
enum gk_err gk_run_state_open(const struct gk_run_config *run, FILE *out, struct gk_run_state *ret,
                              int *ret_exit, struct gk_words *words);

/* Whether a shard in `dir` has a version, or cannot be looked at, or a rank has joined: what may be
 * replaced by another job has nothing of these. */
bool gk_run_state_begun(const char *dir);

void gk_run_state_close(struct gk_run_state *state);

/* Of a finished job: what its servers would tell.  GK_E_CORRUPT, GK_E_NOMEM and words. */
enum gk_err gk_run_state_tally(const struct gk_run_config *run, struct gk_tally *tally,
                               struct gk_words *words);

#endif
