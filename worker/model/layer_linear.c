/* y = activation(x W^T + b): of all values of a sample, or of each place of it. */
#include "worker/model/layer.h"

enum { WEIGHT, BIAS };

static struct gk_gemm_args sides_of(const struct gk_layer *layer, const struct gk_pass *pass)
{
    uint64_t inputs = layer->tensors[WEIGHT].dims[1];

    return (struct gk_gemm_args){
        .m = gk_shape_rows(&layer->out, pass->count), .n = layer->out.channels, .k = inputs};
}

static enum gk_err linear_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                               struct gk_words *words)
{
    const struct gk_layer_plan *plan = layer->plan;
    uint32_t inputs = layer->in.channels;

    (void)words;
    layer->out = layer->in;
    if (plan->flattens) {
        /* Whatever the data set holds fits: gk_model_new() looked at the number of values. */
        inputs = (uint32_t)gk_shape_size(&layer->in);
        layer->out = (struct gk_shape){.rows = 1, .columns = 1};
    }
    layer->out.channels = plan->outputs;
    gk_layer_add_tensor(layer, "weight", (const uint32_t[4]){plan->outputs, inputs});
    gk_layer_add_tensor(layer, "bias", (const uint32_t[4]){plan->outputs});
    gk_layer_init_weights(layer, inputs);
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    return GK_OK;
}

static void linear_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                           const float *skip)
{
    struct gk_gemm_args args = sides_of(layer, pass);
    const struct gk_bias_args bias = {.x = layer->activation,
                                      .bias = gk_layer_params(layer, pass, BIAS),
                                      .rows = args.m,
                                      .columns = args.n,
                                      .activation = layer->plan->activation};

    (void)skip;
    args.transpose_b = true;
    args.a = x;
    args.b = gk_layer_params(layer, pass, WEIGHT);
    args.c = layer->activation;
    pass->ops->gemm(pass->queue, &args);
    pass->ops->bias_forward(pass->queue, &bias);
}

static void linear_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                            float *dy, float *dx)
{
    const struct gk_gemm_args sides = sides_of(layer, pass);
    const struct gk_gemm_args weights = {.transpose_a = true,
                                         .m = sides.n,
                                         .n = sides.k,
                                         .k = sides.m,
                                         .a = dy,
                                         .b = x,
                                         .c = gk_layer_grad(layer, pass, WEIGHT)};
    const struct gk_gemm_args inputs = {.m = sides.m,
                                        .n = sides.k,
                                        .k = sides.n,
                                        .a = dy,
                                        .b = gk_layer_params(layer, pass, WEIGHT),
                                        .c = dx};

    pass->ops->gemm(pass->queue, &weights);
    pass->ops->column_sums(pass->queue, dy, sides.m, sides.n, gk_layer_grad(layer, pass, BIAS));
    if (dx) {
        pass->ops->gemm(pass->queue, &inputs);
    }
}

const struct gk_layer_kind gk_layer_linear = {
    .plan = linear_plan, .forward = linear_forward, .backward = linear_backward};
