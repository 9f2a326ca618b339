/* The computing side of gkps-worker: data and built-in model.  It blocks, and has no lock: one
 * thread. */
#ifndef GK_WORKER_TRAINER_H
#define GK_WORKER_TRAINER_H

#include "common/err.h"
#include "common/words.h"
#include "proto/spec.h"
#include "worker/options.h"

struct gk_trainer;

struct gk_trainer_result {
    double loss;     /* mean over the samples */
    double accuracy; /* share of them */
};

/* Open data and model, allocate.  The errors of gk_dataset_open() and gk_model_new(); GK_E_NOMEM.
 * Words say which option is to blame; *ret_exit is the exit code that goes with them.  Borrows the
 * options. */
enum gk_err gk_trainer_open(const struct gk_worker_options *options,
                            struct gk_trainer **ret_trainer, int *ret_exit, struct gk_words *words);

/* Accepts NULL. */
void gk_trainer_close(struct gk_trainer *trainer);

/* Where gradients are computed and the two arrays below lie: "cpu" or "cuda:N". */
const char *gk_trainer_device(const struct gk_trainer *trainer);

/* What computes them: BLAS and core. */
const char *gk_trainer_arithmetic(const struct gk_trainer *trainer);

/* The tensors of the model, which lie one after the other in the two arrays below, d floats each.
 */
const struct gk_tensor *gk_trainer_tensors(const struct gk_trainer *trainer, uint32_t *ret_count);
float *gk_trainer_params(struct gk_trainer *trainer);
float *gk_trainer_gradient(struct gk_trainer *trainer);

/* What the model keeps beside the parameters, and must survive with them; 0 of them: nothing. */
float *gk_trainer_aux(struct gk_trainer *trainer, uint64_t *ret_count);

/* One line about what was opened: data, model, operator, BLAS. */
void gk_trainer_describe(const struct gk_trainer *trainer, struct gk_words *ret_words);

/* How the data was split; "" when there is nothing to say. */
const char *gk_trainer_data_note(const struct gk_trainer *trainer);

/* The initial parameters, from the seed or from --init FILE.  The errors of gk_start_read(),
 * GK_E_NOMEM; words. */
enum gk_err gk_trainer_initialise(struct gk_trainer *trainer, struct gk_words *words);

/* Before the first step: the rank, below `workers`, decides the batches.  GK_E_NOMEM. */
enum gk_err gk_trainer_set_rank(struct gk_trainer *trainer, uint32_t rank, struct gk_words *words);

/* The gradient of the batch of this step, summed over its samples.  What the layers report; words.
 */
enum gk_err gk_trainer_compute(struct gk_trainer *trainer, uint64_t step,
                               struct gk_trainer_result *ret_result, struct gk_words *words);

/* The whole test set, on the parameters of this version.  Errors and words as above. */
enum gk_err gk_trainer_evaluate(struct gk_trainer *trainer, uint64_t version,
                                struct gk_trainer_result *ret_result, struct gk_words *words);

#endif
