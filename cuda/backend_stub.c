#include "cuda/backend.h"

const struct gk_vector_ops *gk_vector_cuda(struct gk_words *words)
{
    gk_words_set(words, "this build has no CUDA backend");
    return NULL;
}
