/* The parameter vector of a job: all tensors laid end to end, with what this rank keeps of it
 * (gradient, residual, selection), and the way between the vector and the bound memory.
 *
 * Tensors that compete for the common k come first, then those with a density of their own, the
 * dense ones and the frozen ones, each group in the order of the program: so the unit of selection
 * is one range.
 *
 * Gradient and residual lie where the arithmetic runs, on the host or on a device; bound memory may
 * lie on either, but on a device only with the table of that device.
 *
 * It has no lock: one thread at a time, in this order.  Opening, and gk_flat_set_rank(), on the
 * loop thread before the first computation.  Then make_init, settle, step and persist, which block
 * for as long as they compute, one at a time, the first two on the program's thread, the others on
 * the compute thread; and install, reset and drop_initial, on the loop thread or, install alone, on
 * the program's, while none of those runs.  What gk_flat_spec() and its like show does not change
 * after opening: any thread. */
#ifndef GK_WORKER_LIB_FLAT_H
#define GK_WORKER_LIB_FLAT_H

#include "common/err.h"
#include "common/words.h"
#include "proto/spec.h"
#include "worker/core/push.h"
#include "worker/lib/settings.h"
#include "worker/state/slot.h"

struct gk_flat;

/* One tensor of the program. */
struct gk_flat_tensor {
    char name[GK_TENSOR_NAME_BYTES];
    uint32_t dims[GK_TENSOR_DIMS_MAX];
    uint32_t dims_count;
    uint32_t flags;  /* GK_TENSOR_* */
    double density;  /* 0: competes for the common k */
    uint64_t count;  /* product of the dims */
    uint64_t offset; /* in the vector; set by gk_flat_open() */
    float *params;   /* bound memory, count each; may change between steps */
    float *gradient;
};

struct gk_flat_setup {
    const struct gk_settings_place *place;
    uint32_t servers;
    const char *model;              /* its name in the spec */
    struct gk_flat_tensor *tensors; /* borrowed while the vector lives */
    uint32_t tensors_count;
};

/* A selection of the caller's own: one list a tensor, in the program's order. */
struct gk_flat_list {
    const uint32_t *idx; /* within the tensor, rising */
    const float *val;
    uint64_t count;
};

struct gk_flat_step {
    /* In. */
    uint64_t step;
    uint64_t samples; /* of the batch; 0 with `skip` */
    bool mean;        /* the gradient is divided by the samples */
    bool skip;        /* nothing of the gradient */
    bool lr_given;    /* `lr` counts, not the schedule of the spec */
    float lr;
    const struct gk_flat_list *list; /* NULL: select */
    const void *aux;                 /* goes into the slot with it; NULL: there is none */
    size_t aux_bytes;
    /* Out. */
    struct gk_push *push;  /* the caller's; NULL: it failed */
    uint64_t selected;     /* entries in the push */
    uint64_t select_us;    /* for reading the gradient, selection, encoding */
    int exit_code;         /* of a failure: GK_EXIT_DATA (not finite), GK_EXIT_INTERNAL */
    struct gk_words words; /* of a failure */
};

/* Lay out the tensors, make the spec, allocate.  GK_E_CONFIG (*ret_exit is the exit code),
 * GK_E_LIMIT, GK_E_NOMEM. */
enum gk_err gk_flat_open(const struct gk_flat_setup *setup, struct gk_flat **ret_flat,
                         int *ret_exit, struct gk_words *words);

/* The residual of this slot is that of the vector from here on; before anything is computed, and
 * only with a state directory.  Borrowed, until it is taken away with NULL, which cannot fail and
 * after which only closing may come.  GK_E_IO, GK_E_NOMEM: of the device. */
enum gk_err gk_flat_use_slot(struct gk_flat *flat, struct gk_slot *slot, struct gk_words *words);

/* Before the first step; the last one counts.  GK_E_NOMEM, and the errors of gk_selector_new(). */
enum gk_err gk_flat_set_rank(struct gk_flat *flat, uint32_t rank, struct gk_words *words);

/* When no computation runs any more.  Accepts NULL. */
void gk_flat_close(struct gk_flat *flat);

/* What all processes of the job agree on; bytes and hash as they travel. */
const struct gk_spec *gk_flat_spec(const struct gk_flat *flat);
const uint8_t *gk_flat_spec_bytes(const struct gk_flat *flat, size_t *ret_bytes,
                                  uint64_t *ret_hash);

/* Name of the vector table: "cpu avx2". */
const char *gk_flat_table(const struct gk_flat *flat);

/* Once, by rank 0: a copy of the bound parameters as the initial ones, and the init id, which is
 * not 0.  GK_E_NOMEM; GK_E_NONFINITE names tensor and element; GK_E_IO: of the device. */
enum gk_err gk_flat_make_init(struct gk_flat *flat, uint64_t *ret_init_id, struct gk_words *words);

/* That copy; NULL before, and after it was dropped. */
const float *gk_flat_initial(const struct gk_flat *flat);

/* It is not needed any more.  Idempotent. */
void gk_flat_drop_initial(struct gk_flat *flat);

/* The bound memory is as the program left it: what its stream on the table's device holds is done;
 * NULL: the default stream.  GK_E_IO: of the device. */
enum gk_err gk_flat_settle(struct gk_flat *flat, void *stream, struct gk_words *words);

/* Values of a range into the bound memory: plane 0 into the parameters, plane 1, the committed
 * means of optimizer `none`, into the gradients.  They are there on return.  GK_E_IO: of the
 * device; never on the host. */
enum gk_err gk_flat_install(struct gk_flat *flat, uint32_t plane, struct gk_range range,
                            const float *values, struct gk_words *words);

/* The residual is void: zero; so is what the slot holds.  GK_E_IO: the slot cannot be written;
 * GK_E_NOMEM. */
enum gk_err gk_flat_reset(struct gk_flat *flat, struct gk_words *words);

/* Selection on the bound gradient, or the given one; encoding.  After a failure the residual is as
 * it was.  With a slot it stays so until gk_flat_persist(). */
void gk_flat_step(struct gk_flat *flat, struct gk_flat_step *step);

/* With a slot: the residual and the push of the last step count from here on.  GK_E_IO. */
enum gk_err gk_flat_persist(struct gk_flat *flat, const struct gk_worker_memory *memory,
                            struct gk_words *words);

#endif
