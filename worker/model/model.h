/* Built-in models: written once over the layer table.
 *
 * A linear layer i (from 1) has the tensors "fc<i>.weight", outputs x inputs row by row, as
 * PyTorch's nn.Linear keeps it, and "fc<i>.bias", outputs, without weight decay. */
#ifndef GK_WORKER_MODEL_MODEL_H
#define GK_WORKER_MODEL_MODEL_H

#include "common/backend.h"
#include "common/err.h"
#include "common/words.h"
#include "proto/spec.h"

#include <stdint.h>

struct gk_model;

struct gk_model_setup {
    const struct gk_layer_ops *layers;
    uint32_t features, classes;
    uint32_t batch_max; /* of gradient and evaluate calls */
};

/* "softmax" (features x classes, one layer) or "fnn3" (features-200-200-classes, ReLU; 199 210
 * parameters on MNIST).  GK_E_NOTFOUND (words list the names), GK_E_INVALID (a size of the setup is
 * 0), GK_E_LIMIT (too large), GK_E_NOMEM.  All memory is taken here. */
enum gk_err gk_model_new(const char *name, const struct gk_model_setup *setup,
                         struct gk_model **ret_model, struct gk_words *words);
void gk_model_free(struct gk_model *model); /* accepts NULL */

const char *gk_model_choices(void); /* "fnn3|softmax" */

/* The table of tensors, in order, owned by the model; *ret_params = d. */
const struct gk_tensor *gk_model_tensors(const struct gk_model *model, uint32_t *ret_count,
                                         uint64_t *ret_params);

/* Initial parameters, a function of (model, seed): all uniform in +-1/sqrt(fan_in). */
void gk_model_init(const struct gk_model *model, uint64_t seed, float *params);

/* Samples to compute on. */
struct gk_batch {
    const float *x; /* count x features */
    const uint32_t *labels;
    uint32_t count; /* 1 to batch_max */
};

/* Over the samples of a batch. */
struct gk_score {
    double loss;   /* sum of the losses */
    uint64_t hits; /* right answers */
};

/* grad (d floats) := the sum over the samples of the gradient of the cross-entropy (not the mean:
 * the servers divide by the samples of all ranks).  One call at a time per model. */
void gk_model_gradient(struct gk_model *model, const float *params, const struct gk_batch *batch,
                       float *grad, struct gk_score *ret_score);

/* The same without gradient. */
void gk_model_evaluate(struct gk_model *model, const float *params, const struct gk_batch *batch,
                       struct gk_score *ret_score);

/* CPU layer table: OpenBLAS, one thread per call.  Sets OpenBLAS to one thread for the whole
 * process. */
const struct gk_layer_ops *gk_layers_cpu(void);

#endif
