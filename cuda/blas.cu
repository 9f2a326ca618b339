/* Products by cuBLAS: in pedantic mode, on the queue's stream and with a workspace of the queue's
 * own, so that the same call on the same device has the same bits.
 *
 * The library is looked for when somebody asks for the layer table.  A program that was built with
 * CUDA so starts on a machine without it. */
#include "cuda/layers.cuh"

extern "C" {
#include "common/assert.h"
}

#include <cublas_v2.h>

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

static struct {
    decltype(&cublasCreate) create;
    decltype(&cublasDestroy) destroy;
    decltype(&cublasGetProperty) property;
    decltype(&cublasSetStream) set_stream;
    decltype(&cublasSetWorkspace) set_workspace;
    decltype(&cublasSetMathMode) set_mode;
    decltype(&cublasSgemm) product;
} blas;

static char fingerprint[160]; /* written once, as the words */
static char missing[256];

/* ---- Finding it ---- */

#ifdef GK_SIMT /* the emulator's is linked */
#define LOAD(member, name) (blas.member = name, true)

static bool open_library(void)
{
    return true;
}
#else
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define LOAD(member, name) load(&blas.member, TEXT(name))

static void *library;

/* That of the header's version, which is the one that the device code of this program goes with;
 * else whatever the machine calls cuBLAS. */
static bool open_library(void)
{
    library = dlopen("libcublas.so." TEXT(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)snprintf(missing, sizeof(missing), "no cuBLAS on this machine: %s", dlerror());
        library = dlopen("libcublas.so", RTLD_NOW | RTLD_LOCAL);
    }
    return library != nullptr;
}

template <typename function> static bool load(function *ret_function, const char *name)
{
    *ret_function = reinterpret_cast<function>(dlsym(library, name));
    if (!*ret_function) {
        (void)snprintf(missing, sizeof(missing), "this machine's cuBLAS has no %s", name);
    }
    return *ret_function != nullptr;
}
#endif

/* The sums of a product depend on the device too. */
static void add_devices(void)
{
    cudaDeviceProp first = {};
    cudaDeviceProp other = {};
    int count = 0;
    bool differs = false;
    size_t used = strlen(fingerprint);

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
        cudaGetDeviceProperties(&first, 0) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    for (int i = 1; i < count && cudaGetDeviceProperties(&other, i) == cudaSuccess; i++) {
        differs = differs || strcmp(first.name, other.name) != 0;
    }
    (void)snprintf(fingerprint + used, sizeof(fingerprint) - used, ", %.80s%s", first.name,
                   differs ? " and others" : "");
}

static bool find(void)
{
    int version[3] = {};

    if (!open_library() || !LOAD(create, cublasCreate) || !LOAD(destroy, cublasDestroy) ||
        !LOAD(property, cublasGetProperty) || !LOAD(set_stream, cublasSetStream) ||
        !LOAD(set_workspace, cublasSetWorkspace) || !LOAD(set_mode, cublasSetMathMode) ||
        !LOAD(product, cublasSgemm)) {
        return false;
    }
    (void)blas.property(MAJOR_VERSION, &version[0]);
    (void)blas.property(MINOR_VERSION, &version[1]);
    (void)blas.property(PATCH_LEVEL, &version[2]);
    (void)snprintf(fingerprint, sizeof(fingerprint), "cuBLAS %d.%d.%d, pedantic", version[0],
                   version[1], version[2]);
    add_devices();
    return true;
}

extern "C" bool gk_cuda_blas_find(struct gk_words *words)
{
    static const bool found = find();

    if (!found) {
        gk_words_set(words, "%s", missing);
    }
    return found;
}

extern "C" const char *gk_cuda_blas_fingerprint(void)
{
    return fingerprint;
}

/* ---- The queue's handle ---- */

static bool check(struct gk_queue *queue, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return true;
    }
    (void)cudaGetLastError();
    if (!queue->err) {
        queue->err = status == CUBLAS_STATUS_ALLOC_FAILED ? GK_E_NOMEM : GK_E_IO;
    }
    return false;
}

/* Its manual recommends these sizes. */
static bool take_workspace(struct gk_queue *queue, size_t *ret_bytes)
{
    int major = 0;

    if (!gk_cuda_check(queue, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                                     queue->device))) {
        return false;
    }
    *ret_bytes = size_t(major >= 9 ? 32 : 4) << 20;
    return gk_cuda_check(queue, cudaMalloc(&queue->blas_workspace, *ret_bytes));
}

void gk_cuda_blas_close(struct gk_queue *queue)
{
    if (queue->blas) {
        (void)blas.destroy(queue->blas);
        queue->blas = nullptr;
    }
    if (queue->blas_workspace) {
        (void)cudaFree(queue->blas_workspace);
        queue->blas_workspace = nullptr;
    }
}

static bool open_handle(struct gk_queue *queue)
{
    size_t bytes;

    if (queue->blas) {
        return true;
    }
    /* Another stream takes the workspace away, so that it comes last. */
    if (take_workspace(queue, &bytes) && check(queue, blas.create(&queue->blas)) &&
        check(queue, blas.set_mode(queue->blas, CUBLAS_PEDANTIC_MATH)) &&
        check(queue, blas.set_stream(queue->blas, queue->stream)) &&
        check(queue, blas.set_workspace(queue->blas, queue->blas_workspace, bytes))) {
        return true;
    }
    gk_cuda_blas_close(queue);
    return false;
}

/* Row-major c = a b is column-major c = b a, each seen as its transpose. */
extern "C" void gk_cuda_layer_gemm(struct gk_queue *queue, const struct gk_gemm_args *args)
{
    const float one = 1.0f;
    const int m = static_cast<int>(args->m);
    const int n = static_cast<int>(args->n);
    const int k = static_cast<int>(args->k);
    struct slot slot;

    GK_ASSERT(args->m > 0 && args->n > 0 && args->k > 0);
    GK_ASSERT(args->m <= INT_MAX && args->n <= INT_MAX && args->k <= INT_MAX);
    if (!gk_cuda_begin(&slot, queue) || !open_handle(queue)) {
        return;
    }
    (void)check(queue, blas.product(queue->blas, args->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                    args->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one,
                                    args->b, args->transpose_b ? k : n, args->a,
                                    args->transpose_a ? m : k, &args->beta, args->c, n));
}
