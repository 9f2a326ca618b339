/* What a model is made of: a plan lists its layers, and every kind of layer is four functions over
 * the layer table.  Internal to this folder.
 *
 * Layer l takes activation l (0: the input of the model) to activation l + 1.  A residual layer
 * adds an earlier one, `skip`.  All memory is planned before the first step: a layer says how many
 * floats it needs and the model takes them in one piece each. */
#ifndef GK_WORKER_MODEL_LAYER_H
#define GK_WORKER_MODEL_LAYER_H

#include "common/backend.h"
#include "proto/spec.h"

enum { GK_LAYERS_MAX = 64, GK_LAYER_TENSORS_MAX = 8, GK_LAYER_NAME_BYTES = 48 };

/* Bound of the uniform law that all tensors of a sequence model begin with. */
#define GK_INIT_SEQUENCE 0.1f

enum gk_layer_type {
    GK_LAYER_LINEAR,
    GK_LAYER_CONV,
    GK_LAYER_NORM,
    GK_LAYER_MAX_POOL,
    GK_LAYER_AVERAGE_POOL,
    GK_LAYER_FLATTEN,
    GK_LAYER_RESIDUAL,
    GK_LAYER_EMBEDDING,
    GK_LAYER_LSTM,
};

/* Of one sample.  A sequence of n tokens has n rows and one column. */
struct gk_shape {
    uint32_t rows, columns, channels;
    bool is_sequence;
};

/* One line of a plan; what a kind does not need is 0. */
struct gk_layer_plan {
    enum gk_layer_type type;
    char name[GK_LAYER_NAME_BYTES]; /* of its tensors: "conv1" */
    uint32_t outputs;               /* channels, or features */
    uint32_t kernel, stride, pad;
    uint32_t canvas; /* the input counts as canvas x canvas at least, in zeros (0: as it is) */
    uint32_t table;  /* EMBEDDING: tokens */
    uint32_t level;  /* LSTM: of those of this name, from 0 */
    uint32_t skip;   /* RESIDUAL: the activation that is added */
    bool has_bias;   /* CONV */
    bool flattens;   /* LINEAR: all of a sample is one vector */
    /* Weights begin uniform in +-init / sqrt(fan-in), biases in +-1 / sqrt(fan-in) or, with
     * zero_biases, at 0.  0: everything in +-GK_INIT_SEQUENCE. */
    float init;
    bool zero_biases;
    enum gk_activation activation;
};

struct gk_plan {
    struct gk_layer_plan layers[GK_LAYERS_MAX];
    uint32_t layers_count;
};

/* How a tensor begins: uniform in +-bound, around `middle`. */
struct gk_tensor_init {
    float bound, middle;
};

/* Floats, of each array of a layer. */
struct gk_layer_needs {
    uint64_t out;     /* its activation */
    uint64_t saved;   /* between forward and backward */
    uint64_t index;   /* 32-bit numbers, the same */
    uint64_t scratch; /* during a call; shared by all layers */
    uint64_t aux;     /* state that survives a restart */
};

struct gk_layer {
    const struct gk_layer_kind *kind;
    const struct gk_layer_plan *plan;
    struct gk_shape in, out;
    struct gk_shape skip; /* RESIDUAL */
    struct gk_layer_window window;
    uint32_t chunk;                                 /* CONV: samples at a time */
    struct gk_tensor tensors[GK_LAYER_TENSORS_MAX]; /* offsets are those of the whole vector */
    struct gk_tensor_init inits[GK_LAYER_TENSORS_MAX];
    uint32_t tensors_count;
    struct gk_layer_needs needs;
    float *activation; /* out: batch_max x size of `out` */
    float *saved;
    uint32_t *index;
    float *aux; /* where the table's arrays lie */
};

/* What all layers of one call share. */
struct gk_pass {
    const struct gk_layer_ops *ops;
    struct gk_queue *queue;
    const float *params;
    float *grad;            /* backward */
    const uint32_t *tokens; /* sequences: in place of the first input */
    uint32_t count;         /* samples */
    uint32_t batch_max;
    uint32_t streams; /* samples of a training batch, whose state is carried on */
    bool training;
    bool fresh; /* nothing is carried into this batch */
    float *scratch;
};

/* What a layer is planned for; as in the pass. */
struct gk_layer_setup {
    const struct gk_layer_ops *ops;
    uint32_t batch_max, streams;
};

struct gk_layer_kind {
    /* Shape, tensors (names, sides, flags, inits) and needs; kind, plan and `in` (of RESIDUAL also
     * `skip`) are there.  GK_E_INVALID: this input does not fit, words say why. */
    enum gk_err (*plan)(struct gk_layer *layer, const struct gk_layer_setup *setup,
                        struct gk_words *words);
    /* x: activation of the layer before; skip: the one of RESIDUAL. */
    void (*forward)(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                    const float *skip);
    /* dy is free for use; dx may be NULL (nobody needs it).  NULL instead of a function: dx is dy.
     */
    void (*backward)(struct gk_layer *layer, const struct gk_pass *pass, const float *x, float *dy,
                     float *dx);
    void (*aux_init)(const struct gk_layer *layer, float *aux); /* host memory; NULL: zeros */
};

extern const struct gk_layer_kind gk_layer_linear, gk_layer_conv, gk_layer_norm, gk_layer_max_pool,
    gk_layer_average_pool, gk_layer_flatten, gk_layer_residual, gk_layer_embedding, gk_layer_lstm;

/* For the planning functions. */
uint64_t gk_shape_size(const struct gk_shape *shape);
/* Rows of the matrix of a batch, and its columns are the channels. */
uint64_t gk_shape_rows(const struct gk_shape *shape, uint32_t count);
/* "<layer>.<name>" with these sides (0: none behind), not yet at its offset. */
void gk_layer_add_tensor(struct gk_layer *layer, const char *name, const uint32_t sides[4]);
/* How weight and bias, tensors 0 and 1, begin: as the plan says. */
void gk_layer_init_weights(struct gk_layer *layer, uint64_t fan_in);

/* The tensor's values and their gradient. */
const float *gk_layer_params(const struct gk_layer *layer, const struct gk_pass *pass,
                             uint32_t tensor);
float *gk_layer_grad(const struct gk_layer *layer, const struct gk_pass *pass, uint32_t tensor);

/* The data that a plan is made for. */
struct gk_plan_input {
    struct gk_shape shape;
    uint32_t classes;
};

struct gk_model_plan {
    const char *name;
    uint32_t eval_batch;
    /* Append the layers.  GK_E_INVALID: it does not take this input; words. */
    enum gk_err (*fill)(struct gk_plan *plan, const struct gk_plan_input *input,
                        struct gk_words *words);
};

/* NULL: there is none of this name. */
const struct gk_model_plan *gk_model_plan_find(const char *name);

/* gk_model_new() for any plan. */
struct gk_model;
struct gk_model_setup;
enum gk_err gk_model_new_of(const struct gk_model_plan *plan, const struct gk_model_setup *setup,
                            struct gk_model **ret_model, struct gk_words *words);

#endif
