/* libgkps: train any model on many machines.
 *
 * A process that opens a handle is one worker (one rank) of a job.  It computes gradients by
 * whatever means it likes; the library keeps the k largest entries of gradient + residual, pushes
 * them to the servers, and brings back what all workers made of them.  gkps-worker is a program
 * over this header, and the Python package is another.
 *
 *     struct gkps_config config = {.size = sizeof(config)};
 *     struct gkps *gkps;
 *     gkps_open(&config, &gkps);                   which servers, which rank: GKPS_* variables
 *     gkps_tensors(gkps, tensors, count);          names, shapes, memory
 *     gkps_start(gkps, &start);                    the parameters are those of all now
 *     while (start.step < steps) {
 *         ... gradient of the local batch into the bound memory ...
 *         gkps_step(gkps, &step);                  push, wait, pull: the next version is there
 *         start.step = step.version;
 *     }
 *     gkps_leave(gkps, 0);
 *     gkps_close(gkps);
 *
 * Words.  d is the number of parameters, all tensors together.  Step t computes on version t and
 * makes version t + 1.  A shard is one server's part of the parameter vector.
 *
 * Errors.  Functions that can fail return 0 or an enum gkps_code; gkps_error() has one line that
 * names key, tensor, shard, rank or step, and the exit code that goes with it.  After
 * GKPS_E_ARGUMENT and GKPS_E_TIMEOUT the handle is as it was; after any other code only
 * gkps_error(), gkps_stats() and gkps_close() are of use.  Nothing here ends the process, installs
 * a signal handler, writes to standard output or changes the working directory, the locale or the
 * environment.
 *
 * Waits.  Every call that waits takes `timeout_ms`: 0 or less means as long as the setting
 * `deadline` lets peers be missing.  A wait that lasts names in the log whom it waits for.
 * GKPS_E_TIMEOUT takes nothing back: the push is on its way, and gkps_wait() goes on.
 *
 * Threads.  A handle is used by one thread at a time, but for gkps_stop().  It has two threads of
 * its own, and ZeroMQ's, which take no signals.  Several handles in a process are several ranks;
 * they share one log, which goes where the last gkps_open() says.
 *
 * Processes.  After fork() a handle belongs to the parent: in the child every call fails with
 * GKPS_E_FORKED, and gkps_close() forgets it without a word to anybody.  Descriptors are closed on
 * exec; a child that executes nothing gives up the lock of the state directory, so that it can
 * outlive a parent that is killed and started again.
 *
 * Memory.  What is given by pointer is borrowed until the call returns, except for what is said to
 * be bound.  Bound memory stays the caller's, stays where it is until gkps_close(), and is read or
 * written by the library only inside a call, or from gkps_push() to the end of the gkps_wait() that
 * completes it; after gkps_stop() a gradient may still be read until gkps_close().
 *
 * Structs begin with `size`, which the caller sets to sizeof: a library that is newer than the
 * header takes older structs, and refuses ones that it does not know.  What is not set is zero. */
#ifndef GKPS_H
#define GKPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GKPS_API __attribute__((visibility("default")))
#else
#define GKPS_API
#endif

struct gkps; /* one rank of one job */

enum gkps_code {
    GKPS_OK = 0,
    GKPS_E_ARGUMENT = 1,  /* a call that makes no sense: order, size, shape, NULL; exit code 64 */
    GKPS_E_CONFIG = 2,    /* a setting or a variable; exit code 64 */
    GKPS_E_TIMEOUT = 3,   /* not yet; exit code 69 */
    GKPS_E_DATA = 4,      /* a gradient that is not finite, rates that differ; exit code 65 */
    GKPS_E_PEER = 5,      /* a server is missing or lost its state; exit code 69 */
    GKPS_E_RETRY = 6,     /* something is in use, or too few descriptors; exit code 75 */
    GKPS_E_FENCED = 7,    /* a newer process has this rank; exit code 76 */
    GKPS_E_REFUSED = 8,   /* another model, job, protocol ...; exit code 77 */
    GKPS_E_STATE = 9,     /* the state directory; exit code 78 */
    GKPS_E_STOPPED = 10,  /* gkps_stop(), or the launcher is gone; exit code as given, 69 */
    GKPS_E_FORKED = 11,   /* the handle belongs to the parent process; exit code 70 */
    GKPS_E_INTERNAL = 12, /* no memory, a failed read or write, our own mistake; exit code 70 */
};

