/* Sums over the rows, batch normalisation, and shortcuts.  Sums are taken for a block of columns at
 * a time, so that their accumulators, most of them in double, stay in registers and cache. */
#include "worker/model/layers_cpu.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64 };

/* Columns [first, first + count). */
struct block {
    uint64_t first, count;
};

static struct block block_at(uint64_t first, uint64_t columns)
{
    uint64_t left = columns - first;

    return (struct block){first, left < BLOCK ? left : BLOCK};
}

/* Of the tile that the rows are in, and of all tiles before it. */
struct sums {
    double tile[BLOCK], all[BLOCK];
};

static bool ends_tile(uint64_t row, uint64_t rows)
{
    return (row + 1) % GK_LAYER_TILE == 0 || row + 1 == rows;
}

static void end_tile(struct sums *sums, const struct block *block)
{
    for (uint64_t c = 0; c < block->count; c++) {
        sums->all[c] += sums->tile[c];
        sums->tile[c] = 0.0;
    }
}

static void add_columns(const float *x, uint64_t rows, uint64_t columns, const struct block *block,
                        float *sums)
{
    float tile[BLOCK] = {0.0f};

    for (uint64_t c = 0; c < block->count; c++) {
        sums[c] = 0.0f;
    }
    for (uint64_t r = 0; r < rows; r++) {
        const float *row = x + r * columns + block->first;

        for (uint64_t c = 0; c < block->count; c++) {
            tile[c] += row[c];
        }
        for (uint64_t c = 0; ends_tile(r, rows) && c < block->count; c++) {
            sums[c] += tile[c];
            tile[c] = 0.0f;
        }
    }
}

void gk_cpu_column_sums(struct gk_queue *queue, const float *x, uint64_t rows, uint64_t columns,
                        float *sums)
{
    (void)queue;
    for (uint64_t first = 0; first < columns; first += BLOCK) {
        const struct block block = block_at(first, columns);

        add_columns(x, rows, columns, &block, sums + first);
    }
}

static void measure(const struct gk_norm_args *args, const struct block *block)
{
    const double rows = (double)args->rows;
    struct sums sums = {.all = {0.0}};
    struct sums squares = {.all = {0.0}};

    for (uint64_t r = 0; r < args->rows; r++) {
        const float *x = args->x + r * args->columns + block->first;

        for (uint64_t c = 0; c < block->count; c++) {
            sums.tile[c] += (double)x[c];
        }
        if (ends_tile(r, args->rows)) {
            end_tile(&sums, block);
        }
    }
    for (uint64_t c = 0; c < block->count; c++) {
        sums.all[c] /= rows;
    }
    for (uint64_t r = 0; r < args->rows; r++) {
        const float *x = args->x + r * args->columns + block->first;

        for (uint64_t c = 0; c < block->count; c++) {
            double distance = (double)x[c] - sums.all[c];

            squares.tile[c] += distance * distance;
        }
        if (ends_tile(r, args->rows)) {
            end_tile(&squares, block);
        }
    }
    for (uint64_t c = 0; c < block->count; c++) {
        uint64_t column = block->first + c;
        float variance = (float)(squares.all[c] / (args->rows > 1 ? rows - 1.0 : 1.0));

        args->mean[column] = (float)sums.all[c];
        args->scale[column] = (float)(1.0 / sqrt(squares.all[c] / rows + (double)args->epsilon));
        args->running_mean[column] +=
            args->momentum * (args->mean[column] - args->running_mean[column]);
        args->running_variance[column] +=
            args->momentum * (variance - args->running_variance[column]);
    }
}

static void normalise(const struct gk_norm_args *args, const struct block *block)
{
    float factor[BLOCK], mean[BLOCK];
    const float *bias = args->bias + block->first;
    const bool is_relu = args->activation == GK_ACTIVATION_RELU;

    for (uint64_t c = 0; c < block->count; c++) {
        uint64_t column = block->first + c;
        float scale = args->training ? args->scale[column]
                                     : 1.0f / sqrtf(args->running_variance[column] + args->epsilon);

        mean[c] = args->training ? args->mean[column] : args->running_mean[column];
        factor[c] = args->weight[column] * scale;
    }
    for (uint64_t r = 0; r < args->rows; r++) {
        const float *x = args->x + r * args->columns + block->first;
        float *y = args->y + r * args->columns + block->first;

        for (uint64_t c = 0; c < block->count; c++) {
            float value = (x[c] - mean[c]) * factor[c] + bias[c];

            y[c] = is_relu && value <= 0.0f ? 0.0f : value;
        }
    }
}

