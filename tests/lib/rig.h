/* What the tests of the library share: real servers on loopback, ranks as threads of this process
 * or as processes, a small model whose gradient is a function of (parameters, step, rank), counts.
 *
 * The programs see the library through its header alone, as a user does. */
#ifndef GK_TESTS_LIB_RIG_H
#define GK_TESTS_LIB_RIG_H

#include "tests/lib/place.h"
#include "worker/include/gkps.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum {
    RIG_SERVERS_MAX = 3,
    RIG_RANKS_MAX = 3,
    RIG_TENSORS = 4,
    RIG_SETTINGS_MAX = 24,
    RIG_LOG_BYTES = 1 << 16,
};

/* Counts, from any thread. */
void rig_check(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Nothing after it would make sense. */
void rig_require(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Starts the next case; its name stands in front of what fails. */
void rig_case(const char *name);
/* "N passed, N failed"; the exit code of the program. */
int rig_result(void);

/* Servers. */

struct rig_server {
    pid_t pid;
    FILE *line; /* what it tells its launcher, which we are */
    int fd;
    char address[64];
};

struct rig {
    uint32_t servers, workers;
    struct rig_server server[RIG_SERVERS_MAX];
    char addresses[256]; /* all of them, as the setting wants them */
};

struct rig_end { /* of a job, summed over its shards */
    uint64_t version, hash, pushes, applied, returned, skipped, lost;
};

/* `program` is the path of gkps-server; argv[1] of each test. */
void rig_use(const char *server_program);
void rig_open(struct rig *rig, uint32_t servers, uint32_t workers);
/* Waits for the servers to end well: all ranks have left. */
void rig_end(struct rig *rig, struct rig_end *ret_end);
/* Ends servers that wait for ranks which will not come. */
void rig_kill(struct rig *rig);

/* Ranks. */

struct rig_rank;

/* For all ranks to come; NULL: none. */
void rig_bind_at(const struct rig_place *place);

enum rig_way {
    RIG_STEP,    /* gkps_step() */
    RIG_PARTS,   /* gkps_push(), gkps_wait(), gkps_pull() */
    RIG_HURRIED, /* gkps_step() with 1 ms, then gkps_wait() as often as it takes; so at start, end
                  */
    RIG_OWN,     /* gkps_push_sparse(): top k with a residual of the program's own */
};

struct rig_job {
    uint32_t servers, workers;
    uint64_t steps;
    enum rig_way way;
    const char *compressor; /* NULL: gaussk */
    const char *optimizer;  /* NULL: momentum */
    const char *density;    /* NULL: 0.05 */
    uint32_t flags[RIG_TENSORS];
    double densities[RIG_TENSORS];
    /* Whether the rank skips the step; NULL: never. */
    bool (*skips)(uint32_t rank, uint64_t step);
    /* At which step it leaves; NULL: at the last. */
    uint64_t (*leaves)(uint32_t rank);
    double lr; /* given with each step; 0: by the schedule */
    /* Changes the gradient before a step; NULL: it stays. */
    void (*spoil)(struct rig_rank *rank);
    /* Looks at a rank after each step; NULL: nothing to see. */
    void (*look)(struct rig_rank *rank, const struct gkps_step *step);
};

struct rig_rank {
    const struct rig_job *job;
    const char *addresses;
    uint32_t number;
    const char *state_dir;             /* NULL: none */
    const char *more_key, *more_value; /* one setting more; NULL: none */
    int launcher_fd;                   /* of struct gkps_config; 0: none */
    void (*ended)(void *context, int exit_code, const char *words);
    struct gkps *gkps;
    void *stream; /* with a place, as these */
    float *params_there, *gradient_there;
    float params[RIG_PARAMS], gradient[RIG_PARAMS], before[RIG_PARAMS], residual[RIG_PARAMS];
    struct {            /* what lies in the memory of gkps_aux() */
        uint64_t steps; /* done, as this rank counts them */
        float residual[RIG_PARAMS];
    } aux;
    struct gkps_start start;
    uint64_t version;
    uint64_t selected; /* entries of all its pushes */
    int code, exit_code;
    char words[512];
    pthread_t thread;
};

/* What the handles of this process have logged since the last case began. */
bool rig_logged(const char *words);
/* The function and context for struct gkps_config. */
void rig_log(void *context, enum gkps_log_level level, const char *line);

/* Offsets of the tensors in the memory above; counts. */
uint64_t rig_tensor_at(uint32_t i, uint64_t *ret_count);

/* Open and describe the model, not yet start.  0 or the code; words and exit code are in the rank.
 */
int rig_rank_open(struct rig_rank *rank);
int rig_rank_start(struct rig_rank *rank);
/* One step more of the job, in its way. */
int rig_rank_step(struct rig_rank *rank);
/* The calls of that way alone, on what is bound. */
int rig_take_step(struct rig_rank *rank, struct gkps_step *step);
/* From opening, unless it is open, to leaving; without closing. */
int rig_rank_train(struct rig_rank *rank);
void rig_rank_close(struct rig_rank *rank);
/* A step with gkps_push_sparse(), from the rank's gradient and a residual of its own (own.c). */
int rig_push_own(struct rig_rank *rank, struct gkps_step *step);
/* The gradient of its next step. */
void rig_gradient(struct rig_rank *rank);

/* All ranks as threads, to the end; ranks are closed. */
void rig_train(const struct rig_job *job, struct rig_rank *ranks, struct rig_end *ret_end);
struct rig_rank *rig_ranks(void); /* RIG_RANKS_MAX of them, zeroed; free() */

#endif