/* "0.1.0"; static. */
GKPS_API const char *gkps_version(void);

/* How many CUDA devices this library can use; 0: it was built without CUDA, or there is no driver.
 */
GKPS_API uint32_t gkps_cuda_devices(void);

/* The words of the last failure of this handle; NULL: of the last gkps_open() of this thread.  "":
 * there was none.  One line, valid until the next call.  The exit code, from sysexits.h and
 * docs/run.md, goes to *ret_exit_code unless that is NULL.  Any handle, also after fork. */
GKPS_API const char *gkps_error(const struct gkps *gkps, int *ret_exit_code);

/* Opening. */

struct gkps_setting {
    const char *key;   /* "density"; docs/library.md lists them */
    const char *value; /* "0.001" */
};

enum gkps_config_flags {
    GKPS_NO_ENVIRONMENT = 1 << 0, /* GKPS_* variables are not looked at */
};

enum gkps_log_level { GKPS_LOG_DEBUG, GKPS_LOG_INFO, GKPS_LOG_WARN, GKPS_LOG_ERROR };

struct gkps_config {
    size_t size;
    uint32_t flags;
    /* A GKPS_* variable wins over the setting of the same name: what is said at the launch beats
     * what is written in the program, and the log says so. */
    const struct gkps_setting *settings;
    size_t settings_count;
    /* Each line of the log, without newline, from any thread; must not call the library.  NULL:
     * standard error. */
    void (*log)(void *context, enum gkps_log_level level, const char *line);
    void *log_context;
    /* The handle cannot go on, also while no call of it is under way.  Once at most, from a thread
     * of the library, which must not be kept; not for what a call has given as its result before
     * there were threads, nor because of gkps_close().  May call gkps_stop() alone.
     * May be NULL. */
    void (*ended)(void *context, int exit_code, const char *words);
    void *ended_context;
    /* Where bound memory of tensors lies: "cpu", "cuda" (device 0) or "cuda:N"; NULL: "cpu".  On a
     * device it is selected there too, whatever the setting `backend` leaves open, and only what is
     * pushed and pulled crosses the bus.  It then is the current device of a thread that has called
     * the library. */
    const char *device;
    /* The cudaStream_t in which the program computes there; NULL: the device's default stream.
     * It must live as long as the handle.  Calls that read or write bound memory wait for what it
     * holds, and when they return they have done so. */
    void *stream;
    /* What computes the gradients, for the summary of the launcher: "torch 2.5"; may be NULL. */
    const char *arithmetic;
};

/* Read settings and variables, check them.  Nothing is connected yet.  GKPS_E_ARGUMENT,
 * GKPS_E_CONFIG, GKPS_E_INTERNAL; *ret_gkps is NULL then. */
GKPS_API int gkps_open(const struct gkps_config *config, struct gkps **ret_gkps);

enum gkps_tensor_flags {
    GKPS_NO_DECAY = 1 << 0, /* biases, norms: no weight decay */
    GKPS_FROZEN = 1 << 1,   /* as rank 0 has it at the start; its gradient is not looked at */
    GKPS_DENSE = 1 << 2,    /* every entry is pushed in every step */
};

