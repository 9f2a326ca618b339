/* Emulated device memory and a stream for the ranks of tests/lib. */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "tests/lib/place.h"
#include "tests/simt/simt.h"
}

static void check(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "place: %s\n", cudaGetErrorString(error));
        abort();
    }
}

static void place_open(void **ret_stream, float **ret_params, float **ret_gradient)
{
    cudaStream_t stream;

    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaMalloc(reinterpret_cast<void **>(ret_params), RIG_PARAMS * sizeof(float)));
    check(cudaMalloc(reinterpret_cast<void **>(ret_gradient), RIG_PARAMS * sizeof(float)));
    *ret_stream = stream;
}

static void place_close(void *stream, float *params, float *gradient)
{
    check(cudaFree(params));
    check(cudaFree(gradient));
    check(cudaStreamDestroy(static_cast<cudaStream_t>(stream)));
}

static void place_copy(void *stream, float *to, const float *from, bool wait)
{
    cudaStream_t in = static_cast<cudaStream_t>(stream);

    check(cudaMemcpyAsync(to, from, RIG_PARAMS * sizeof(float), cudaMemcpyDefault, in));
    if (wait) {
        check(cudaStreamSynchronize(in));
    }
}

extern "C" const struct rig_place rig_elsewhere;
const struct rig_place rig_elsewhere = {"cuda",     place_open,        place_close,
                                        place_copy, gk_simt_fail_copy, gk_simt_fail_wait};
