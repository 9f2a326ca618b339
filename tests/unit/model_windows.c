/* Goal: the window, pooling, norm, shortcut, embedding and LSTM slots of the CPU layer table do
 * what common/backend.h says.  Method: every geometry of a table (windows that overlap, skip
 * pixels, hang over borders, are larger than the image) against definitions written here pixel by
 * pixel, in double where sums are concerned; values worked out by hand for ties, NaN, few rows, and
 * for the statistics of norms. */
#include "worker/model/model.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 14 };

static const struct gk_layer_window windows[] = {
    /* samples, rows, columns, channels; kernel, stride, pads; out */
    {1, 1, 1, 1, 1, 1, 0, 0, 1, 1},     {2, 5, 4, 3, 3, 1, 1, 1, 5, 4},
    {3, 6, 7, 2, 2, 2, 0, 0, 3, 3},     {1, 7, 5, 4, 3, 2, 1, 1, 4, 3},
    {2, 4, 4, 1, 2, 3, 0, 0, 1, 1},     {1, 3, 3, 2, 5, 1, 2, 2, 3, 3},
    {2, 8, 8, 1, 5, 1, 12, 12, 28, 28}, {1, 2, 9, 3, 3, 2, 1, 0, 1, 4},
    {1, 5, 5, 2, 5, 1, 0, 0, 1, 1},
};

enum { WINDOWS_COUNT = sizeof(windows) / sizeof(windows[0]) };

