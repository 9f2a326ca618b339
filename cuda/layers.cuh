/* The slots of the CUDA layer table, by the file they stand in.  Contracts: common/backend.h.
 *
 * All arrays lie in device memory.  A slot begins, launches, and ends without an event: its work is
 * waited for through a ticket that the vector table gives later on the same queue. */
#ifndef GK_CUDA_LAYERS_CUH
#define GK_CUDA_LAYERS_CUH

#include "cuda/queue.cuh"

extern "C" {
#include "common/words.h"

/* blas.cu */
bool gk_cuda_blas_find(struct gk_words *words); /* false: cuBLAS is not here, words say why */
const char *gk_cuda_blas_fingerprint(void);
void gk_cuda_layer_gemm(struct gk_queue *queue, const struct gk_gemm_args *args);

/* layers_basic.cu */
void gk_cuda_layer_copy(struct gk_queue *queue, float *y, const float *x, uint64_t count);
void gk_cuda_layer_fill(struct gk_queue *queue, float *y, float value, uint64_t count);
void gk_cuda_layer_transpose(struct gk_queue *queue, float *y, const float *x,
                             const uint64_t sides[3]);
void gk_cuda_layer_bias_forward(struct gk_queue *queue, const struct gk_bias_args *args);
void gk_cuda_layer_activation_backward(struct gk_queue *queue, float *dx, const float *y,
                                       uint64_t count, enum gk_activation activation);
void gk_cuda_layer_residual_forward(struct gk_queue *queue, const struct gk_residual_args *args);
void gk_cuda_layer_residual_backward(struct gk_queue *queue,
                                     const struct gk_residual_gradient_args *args);

/* layers_norm.cu */
void gk_cuda_layer_column_sums(struct gk_queue *queue, const float *x, uint64_t rows,
                               uint64_t columns, float *sums);
void gk_cuda_layer_softmax_cross_entropy(struct gk_queue *queue,
                                         const struct gk_softmax_args *args);
void gk_cuda_layer_norm_forward(struct gk_queue *queue, const struct gk_norm_args *args);
void gk_cuda_layer_norm_backward(struct gk_queue *queue, const struct gk_norm_gradient_args *args);

/* layers_window.cu */
void gk_cuda_layer_im2col(struct gk_queue *queue, const struct gk_layer_window *window,
                          const float *x, float *windows);
void gk_cuda_layer_col2im(struct gk_queue *queue, const struct gk_layer_window *window,
                          const float *windows, float *dx);
void gk_cuda_layer_max_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                                    const float *x, float *y, uint32_t *index);
void gk_cuda_layer_max_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                                     const float *dy, const uint32_t *index, float *dx);
void gk_cuda_layer_average_pool_forward(struct gk_queue *queue,
                                        const struct gk_layer_window *window, const float *x,
                                        float *y);
void gk_cuda_layer_average_pool_backward(struct gk_queue *queue,
                                         const struct gk_layer_window *window, const float *dy,
                                         float *dx);

/* layers_sequence.cu */
void gk_cuda_layer_embedding_forward(struct gk_queue *queue, const float *table,
                                     const uint32_t *tokens, const uint64_t sides[2], float *y);
void gk_cuda_layer_embedding_backward(struct gk_queue *queue, const float *dy,
                                      const uint32_t *tokens, const uint64_t sides[3],
                                      float *dtable);
void gk_cuda_layer_lstm_forward(struct gk_queue *queue, const struct gk_lstm_args *args);
void gk_cuda_layer_lstm_backward(struct gk_queue *queue, const struct gk_lstm_gradient_args *args);
}

#endif
