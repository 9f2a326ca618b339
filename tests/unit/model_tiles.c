/* Goal: sums over the rows of a batch are taken in tiles (common/backend.h), on which all layer
 * tables agree.  Method: rows up to, at and beyond the border of a tile, with values of which small
 * ones are lost beside large ones, so that the order shows in the result; sums in the stated order
 * are taken here by plain loops, and the cases must tell it from the order of the rows. */
#include "worker/model/model.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

static const uint64_t row_counts[] = {1, 2, 255, 256, 257, 511, 512, 513, 1000};

enum { ROW_COUNTS = sizeof(row_counts) / sizeof(row_counts[0]), ROWS_MAX = 1000, COLUMNS_MAX = 67 };

static uint32_t draw(uint32_t *state)
{
    *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
    return *state >> 8;
}

/* Both signs, 2^-20 to 2^44. */
static float draw_wide(uint32_t *state)
{
    float x = ldexpf((float)draw(state) * 0x1p-24f + 1.0f, (int)(draw(state) % 64) - 20);

    return draw(state) % 2 ? x : -x;
}

static float in_tiles(const float *x, uint64_t rows, uint64_t columns)
{
    float sum = 0.0f;

    for (uint64_t first = 0; first < rows; first += GK_LAYER_TILE) {
        float tile = 0.0f;

        for (uint64_t r = first; r < rows && r < first + GK_LAYER_TILE; r++) {
            tile += x[r * columns];
        }
        sum += tile;
    }
    return sum;
}

static float in_order(const float *x, uint64_t rows, uint64_t columns)
{
    float sum = 0.0f;

    for (uint64_t r = 0; r < rows; r++) {
        sum += x[r * columns];
    }
    return sum;
}

static double in_tiles_double(const double *x, uint64_t rows)
{
    double sum = 0.0;

    for (uint64_t first = 0; first < rows; first += GK_LAYER_TILE) {
        double tile = 0.0;

        for (uint64_t r = first; r < rows && r < first + GK_LAYER_TILE; r++) {
            tile += x[r];
        }
        sum += tile;
    }
    return sum;
}

/* Up to one tile both orders are the same. */
Test(model_tiles, column_sums)
{
    static const uint64_t columns[] = {1, 3, 64, COLUMNS_MAX};
    static float x[ROWS_MAX * COLUMNS_MAX];
    float sums[COLUMNS_MAX + 1];
    uint32_t state = 1;

    for (unsigned i = 0; i < ROWS_MAX * COLUMNS_MAX; i++) {
        x[i] = draw_wide(&state);
    }
    for (unsigned i = 0; i < ROW_COUNTS * 4; i++) {
        const uint64_t rows = row_counts[i / 4], width = columns[i % 4];
        unsigned differ = 0;

        sums[width] = 7.0f;
        gk_layers_cpu()->column_sums(NULL, x, rows, width, sums);
        for (uint64_t c = 0; c < width; c++) {
            cr_assert_eq(sums[c], in_tiles(x + c, rows, width), "%u rows, column %u",
                         (unsigned)rows, (unsigned)c);
            differ += sums[c] != in_order(x + c, rows, width);
        }
        cr_assert_eq(sums[width], 7.0f);
        cr_assert(rows > GK_LAYER_TILE + 1 ? differ > width / 2 || width == 1 : differ == 0,
                  "%u rows: %u of %u differ", (unsigned)rows, differ, (unsigned)width);
    }
}

/* The loss of a row is 2^60, or about 1: in the order of the rows the latter would all be lost. */
Test(model_tiles, loss)
{
    static float logits[ROWS_MAX][2];
    static uint32_t labels[ROWS_MAX];
    static double losses[ROWS_MAX];
    const struct gk_layer_ops *ops = gk_layers_cpu();
    uint32_t state = 2;

    for (unsigned i = 0; i < ROW_COUNTS; i++) {
        struct gk_loss result;
        struct gk_softmax_args args = {&logits[0][0], labels, 1, 2, 1.0f, &result};

        for (unsigned r = 0; r < ROWS_MAX; r++) {
            labels[r] = 1;
            logits[r][0] = r == 0 ? 0x1p60f : (float)draw(&state) * 0x1p-24f;
            logits[r][1] = 0.0f;
        }
        for (unsigned r = 0; r < ROWS_MAX; r++) {
            float row[2] = {logits[r][0], logits[r][1]};

            args.logits = row;
            ops->softmax_cross_entropy(NULL, &args);
            losses[r] = result.loss;
        }
        args.logits = &logits[0][0];
        args.rows = row_counts[i];
        ops->softmax_cross_entropy(NULL, &args);
        cr_assert_eq(result.loss, in_tiles_double(losses, args.rows), "%u rows",
                     (unsigned)args.rows);
        cr_assert(args.rows <= 2 * GK_LAYER_TILE || result.loss > 0x1p60);
    }
}

