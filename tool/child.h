/* One child of `gkps run`: a process of its own session (so that the terminal's Ctrl-C reaches the
 * launcher alone), the link on descriptor 3, and what it writes where that must not disturb a bar.
 * A program of the user's is behind a guard (guard.h) and counts as the child.  Loop thread only.
 *
 * A child is done when the process has ended and everything that it wrote has been read, so that
 * its last words are known when it is judged. */
#ifndef GK_TOOL_CHILD_H
#define GK_TOOL_CHILD_H

#include "common/err.h"
#include "common/words.h"
#include "tool/lines.h"
#include "tool/restart.h"
#include "tool/tally.h"

#include <jansson.h>
#include <uv.h>

#include <stdbool.h>
#include <stdint.h>

struct gk_child;
struct gk_link;

struct gk_child_callbacks {
    void (*line)(void *context, struct gk_child *child, const json_t *object); /* borrowed */
    void (*before_output)(void *context); /* text of a child is about to be written */
    void (*done)(void *context, struct gk_child *child);
};

struct gk_child_start {
    const char *program; /* path, or a name to look for in PATH */
    char **args;
    char **environment;
    bool guarded;       /* `program` is the guard of another one */
    bool capture;       /* read its standard error and write it in whole lines */
    const char *prefix; /* of each line that it writes; "": none.  Else both its outputs are read */
    FILE *out;          /* for its standard output then; borrowed */
};

enum {
    GK_CHILD_DRAIN_US = 1000 * 1000
}; /* after the end of a process: wait so long for the rest of its output */

struct gk_child_stream { /* what it writes, as far as it goes through us */
    struct gk_child *child;
    uv_pipe_t pipe;
    struct gk_lines lines;
    FILE *out;
    bool open; /* may still say something */
};

enum { GK_CHILD_STREAMS = 2 }; /* standard output, standard error */

struct gk_child {
    enum gk_role role;
    uint32_t index;
    const struct gk_child_callbacks *callbacks; /* borrowed */
    void *context;
    uv_process_t process;
    struct gk_child_stream streams[GK_CHILD_STREAMS];
    struct gk_link *link;
    bool guarded;
    bool started, exited, done;
    bool link_open;   /* may still say something */
    uint32_t closing; /* handles of the loop: no next life begins before they are gone */
    bool killed;      /* by us, with SIGKILL */
    int64_t exit_status;
    int term_signal;
    uint64_t exit_us;
    uint64_t told_us;             /* its last word came: nothing is left but to end; 0: not yet */
    char address[64];             /* of a server; "" until it told; kept over lives */
    char death[GK_WORDS_BYTES];   /* its last words; "": none */
    int death_code;               /* ... and what they call for; 0: not told */
    char trouble[GK_WORDS_BYTES]; /* what it cannot go on without; "": nothing */
    struct gk_restart restart;    /* kept over lives */
};

/* A life begins.  `child` is zeroed by this call but for role and index, which the caller has set,
 * and what is kept over lives.  GK_E_NOTFOUND: no such program; GK_E_LIMIT: no more processes or
 * descriptors; GK_E_IO; with words.  After an error the child is done, no callback comes, and
 * handles may still be closing in the loop.
 *
 * The handles of a former life must have closed: not from within a callback of the child, but in a
 * later turn of the loop. */
enum gk_err gk_child_start(uv_loop_t *loop, struct gk_child *child,
                           const struct gk_child_start *start,
                           const struct gk_child_callbacks *callbacks, void *context,
                           struct gk_words *words);

/* Nothing to a process that has ended: its number may belong to another by now.  SIGKILL, SIGSTOP
 * and SIGCONT reach all of a guarded program. */
void gk_child_signal(struct gk_child *child, int number);

/* Once in a while: an ended process whose descriptors live on in a grandchild is done all the same.
 */
void gk_child_tick(struct gk_child *child, uint64_t now_us);

/* "worker 2": into a static-free buffer of the caller. */
void gk_child_name(const struct gk_child *child, char *ret, size_t ret_bytes);

/* Why it ended, as one line: "worker 2 was killed by SIGSEGV", "worker 2 ended with code 78:
 * unknown model 'x'". */
void gk_child_reason(const struct gk_child *child, struct gk_words *words);

/* How it ended, as one of our exit codes: a program that has one of its own may have told us ours.
 * 0 of one that was killed by a signal. */
int64_t gk_child_status(const struct gk_child *child);

/* The run's exit code when this child ends it: the child's if it is one of ours or of a program of
 * the user's, else GK_EXIT_INTERNAL. */
int gk_child_code(const struct gk_child *child);

#endif
