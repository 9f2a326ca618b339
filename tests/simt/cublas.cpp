/* cuBLAS, emulated: a product is work of its stream, which OpenBLAS does when the stream runs, on
 * one thread, so that its bits are those of the CPU's layer table. */
#include "tests/simt/cublas_v2.h"
#include "tests/simt/simt.h"

#include <cblas.h>

#include <mutex>

using simt::fault;

struct cublasContext {
    cudaStream_t stream;
    void *workspace;
    cublasMath_t mode;
};

static std::mutex lock;
static int64_t calls_left = -1;

static bool fails()
{
    std::lock_guard<std::mutex> guard(lock);

    return calls_left >= 0 && calls_left-- == 0;
}

cublasStatus_t cublasGetProperty(libraryPropertyType, int *value)
{
    *value = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    if (fails()) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    openblas_set_num_threads(1);
    *handle = new cublasContext{nullptr, nullptr, CUBLAS_DEFAULT_MATH};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (handle->stream) {
        (void)cudaStreamSynchronize(handle->stream);
    }
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *memory, size_t bytes)
{
    if (!simt::lies_on_device(memory, bytes)) {
        fault("cuBLAS: a workspace of %zu bytes that does not lie in device memory", bytes);
    }
    handle->workspace = memory;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    handle->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

/* Column-major, a column every `stride` elements. */
static void check_operand(const char *name, const float *x, int rows, int columns, int stride)
{
    const size_t count =
        static_cast<size_t>(columns - 1) * static_cast<size_t>(stride) + static_cast<size_t>(rows);

    if (!simt::lies_on_device(x, count * sizeof(*x))) {
        fault("cublasSgemm: operand %s of %d x %d does not lie in device memory", name, rows,
              columns);
    }
}

static void check_handle(cublasHandle_t handle)
{
    if (!handle->stream) {
        fault("cublasSgemm on the default stream, which the emulator does not have");
    }
    if (!handle->workspace || handle->mode != CUBLAS_PEDANTIC_MATH) {
        fault("cublasSgemm %s: its bits may change from run to run",
              handle->workspace ? "in another mode than pedantic" : "without a workspace");
    }
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transpose_a,
                           cublasOperation_t transpose_b, int m, int n, int k, const float *alpha,
                           const float *a, int lda, const float *b, int ldb, const float *beta,
                           float *c, int ldc)
{
    const bool turns_a = transpose_a == CUBLAS_OP_T;
    const bool turns_b = transpose_b == CUBLAS_OP_T;
    const float factors[2] = {*alpha, *beta};

    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (m <= 0 || n <= 0 || k <= 0 || lda < (turns_a ? k : m) || ldb < (turns_b ? n : k) ||
        ldc < m) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    check_handle(handle);
    check_operand("a", a, turns_a ? k : m, turns_a ? m : k, lda);
    check_operand("b", b, turns_b ? n : k, turns_b ? k : n, ldb);
    check_operand("c", c, m, n, ldc);
    if (fails()) {
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    simt::queue_work(handle->stream, [=]() {
        cblas_sgemm(CblasColMajor, turns_a ? CblasTrans : CblasNoTrans,
                    turns_b ? CblasTrans : CblasNoTrans, m, n, k, factors[0], a, lda, b, ldb,
                    factors[1], c, ldc);
    });
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" void gk_simt_fail_blas(int64_t after)
{
    std::lock_guard<std::mutex> guard(lock);

    calls_left = after;
}
