#include "cuda/queue.cuh"

extern "C" {
#include "common/words.h"
}

#include <stdio.h>
#include <stdlib.h>

enum { ALIGN_BYTES = 256, CHUNK_BYTES_MIN = 64 * 1024 };

/* ---- Errors ---- */

static enum gk_err translate(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? GK_E_NOMEM : GK_E_IO;
}

bool gk_cuda_check(struct gk_queue *queue, cudaError_t error)
{
    if (error == cudaSuccess) {
        return true;
    }
    (void)cudaGetLastError(); /* the runtime remembers it too, and would report it to the next who
                                 asks */
    if (!queue->err) {
        queue->err = translate(error);
    }
    return false;
}

/* ---- Life ---- */

static enum gk_err setup(struct gk_queue *queue, int device, struct gk_words *words)
{
    cudaDeviceProp properties;
    cudaError_t error = cudaSetDevice(device);

    if (!error) {
        error = cudaGetDeviceProperties(&properties, device);
    }
    if (!error) {
        error = cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking);
    }
    for (unsigned i = 0; i < EVENTS && !error; i++) {
        error = cudaEventCreateWithFlags(&queue->events[i], cudaEventDisableTiming);
    }
    if (error) {
        (void)cudaGetLastError();
        gk_words_set(words, "CUDA device %d: %s", device, cudaGetErrorString(error));
        return translate(error);
    }
    queue->device = device;
    queue->processors = properties.multiProcessorCount;
    (void)snprintf(queue->name, sizeof(queue->name), "cuda:%d %.64s", device, properties.name);
    queue->caps.name = queue->name;
    return GK_OK;
}

enum gk_err gk_cuda_open(int device, struct gk_queue **ret_queue, struct gk_words *words)
{
    struct gk_queue *queue = static_cast<struct gk_queue *>(calloc(1, sizeof(*queue)));
    enum gk_err err;

    if (!queue) {
        gk_words_set(words, "no memory for a queue of the CUDA backend");
        return GK_E_NOMEM;
    }
    err = setup(queue, device, words);
    if (err) {
        gk_cuda_close(queue);
        return err;
    }
    *ret_queue = queue;
    return GK_OK;
}

static void free_chunks(struct gk_queue *queue)
{
    for (unsigned i = 0; i < queue->chunks_count; i++) {
        (void)cudaFree(queue->chunks[i].memory);
    }
    queue->chunks_count = 0;
}

void gk_cuda_close(struct gk_queue *queue)
{
    if (!queue) {
        return;
    }
    (void)cudaSetDevice(queue->device);
    if (queue->stream) {
        (void)cudaStreamSynchronize(queue->stream);
    }
    gk_cuda_blas_close(queue);
    free_chunks(queue);
    for (unsigned i = 0; i < EVENTS; i++) {
        if (queue->events[i]) {
            (void)cudaEventDestroy(queue->events[i]);
        }
    }
    if (queue->stream) {
        (void)cudaStreamDestroy(queue->stream);
    }
    (void)cudaGetLastError(); /* of a device that was lost: there is nobody left to tell */
    free(queue);
}

const struct gk_caps *gk_cuda_caps(const struct gk_queue *queue)
{
    return &queue->caps;
}

/* ---- Memory ---- */

void *gk_cuda_alloc(struct gk_queue *queue, enum gk_memory kind, size_t bytes)
{
    void *memory = nullptr;
    cudaError_t error = cudaSetDevice(queue->device);

    bytes = bytes > 0 ? bytes : 1;
    if (!error && kind == GK_MEMORY_PINNED) {
        error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
        if (!error) {
            memset(memory, 0, bytes);
        }
    } else if (!error) {
        error = cudaMalloc(&memory, bytes);
        if (!error) {
            error = cudaMemsetAsync(memory, 0, bytes, queue->stream);
        }
        if (!error) { /* other queues may use it */
            error = cudaStreamSynchronize(queue->stream);
        }
    }
    if (error) {
        (void)cudaGetLastError();
        if (memory) {
            gk_cuda_free(queue, kind, memory);
        }
        return nullptr;
    }
    return memory;
}