/* Squares of 2^53 + 2^29 in the first tile lie in the middle of two floats: the 200 ones of the
 * second are lost one by one, but not together.  The sum of x is 0. */
Test(model_tiles, variance)
{
    static float x[513], y[513];
    float weight = 1.0f, bias = 0.0f, mean = 7.0f, scale = 7.0f, running[2] = {0.0f, 0.0f};
    const struct gk_norm_args args = {.x = x,
                                      .y = y,
                                      .rows = 513,
                                      .columns = 1,
                                      .weight = &weight,
                                      .bias = &bias,
                                      .training = true,
                                      .mean = &mean,
                                      .scale = &scale,
                                      .running_mean = &running[0],
                                      .running_variance = &running[1],
                                      .momentum = 1.0f};

    x[0] = 0x1p26f;
    x[1] = -0x1p26f;
    x[2] = 0x1p14f;
    x[3] = -0x1p14f;
    for (unsigned r = 300; r < 500; r++) {
        x[r] = r % 2 ? 1.0f : -1.0f;
    }
    gk_layers_cpu()->norm_forward(NULL, &args);
    cr_assert_eq(mean, 0.0f);
    cr_assert_eq(running[1], 0x1p44f + 0x1p21f, "%a", running[1]);
}

/* What lies between a large entry of a tile and its opposite in the next is lost in part. */
Test(model_tiles, means_and_gradients)
{
    static float x[ROWS_MAX], dy[ROWS_MAX], y[ROWS_MAX];
    static double terms[2][ROWS_MAX];
    float weight = 2.0f, bias = 0.0f, mean, scale, running[2] = {0.0f, 0.0f};
    float dweight, dbias;
    unsigned differ = 0;

    for (unsigned i = 0; i < ROW_COUNTS; i++) {
        const uint64_t rows = row_counts[i];
        const struct gk_norm_args forward = {.x = x,
                                             .y = y,
                                             .rows = rows,
                                             .columns = 1,
                                             .weight = &weight,
                                             .bias = &bias,
                                             .training = true,
                                             .mean = &mean,
                                             .scale = &scale,
                                             .running_mean = &running[0],
                                             .running_variance = &running[1]};
        const struct gk_norm_gradient_args backward = {.x = x,
                                                       .dy = dy,
                                                       .rows = rows,
                                                       .columns = 1,
                                                       .weight = &weight,
                                                       .mean = &mean,
                                                       .scale = &scale,
                                                       .dweight = &dweight,
                                                       .dbias = &dbias};
        uint32_t state = 3;
        double plain = 0.0;

        for (unsigned r = 0; r < rows; r++) {
            x[r] = r == 100 ? 0x1p60f : r == 300 ? -0x1p60f : (float)draw(&state) * 0x1p-14f;
            terms[0][r] = (double)x[r];
            plain += terms[0][r];
        }
        gk_layers_cpu()->norm_forward(NULL, &forward);
        cr_assert_eq(mean, (float)(in_tiles_double(terms[0], rows) / (double)rows));
        differ += mean != (float)(plain / (double)rows);
        mean = 0.5f;
        scale = 0.25f;
        for (unsigned r = 0; r < rows; r++) {
            dy[r] = x[r];
            x[r] = draw_wide(&state);
            terms[0][r] = (double)dy[r];
            terms[1][r] = (double)dy[r] * (double)((x[r] - mean) * scale);
        }
        gk_layers_cpu()->norm_backward(NULL, &backward);
        cr_assert_eq(dbias, (float)in_tiles_double(terms[0], rows), "%u rows", (unsigned)rows);
        cr_assert_eq(dweight, (float)in_tiles_double(terms[1], rows), "%u rows", (unsigned)rows);
    }
    cr_assert_eq(differ, 4); /* those with more than 300 rows */
}
