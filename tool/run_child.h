/* What a child of `gkps run` is: a program, its arguments, its environment, and what becomes of its
 * output.  Servers are gkps-server; workers are gkps-worker, or copies of a program of the user's
 * behind a guard (run_command.h). */
#ifndef GK_TOOL_RUN_CHILD_H
#define GK_TOOL_RUN_CHILD_H

#include "tool/args.h"
#include "tool/lines.h"
#include "tool/run_options.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_run_child {
    const char *program; /* borrowed */
    struct gk_args args;
    struct gk_args environment;
    bool guarded;                       /* `program` is the guard of the user's */
    char prefix[GK_LINES_PREFIX_BYTES]; /* of the lines that it writes; "": they have a name */
};

struct gk_run_machine { /* what copies of a program share; the same for all lives */
    uint64_t cores;
    uint32_t gpus;
    uint16_t port; /* free when the run began */
};

struct gk_run_place {           /* of one life of one child */
    uint32_t index;             /* shard or rank */
    bool faults;                /* a fault script is at work */
    const char *address;        /* of a server: where a former life was bound; "": none */
    const char *const *servers; /* of a worker: S addresses shorter than GK_RUN_ADDRESS_BYTES */
    bool takeover;              /* ... it replaces one that was reaped */
    const struct gk_run_machine *machine;
};

/* `ret` starts zeroed; args.failed or environment.failed: out of memory.  The program is `server`,
 * and `worker` unless there is a command. */
void gk_run_child_server(const struct gk_run_config *run, const char *server,
                         const struct gk_run_place *place, struct gk_run_child *ret);
void gk_run_child_worker(const struct gk_run_config *run, const char *worker,
                         const struct gk_run_place *place, struct gk_run_child *ret);
void gk_run_child_fini(struct gk_run_child *child); /* accepts a zeroed one */

/* Arguments of a daemon, argv[0] = program.  Training options travel by the text that the user
 * wrote, so that both sides read the same number.  `ret_args` starts zeroed.  `address`: where a
 * former life was bound; "": the system chooses. */
void gk_run_server_args(const struct gk_run_config *run, const char *program, uint32_t shard,
                        const char *address, struct gk_args *ret_args);
/* `takeover`: the child replaces one that was reaped. */
void gk_run_worker_args(const struct gk_run_config *run, const char *program,
                        const char *const *servers, uint32_t rank, bool takeover,
                        struct gk_args *ret_args);

/* Environment of the daemons: ours without the variables that configure `gkps run` itself (a daemon
 * must see one source for a value, the flags), and one BLAS thread per worker unless the user
 * chose. */
void gk_run_environment(const char *const *environment, struct gk_args *ret_args);

/* The addresses of all servers, as the workers take them. */
void gk_run_child_addresses(const struct gk_run_config *run, const char *const *servers, char *ret,
                            size_t ret_bytes);

#endif
