#include "cblas.h"

#include <stddef.h>

/* A matrix of which element (i, j) is x[i rows_apart + j columns_apart]. */
struct matrix {
    const float *x;
    size_t rows_apart, columns_apart;
};

static struct matrix matrix_of(const float *x, blasint stride, int rows_are_far)
{
    return rows_are_far ? (struct matrix){x, (size_t)stride, 1}
                        : (struct matrix){x, 1, (size_t)stride};
}

static double dot(const struct matrix *a, const struct matrix *b, size_t row, size_t column,
                  size_t k)
{
    double sum = 0.0;

    for (size_t i = 0; i < k; i++) {
        sum += (double)a->x[row * a->rows_apart + i * a->columns_apart] *
               (double)b->x[i * b->rows_apart + column * b->columns_apart];
    }
    return sum;
}

/* Sums in double, so that they are right within every bound for sums of fp32. */
void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b,
                 blasint m, blasint n, blasint k, float alpha, const float *a, blasint lda,
                 const float *b, blasint ldb, float beta, float *c, blasint ldc)
{
    const int is_row_major = order == CblasRowMajor;
    const struct matrix left = matrix_of(a, lda, is_row_major == (transpose_a == CblasNoTrans));
    const struct matrix right = matrix_of(b, ldb, is_row_major == (transpose_b == CblasNoTrans));
    const size_t rows_apart = is_row_major ? (size_t)ldc : 1;
    const size_t columns_apart = is_row_major ? 1 : (size_t)ldc;

    for (size_t row = 0; row < (size_t)m; row++) {
        for (size_t column = 0; column < (size_t)n; column++) {
            float *at = c + row * rows_apart + column * columns_apart;
            const double sum = (double)alpha * dot(&left, &right, row, column, (size_t)k);

            *at = (float)(sum + (beta == 0.0f ? 0.0 : (double)beta * (double)*at));
        }
    }
}

static char config[] = "loops 1";
static char core[] = "any";

char *openblas_get_config(void)
{
    return config;
}

char *openblas_get_corename(void)
{
    return core;
}

int openblas_get_num_threads(void)
{
    return 1;
}

void openblas_set_num_threads(int count)
{
    (void)count; /* there is one */
}