struct gkps_tensor {
    size_t size;
    const char *name;     /* unique, 1 to 63 bytes */
    const uint64_t *dims; /* slowest first, as in C; count of elements = product */
    uint32_t dims_count;  /* 0: one element; at most 4: join the leading ones of larger shapes */
    uint32_t flags;
    double density; /* of this tensor alone; 0: it competes with all others for the common k */
    /* float, contiguous, bound, on the device of gkps_open().  `gradient` is written to as well
     * with optimizer `none`.  NULL: bound later, with gkps_bind(). */
    float *params;
    float *gradient;
};

/* The model, once, before gkps_start(): the same on all ranks, in the same order.  All of the list
 * has the size of its first element.  GKPS_E_ARGUMENT names the tensor. */
GKPS_API int gkps_tensors(struct gkps *gkps, const struct gkps_tensor *list, size_t count);

/* Memory of tensor `index` of that list, also in exchange for what was bound: frameworks move
 * things.  `count` elements: must be those of the tensor, so that one whose shape has changed is
 * found; on the device of gkps_open().  A NULL pointer leaves that one as it is.  Not between
 * gkps_push() and the end of gkps_wait(). */
GKPS_API int gkps_bind(struct gkps *gkps, size_t index, float *params, float *gradient,
                       uint64_t count);

/* `bytes` of memory whose content must survive together with the step, bound: random generators,
 * position of the loader, buffers, the residual of an own selector.  Before gkps_start(), once; the
 * same size in every life.  It is copied with each push and, when gkps_start() resumes, restored as
 * it was at the last push that counts.  Without the setting `state-dir` nothing survives. */
GKPS_API int gkps_aux(struct gkps *gkps, void *memory, size_t bytes);

struct gkps_start {
    size_t size;
    int64_t timeout_ms;
    /* Called within gkps_start() on rank 0, when the job has no version yet: fills the bound
     * parameters.  Non-zero: it failed, with one line in `words`; so does gkps_start(), with
     * GKPS_E_DATA.  NULL: the bound parameters are filled already. */
    int (*initialise)(void *context, char *words, size_t words_bytes);
    void *initialise_context;
    /* Set by the call. */
    uint32_t rank, workers;
    uint64_t step;     /* the next one to compute; its version is in the bound parameters */
    uint32_t resumed;  /* 1: a former life of this rank goes on where it was, aux restored */
    uint32_t lost;     /* 1: the job is beyond step 0, but what this rank had is gone: its residual
                          and aux begin anew */
    uint32_t finished; /* 1: the last step of the setting `steps` is done */
    uint32_t left;     /* 1: a former life had left: the parameters are not here, and nothing is
                          left to do but gkps_close() */
};

/* Connect, join, and fill the bound parameters: rank 0's at version 0, what they have become since
 * at a later one.  Blocks until all ranks and servers are there.  After GKPS_E_TIMEOUT it may be
 * called again. */
GKPS_API int gkps_start(struct gkps *gkps, struct gkps_start *start);

/* Training. */

enum gkps_step_flags {
    GKPS_SUM = 1 << 0,  /* the gradient is a sum over the samples; else their mean */
    GKPS_SKIP = 1 << 1, /* this rank has no gradient for this step (an overflow of mixed precision):
                           nothing is read, an empty push goes out, the residual stays */
    GKPS_LR = 1 << 2,   /* `lr` counts, not the schedule of the servers: the same on all ranks */
    GKPS_LOSS = 1 << 3, /* `loss` is told to the launcher, as the mean over the samples */
};

struct gkps_step {
    size_t size;
    uint32_t flags;
    uint32_t reserved;
    uint64_t samples; /* of the local batch, 1 or more; the servers divide by the sum of all */
    double lr;
    double loss;
    int64_t timeout_ms;
    /* Set by gkps_step() and gkps_wait(). */
    uint64_t version;  /* that is in the bound memory now, and the next step to compute */
    uint64_t selected; /* entries of the push */
    uint32_t lost;     /* 1: the job went on without this push; the residual is gone, see the log */
    uint32_t finished; /* 1: that was the last step of the setting `steps` */
};