static float draw(uint32_t *state)
{
    *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static float *random_floats(uint64_t count, uint32_t seed)
{
    float *x = calloc(count + 1, sizeof(*x));

    for (uint64_t i = 0; i < count; i++) {
        x[i] = draw(&seed);
    }
    return x;
}

static uint64_t image_size(const struct gk_layer_window *w)
{
    return (uint64_t)w->samples * w->rows * w->columns * w->channels;
}

static uint64_t out_size(const struct gk_layer_window *w)
{
    return (uint64_t)w->samples * w->out_rows * w->out_columns * w->channels;
}

/* Index into the images of place p of window o, channel c; -1: outside. */
static int64_t input_at(const struct gk_layer_window *w, uint64_t o, uint32_t p, uint32_t c)
{
    int64_t sample = (int64_t)(o / (w->out_rows * w->out_columns));
    int64_t row =
        (int64_t)(o / w->out_columns % w->out_rows * w->stride + p / w->kernel) - w->pad_rows;
    int64_t column = (int64_t)(o % w->out_columns * w->stride + p % w->kernel) - w->pad_columns;

    if (row < 0 || column < 0 || row >= w->rows || column >= w->columns) {
        return -1;
    }
    return ((sample * w->rows + row) * w->columns + column) * w->channels + c;
}

Test(model_windows, im2col_and_back)
{
    const struct gk_layer_ops *ops = gk_layers_cpu();

    for (int i = 0; i < WINDOWS_COUNT; i++) {
        const struct gk_layer_window *w = &windows[i];
        uint32_t places = w->kernel * w->kernel;
        uint64_t count = out_size(w) * places, n = 0;
        float *x = random_floats(image_size(w), 1), *matrix = random_floats(count, 2);
        float *dx = random_floats(image_size(w), 3);
        double *sums = calloc(image_size(w), sizeof(*sums));

        ops->im2col(NULL, w, x, matrix);
        for (uint64_t o = 0; o < out_size(w) / w->channels; o++) {
            for (uint32_t p = 0; p < places; p++) {
                for (uint32_t c = 0; c < w->channels; c++, n++) {
                    int64_t at = input_at(w, o, p, c);

                    cr_assert_eq(matrix[n], at < 0 ? 0.0f : x[at], "case %d, %u", i, (unsigned)n);
                    matrix[n] = (float)((double)n * 0x1p-10 - 3.0);
                    sums[at < 0 ? 0 : at] += at < 0 ? 0.0 : (double)matrix[n];
                }
            }
        }
        cr_assert_eq(n, count);
        ops->col2im(NULL, w, matrix, dx);
        for (uint64_t j = 0; j < image_size(w); j++) {
            cr_assert(fabs(dx[j] - sums[j]) <= 1e-5 * (1.0 + fabs(sums[j])), "case %d, %u: %g %g",
                      i, (unsigned)j, dx[j], sums[j]);
        }
        free(x);
        free(matrix);
        free(dx);
        free(sums);
    }
}

static bool has_empty_window(const struct gk_layer_window *w)
{
    for (uint64_t o = 0; o < out_size(w) / w->channels; o++) {
        bool empty = true;

        for (uint32_t p = 0; p < w->kernel * w->kernel; p++) {
            empty = empty && input_at(w, o, p, 0) < 0;
        }
        if (empty) {
            return true;
        }
    }
    return false;
}

/* Few different values, so that ties are common. */
Test(model_windows, pools)
{
    const struct gk_layer_ops *ops = gk_layers_cpu();

    for (int i = 0; i < WINDOWS_COUNT; i++) {
        const struct gk_layer_window *w = &windows[i];
        uint32_t places = w->kernel * w->kernel;
        float *x = random_floats(image_size(w), 5), *y = random_floats(out_size(w), 6);
        float *dy = random_floats(out_size(w), 7), *dx = random_floats(image_size(w), 8);
        double *most = calloc(image_size(w), sizeof(*most)),
               *mean = calloc(image_size(w), sizeof(*mean));
        uint32_t *index = calloc(out_size(w), sizeof(*index));
        float *averages = random_floats(out_size(w), 9);
        bool pools = !has_empty_window(w);

        for (uint64_t j = 0; j < image_size(w); j++) {
            x[j] = floorf(x[j] * 3.0f);
        }
        if (pools) {
            ops->max_pool_forward(NULL, w, x, y, index);
        }
        for (uint64_t o = 0; o < out_size(w); o++) {
            uint32_t c = (uint32_t)(o % w->channels), best = places;
            double sum = 0.0;

            for (uint32_t p = 0; p < places; p++) {
                int64_t at = input_at(w, o / w->channels, p, c);

                if (at < 0) {
                    continue;
                }
                sum += (double)x[at];
                mean[at] += (double)dy[o] / places;
                if (best == places || x[at] > x[input_at(w, o / w->channels, best, c)]) {
                    best = p;
                }
            }
            if (pools) {
                int64_t at = input_at(w, o / w->channels, best, c);

                cr_assert(index[o] == best && y[o] == x[at], "case %d, %u", i, (unsigned)o);
                most[at] += (double)dy[o];
            }
            y[o] = (float)(sum / places);
        }
        if (pools) {
            ops->max_pool_backward(NULL, w, dy, index, dx);
            for (uint64_t j = 0; j < image_size(w); j++) {
                cr_assert(fabs(dx[j] - most[j]) <= 1e-5, "case %d, %u", i, (unsigned)j);
            }
        }
        ops->average_pool_forward(NULL, w, x, averages);
        for (uint64_t o = 0; o < out_size(w); o++) {
            cr_assert(fabsf(averages[o] - y[o]) <= 1e-5f, "case %d, %u", i, (unsigned)o);
        }
        ops->average_pool_backward(NULL, w, dy, dx);
        for (uint64_t j = 0; j < image_size(w); j++) {
            cr_assert(fabs(dx[j] - mean[j]) <= 1e-5, "case %d, %u", i, (unsigned)j);
        }
        free(x);
        free(y);
        free(dy);
        free(dx);
        free(most);
        free(mean);
        free(index);
        free(averages);
    }
}

/* A NaN is the largest, and the first of them is chosen. */
Test(model_windows, max_pool_nan)
{
    static const struct gk_layer_window window = {1, 1, 6, 1, 1, 1, 0, 0, 1, 6};
    const struct gk_layer_window square = {1, 2, 2, 1, 2, 2, 0, 0, 1, 1};
    static const struct {
        float x[4];
        uint32_t index;
    } cases[] = {{{1, NAN, 3, 2}, 1},
                 {{NAN, 5, NAN, 9}, 0},
                 {{1, 2, 3, NAN}, 3},
                 {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, 0},
                 {{-0.0f, 0.0f, 0.0f, -1.0f}, 0},
                 {{1, 7, 7, 7}, 1}};
    float y[6];
    uint32_t index[6];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gk_layers_cpu()->max_pool_forward(NULL, &square, cases[i].x, y, index);
        cr_assert_eq(index[0], cases[i].index, "case %zu: %u", i, index[0]);
        cr_assert_eq(memcmp(y, &cases[i].x[index[0]], sizeof(y[0])), 0);
    }
    gk_layers_cpu()->max_pool_forward(NULL, &window, (const float[6]){1, 2, 3, 4, 5, 6}, y, index);
    cr_assert(y[0] == 1.0f && y[5] == 6.0f && index[5] == 0);
}

