/* The slots of the CPU layer table (worker/model/model.h), by the file they stand in.  Contracts:
 * common/backend.h.  Internal to this folder. */
#ifndef GK_WORKER_MODEL_LAYERS_CPU_H
#define GK_WORKER_MODEL_LAYERS_CPU_H

#include "common/backend.h"

/* layers_cpu_window.c */
void gk_cpu_im2col(struct gk_queue *queue, const struct gk_layer_window *window, const float *x,
                   float *windows);
void gk_cpu_col2im(struct gk_queue *queue, const struct gk_layer_window *window,
                   const float *windows, float *dx);
void gk_cpu_max_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                             const float *x, float *y, uint32_t *index);
void gk_cpu_max_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                              const float *dy, const uint32_t *index, float *dx);
void gk_cpu_average_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                                 const float *x, float *y);
void gk_cpu_average_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                                  const float *dy, float *dx);

/* layers_cpu_norm.c */
void gk_cpu_column_sums(struct gk_queue *queue, const float *x, uint64_t rows, uint64_t columns,
                        float *sums);
void gk_cpu_norm_forward(struct gk_queue *queue, const struct gk_norm_args *args);
void gk_cpu_norm_backward(struct gk_queue *queue, const struct gk_norm_gradient_args *args);
void gk_cpu_residual_forward(struct gk_queue *queue, const struct gk_residual_args *args);
void gk_cpu_residual_backward(struct gk_queue *queue, const struct gk_residual_gradient_args *args);

/* layers_cpu_sequence.c */
void gk_cpu_embedding_forward(struct gk_queue *queue, const float *table, const uint32_t *tokens,
                              const uint64_t sides[2], float *y);
void gk_cpu_embedding_backward(struct gk_queue *queue, const float *dy, const uint32_t *tokens,
                               const uint64_t sides[3], float *dtable);
void gk_cpu_lstm_forward(struct gk_queue *queue, const struct gk_lstm_args *args);
void gk_cpu_lstm_backward(struct gk_queue *queue, const struct gk_lstm_gradient_args *args);

#endif
