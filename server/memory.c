#include "server/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void gk_server_memory_free(const struct gk_vector_ops *ops, struct gk_queue *queue,
                           struct gk_server_memory *memory)
{
    for (size_t i = 0; i < sizeof(memory->planes) / sizeof(memory->planes[0]); i++) {
        ops->free(queue, GK_MEMORY_DEVICE, memory->planes[i]);
    }
    ops->free(queue, GK_MEMORY_PINNED, memory->sum_idx);
    ops->free(queue, GK_MEMORY_PINNED, memory->sum_val);
    free(memory->tables);
    memset(memory, 0, sizeof(*memory));
}

enum gk_err gk_server_memory_alloc(const struct gk_vector_ops *ops, struct gk_queue *queue,
                                   const struct gk_server_setup *setup,
                                   struct gk_server_memory *ret, struct gk_words *words)
{
    struct gk_server_memory memory = {0};
    bool whole = true;

    for (uint32_t i = 0; i < setup->planes_count; i++) {
        memory.planes[i] = ops->alloc(queue, GK_MEMORY_DEVICE, setup->plane_bytes);
        whole = whole && memory.planes[i];
    }
    memory.sum_idx = ops->alloc(queue, GK_MEMORY_PINNED, setup->sum_bytes);
    memory.sum_val = ops->alloc(queue, GK_MEMORY_PINNED, setup->sum_bytes);
    memory.tables = calloc(1, setup->tables_bytes);
    if (!whole || !memory.sum_idx || !memory.sum_val || !memory.tables) {
        gk_server_memory_free(ops, queue, &memory);
        gk_words_set(words, "the system refuses %" PRIu64 " MiB for this shard",
                     setup->total_bytes >> 20);
        return GK_E_NOMEM;
    }
    *ret = memory;
    return GK_OK;
}
