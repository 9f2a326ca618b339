/* Layers without parameters: pooling, flattening, shortcuts. */
#include "worker/model/layer.h"

static enum gk_err pool_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                             struct gk_words *words)
{
    const struct gk_layer_plan *plan = layer->plan;

    if (layer->in.rows < plan->kernel || layer->in.columns < plan->kernel) {
        gk_words_set(words, "an image of %u x %u is too small for pooling by %u",
                     (unsigned)layer->in.rows, (unsigned)layer->in.columns, (unsigned)plan->kernel);
        return GK_E_INVALID;
    }
    layer->out = (struct gk_shape){.rows = (layer->in.rows - plan->kernel) / plan->stride + 1,
                                   .columns = (layer->in.columns - plan->kernel) / plan->stride + 1,
                                   .channels = layer->in.channels};
    layer->window = (struct gk_layer_window){.rows = layer->in.rows,
                                             .columns = layer->in.columns,
                                             .channels = layer->in.channels,
                                             .kernel = plan->kernel,
                                             .stride = plan->stride,
                                             .out_rows = layer->out.rows,
                                             .out_columns = layer->out.columns};
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    layer->needs.index = plan->type == GK_LAYER_MAX_POOL ? layer->needs.out : 0;
    return GK_OK;
}

static void max_pool_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                             const float *skip)
{
    struct gk_layer_window window = layer->window;

    (void)skip;
    window.samples = pass->count;
    pass->ops->max_pool_forward(pass->queue, &window, x, layer->activation, layer->index);
}

static void max_pool_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                              float *dy, float *dx)
{
    struct gk_layer_window window = layer->window;

    (void)x;
    window.samples = pass->count;
    if (dx) {
        pass->ops->max_pool_backward(pass->queue, &window, dy, layer->index, dx);
    }
}

static void average_pool_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                                 const float *skip)
{
    struct gk_layer_window window = layer->window;

    (void)skip;
    window.samples = pass->count;
    pass->ops->average_pool_forward(pass->queue, &window, x, layer->activation);
}

static void average_pool_backward(struct gk_layer *layer, const struct gk_pass *pass,
                                  const float *x, float *dy, float *dx)
{
    struct gk_layer_window window = layer->window;

    (void)x;
    window.samples = pass->count;
    if (dx) {
        pass->ops->average_pool_backward(pass->queue, &window, dy, dx);
    }
}

/* Behind it the values of a channel stand together, in the order that other systems flatten images
 * in, so that the weights that follow mean the same. */
static enum gk_err flatten_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                                struct gk_words *words)
{
    (void)words;
    layer->out =
        (struct gk_shape){.rows = 1, .columns = 1, .channels = (uint32_t)gk_shape_size(&layer->in)};
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    return GK_OK;
}

static void flatten_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                            const float *skip)
{
    const uint64_t sides[3] = {pass->count, gk_shape_rows(&layer->in, 1), layer->in.channels};

    (void)skip;
    pass->ops->transpose(pass->queue, layer->activation, x, sides);
}

static void flatten_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                             float *dy, float *dx)
{
    const uint64_t sides[3] = {pass->count, layer->in.channels, gk_shape_rows(&layer->in, 1)};

    (void)x;
    if (dx) {
        pass->ops->transpose(pass->queue, dx, dy, sides);
    }
}

/* The skipped activation is as large, or `stride` times as large with fewer channels. */
static enum gk_err residual_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                                 struct gk_words *words)
{
    (void)words;
    layer->out = layer->in;
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    return GK_OK;
}

static void residual_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                             const float *skip)
{
    const struct gk_residual_args args = {.x = x,
                                          .skip = skip,
                                          .y = layer->activation,
                                          .samples = pass->count,
                                          .rows = layer->in.rows,
                                          .columns = layer->in.columns,
                                          .channels = layer->in.channels,
                                          .skip_rows = layer->skip.rows,
                                          .skip_columns = layer->skip.columns,
                                          .skip_channels = layer->skip.channels,
                                          .stride = layer->plan->stride,
                                          .activation = layer->plan->activation};

    pass->ops->residual_forward(pass->queue, &args);
}

const struct gk_layer_kind gk_layer_max_pool = {
    .plan = pool_plan, .forward = max_pool_forward, .backward = max_pool_backward};
const struct gk_layer_kind gk_layer_average_pool = {
    .plan = pool_plan, .forward = average_pool_forward, .backward = average_pool_backward};
const struct gk_layer_kind gk_layer_flatten = {
    .plan = flatten_plan, .forward = flatten_forward, .backward = flatten_backward};
const struct gk_layer_kind gk_layer_residual = {.plan = residual_plan, .forward = residual_forward};