Test(model_windows, transpose_copy_fill)
{
    const struct gk_layer_ops *ops = gk_layers_cpu();
    const uint64_t sides[3] = {2, 2, 3};
    float x[12], y[12];

    for (int i = 0; i < 12; i++) {
        x[i] = (float)i;
    }
    ops->transpose(NULL, y, x, sides);
    for (int i = 0; i < 12; i++) {
        cr_assert_eq(y[i], (float)(i / 6 * 6 + i % 2 * 3 + i % 6 / 2), "%d: %g", i, y[i]);
    }
    ops->fill(NULL, y, 2.5f, 11);
    cr_assert(y[0] == 2.5f && y[10] == 2.5f && y[11] == 11.0f);
    ops->copy(NULL, y, x, 4);
    cr_assert(y[0] == 0.0f && y[3] == 3.0f && y[4] == 2.5f);
}

/* Training: mean 0 and variance 1 by column, wherever the column lies; evaluation: the running
 * statistics and nothing written but y. */
Test(model_windows, norm)
{
    enum { ROWS = 37, COLUMNS = 70 };
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    float weight[COLUMNS], bias[COLUMNS], mean[COLUMNS], scale[COLUMNS];
    float running_mean[COLUMNS], running_variance[COLUMNS], kept[2 * COLUMNS];
    struct gk_norm_args args = {
        x,    y,     ROWS,         COLUMNS,          weight, bias,  true,
        mean, scale, running_mean, running_variance, 0.25f,  1e-5f, GK_ACTIVATION_NONE};
    uint32_t state = 4;

    for (int c = 0; c < COLUMNS; c++) {
        weight[c] = draw(&state) + 2.0f;
        bias[c] = draw(&state);
        running_mean[c] = 8.0f;
        running_variance[c] = 4.0f;
        for (int r = 0; r < ROWS; r++) {
            x[r * COLUMNS + c] = draw(&state) * (float)(c + 1) + (float)c * 10.0f;
        }
    }
    gk_layers_cpu()->norm_forward(NULL, &args);
    for (int c = 0; c < COLUMNS; c++) {
        double sum = 0.0, squares = 0.0, middle;

        for (int r = 0; r < ROWS; r++) {
            sum += x[r * COLUMNS + c];
        }
        middle = sum / ROWS;
        for (int r = 0; r < ROWS; r++) {
            squares += (x[r * COLUMNS + c] - middle) * (x[r * COLUMNS + c] - middle);
        }
        cr_assert_float_eq(mean[c], middle, 1e-4);
        cr_assert_float_eq(scale[c] * sqrt(squares / ROWS + 1e-5), 1.0, 1e-5);
        cr_assert_float_eq(running_mean[c], 6.0 + middle / 4, 1e-4);
        cr_assert_float_eq(running_variance[c] / (3.0 + squares / (ROWS - 1) / 4), 1.0, 1e-5);
        for (int r = 0; r < ROWS; r++) {
            double n = (x[r * COLUMNS + c] - middle) / sqrt(squares / ROWS + 1e-5);

            cr_assert_float_eq(y[r * COLUMNS + c], weight[c] * n + bias[c], 2e-4);
        }
    }
    memcpy(kept, running_mean, sizeof(running_mean));
    memcpy(kept + COLUMNS, running_variance, sizeof(running_variance));
    args.training = false;
    args.mean = args.scale = NULL;
    args.activation = GK_ACTIVATION_RELU;
    gk_layers_cpu()->norm_forward(NULL, &args);
    cr_assert(!memcmp(kept, running_mean, sizeof(running_mean)) &&
              !memcmp(kept + COLUMNS, running_variance, sizeof(running_variance)));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        int c = i % COLUMNS;
        double value =
            weight[c] * (x[i] - running_mean[c]) / sqrt(running_variance[c] + 1e-5) + bias[c];

        cr_assert_float_eq(y[i], fmax(value, 0.0), 2e-4);
    }
}

/* One row: variance 0, no division by rows - 1; NaN is seen. */
Test(model_windows, norm_of_few_rows)
{
    float x[2] = {3.0f, NAN}, y[2], weight[2] = {2, 2}, bias[2] = {0.5f, 0.5f}, mean[2], scale[2];
    float running[4] = {0, 0, 1, 1}, dx[2], dweight[2], dbias[2];
    const struct gk_norm_args args = {
        x,    y,     1,       2,           weight, bias,  true,
        mean, scale, running, running + 2, 0.5f,   1e-5f, GK_ACTIVATION_RELU};
    const struct gk_norm_gradient_args gradient = {
        x, (const float[2]){1, 1}, dx, 1, 2, weight, mean, scale, dweight, dbias};

    gk_layers_cpu()->norm_forward(NULL, &args);
    cr_assert(y[0] == 0.5f && isnan(y[1]) && running[0] == 1.5f && running[2] == 0.5f);
    gk_layers_cpu()->norm_backward(NULL, &gradient);
    cr_assert(dx[0] == 0.0f && dweight[0] == 0.0f && dbias[0] == 1.0f && isnan(dx[1]));
}

