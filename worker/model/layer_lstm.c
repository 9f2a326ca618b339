/* Embedding and LSTM over time-major sequences.  The input's part of the gates is one product for
 * all times; then the recurrence walks through the times, forward and back, truncated at the batch:
 * no gradient flows into the state that was carried in.
 *
 * Of a layer of H units, T times and B samples, `saved` holds: gates (T x B x 4H), cells (T + 1) x
 * B x H, outputs (T + 1) x B x H (time 0: what was carried in), the gradient of the cells of one
 * time (B x H), and the state that evaluation carries (2 x B x H).  The state that training carries
 * is `aux`: outputs, then cells, of a training batch. */
#include "worker/model/layer.h"

#include "common/assert.h"

#include <stdio.h>

enum { TABLE = 0 };
enum { WEIGHT_X, WEIGHT_H, BIAS_X, BIAS_H };

static enum gk_err embedding_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                                  struct gk_words *words)
{
    const uint32_t sides[4] = {layer->plan->table, layer->plan->outputs};

    (void)words;
    layer->out = layer->in;
    layer->out.channels = layer->plan->outputs;
    gk_layer_add_tensor(layer, "weight", sides);
    layer->inits[TABLE].bound = GK_INIT_SEQUENCE;
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    return GK_OK;
}

static void embedding_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                              const float *skip)
{
    const uint64_t sides[2] = {gk_shape_rows(&layer->out, pass->count), layer->out.channels};

    (void)x;
    (void)skip;
    pass->ops->embedding_forward(pass->queue, gk_layer_params(layer, pass, TABLE), pass->tokens,
                                 sides, layer->activation);
}

static void embedding_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                               float *dy, float *dx)
{
    const uint64_t sides[3] = {gk_shape_rows(&layer->out, pass->count), layer->out.channels,
                               layer->plan->table};

    (void)x;
    GK_ASSERT(!dx);
    pass->ops->embedding_backward(pass->queue, dy, pass->tokens, sides,
                                  gk_layer_grad(layer, pass, TABLE));
}

static enum gk_err lstm_plan(struct gk_layer *layer, const struct gk_layer_setup *setup,
                             struct gk_words *words)
{
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    const uint32_t width = layer->plan->outputs;
    const uint64_t plane = (uint64_t)setup->batch_max * width;

    (void)words;
    layer->out = layer->in;
    layer->out.channels = width;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t inputs = i == WEIGHT_X ? layer->in.channels : i == WEIGHT_H ? width : 0;
        char name[32];

        (void)snprintf(name, sizeof(name), "%s_l%u", names[i], (unsigned)layer->plan->level);
        gk_layer_add_tensor(layer, name, (const uint32_t[4]){4 * width, inputs});
        layer->inits[i].bound = GK_INIT_SEQUENCE;
    }
    layer->needs.out = setup->batch_max * gk_shape_size(&layer->out);
    layer->needs.saved = plane * (6 * (uint64_t)layer->in.rows + 5);
    layer->needs.aux = 2 * (uint64_t)setup->streams * width;
    return GK_OK;
}

/* Arrays of `saved`, for the samples of this call. */
struct arrays {
    uint64_t plane; /* floats of one time: count x width */
    float *gates, *cells, *outputs, *dcell;
    float *carried_output, *carried_cell;
    uint64_t carried; /* floats of each */
};

static struct arrays arrays_of(const struct gk_layer *layer, const struct gk_pass *pass)
{
    const uint64_t times = layer->in.rows;
    const uint64_t most = (uint64_t)pass->batch_max * layer->out.channels;
    struct arrays arrays = {.plane = (uint64_t)pass->count * layer->out.channels,
                            .gates = layer->saved};

    arrays.cells = arrays.gates + 4 * times * most;
    arrays.outputs = arrays.cells + (times + 1) * most;
    arrays.dcell = arrays.outputs + (times + 1) * most;
    arrays.carried_output = pass->training ? layer->aux : arrays.dcell + most;
    arrays.carried = pass->training ? (uint64_t)pass->streams * layer->out.channels : most;
    arrays.carried_cell = arrays.carried_output + arrays.carried;
    /* A shorter batch goes on with the first streams. */
    arrays.carried = arrays.carried < arrays.plane ? arrays.carried : arrays.plane;
    return arrays;
}

static void take_over(const struct gk_pass *pass, const struct arrays *arrays)
{
    pass->ops->fill(pass->queue, arrays->outputs, 0.0f, arrays->plane);
    pass->ops->fill(pass->queue, arrays->cells, 0.0f, arrays->plane);
    if (!pass->fresh) {
        pass->ops->copy(pass->queue, arrays->outputs, arrays->carried_output, arrays->carried);
        pass->ops->copy(pass->queue, arrays->cells, arrays->carried_cell, arrays->carried);
    }
}

