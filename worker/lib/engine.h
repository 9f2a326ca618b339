/* The thread behind a handle: the worker core with its sockets, its timer, its slot and its
 * launcher.  The program's thread and this one take turns; whose it is lies under one lock.
 *
 *     LIBRARY ---> INIT ---> LIBRARY           rank 0 has to give the initial parameters
 *     LIBRARY ---> STEP ---> LIBRARY           version v is here, the push of step v is wanted
 *     LIBRARY ---> LAST ---> LIBRARY           the last version is here, only leaving is left
 *     any     ---> ENDED                       the core is done, well or not
 *
 * Functions are for the program's thread, one at a time, unless they say otherwise. */
#ifndef GK_WORKER_LIB_ENGINE_H
#define GK_WORKER_LIB_ENGINE_H

#include "worker/lib/flat.h"
#include "worker/lib/report.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_engine;

enum gk_turn { GK_TURN_LIBRARY, GK_TURN_INIT, GK_TURN_STEP, GK_TURN_LAST, GK_TURN_ENDED };

struct gk_engine_setup { /* borrowed while the engine lives */
    const struct gk_settings *settings;
    struct gk_flat *flat;
    const struct gk_addresses *addresses;
    uint32_t rank; /* or GK_RANK_ANY */
    size_t aux_bytes;
    const char *arithmetic; /* what computes the gradients, for the summary; NULL: not known */
    void (*ended)(void *context, int exit_code,
                  const char *words); /* may be NULL; engine's thread */
    void *ended_context;
};

/* What the program's thread sees of it. */
struct gk_engine_view {
    enum gk_turn turn;
    uint64_t version; /* STEP, LAST: that is here */
    uint32_t rank;
    uint64_t selected;       /* of the last push */
    uint64_t residuals_lost; /* times that the job had gone on without this rank */
    bool left_before;        /* a former life had left */
    bool stopped;            /* ENDED: from outside, by gk_engine_stop() or the launcher's end */
    int exit_code;           /* ENDED */
    struct gk_words words;   /* ENDED */
    struct gk_worker_stats stats;
    struct gk_worker_report report; /* its counts */
};

/* Open slot, sockets and link, start the threads.  The errors of what is opened; words, and the
 * exit code that goes with them. */
enum gk_err gk_engine_open(const struct gk_engine_setup *setup, struct gk_engine **ret_engine,
                           int *ret_exit, struct gk_words *words);

/* Until it is no more the library's turn.  While this waits with `install`, what arrives goes into
 * the bound memory at once; else it is kept for gk_engine_install().  GK_E_TIMEOUT; 0: no limit. */
enum gk_err gk_engine_wait(struct gk_engine *engine, int64_t timeout_ms, bool install);

/* What was kept, into the bound memory.  An error of the device: the engine ends, and
 * gk_engine_wait() comes back soon. */
enum gk_err gk_engine_install(struct gk_engine *engine);

/* As of the last change of turns. */
void gk_engine_view(struct gk_engine *engine, struct gk_engine_view *ret_view);

/* A former life has left a residual and pushes.  They may be void by now: view.residuals_lost. */
bool gk_engine_remembers(const struct gk_engine *engine);

/* The auxiliary bytes that lie beside them; NULL: none.  While it is the program's turn. */
const void *gk_engine_aux(const struct gk_engine *engine);

/* INIT -> LIBRARY. */
void gk_engine_init_made(struct gk_engine *engine, uint64_t init_id);

/* STEP -> LIBRARY.  The step is copied; what it points to is read until the turn comes back. */
void gk_engine_step(struct gk_engine *engine, const struct gk_flat_step *step, double loss);

/* STEP or LAST -> LIBRARY. */
void gk_engine_leave(struct gk_engine *engine);

/* INIT -> LIBRARY -> ENDED: the program cannot go on; words are for the launcher and the log. */
void gk_engine_fail(struct gk_engine *engine, int exit_code, const struct gk_words *words);

/* ENDED with this exit code, whosever turn it is.  Any thread, and signal handlers. */
void gk_engine_stop(struct gk_engine *engine, int exit_code);

/* To the launcher.  The words are copied; GK_E_NOMEM. */
enum gk_err gk_engine_note(struct gk_engine *engine, const char *words);
void gk_engine_eval(struct gk_engine *engine, const struct gk_report_eval *eval);

/* End the threads, whatever they are at, and free.  Accepts NULL. */
void gk_engine_close(struct gk_engine *engine);

/* In the child of a fork, within fork(): the state directory is the parent's alone.  Its threads
 * are not here, and what they hold locked cannot be freed: nothing may be called after it. */
void gk_engine_forget(struct gk_engine *engine);

#endif