Test(model_windows, shortcuts)
{
    const struct gk_residual_args args = {.x = (const float[4]){1, 2, 3, -9},
                                          .skip = (const float[6]){10, 20, 30, 40, 50, 60},
                                          .y = (float[4]){0},
                                          .samples = 1,
                                          .rows = 1,
                                          .columns = 2,
                                          .channels = 2,
                                          .skip_rows = 2,
                                          .skip_columns = 3,
                                          .skip_channels = 1,
                                          .stride = 2,
                                          .activation = GK_ACTIVATION_RELU};
    float dskip[6] = {1, 1, 1, 1, 1, 1};
    const struct gk_residual_gradient_args gradient = {
        (const float[4]){5, 6, 7, 8}, dskip, 1, 1, 2, 2, 2, 3, 1, 2};

    gk_layers_cpu()->residual_forward(NULL, &args);
    cr_assert(args.y[0] == 11.0f && args.y[1] == 2.0f && args.y[2] == 33.0f && args.y[3] == 0.0f);
    gk_layers_cpu()->residual_backward(NULL, &gradient);
    cr_assert(dskip[0] == 6.0f && dskip[1] == 1.0f && dskip[2] == 8.0f && dskip[3] == 1.0f);
}

Test(model_windows, embedding)
{
    static const uint32_t tokens[4] = {2, 0, 2, 2};
    static const float table[6] = {1, 2, 3, 4, 5, 6};
    static const float dy[8] = {0x1p24f, 1, 7, 8, 1, 2, -0x1p24f, 3}; /* in order 1 is lost */
    float y[8], dtable[6] = {9, 9, 9, 9, 9, 9};

    gk_layers_cpu()->embedding_forward(NULL, table, tokens, (const uint64_t[2]){4, 2}, y);
    cr_assert(y[0] == 5.0f && y[1] == 6.0f && y[2] == 1.0f && y[6] == 5.0f && y[7] == 6.0f);
    gk_layers_cpu()->embedding_backward(NULL, dy, tokens, (const uint64_t[3]){4, 2, 3}, dtable);
    cr_assert(dtable[0] == 7.0f && dtable[1] == 8.0f && dtable[2] == 0.0f && dtable[3] == 0.0f &&
              dtable[4] == 0.0f && dtable[5] == 6.0f);
}

/* Against the formulas in double, and saturated gates. */
Test(model_windows, lstm)
{
    enum { ROWS = 3, WIDTH = 5 };
    float *gates = random_floats(4 * ROWS * WIDTH, 1), *before = random_floats(ROWS * WIDTH, 2);
    float bias_x[4 * WIDTH] = {0}, bias_h[4 * WIDTH], c[ROWS * WIDTH], h[ROWS * WIDTH];
    float start[4 * ROWS * WIDTH];
    const struct gk_lstm_args args = {gates, bias_x, bias_h, before, c, h, ROWS, WIDTH};

    for (int i = 0; i < 4 * WIDTH; i++) {
        bias_h[i] = 0.1f * (float)i;
        bias_x[i] = -0.05f * (float)i;
    }
    gates[0] = 200.0f;
    gates[WIDTH + 1] = -200.0f;
    memcpy(start, gates, sizeof(start));
    gk_layers_cpu()->lstm_forward(NULL, &args);
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < WIDTH; j++) {
            double a[4], i, f, g, o, cell;

            for (int k = 0; k < 4; k++) {
                a[k] = start[r * 4 * WIDTH + k * WIDTH + j] + bias_x[k * WIDTH + j] +
                       bias_h[k * WIDTH + j];
            }
            i = 1 / (1 + exp(-a[0]));
            f = 1 / (1 + exp(-a[1]));
            g = tanh(a[2]);
            o = 1 / (1 + exp(-a[3]));
            cell = f * before[r * WIDTH + j] + i * g;
            cr_assert_float_eq(c[r * WIDTH + j], cell, 1e-5);
            cr_assert_float_eq(h[r * WIDTH + j], o * tanh(cell), 1e-5);
            cr_assert_float_eq(gates[r * 4 * WIDTH + 2 * WIDTH + j], g, 1e-5);
        }
    }
    cr_assert(gates[0] == 1.0f && gates[WIDTH + 1] == 0.0f);
    free(gates);
    free(before);
}
