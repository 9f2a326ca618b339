/* Multilayer perceptrons.  Layer l takes width[l] inputs to width[l + 1] outputs: y = relu(x W^T +
 * b), without ReLU in the last.  The forward pass keeps every output; the backward pass walks back
 * from the gradient of the logits: dW = dy^T x, db = column sums of dy, dx = dy W where x was not
 * cut by its ReLU. */
#include "worker/model/model.h"

#include "common/assert.h"
#include "common/rng.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 3, HIDDEN_MAX = LAYERS_MAX - 1 };

struct plan {
    const char *name;
    uint32_t hidden[HIDDEN_MAX];
    uint32_t hidden_count;
};

static const struct plan plans[] = {
    {.name = "fnn3", .hidden = {200, 200}, .hidden_count = 2},
    {.name = "softmax"},
};

/* Tensors are drawn from streams of 2^34 numbers. */
#define PARAMS_MAX (UINT64_C(1) << 34)

enum { PLANS_COUNT = sizeof(plans) / sizeof(plans[0]) };

struct gk_model {
    const struct gk_layer_ops *layers;
    uint32_t batch_max;
    uint32_t layers_count;
    uint32_t width[LAYERS_MAX + 1];
    struct gk_tensor tensors[2 * LAYERS_MAX]; /* weight and bias of each layer */
    uint64_t params_count;
    float *out[LAYERS_MAX]; /* batch_max x width[l + 1]: output of layer l */
    float *delta[2];        /* gradients of hidden outputs, in turn; room for the widest */
};

const char *gk_model_choices(void)
{
    return "fnn3|softmax";
}

static const struct plan *find_plan(const char *name)
{
    for (int i = 0; i < PLANS_COUNT; i++) {
        if (!strcmp(plans[i].name, name)) {
            return &plans[i];
        }
    }
    return NULL;
}

static enum gk_err check_setup(const struct gk_model_setup *setup, struct gk_words *words)
{
    const uint32_t sizes[] = {setup->features, setup->classes, setup->batch_max};
    static const char *const names[] = {"features", "classes", "batch"};

    GK_ASSERT(setup->layers);
    for (int i = 0; i < 3; i++) {
        if (sizes[i] == 0) {
            gk_words_set(words, "a model needs at least one of: %s", names[i]);
            return GK_E_INVALID;
        }
        if (sizes[i] > INT_MAX) {
            gk_words_set(words, "%s = %u is more than BLAS can count", names[i],
                         (unsigned)sizes[i]);
            return GK_E_LIMIT;
        }
    }
    return GK_OK;
}

static void add_tensor(struct gk_model *model, uint32_t index, uint32_t outputs, uint32_t inputs)
{
    struct gk_tensor *tensor = &model->tensors[index];
    bool is_weight = inputs > 0;

    (void)snprintf(tensor->name, sizeof(tensor->name), "fc%u.%s", (unsigned)index / 2 + 1,
                   is_weight ? "weight" : "bias");
    tensor->offset = model->params_count;
    tensor->count = is_weight ? (uint64_t)outputs * inputs : outputs;
    tensor->dims[0] = outputs;
    tensor->dims[1] = inputs;
    tensor->dims_count = is_weight ? 2 : 1;
    tensor->flags = is_weight ? 0 : GK_TENSOR_NO_DECAY;
    model->params_count += tensor->count;
}

static enum gk_err allocate(struct gk_model *model)
{
    uint32_t widest = 0;

    for (uint32_t l = 0; l < model->layers_count; l++) {
        uint32_t outputs = model->width[l + 1];

        model->out[l] = calloc((size_t)model->batch_max * outputs, sizeof(*model->out[l]));
        if (!model->out[l]) {
            return GK_E_NOMEM;
        }
        if (l + 1 < model->layers_count && outputs > widest) {
            widest = outputs;
        }
    }
    for (int i = 0; widest > 0 && i < 2; i++) {
        model->delta[i] = calloc((size_t)model->batch_max * widest, sizeof(*model->delta[i]));
        if (!model->delta[i]) {
            return GK_E_NOMEM;
        }
    }
    return GK_OK;
}

enum gk_err gk_model_new(const char *name, const struct gk_model_setup *setup,
                         struct gk_model **ret_model, struct gk_words *words)
{
    const struct plan *plan = find_plan(name);
    struct gk_model *model;
    enum gk_err err;

    if (!plan) {
        gk_words_set(words, "there is no model \"%s\"; choose %s", name, gk_model_choices());
        return GK_E_NOTFOUND;
    }
    err = check_setup(setup, words);
    if (err) {
        return err;
    }
    model = calloc(1, sizeof(*model));
    if (!model) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    model->layers = setup->layers;
    model->batch_max = setup->batch_max;
    model->layers_count = plan->hidden_count + 1;
    model->width[0] = setup->features;
    for (uint32_t l = 0; l < plan->hidden_count; l++) {
        model->width[l + 1] = plan->hidden[l];
    }
    model->width[model->layers_count] = setup->classes;
    for (uint32_t l = 0; l < model->layers_count; l++) {
        add_tensor(model, 2 * l, model->width[l + 1], model->width[l]);
        add_tensor(model, 2 * l + 1, model->width[l + 1], 0);
    }
    if (model->params_count > PARAMS_MAX) {
        gk_words_set(words, "%s would have %" PRIu64 " parameters; %" PRIu64 " is the most", name,
                     model->params_count, PARAMS_MAX);
        gk_model_free(model);
        return GK_E_LIMIT;
    }
    err = allocate(model);
    if (err) {
        gk_words_set(words, "out of memory for %s with batches of %u", name,
                     (unsigned)setup->batch_max);
        gk_model_free(model);
        return err;
    }
    *ret_model = model;
    return GK_OK;
}

