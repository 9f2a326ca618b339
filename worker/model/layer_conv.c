/* Convolution as a product with the matrix of windows, a chunk of samples at a time: how many is
 * fixed by the layer's shape and the table, so that the order of the sums over chunks is too.  The
 * weight tensor is outputs x inputs x kernel x kernel; the windows have the channels innermost, and
 * the weights are transposed to that (and their gradient back) once a call. */
#include "worker/model/layer.h"

enum { WEIGHT, BIAS };

static uint64_t places_of(const struct gk_layer *layer)
{
    return (uint64_t)layer->plan->kernel * layer->plan->kernel;
}

static uint64_t depth_of(const struct gk_layer *layer)
{
    return places_of(layer) * layer->in.channels;
}

static uint32_t chunk_of(const struct gk_layer *layer, const struct gk_layer_ops *ops)
{
    uint64_t rows = gk_shape_rows(&layer->out, 1);
    uint64_t most = GK_WINDOWS_BYTES / (rows * depth_of(layer) * sizeof(float));
    uint64_t chunk = (ops->window_rows + rows - 1) / rows;

    chunk = chunk < most ? chunk : most;
    return chunk > 0 ? (uint32_t)chunk : 1;
}

/* How far the image stands from the window's first place, on a canvas that may be larger. */
static uint32_t pad_of(const struct gk_layer_plan *plan, uint32_t side)
{
    return plan->pad + (side < plan->canvas ? (plan->canvas - side) / 2 : 0);
}

static uint32_t out_side(const struct gk_layer_plan *plan, uint32_t side)
{
    uint32_t canvas = side < plan->canvas ? plan->canvas : side;
    uint32_t room = canvas + 2 * plan->pad;

    return room < plan->kernel ? 0 : (room - plan->kernel) / plan->stride + 1;
}

static enum gk_err conv_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                             struct gk_words *words)
{
    const struct gk_layer_plan *plan = layer->plan;
    const uint32_t sides[4] = {plan->outputs, layer->in.channels, plan->kernel, plan->kernel};

    layer->out = (struct gk_shape){.rows = out_side(plan, layer->in.rows),
                                   .columns = out_side(plan, layer->in.columns),
                                   .channels = plan->outputs};
    if (layer->out.rows == 0 || layer->out.columns == 0) {
        gk_words_set(words, "%s: an image of %u x %u is too small for windows of %u", plan->name,
                     (unsigned)layer->in.rows, (unsigned)layer->in.columns, (unsigned)plan->kernel);
        return GK_E_INVALID;
    }
    layer->window = (struct gk_layer_window){.rows = layer->in.rows,
                                             .columns = layer->in.columns,
                                             .channels = layer->in.channels,
                                             .kernel = plan->kernel,
                                             .stride = plan->stride,
                                             .pad_rows = pad_of(plan, layer->in.rows),
                                             .pad_columns = pad_of(plan, layer->in.columns),
                                             .out_rows = layer->out.rows,
                                             .out_columns = layer->out.columns};
    layer->chunk = chunk_of(layer, setup->ops);
    gk_layer_add_tensor(layer, "weight", sides);
    if (plan->has_bias) {
        gk_layer_add_tensor(layer, "bias", (const uint32_t[4]){plan->outputs});
    }
    gk_layer_init_weights(layer, depth_of(layer));
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    layer->needs.scratch = gk_shape_rows(&layer->out, layer->chunk) * depth_of(layer) +
                           2 * layer->tensors[WEIGHT].count;
    return GK_OK;
}

/* Parts of the scratch memory. */
struct parts {
    float *weights; /* outputs x kernel x kernel x inputs */
    float *dweights;
    float *windows;
};

static struct parts parts_of(const struct gk_layer *layer, const struct gk_pass *pass)
{
    uint64_t count = layer->tensors[WEIGHT].count;

    return (struct parts){pass->scratch, pass->scratch + count, pass->scratch + 2 * count};
}

static void turn_weights(const struct gk_layer *layer, const struct gk_pass *pass, float *weights)
{
    const uint64_t sides[3] = {layer->out.channels, layer->in.channels, places_of(layer)};

    pass->ops->transpose(pass->queue, weights, gk_layer_params(layer, pass, WEIGHT), sides);
}

