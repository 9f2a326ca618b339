/* The layer table on the CPU: gemm by OpenBLAS on one thread, since its sums depend on how many
 * there are; everything else in plain loops, whose order is part of the contract
 * (common/backend.h). */
#include "worker/model/layers_cpu.h"

#include "common/assert.h"
#include "worker/model/model.h"

#include <cblas.h>

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t blas_once = PTHREAD_ONCE_INIT;
static char blas_fingerprint[256]; /* written once */

static void set_up_blas(void)
{
    const char *config = openblas_get_config(); /* "OpenBLAS 0.3.21 NO_LAPACKE ..." */
    size_t name = strcspn(config, " ");
    size_t version = config[name] ? 1 + strcspn(config + name + 1, " ") : 0;

    openblas_set_num_threads(1);
    (void)snprintf(blas_fingerprint, sizeof(blas_fingerprint), "%.*s, core %s, threads %d",
                   (int)(name + version), config, openblas_get_corename(),
                   openblas_get_num_threads());
}

static const char *cpu_fingerprint(void)
{
    return blas_fingerprint;
}

static void cpu_gemm(struct gk_queue *queue, const struct gk_gemm_args *args)
{
    blasint lda = (blasint)(args->transpose_a ? args->m : args->k);
    blasint ldb = (blasint)(args->transpose_b ? args->k : args->n);

    (void)queue;
    GK_ASSERT(args->m > 0 && args->n > 0 && args->k > 0);
    GK_ASSERT(args->m <= INT_MAX && args->n <= INT_MAX && args->k <= INT_MAX);
    cblas_sgemm(CblasRowMajor, args->transpose_a ? CblasTrans : CblasNoTrans,
                args->transpose_b ? CblasTrans : CblasNoTrans, (blasint)args->m, (blasint)args->n,
                (blasint)args->k, 1.0f, args->a, lda, args->b, ldb, args->beta, args->c,
                (blasint)args->n);
}

static void cpu_copy(struct gk_queue *queue, float *y, const float *x, uint64_t count)
{
    (void)queue;
    memcpy(y, x, count * sizeof(*y));
}

static void cpu_fill(struct gk_queue *queue, float *y, float value, uint64_t count)
{
    (void)queue;
    for (uint64_t i = 0; i < count; i++) {
        y[i] = value;
    }
}

static void cpu_transpose(struct gk_queue *queue, float *y, const float *x, const uint64_t sides[3])
{
    const uint64_t rows = sides[1], columns = sides[2];

    (void)queue;
    for (uint64_t i = 0; i < sides[0]; i++) {
        for (uint64_t c = 0; c < columns; c++) {
            for (uint64_t r = 0; r < rows; r++) {
                y[c * rows + r] = x[r * columns + c];
            }
        }
        x += rows * columns;
        y += rows * columns;
    }
}

static void cpu_bias_forward(struct gk_queue *queue, const struct gk_bias_args *args)
{
    const float *bias = args->bias;
    const bool is_relu = args->activation == GK_ACTIVATION_RELU;

    (void)queue;
    for (uint64_t r = 0; r < args->rows; r++) {
        float *row = args->x + r * args->columns;

        for (uint64_t c = 0; c < args->columns; c++) {
            float sum = row[c] + bias[c];

            row[c] = is_relu && sum <= 0.0f ? 0.0f : sum;
        }
    }
}

static void cpu_activation_backward(struct gk_queue *queue, float *dx, const float *y,
                                    uint64_t count, enum gk_activation activation)
{
    (void)queue;
    if (activation == GK_ACTIVATION_NONE) {
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        dx[i] = y[i] <= 0.0f ? 0.0f : dx[i];
    }
}

/* The right answer must be the first of the largest; nothing is right among NaNs. */
static bool is_hit(const float *logits, uint64_t classes, uint32_t label)
{
    for (uint64_t c = 0; c < classes; c++) {
        if (c < label ? !(logits[label] > logits[c]) : !(logits[label] >= logits[c])) {
            return false;
        }
    }
    return true;
}

static void cpu_softmax_cross_entropy(struct gk_queue *queue, const struct gk_softmax_args *args)
{
    const uint64_t classes = args->classes;
    struct gk_loss result = {.loss = 0.0};
    double tile = 0.0;

    (void)queue;
    for (uint64_t r = 0; r < args->rows; r++) {
        float *row = args->logits + r * classes;
        uint32_t label = args->labels[r];
        float largest = row[0];
        float sum = 0.0f;
        float right;

        GK_ASSERT(label < classes);
        result.hits += is_hit(row, classes, label);
        for (uint64_t c = 1; c < classes; c++) {
            largest = row[c] > largest ? row[c] : largest;
        }
        right = row[label] - largest;
        for (uint64_t c = 0; c < classes; c++) {
            row[c] = expf(row[c] - largest);
            sum += row[c];
        }
        for (uint64_t c = 0; c < classes; c++) {
            row[c] /= sum;
        }
        row[label] -= 1.0f;
        for (uint64_t c = 0; args->scale != 1.0f && c < classes; c++) {
            row[c] *= args->scale;
        }
        tile += (double)logf(sum) - (double)right;
        if ((r + 1) % GK_LAYER_TILE == 0 || r + 1 == args->rows) {
            result.loss += tile;
            tile = 0.0;
        }
    }
    *args->result = result;
}

const struct gk_layer_ops *gk_layers_cpu(void)
{
    static const struct gk_layer_ops ops = {
        .on_host = true,
        .window_rows = 512,
        .fingerprint = cpu_fingerprint,
        .gemm = cpu_gemm,
        .copy = cpu_copy,
        .fill = cpu_fill,
        .transpose = cpu_transpose,
        .bias_forward = cpu_bias_forward,
        .activation_backward = cpu_activation_backward,
        .column_sums = gk_cpu_column_sums,
        .softmax_cross_entropy = cpu_softmax_cross_entropy,
        .im2col = gk_cpu_im2col,
        .col2im = gk_cpu_col2im,
        .max_pool_forward = gk_cpu_max_pool_forward,
        .max_pool_backward = gk_cpu_max_pool_backward,
        .average_pool_forward = gk_cpu_average_pool_forward,
        .average_pool_backward = gk_cpu_average_pool_backward,
        .norm_forward = gk_cpu_norm_forward,
        .norm_backward = gk_cpu_norm_backward,
        .residual_forward = gk_cpu_residual_forward,
        .residual_backward = gk_cpu_residual_backward,
        .embedding_forward = gk_cpu_embedding_forward,
        .embedding_backward = gk_cpu_embedding_backward,
        .lstm_forward = gk_cpu_lstm_forward,
        .lstm_backward = gk_cpu_lstm_backward,
    };

    (void)pthread_once(&blas_once, set_up_blas); /* Fails on an invalid control only. */
    return &ops;
}
