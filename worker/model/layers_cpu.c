/* The layer table on the CPU: gemm by OpenBLAS on one thread, since its sums depend on how many
 * there are; everything else in plain loops, whose order is part of the contract
 * (common/backend.h). */
#include "worker/model/model.h"

#include "common/assert.h"

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

static void cpu_gemm(const struct gk_gemm_args *args)
{
    blasint lda = (blasint)(args->transpose_a ? args->m : args->k);
    blasint ldb = (blasint)(args->transpose_b ? args->k : args->n);

    GK_ASSERT(args->m > 0 && args->n > 0 && args->k > 0);
    GK_ASSERT(args->m <= INT_MAX && args->n <= INT_MAX && args->k <= INT_MAX);
    cblas_sgemm(CblasRowMajor, args->transpose_a ? CblasTrans : CblasNoTrans,
                args->transpose_b ? CblasTrans : CblasNoTrans, (blasint)args->m, (blasint)args->n,
                (blasint)args->k, 1.0f, args->a, lda, args->b, ldb, args->beta, args->c,
                (blasint)args->n);
}

/* A NaN passes through, so that a diverged model is seen as one. */
static void cpu_bias_forward(float *x, const float *bias, uint64_t rows, uint64_t columns,
                             enum gk_activation activation)
{
    for (uint64_t r = 0; r < rows; r++) {
        float *row = x + r * columns;

        for (uint64_t c = 0; c < columns; c++) {
            float sum = row[c] + bias[c];

            row[c] = activation == GK_ACTIVATION_RELU && sum <= 0.0f ? 0.0f : sum;
        }
    }
}

static void cpu_activation_backward(float *dx, const float *y, uint64_t count,
                                    enum gk_activation activation)
{
    if (activation == GK_ACTIVATION_NONE) {
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        dx[i] = y[i] <= 0.0f ? 0.0f : dx[i];
    }
}

static void cpu_column_sums(const float *x, uint64_t rows, uint64_t columns, float *sums)
{
    for (uint64_t c = 0; c < columns; c++) {
        sums[c] = 0.0f;
    }
    for (uint64_t r = 0; r < rows; r++) {
        const float *row = x + r * columns;

        for (uint64_t c = 0; c < columns; c++) {
            sums[c] += row[c];
        }
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

static void cpu_softmax_cross_entropy(float *logits, const uint32_t *labels, uint64_t rows,
                                      uint64_t classes, double *loss, uint64_t *hits)
{
    for (uint64_t r = 0; r < rows; r++) {
        float *row = logits + r * classes;
        uint32_t label = labels[r];
        float largest = row[0];
        float sum = 0.0f;
        float right;

        GK_ASSERT(label < classes);
        *hits += is_hit(row, classes, label);
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
        *loss += (double)logf(sum) - (double)right;
    }
}

const struct gk_layer_ops *gk_layers_cpu(void)
{
    static const struct gk_layer_ops ops = {
        .fingerprint = cpu_fingerprint,
        .gemm = cpu_gemm,
        .bias_forward = cpu_bias_forward,
        .activation_backward = cpu_activation_backward,
        .column_sums = cpu_column_sums,
        .softmax_cross_entropy = cpu_softmax_cross_entropy,
    };

    (void)pthread_once(&blas_once, set_up_blas); /* Fails on an invalid control only. */
    return &ops;
}
