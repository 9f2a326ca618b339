/* What the files of the public functions share; nobody else includes this.
 *
 * handle.c   opening, errors, closing
 * tensors.c  the model and the memory of the program
 * start.c    gkps_start()
 * train.c    steps, leaving */
#ifndef GK_WORKER_LIB_HANDLE_H
#define GK_WORKER_LIB_HANDLE_H

#include "worker/include/gkps.h"
#include "worker/lib/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum gk_stage {
    GK_STAGE_OPEN,         /* tensors, bind, aux */
    GK_STAGE_STARTING,     /* gkps_start() has not come to an end */
    GK_STAGE_INITIALISING, /* within it, the program fills the parameters */
    GK_STAGE_READY,        /* a step may begin */
    GK_STAGE_PUSHED,       /* one is under way */
    GK_STAGE_LEAVING,
    GK_STAGE_LEFT,
    GK_STAGE_FAILED,
};

struct gkps {
    pid_t owner; /* process that opened it */
    enum gk_stage stage;
    struct gk_library_options *options;
    struct gk_config *config;
    struct gk_settings_place place;
    struct gk_addresses addresses;
    uint32_t rank;
    bool bound_on_device; /* bound memory lies on a CUDA device: */
    uint32_t device;
    void *stream;     /* in which the program computes there */
    char backend[24]; /* setting that follows from it; "": none does */
    struct gk_flat_tensor *tensors;
    uint32_t tensors_count;
    void *aux;      /* bound */
    void *aux_copy; /* as it was at the last push */
    size_t aux_bytes;
    char *arithmetic;
    void (*ended)(void *context, int exit_code, const char *words);
    void *ended_context;
    struct gk_flat *flat;
    struct gk_engine_setup engine_setup;
    /* NULL: gkps_start() has not opened it.  Atomic for gkps_stop(). */
    struct gk_engine *_Atomic engine;
    atomic_int stop_code;   /* asked for before there was an engine */
    struct gk_words *notes; /* said before there was an engine */
    uint32_t notes_count;
    bool installs; /* the step that is under way brings its values into the bound memory itself */
    struct gk_flat_list *lists; /* of that step */
    uint64_t version;
    uint64_t residuals_lost;
    /* Of the last failure. */
    int code, exit_code;
    struct gk_words words;
};

/* The option table of the library and its values. */
struct gk_library_options {
    struct gk_settings settings;
    const char *model;
};

const struct gk_program *gk_library_program(void);

/* Remember a failure whose words are set; gives its code. */
int gk_handle_fail(struct gkps *gkps, enum gkps_code code, int exit_code);

/* The same for a call that makes no sense: words. */
int gk_handle_misuse(struct gkps *gkps, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for a wait that was too short, and for memory that is not to be had. */
int gk_handle_timed_out(struct gkps *gkps, const char *call, int64_t timeout_ms);
int gk_handle_out_of(struct gkps *gkps, const char *what);

/* Memory bound to tensor `i` must lie where gkps_open() was told: what is touched from the wrong
 * side ends the process.  NULL: nothing is bound.  0 or GKPS_E_ARGUMENT. */
int gk_handle_check_place(struct gkps *gkps, const char *call, const float *memory, uint32_t i);

/* What the program's stream still computes is waited for, in the program's own thread.  0 or
 * GKPS_E_INTERNAL. */
int gk_handle_settle(struct gkps *gkps);

/* What every call begins with: the handle is there, belongs to this process, and is at one of
 * `stages` (bits).  0, or the code of the failure. */
int gk_handle_enter(struct gkps *gkps, const char *call, unsigned stages);

/* GKPS_OK, or how the engine ended. */
int gk_handle_ended(struct gkps *gkps, const struct gk_engine_view *view);

/* Copies a caller's struct of `size` bytes over a zeroed one of `known` bytes.  False: not a size
 * that this library knows. */
bool gk_handle_take(void *ret, size_t known, size_t least, const void *given);

#endif
