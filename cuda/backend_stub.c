#include "cuda/backend.h"

static const char none[] =
    "this build has no CUDA backend: it was made without nvcc, or with GK_CUDA=OFF";

const struct gk_vector_ops *gk_vector_cuda_device(uint32_t device, struct gk_words *words)
{
    (void)device; /* there is none */
    gk_words_set(words, "%s", none);
    return NULL;
}

uint32_t gk_vector_cuda_count(void)
{
    return 0;
}

bool gk_vector_cuda_owns(uint32_t device, const void *memory)
{
    (void)device;
    (void)memory;
    return false;
}

bool gk_vector_cuda_hides(uint32_t device, const void *memory)
{
    (void)device;
    (void)memory;
    return false;
}

const struct gk_vector_ops *gk_vector_cuda(struct gk_words *words)
{
    return gk_vector_cuda_device(0, words);
}

const struct gk_layer_ops *gk_layers_cuda(struct gk_words *words)
{
    gk_words_set(words, "%s", none);
    return NULL;
}