/* gkps_push(), gkps_wait() and gkps_pull() in one, without a second copy of the parameters.  With
 * optimizer `none` the bound gradients hold the mean over all samples of all ranks afterwards, as
 * decoded (all 0 when every rank skipped), and the parameters are the caller's to change. */
GKPS_API int gkps_step(struct gkps *gkps, struct gkps_step *step);

/* Begin a step: the gradient is read from the bound memory until gkps_wait() returns. */
GKPS_API int gkps_push(struct gkps *gkps, const struct gkps_step *step);

/* In memory of the host, wherever the tensors lie. */
struct gkps_sparse {
    size_t size;
    const uint32_t *indices; /* within the tensor, rising */
    const float *values;     /* sums over the samples, whatever the flags say */
    uint64_t count;
};

/* Begin a step with a selection of the caller's own, one element a tensor: no gradient is looked
 * at and the library's residual plays no part; what is not pushed is the caller's to keep.  All
 * counts together at most what the setting `density` allows.  GKPS_E_ARGUMENT names tensor and
 * place. */
GKPS_API int gkps_push_sparse(struct gkps *gkps, const struct gkps_step *step,
                              const struct gkps_sparse *list);

/* Until the push that was begun is in the model for good or has come back, and the next version has
 * arrived. */
GKPS_API int gkps_wait(struct gkps *gkps, struct gkps_step *step);

/* What gkps_wait() has brought, into the bound memory: parameters, or the gradients with optimizer
 * `none`. */
GKPS_API int gkps_pull(struct gkps *gkps);

/* The rest. */

struct gkps_stats {
    size_t size;
    uint64_t steps; /* pushed by this process */
    uint64_t samples;
    uint64_t selected; /* entries, all steps */
    /* Arrays of pushes and pulls; all other bytes; what dense training would have moved. */
    uint64_t bytes_pushed, bytes_pulled, bytes_headers, bytes_dense;
    uint64_t retries; /* requests that were sent again */
    uint64_t lost;    /* pushes of a former life that were replaced by an empty one, per shard */
    uint64_t residuals_lost; /* times that the residual was given up */
    /* Seconds: between calls, in selection and encoding, and of each exchange until the push was
     * there, until the first answer, until the last. */
    double compute_s, select_s, push_s, wait_s, pull_s;
};

/* At any stage.  GKPS_E_ARGUMENT, GKPS_E_FORKED; gkps_error() stays as it was. */
GKPS_API int gkps_stats(const struct gkps *gkps, struct gkps_stats *ret_stats);

/* Accuracy (share of 1) and loss on held-out data at the present version, for the summary of `gkps
 * run`; NaN: not known. */
GKPS_API int gkps_report(struct gkps *gkps, double accuracy, double loss);

/* One line for the launcher's output; until gkps_leave() has come to its end. */
GKPS_API int gkps_note(struct gkps *gkps, const char *words);

/* The program cannot go on, which is not the library's doing: words and exit code go to the
 * launcher and the log; to the log alone after gkps_leave(), which was the rank's last word.
 * Between steps.  Gives the code that goes with the exit code, and so do all calls after it. */
GKPS_API int gkps_fail(struct gkps *gkps, int exit_code, const char *words);

/* Every wait, under way or to come, fails with GKPS_E_STOPPED and this exit code.  Any thread, any
 * time before gkps_close(), and signal handlers. */
GKPS_API void gkps_stop(struct gkps *gkps, int exit_code);

/* No more pushes from this rank: the others go on without it, at once.  Waits until every server
 * has confirmed that and the last push.  A process that ends without it is missed: the others
 * wait for its next life. */
GKPS_API int gkps_leave(struct gkps *gkps, int64_t timeout_ms);

/* Ends threads and connections, frees.  Accepts NULL. */
GKPS_API void gkps_close(struct gkps *gkps);

#ifdef __cplusplus
}
#endif

#endif
