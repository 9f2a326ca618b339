/* The computing side of a worker: data, model, selector, gradient and residual.  Its blocking
 * functions run on the compute thread, one at a time; gk_trainer_install() runs on the loop thread
 * between them. */
#ifndef GK_WORKER_TRAINER_H
#define GK_WORKER_TRAINER_H

#include "common/err.h"
#include "common/words.h"
#include "proto/spec.h"
#include "worker/core/push.h"
#include "worker/options.h"

struct gk_trainer;

struct gk_trainer_step {
    uint64_t step;        /* in */
    struct gk_push *push; /* out: NULL when it failed */
    double loss;          /* mean over the batch */
    uint64_t hits;
    uint64_t selected;
    uint64_t compute_us, select_us;
    int exit_code; /* of a failure */
    struct gk_words words;
};

struct gk_trainer_eval {
    uint64_t step; /* in: the version it belongs to */
    double accuracy, loss;
};

/* Opens data and model and makes the job's spec.  ret_exit: the exit code that goes with the words.
 */
enum gk_err gk_trainer_open(const struct gk_worker_options *options, uint32_t servers,
                            struct gk_trainer **ret_trainer, int *ret_exit, struct gk_words *words);

/* Once, before the first step: the rank decides batches and random selection.  GK_E_NOMEM. */
enum gk_err gk_trainer_set_rank(struct gk_trainer *trainer, uint32_t rank, struct gk_words *words);
void gk_trainer_close(struct gk_trainer *trainer);

const struct gk_spec *gk_trainer_spec(const struct gk_trainer *trainer);
const uint8_t *gk_trainer_spec_bytes(const struct gk_trainer *trainer, size_t *ret_bytes,
                                     uint64_t *ret_hash);

/* One line about what was opened: data, model, operator, tables, memory. */
void gk_trainer_describe(const struct gk_trainer *trainer, struct gk_words *ret_words);
const char *
gk_trainer_data_note(const struct gk_trainer *trainer); /* "" when there is nothing to say */

/* The initial parameters of the job (rank 0) and the init id. */
enum gk_err gk_trainer_make_init(struct gk_trainer *trainer, uint64_t *ret_init_id);
const float *gk_trainer_initial(const struct gk_trainer *trainer);
void gk_trainer_drop_initial(struct gk_trainer *trainer);

void gk_trainer_install(struct gk_trainer *trainer, uint64_t lo, uint64_t hi, const float *values);
void gk_trainer_reset(struct gk_trainer *trainer); /* residual := 0 */
void gk_trainer_step(struct gk_trainer *trainer, struct gk_trainer_step *step);
void gk_trainer_evaluate(struct gk_trainer *trainer, struct gk_trainer_eval *eval);

#endif