void gk_cuda_free(struct gk_queue *queue, enum gk_memory kind, void *memory)
{
    if (!memory) {
        return;
    }
    (void)cudaSetDevice(queue->device);
    if (kind == GK_MEMORY_PINNED) {
        (void)gk_cuda_check(queue, cudaFreeHost(memory));
    } else {
        (void)gk_cuda_check(queue, cudaFree(memory));
    }
}

/* All chunks were for one slot; the next one finds their sum in one piece. */
static void rewind_scratch(struct gk_queue *queue)
{
    if (queue->chunks_count > 1) {
        free_chunks(queue);
    }
    queue->chunk_used = 0;
}

void *gk_cuda_scratch(struct slot *slot, size_t bytes)
{
    struct gk_queue *queue = slot->queue;
    char *memory;
    size_t chunk;

    if (queue->err) {
        return nullptr;
    }
    if (bytes > SIZE_MAX / 2 || queue->chunks_count == CHUNKS_MAX) {
        queue->err = GK_E_NOMEM;
        return nullptr;
    }
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES + ALIGN_BYTES;
    queue->slot_bytes += bytes;
    if (queue->chunks_count == 0 ||
        queue->chunks[queue->chunks_count - 1].bytes - queue->chunk_used < bytes) {
        void *fresh = nullptr;

        chunk = gk_max_u64(gk_max_u64(bytes, queue->slot_bytes), CHUNK_BYTES_MIN);
        if (!gk_cuda_check(queue, cudaMalloc(&fresh, chunk))) {
            return nullptr;
        }
        queue->chunks[queue->chunks_count].memory = static_cast<char *>(fresh);
        queue->chunks[queue->chunks_count].bytes = chunk;
        queue->chunks_count++;
        queue->chunk_used = 0;
    }
    memory = queue->chunks[queue->chunks_count - 1].memory + queue->chunk_used;
    queue->chunk_used += bytes;
    return memory;
}

/* ---- Slots ---- */

bool gk_cuda_begin(struct slot *slot, struct gk_queue *queue)
{
    slot->queue = queue;
    slot->views_count = 0;
    if (queue->err || !gk_cuda_check(queue, cudaSetDevice(queue->device))) {
        return false;
    }
    rewind_scratch(queue);
    queue->slot_bytes = 0;
    return true;
}

struct gk_ticket gk_cuda_end(struct slot *slot)
{
    struct gk_queue *queue = slot->queue;

    for (unsigned i = 0; i < slot->views_count && !queue->err; i++) {
        const struct view *view = &slot->views[i];

        if (view->out) {
            (void)gk_cuda_check(queue, cudaMemcpyAsync(view->host, view->device, view->bytes,
                                                       cudaMemcpyDeviceToHost, queue->stream));
        }
    }
    if (queue->err) {
        return gk_ticket{0};
    }
    queue->ticket++;
    (void)gk_cuda_check(queue,
                        cudaEventRecord(queue->events[queue->ticket % EVENTS], queue->stream));
    return gk_ticket{queue->ticket};
}

