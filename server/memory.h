/* The memory of one job, as SETUP asks for it. */
#ifndef GK_SERVER_MEMORY_H
#define GK_SERVER_MEMORY_H

#include "common/backend.h"
#include "server/core/server.h"

/* All or nothing, zeroed.  GK_E_NOMEM and words with the size.  Free it with
 * gk_server_memory_free().  Takes as long as clearing the memory does: on the thread of the queue.
 */
enum gk_err gk_server_memory_alloc(const struct gk_vector_ops *ops, struct gk_queue *queue,
                                   const struct gk_server_setup *setup,
                                   struct gk_server_memory *ret, struct gk_words *words);

/* Accepts what is zeroed; zeroes it. */
void gk_server_memory_free(const struct gk_vector_ops *ops, struct gk_queue *queue,
                           struct gk_server_memory *memory);

#endif
