/* Built-in models: written once over the layer table.
 *
 * A model is a list of layers (worker/model/plans.c).  Its tensors have the names and the order of
 * numbers that PyTorch gives them: "conv1.weight" outputs x inputs x kernel x kernel, "fc1.weight"
 * outputs x inputs, "bn1.weight", "lstm.weight_ih_l0" 4 units x inputs; vectors (biases, norms) are
 * without weight decay. */
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
    uint32_t features;  /* of a sample: rows x columns x channels; of text 0 */
    uint32_t classes;   /* of text: characters there are */
    uint32_t batch_max; /* of gradient and evaluate calls */
    /* Images; all 0: `features` in one row. */
    uint32_t rows, columns, channels;
    uint32_t sequence; /* characters of a sample; 0: no text */
    uint32_t streams;  /* samples of a training batch; 0: batch_max */
    /* For a layer table that is not on_host: whose memory and copies.  Else not used. */
    const struct gk_vector_ops *ops;
    struct gk_queue *queue; /* of all slots; NULL on the host */
};

/* "softmax" (features x classes, one layer), "fnn3" (features-200-200-classes, ReLU; 199 210
 * parameters on MNIST), "lenet5" (61 706; images on a canvas of 32 x 32), "resnet20" (269 722 on
 * CIFAR-10), "vgg16" (14 728 266), "charlstm" (text).  GK_E_NOTFOUND (words list the names),
 * GK_E_INVALID (a size of the setup is 0, or the model does not take such data), GK_E_LIMIT (too
 * large), GK_E_NOMEM.  All memory is taken here. */
enum gk_err gk_model_new(const char *name, const struct gk_model_setup *setup,
                         struct gk_model **ret_model, struct gk_words *words);
void gk_model_free(struct gk_model *model); /* accepts NULL */

const char *gk_model_choices(void); /* "charlstm|fnn3|..." */

/* Bytes that gk_model_new() took for arrays. */
uint64_t gk_model_bytes(const struct gk_model *model);

/* Samples that evaluation does well to take at a time: large models take fewer. */
uint32_t gk_model_eval_batch(const char *name);

/* The table of tensors, in order, owned by the model; *ret_params = d. */
const struct gk_tensor *gk_model_tensors(const struct gk_model *model, uint32_t *ret_count,
                                         uint64_t *ret_params);

/* Initial parameters, a function of (model, seed); host memory. */
void gk_model_init(const struct gk_model *model, uint64_t seed, float *params);

/* State beside the parameters that a restart must bring back: running statistics of batch norms,
 * and what LSTMs carry from one training batch to the next.  Host memory of the model, *ret_count
 * floats (0: none, NULL), as it begins after gk_model_new(); gk_model_gradient() reads and writes
 * it, gk_model_evaluate() reads it.  May be overwritten between calls. */
float *gk_model_aux(struct gk_model *model, uint64_t *ret_count);

/* Samples to compute on; host memory. */
struct gk_batch {
    const float *x; /* count x features; NULL for text */
    /* count of them; for text sequence x count: the character after each. */
    const uint32_t *labels;
    uint32_t count;         /* 1 to batch_max */
    const uint32_t *tokens; /* text: sequence x count, time-major */
    bool fresh;             /* text: not the continuation of the batch before */
};

/* Over the answers of a batch: one a sample, for text one a character. */
struct gk_score {
    double loss;   /* sum of the losses */
    uint64_t hits; /* right answers */
    uint64_t answers;
};

/* For a table that is not on_host, params and grad lie in its memory (GK_MEMORY_DEVICE).
 *
 * grad (d floats) := the sum over the samples of the gradient of the cross-entropy (not the mean:
 * the servers divide by the samples of all ranks); of a text sample it is that of the mean over its
 * characters.  One call at a time per model.  An error is one of the table's queue: never on the
 * host. */
enum gk_err gk_model_gradient(struct gk_model *model, const float *params,
                              const struct gk_batch *batch, float *grad,
                              struct gk_score *ret_score);

/* The same without gradient.  Batch norms use the running statistics; LSTMs carry a state of their
 * own from one evaluation to the next, until a batch is fresh. */
enum gk_err gk_model_evaluate(struct gk_model *model, const float *params,
                              const struct gk_batch *batch, struct gk_score *ret_score);

/* CPU layer table: OpenBLAS, one thread per call.  Sets OpenBLAS to one thread for the whole
 * process. */
const struct gk_layer_ops *gk_layers_cpu(void);

#endif