bool gk_cuda_on_device(const void *pointer)
{
    cudaPointerAttributes attributes;

    if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

/* The copy of host memory, made once; NULL after an error. */
static struct view *find_view(struct slot *slot, const void *memory, size_t bytes, bool read)
{
    char *host = static_cast<char *>(const_cast<void *>(memory));
    struct view *view;

    for (unsigned i = 0; i < slot->views_count; i++) {
        if (slot->views[i].host == host && slot->views[i].bytes >= bytes) {
            return &slot->views[i];
        }
    }
    if (slot->views_count == VIEWS_MAX) {
        slot->queue->err = GK_E_LIMIT;
        return nullptr;
    }
    view = &slot->views[slot->views_count];
    *view = {host, static_cast<char *>(gk_cuda_scratch(slot, bytes)), bytes, false};
    if (!view->device) {
        return nullptr;
    }
    if (read && bytes > 0 &&
        !gk_cuda_check(slot->queue, cudaMemcpyAsync(view->device, host, bytes,
                                                    cudaMemcpyHostToDevice, slot->queue->stream))) {
        return nullptr;
    }
    slot->views_count++;
    return view;
}

const void *gk_cuda_in(struct slot *slot, const void *memory, size_t bytes)
{
    const struct view *view;

    if (!memory || slot->queue->err || gk_cuda_on_device(memory)) {
        return memory;
    }
    view = find_view(slot, memory, bytes, true);
    return view ? view->device : nullptr;
}

void *gk_cuda_inout(struct slot *slot, void *memory, size_t bytes)
{
    struct view *view;

    if (!memory || slot->queue->err || gk_cuda_on_device(memory)) {
        return memory;
    }
    view = find_view(slot, memory, bytes, true);
    if (!view) {
        return nullptr;
    }
    view->out = true;
    return view->device;
}

void *gk_cuda_out(struct slot *slot, void *memory, size_t bytes)
{
    return gk_cuda_on_device(memory) ? memory : gk_cuda_scratch(slot, bytes);
}

void gk_cuda_give_back(struct slot *slot, void *memory, const void *device, size_t bytes)
{
    if (slot->queue->err || memory == device || bytes == 0) {
        return;
    }
    (void)gk_cuda_check(slot->queue, cudaMemcpyAsync(memory, device, bytes, cudaMemcpyDeviceToHost,
                                                     slot->queue->stream));
}

void gk_cuda_write(struct slot *slot, void *device, const void *host, size_t bytes)
{
    if (!slot->queue->err && bytes > 0) {
        (void)gk_cuda_check(
            slot->queue,
            cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, slot->queue->stream));
    }
}

void gk_cuda_read(struct slot *slot, void *host, const void *device, size_t bytes)
{
    gk_cuda_give_back(slot, host, device, bytes);
    if (!slot->queue->err) {
        (void)gk_cuda_check(slot->queue, cudaStreamSynchronize(slot->queue->stream));
    }
}

void gk_cuda_zero(struct slot *slot, void *device, size_t bytes)
{
    if (!slot->queue->err && bytes > 0) {
        (void)gk_cuda_check(slot->queue, cudaMemsetAsync(device, 0, bytes, slot->queue->stream));
    }
}

uint32_t gk_cuda_grid(const struct slot *slot, uint64_t work_count, uint32_t blocks_per_processor)
{
    uint64_t most = static_cast<uint64_t>(slot->queue->processors) * blocks_per_processor;

    return static_cast<uint32_t>(gk_max_u64(1, gk_min_u64(work_count, most)));
}

/* ---- Copies and tickets ---- */

struct gk_ticket gk_cuda_copy(struct gk_queue *queue, void *target, const void *source,
                              size_t bytes)
{
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue)) {
        return gk_ticket{0};
    }
    if (bytes > 0) {
        (void)gk_cuda_check(
            queue, cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, queue->stream));
    }
    return gk_cuda_end(&slot);
}

void gk_cuda_settle(struct gk_queue *queue, void *stream)
{
    if (!queue->err && gk_cuda_check(queue, cudaSetDevice(queue->device))) {
        (void)gk_cuda_check(queue, cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
    }
}

enum gk_err gk_cuda_wait(struct gk_queue *queue, struct gk_ticket ticket)
{
    enum gk_err err;

    /* The event of an old ticket may stand for a later one by now, which is behind it in the
     * stream. */
    if (ticket.v > 0) {
        (void)gk_cuda_check(queue, cudaEventSynchronize(queue->events[ticket.v % EVENTS]));
    }
    err = queue->err;
    queue->err = GK_OK;
    return err;
}

bool gk_cuda_poll(struct gk_queue *queue, struct gk_ticket ticket)
{
    cudaError_t error;

    if (ticket.v == 0) {
        return true;
    }
    error = cudaEventQuery(queue->events[ticket.v % EVENTS]);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    (void)gk_cuda_check(queue, error);
    return true;
}
