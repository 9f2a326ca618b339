/* The CUDA side of the backend tables.  Exactly one of the implementation and the stub is
 * linked; nothing else in the project asks whether CUDA was there at build time. */
#ifndef GK_CUDA_BACKEND_H
#define GK_CUDA_BACKEND_H

#include "common/backend.h"

#include <stdint.h>

/* The table of one device, or NULL with one line of words: not built in, no driver, no device of
 * that number.  Arguments of its slots may lie in device memory or in host memory; what lies in
 * host memory crosses the bus at each call, and results are there when the ticket is done.  Any
 * thread. */
const struct gk_vector_ops *gk_vector_cuda_device(uint32_t device, struct gk_words *words);

/* How many devices there are; 0 without a driver, or where it is not built in.  Any thread. */
uint32_t gk_vector_cuda_count(void);

/* Whether this is memory of that device, or memory that it shares with the host.  Any thread. */
bool gk_vector_cuda_owns(uint32_t device, const void *memory);

/* Whether this is memory that the host cannot touch, asked on that device.  Any thread. */
bool gk_vector_cuda_hides(uint32_t device, const void *memory);

/* Of device 0. */
const struct gk_vector_ops *gk_vector_cuda(struct gk_words *words);

/* The layer table, for the queues of all these tables; NULL with one line of words: not built in,
 * or no cuBLAS on this machine.  Any thread. */
const struct gk_layer_ops *gk_layers_cuda(struct gk_words *words);

#endif
