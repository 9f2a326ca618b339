/* The computing side of a worker: data, model, selector, gradient and residual.
 *
 * It has no lock: one thread at a time, in this order.  Opening, and gk_trainer_set_rank(), on the
 * loop thread before the first computation.  Then make_init, step, persist and evaluate, which
 * block for as long as they compute, on the compute thread, one at a time; and install, reset and
 * drop_initial on the loop thread while none of those runs.  What gk_trainer_spec() and its like
 * show does not change after opening: any thread. */
#ifndef GK_WORKER_TRAINER_H
#define GK_WORKER_TRAINER_H

#include "common/err.h"
#include "common/words.h"
#include "proto/spec.h"
#include "worker/core/push.h"
#include "worker/options.h"
#include "worker/state/slot.h"

struct gk_trainer;

struct gk_trainer_step {
    uint64_t step;        /* in */
    struct gk_push *push; /* out, the caller's; NULL: it failed */
    double loss;          /* mean over the batch */
    uint64_t hits;        /* samples of the batch that were classified rightly */
    uint64_t selected;    /* entries in the push */
    uint64_t compute_us, select_us;
    int exit_code;         /* of a failure: GK_EXIT_DATA (not finite), GK_EXIT_INTERNAL */
    struct gk_words words; /* of a failure */
};

struct gk_trainer_eval {
    uint64_t step;         /* in: the version it belongs to */
    double accuracy, loss; /* out: share of the test samples, mean over them */
};

/* Open data and model, make the job's spec, allocate.  GK_E_UNSUPPORTED, GK_E_CONFIG and the errors
 * of gk_dataset_open(), gk_model_new() and the spec; GK_E_NOMEM.  Words say which option is to
 * blame; *ret_exit is the exit code that goes with them.  Borrows the options. */
enum gk_err gk_trainer_open(const struct gk_worker_options *options, uint32_t servers,
                            struct gk_trainer **ret_trainer, int *ret_exit, struct gk_words *words);

/* Gradient and residual lie in this slot from here on; before anything is computed, and only with
 * --state-dir.  Borrowed, until it is taken away with NULL, after which only closing may come. */
void gk_trainer_use_slot(struct gk_trainer *trainer, struct gk_slot *slot);

/* Before the first step; the last one counts: the rank, below `workers`, decides batches and random
 * selection. GK_E_NOMEM, and the errors of gk_selector_new(). */
enum gk_err gk_trainer_set_rank(struct gk_trainer *trainer, uint32_t rank, struct gk_words *words);

/* When no computation runs any more.  Accepts NULL. */
void gk_trainer_close(struct gk_trainer *trainer);

/* What all processes of the job agree on; bytes and hash as they travel. */
const struct gk_spec *gk_trainer_spec(const struct gk_trainer *trainer);
const uint8_t *gk_trainer_spec_bytes(const struct gk_trainer *trainer, size_t *ret_bytes,
                                     uint64_t *ret_hash);

/* One line about what was opened: data, model, operator, tables, memory. */
void gk_trainer_describe(const struct gk_trainer *trainer, struct gk_words *ret_words);

/* How the data was split; "" when there is nothing to say. */
const char *gk_trainer_data_note(const struct gk_trainer *trainer);

/* Once, by rank 0: the initial parameters of the job, from the seed or from --init FILE, and the
 * init id, which is not 0.  GK_E_NOMEM, and the errors of gk_start_read(); words.  Compute thread.
 */
enum gk_err gk_trainer_make_init(struct gk_trainer *trainer, uint64_t *ret_init_id,
                                 struct gk_words *words);

/* All initial parameters, once they were made; NULL before, and after they were dropped. */
const float *gk_trainer_initial(const struct gk_trainer *trainer);

/* They are not needed any more.  Idempotent.  Loop thread. */
void gk_trainer_drop_initial(struct gk_trainer *trainer);

/* Values [lo, hi) of the parameters that the next computation sees.  Loop thread. */
void gk_trainer_install(struct gk_trainer *trainer, uint64_t lo, uint64_t hi, const float *values);

/* The residual is void: zero; so is what the slot holds.  GK_E_IO: the slot cannot be written. Loop
 * thread. */
enum gk_err gk_trainer_reset(struct gk_trainer *trainer, struct gk_words *words);

/* Gradient on the installed parameters, selection, encoding.  After a failure the residual is as it
 * was.  With a slot it stays so until gk_trainer_persist().  Compute thread. */
void gk_trainer_step(struct gk_trainer *trainer, struct gk_trainer_step *step);

/* With a slot: the residual and the push of the last step count from here on.  GK_E_IO.  Compute
 * thread. */
enum gk_err gk_trainer_persist(struct gk_trainer *trainer, const struct gk_worker_memory *memory,
                               struct gk_words *words);

/* The installed parameters on the whole test set.  Compute thread. */
void gk_trainer_evaluate(struct gk_trainer *trainer, struct gk_trainer_eval *eval);

#endif
