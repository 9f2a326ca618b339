/* The CUDA layer table: gemm by cuBLAS, everything else by kernels that give the bits of the CPU's
 * table. */
#include "cuda/layers.cuh"

extern "C" {
#include "cuda/backend.h"
}

/* Products of that many rows fill every device; GK_WINDOWS_BYTES bounds the memory, and with it the
 * rows of all but the thinnest windows. */
enum { WINDOW_ROWS = 65536 };

static struct gk_layer_ops table_of_slots(void)
{
    struct gk_layer_ops ops = {};

    ops.on_host = false;
    ops.window_rows = WINDOW_ROWS;
    ops.fingerprint = gk_cuda_blas_fingerprint;
    ops.gemm = gk_cuda_layer_gemm;
    ops.copy = gk_cuda_layer_copy;
    ops.fill = gk_cuda_layer_fill;
    ops.transpose = gk_cuda_layer_transpose;
    ops.bias_forward = gk_cuda_layer_bias_forward;
    ops.activation_backward = gk_cuda_layer_activation_backward;
    ops.column_sums = gk_cuda_layer_column_sums;
    ops.softmax_cross_entropy = gk_cuda_layer_softmax_cross_entropy;
    ops.im2col = gk_cuda_layer_im2col;
    ops.col2im = gk_cuda_layer_col2im;
    ops.max_pool_forward = gk_cuda_layer_max_pool_forward;
    ops.max_pool_backward = gk_cuda_layer_max_pool_backward;
    ops.average_pool_forward = gk_cuda_layer_average_pool_forward;
    ops.average_pool_backward = gk_cuda_layer_average_pool_backward;
    ops.norm_forward = gk_cuda_layer_norm_forward;
    ops.norm_backward = gk_cuda_layer_norm_backward;
    ops.residual_forward = gk_cuda_layer_residual_forward;
    ops.residual_backward = gk_cuda_layer_residual_backward;
    ops.embedding_forward = gk_cuda_layer_embedding_forward;
    ops.embedding_backward = gk_cuda_layer_embedding_backward;
    ops.lstm_forward = gk_cuda_layer_lstm_forward;
    ops.lstm_backward = gk_cuda_layer_lstm_backward;
    return ops;
}

const struct gk_layer_ops *gk_layers_cuda(struct gk_words *words)
{
    static const struct gk_layer_ops ops = table_of_slots();

    return gk_cuda_blas_find(words) ? &ops : nullptr;
}
