#include "common/cpu/queue.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN_BYTES = 64 };

static void *aligned_new(size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGN_BYTES) {
        return NULL;
    }
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return aligned_alloc(ALIGN_BYTES, bytes > 0 ? bytes : ALIGN_BYTES);
}

enum gk_err gk_cpu_queue_open(const struct gk_cpu_loops *loops, struct gk_queue **ret_queue,
                              struct gk_words *words)
{
    struct gk_queue *queue = calloc(1, sizeof(*queue));

    if (!queue) {
        gk_words_set(words, "no memory for a queue of the %s backend", loops->name);
        return GK_E_NOMEM;
    }
    queue->loops = loops;
    queue->caps = (struct gk_caps){.name = loops->name, .on_host = true};
    *ret_queue = queue;
    return GK_OK;
}

void gk_cpu_close(struct gk_queue *queue)
{
    if (!queue) {
        return;
    }
    for (unsigned i = 0; i < GK_CPU_SCRATCH_COUNT; i++) {
        free(queue->scratch[i].memory);
    }
    free(queue);
}

void *gk_cpu_scratch(struct gk_queue *queue, enum gk_cpu_scratch use, size_t bytes)
{
    if (queue->scratch[use].memory && queue->scratch[use].bytes >= bytes) {
        return queue->scratch[use].memory;
    }
    free(queue->scratch[use].memory);
    queue->scratch[use].memory = aligned_new(bytes);
    queue->scratch[use].bytes = bytes;
    if (!queue->scratch[use].memory) {
        queue->err = GK_E_NOMEM;
    }
    return queue->scratch[use].memory;
}

const struct gk_caps *gk_cpu_caps(const struct gk_queue *queue)
{
    return &queue->caps;
}

void *gk_cpu_alloc(struct gk_queue *queue, enum gk_memory kind, size_t bytes)
{
    void *memory = aligned_new(bytes);

    (void)queue; /* the heap serves every queue and both kinds */
    (void)kind;
    if (memory) {
        memset(memory, 0, bytes);
    }
    return memory;
}

void gk_cpu_free(struct gk_queue *queue, enum gk_memory kind, void *memory)
{
    (void)queue;
    (void)kind;
    free(memory);
}

struct gk_ticket gk_cpu_copy(struct gk_queue *queue, void *target, const void *source, size_t bytes)
{
    if (!queue->err && bytes > 0) {
        memcpy(target, source, bytes);
    }
    return (struct gk_ticket){0};
}

void gk_cpu_settle(struct gk_queue *queue, void *stream)
{
    (void)queue;
    (void)stream;
}

enum gk_err gk_cpu_wait(struct gk_queue *queue, struct gk_ticket ticket)
{
    enum gk_err err = queue->err;

    (void)ticket; /* everything completes inline */
    queue->err = GK_OK;
    return err;
}

bool gk_cpu_poll(struct gk_queue *queue, struct gk_ticket ticket)
{
    (void)queue;
    (void)ticket;
    return true;
}
