/* The CUDA side of the backend tables.  Exactly one of the implementation and the stub is
 * linked; nothing else in the project asks whether CUDA was there at build time. */
#ifndef GK_CUDA_BACKEND_H
#define GK_CUDA_BACKEND_H

#include "common/backend.h"

/* The table, or NULL with one line of words: not built in, no driver, no device. */
const struct gk_vector_ops *gk_vector_cuda(struct gk_words *words);

#endif