void gk_model_free(struct gk_model *model)
{
    if (!model) {
        return;
    }
    for (int l = 0; l < LAYERS_MAX; l++) {
        free(model->out[l]);
    }
    free(model->delta[0]);
    free(model->delta[1]);
    free(model);
}

const struct gk_tensor *gk_model_tensors(const struct gk_model *model, uint32_t *ret_count,
                                         uint64_t *ret_params)
{
    *ret_count = 2 * model->layers_count;
    *ret_params = model->params_count;
    return model->tensors;
}

void gk_model_init(const struct gk_model *model, uint64_t seed, float *params)
{
    for (uint32_t i = 0; i < 2 * model->layers_count; i++) {
        const struct gk_rng rng = {.seed = seed, .purpose = GK_RNG_INIT, .a = i};
        const uint32_t layer = i / 2;
        float bound = 1.0f / sqrtf((float)model->width[layer]);
        float *x = params + model->tensors[i].offset;

        for (uint64_t j = 0; j < model->tensors[i].count; j++) {
            x[j] = (2.0f * gk_rng_float(&rng, j) - 1.0f) * bound;
        }
    }
}

/* The number of a layer's weights in the table; its bias follows. */
static size_t weight_of(uint32_t layer)
{
    return 2 * (size_t)layer;
}

static const float *input_of(const struct gk_model *model, uint32_t layer, const float *x)
{
    return layer > 0 ? model->out[layer - 1] : x;
}

static void forward(struct gk_model *model, const float *params, const float *x, uint32_t count)
{
    for (uint32_t l = 0; l < model->layers_count; l++) {
        bool is_last = l + 1 == model->layers_count;

        model->layers->gemm(
            &(struct gk_gemm_args){.transpose_b = true,
                                   .m = count,
                                   .n = model->width[l + 1],
                                   .k = model->width[l],
                                   .a = input_of(model, l, x),
                                   .b = params + model->tensors[weight_of(l)].offset,
                                   .c = model->out[l]});
        model->layers->bias_forward(model->out[l], params + model->tensors[weight_of(l) + 1].offset,
                                    count, model->width[l + 1],
                                    is_last ? GK_ACTIVATION_NONE : GK_ACTIVATION_RELU);
    }
}

static void backward(struct gk_model *model, const float *params, const float *x, uint32_t count,
                     float *grad)
{
    const float *dy = model->out[model->layers_count - 1];

    for (uint32_t l = model->layers_count; l-- > 0;) {
        uint32_t outputs = model->width[l + 1];
        uint32_t inputs = model->width[l];
        float *dx = model->delta[l % 2];

        model->layers->gemm(
            &(struct gk_gemm_args){.transpose_a = true,
                                   .m = outputs,
                                   .n = inputs,
                                   .k = count,
                                   .a = dy,
                                   .b = input_of(model, l, x),
                                   .c = grad + model->tensors[weight_of(l)].offset});
        model->layers->column_sums(dy, count, outputs,
                                   grad + model->tensors[weight_of(l) + 1].offset);
        if (l == 0) {
            break;
        }
        model->layers->gemm(
            &(struct gk_gemm_args){.m = count,
                                   .n = inputs,
                                   .k = outputs,
                                   .a = dy,
                                   .b = params + model->tensors[weight_of(l)].offset,
                                   .c = dx});
        model->layers->activation_backward(dx, model->out[l - 1], (uint64_t)count * inputs,
                                           GK_ACTIVATION_RELU);
        dy = dx;
    }
}

void gk_model_evaluate(struct gk_model *model, const float *params, const struct gk_batch *batch,
                       struct gk_score *ret_score)
{
    uint32_t last = model->layers_count - 1;

    GK_ASSERT(batch->count > 0 && batch->count <= model->batch_max);
    *ret_score = (struct gk_score){.loss = 0.0};
    forward(model, params, batch->x, batch->count);
    model->layers->softmax_cross_entropy(model->out[last], batch->labels, batch->count,
                                         model->width[last + 1], &ret_score->loss,
                                         &ret_score->hits);
}

void gk_model_gradient(struct gk_model *model, const float *params, const struct gk_batch *batch,
                       float *grad, struct gk_score *ret_score)
{
    /* Evaluating leaves the gradient of the logits in place of the logits. */
    gk_model_evaluate(model, params, batch, ret_score);
    backward(model, params, batch->x, batch->count, grad);
}