static uint32_t chunk_at(const struct gk_layer *layer, const struct gk_pass *pass, uint32_t first)
{
    uint32_t left = pass->count - first;

    return left < layer->chunk ? left : layer->chunk;
}

static void conv_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                         const float *skip)
{
    const struct parts parts = parts_of(layer, pass);
    struct gk_layer_window window = layer->window;
    float *y = layer->activation;

    (void)skip;
    turn_weights(layer, pass, parts.weights);
    for (uint32_t first = 0; first < pass->count; first += window.samples) {
        struct gk_gemm_args args = {.transpose_b = true,
                                    .n = layer->out.channels,
                                    .k = depth_of(layer),
                                    .a = parts.windows,
                                    .b = parts.weights,
                                    .c = y};

        window.samples = chunk_at(layer, pass, first);
        args.m = gk_shape_rows(&layer->out, window.samples);
        pass->ops->im2col(pass->queue, &window, x, parts.windows);
        pass->ops->gemm(pass->queue, &args);
        x += window.samples * gk_shape_size(&layer->in);
        y += window.samples * gk_shape_size(&layer->out);
    }
    if (layer->plan->has_bias) {
        pass->ops->bias_forward(
            pass->queue, &(struct gk_bias_args){.x = layer->activation,
                                                .bias = gk_layer_params(layer, pass, BIAS),
                                                .rows = gk_shape_rows(&layer->out, pass->count),
                                                .columns = layer->out.channels,
                                                .activation = layer->plan->activation});
    }
}

/* The chunk's part of dW, and its dx. */
static void chunk_backward(const struct gk_layer *layer, const struct gk_pass *pass,
                           const struct gk_layer_window *window, const struct gk_gemm_args *weights,
                           float *dx)
{
    const struct parts parts = parts_of(layer, pass);
    const struct gk_gemm_args inputs = {.m = weights->k,
                                        .n = weights->n,
                                        .k = weights->m,
                                        .a = weights->a,
                                        .b = parts.weights,
                                        .c = parts.windows};

    pass->ops->gemm(pass->queue, weights);
    if (dx) {
        pass->ops->gemm(pass->queue, &inputs);
        pass->ops->col2im(pass->queue, window, parts.windows, dx);
    }
}

static void conv_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                          float *dy, float *dx)
{
    const struct parts parts = parts_of(layer, pass);
    const uint64_t back[3] = {layer->out.channels, places_of(layer), layer->in.channels};
    struct gk_layer_window window = layer->window;
    const float *dy_at = dy;

    if (dx) {
        turn_weights(layer, pass, parts.weights);
    }
    for (uint32_t first = 0; first < pass->count; first += window.samples) {
        struct gk_gemm_args weights = {.transpose_a = true,
                                       .m = layer->out.channels,
                                       .n = depth_of(layer),
                                       .a = dy_at,
                                       .b = parts.windows,
                                       .c = parts.dweights,
                                       .beta = first > 0 ? 1.0f : 0.0f};

        window.samples = chunk_at(layer, pass, first);
        weights.k = gk_shape_rows(&layer->out, window.samples);
        pass->ops->im2col(pass->queue, &window, x, parts.windows);
        chunk_backward(layer, pass, &window, &weights, dx);
        x += window.samples * gk_shape_size(&layer->in);
        dx = dx ? dx + window.samples * gk_shape_size(&layer->in) : NULL;
        dy_at += window.samples * gk_shape_size(&layer->out);
    }
    pass->ops->transpose(pass->queue, gk_layer_grad(layer, pass, WEIGHT), parts.dweights, back);
    if (layer->plan->has_bias) {
        pass->ops->column_sums(pass->queue, dy, gk_shape_rows(&layer->out, pass->count),
                               layer->out.channels, gk_layer_grad(layer, pass, BIAS));
    }
}

const struct gk_layer_kind gk_layer_conv = {
    .plan = conv_plan, .forward = conv_forward, .backward = conv_backward};