static void lstm_forward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                         const float *skip)
{
    const struct arrays arrays = arrays_of(layer, pass);
    const uint64_t times = layer->in.rows;
    const uint64_t width = layer->out.channels;
    const struct gk_gemm_args inputs = {.transpose_b = true,
                                        .m = times * pass->count,
                                        .n = 4 * width,
                                        .k = layer->in.channels,
                                        .a = x,
                                        .b = gk_layer_params(layer, pass, WEIGHT_X),
                                        .c = arrays.gates};
    struct gk_gemm_args state = {.transpose_b = true,
                                 .m = pass->count,
                                 .n = 4 * width,
                                 .k = width,
                                 .b = gk_layer_params(layer, pass, WEIGHT_H),
                                 .beta = 1.0f};
    struct gk_lstm_args step = {.bias_x = gk_layer_params(layer, pass, BIAS_X),
                                .bias_h = gk_layer_params(layer, pass, BIAS_H),
                                .rows = pass->count,
                                .width = width};

    (void)skip;
    take_over(pass, &arrays);
    pass->ops->gemm(pass->queue, &inputs);
    for (uint64_t t = 0; t < times; t++) {
        state.a = arrays.outputs + t * arrays.plane;
        state.c = arrays.gates + 4 * t * arrays.plane;
        step.gates = state.c;
        step.c_before = arrays.cells + t * arrays.plane;
        step.c = arrays.cells + (t + 1) * arrays.plane;
        step.h = arrays.outputs + (t + 1) * arrays.plane;
        pass->ops->gemm(pass->queue, &state);
        pass->ops->lstm_forward(pass->queue, &step);
    }
    pass->ops->copy(pass->queue, layer->activation, arrays.outputs + arrays.plane,
                    times * arrays.plane);
    pass->ops->copy(pass->queue, arrays.carried_output, arrays.outputs + times * arrays.plane,
                    arrays.carried);
    pass->ops->copy(pass->queue, arrays.carried_cell, arrays.cells + times * arrays.plane,
                    arrays.carried);
}

/* Gates become their gradients, from the last time to the first; dy gathers what flows back through
 * the outputs. */
static void walk_back(const struct gk_layer *layer, const struct gk_pass *pass,
                      const struct arrays *arrays, float *dy)
{
    const uint64_t width = layer->out.channels;
    struct gk_gemm_args state = {.m = pass->count,
                                 .n = width,
                                 .k = 4 * width,
                                 .b = gk_layer_params(layer, pass, WEIGHT_H),
                                 .beta = 1.0f};
    struct gk_lstm_gradient_args step = {.dc = arrays->dcell, .rows = pass->count, .width = width};

    pass->ops->fill(pass->queue, arrays->dcell, 0.0f, arrays->plane);
    for (uint64_t t = layer->in.rows; t-- > 0;) {
        step.gates = arrays->gates + 4 * t * arrays->plane;
        step.c_before = arrays->cells + t * arrays->plane;
        step.c = arrays->cells + (t + 1) * arrays->plane;
        step.dh = dy + t * arrays->plane;
        pass->ops->lstm_backward(pass->queue, &step);
        if (t > 0) {
            state.a = step.gates;
            state.c = dy + (t - 1) * arrays->plane;
            pass->ops->gemm(pass->queue, &state);
        }
    }
}

static void lstm_backward(struct gk_layer *layer, const struct gk_pass *pass, const float *x,
                          float *dy, float *dx)
{
    const struct arrays arrays = arrays_of(layer, pass);
    const uint64_t rows = gk_shape_rows(&layer->in, pass->count);
    const uint64_t width = layer->out.channels;
    struct gk_gemm_args weights = {.transpose_a = true,
                                   .m = 4 * width,
                                   .n = layer->in.channels,
                                   .k = rows,
                                   .a = arrays.gates,
                                   .b = x,
                                   .c = gk_layer_grad(layer, pass, WEIGHT_X)};
    const struct gk_gemm_args inputs = {.m = rows,
                                        .n = layer->in.channels,
                                        .k = 4 * width,
                                        .a = arrays.gates,
                                        .b = gk_layer_params(layer, pass, WEIGHT_X),
                                        .c = dx};

    walk_back(layer, pass, &arrays, dy);
    pass->ops->gemm(pass->queue, &weights);
    weights.n = width;
    weights.b = arrays.outputs;
    weights.c = gk_layer_grad(layer, pass, WEIGHT_H);
    pass->ops->gemm(pass->queue, &weights);
    pass->ops->column_sums(pass->queue, arrays.gates, rows, 4 * width,
                           gk_layer_grad(layer, pass, BIAS_X));
    pass->ops->copy(pass->queue, gk_layer_grad(layer, pass, BIAS_H),
                    gk_layer_grad(layer, pass, BIAS_X), 4 * width);
    if (dx) {
        pass->ops->gemm(pass->queue, &inputs);
    }
}

const struct gk_layer_kind gk_layer_embedding = {
    .plan = embedding_plan, .forward = embedding_forward, .backward = embedding_backward};
const struct gk_layer_kind gk_layer_lstm = {
    .plan = lstm_plan, .forward = lstm_forward, .backward = lstm_backward};
