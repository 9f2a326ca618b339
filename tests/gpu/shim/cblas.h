/* The few words of OpenBLAS that the CPU's layer table and the emulated cuBLAS use, for machines
 * that have none: cblas.c, in plain loops. */
#ifndef GK_TESTS_GPU_CBLAS_H
#define GK_TESTS_GPU_CBLAS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef int blasint;
typedef enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 } CBLAS_ORDER;
typedef enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 } CBLAS_TRANSPOSE;

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b,
                 blasint m, blasint n, blasint k, float alpha, const float *a, blasint lda,
                 const float *b, blasint ldb, float beta, float *c, blasint ldc);
char *openblas_get_config(void);
char *openblas_get_corename(void);
int openblas_get_num_threads(void);
void openblas_set_num_threads(int count);

#ifdef __cplusplus
}
#endif

#endif
