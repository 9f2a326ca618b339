/* Batch normalisation: mean and scale of the batch are kept for the backward pass, the running
 * statistics are state (gk_model_aux). */
#include "worker/model/layer.h"

enum { WEIGHT, BIAS };

#define NORM_MOMENTUM 0.1f
#define NORM_EPSILON 1e-5f

static enum gk_err norm_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                             struct gk_words *words)
{
    const uint32_t channels = layer->in.channels;

    (void)words;
    layer->out = layer->in;
    gk_layer_add_tensor(layer, "weight", (const uint32_t[4]){channels});
    gk_layer_add_tensor(layer, "bias", (const uint32_t[4]){channels});
    layer->inits[WEIGHT] = (struct gk_tensor_init){.middle = 1.0f};
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    layer->needs.saved = 2 * (uint64_t)channels;
    layer->needs.aux = 2 * (uint64_t)channels;
    return GK_OK;
}

static void norm_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                         const float *skip)
{
    const uint32_t channels = layer->in.channels;
    const struct gk_norm_args args = {.x = x,
                                      .y = layer->activation,
                                      .rows = gk_shape_rows(&layer->in, pass->count),
                                      .columns = channels,
                                      .weight = gk_layer_params(layer, pass, WEIGHT),
                                      .bias = gk_layer_params(layer, pass, BIAS),
                                      .training = pass->training,
                                      .mean = layer->saved,
                                      .scale = layer->saved + channels,
                                      .running_mean = layer->aux,
                                      .running_variance = layer->aux + channels,
                                      .momentum = NORM_MOMENTUM,
                                      .epsilon = NORM_EPSILON,
                                      .activation = layer->plan->activation};

    (void)skip;
    pass->ops->norm_forward(pass->queue, &args);
}

static void norm_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                          float *dy, float *dx)
{
    const uint32_t channels = layer->in.channels;
    const struct gk_norm_gradient_args args = {.x = x,
                                               .dy = dy,
                                               .dx = dx,
                                               .rows = gk_shape_rows(&layer->in, pass->count),
                                               .columns = channels,
                                               .weight = gk_layer_params(layer, pass, WEIGHT),
                                               .mean = layer->saved,
                                               .scale = layer->saved + channels,
                                               .dweight = gk_layer_grad(layer, pass, WEIGHT),
                                               .dbias = gk_layer_grad(layer, pass, BIAS)};

    pass->ops->norm_backward(pass->queue, &args);
}

static void norm_aux_init(const struct gk_layer *layer, float *aux)
{
    const uint32_t channels = layer->in.channels;

    for (uint32_t c = 0; c < channels; c++) {
        aux[c] = 0.0f;
        aux[channels + c] = 1.0f;
    }
}

const struct gk_layer_kind gk_layer_norm = {.plan = norm_plan,
                                            .forward = norm_forward,
                                            .backward = norm_backward,
                                            .aux_init = norm_aux_init};