void gk_cpu_norm_forward(struct gk_queue *queue, const struct gk_norm_args *args)
{
    (void)queue;
    for (uint64_t first = 0; first < args->columns; first += BLOCK) {
        const struct block block = block_at(first, args->columns);

        if (args->training) {
            measure(args, &block);
        }
        normalise(args, &block);
    }
}

static void differentiate(const struct gk_norm_gradient_args *args, const struct block *block)
{
    const double rows = (double)args->rows;
    const float *mean = args->mean + block->first;
    const float *scale = args->scale + block->first;
    struct sums sums = {.all = {0.0}};
    struct sums products = {.all = {0.0}};
    float factor[BLOCK], mean_dy[BLOCK], mean_product[BLOCK];

    for (uint64_t r = 0; r < args->rows; r++) {
        const float *x = args->x + r * args->columns + block->first;
        const float *dy = args->dy + r * args->columns + block->first;

        for (uint64_t c = 0; c < block->count; c++) {
            sums.tile[c] += (double)dy[c];
            products.tile[c] += (double)dy[c] * (double)((x[c] - mean[c]) * scale[c]);
        }
        if (ends_tile(r, args->rows)) {
            end_tile(&sums, block);
            end_tile(&products, block);
        }
    }
    for (uint64_t c = 0; c < block->count; c++) {
        args->dbias[block->first + c] = (float)sums.all[c];
        args->dweight[block->first + c] = (float)products.all[c];
        factor[c] = args->weight[block->first + c] * scale[c];
        mean_dy[c] = (float)(sums.all[c] / rows);
        mean_product[c] = (float)(products.all[c] / rows);
    }
    for (uint64_t r = 0; args->dx && r < args->rows; r++) {
        const float *x = args->x + r * args->columns + block->first;
        const float *dy = args->dy + r * args->columns + block->first;
        float *dx = args->dx + r * args->columns + block->first;

        for (uint64_t c = 0; c < block->count; c++) {
            float n = (x[c] - mean[c]) * scale[c];

            dx[c] = factor[c] * (dy[c] - mean_dy[c] - n * mean_product[c]);
        }
    }
}

void gk_cpu_norm_backward(struct gk_queue *queue, const struct gk_norm_gradient_args *args)
{
    (void)queue;
    for (uint64_t first = 0; first < args->columns; first += BLOCK) {
        const struct block block = block_at(first, args->columns);

        differentiate(args, &block);
    }
}

void gk_cpu_residual_forward(struct gk_queue *queue, const struct gk_residual_args *args)
{
    const uint64_t pixels = (uint64_t)args->rows * args->columns;
    const bool is_relu = args->activation == GK_ACTIVATION_RELU;

    (void)queue;
    for (uint64_t i = 0; i < args->samples * pixels; i++) {
        uint64_t row = i % pixels / args->columns * args->stride;
        uint64_t column = i % args->columns * args->stride;
        uint64_t pixel = (i / pixels * args->skip_rows + row) * args->skip_columns + column;
        const float *x = args->x + i * args->channels;
        const float *skip = args->skip + pixel * args->skip_channels;
        float *y = args->y + i * args->channels;

        for (uint32_t c = 0; c < args->channels; c++) {
            float value = c < args->skip_channels ? x[c] + skip[c] : x[c];

            y[c] = is_relu && value <= 0.0f ? 0.0f : value;
        }
    }
}

void gk_cpu_residual_backward(struct gk_queue *queue, const struct gk_residual_gradient_args *args)
{
    const uint64_t pixels = (uint64_t)args->rows * args->columns;

    (void)queue;
    for (uint64_t i = 0; i < args->samples * pixels; i++) {
        uint64_t row = i % pixels / args->columns * args->stride;
        uint64_t column = i % args->columns * args->stride;
        uint64_t pixel = (i / pixels * args->skip_rows + row) * args->skip_columns + column;
        const float *dy = args->dy + i * args->channels;
        float *dskip = args->dskip + pixel * args->skip_channels;

        for (uint32_t c = 0; c < args->channels && c < args->skip_channels; c++) {
            dskip[c] += dy[c];
        }
    }
}
