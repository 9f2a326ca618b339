/* The queue of the CUDA table: a stream, its scratch memory, its sticky error.
 *
 * A slot begins, asks for device pointers to what its arguments name, launches, and ends with an
 * event, whose number is the ticket.  Arguments may lie in device memory, where they are used as
 * they are, or in host memory, pinned or not: then the slot works on a copy on the device and
 * copies results back (views).  So the caller decides by where he puts a vector whether it crosses
 * the bus. */
#ifndef GK_CUDA_QUEUE_CUH
#define GK_CUDA_QUEUE_CUH

#include "cuda/device.cuh"

#include <stddef.h>

enum {
    EVENTS = 8,
    CHUNKS_MAX = 48, /* pieces of scratch memory that one slot may add */
    VIEWS_MAX = 8,
};

struct cublasContext;

struct gk_queue {
    int device;
    int processors; /* multiprocessors */
    cudaStream_t stream;
    cudaEvent_t events[EVENTS]; /* of the last tickets, by ticket mod EVENTS */
    uint64_t ticket;            /* the last one that was given */
    enum gk_err err;            /* sticky */
    struct gk_caps caps;
    char name[96];
    struct {
        char *memory;
        size_t bytes;
    } chunks[CHUNKS_MAX];
    unsigned chunks_count;
    size_t chunk_used;          /* of the last chunk */
    size_t slot_bytes;          /* asked for by the slot that runs */
    struct cublasContext *blas; /* made by the first product; NULL: there was none */
    void *blas_workspace;
};

/* Host memory that a slot works on through a copy. */
struct view {
    char *host;
    char *device;
    size_t bytes;
    bool out;
};

struct slot {
    struct gk_queue *queue;
    struct view views[VIEWS_MAX];
    unsigned views_count;
};

/* False: an error sticks to the queue, and the slot does nothing. */
bool gk_cuda_begin(struct slot *slot, struct gk_queue *queue);

/* Copies results back, and ends the slot. */
struct gk_ticket gk_cuda_end(struct slot *slot);

/* Keeps the first error; true when there was none. */
bool gk_cuda_check(struct gk_queue *queue, cudaError_t error);

/* Device memory that lasts until the next slot of this queue begins; NULL with an error, or when an
 * error sticks.  Never NULL for 0 bytes. */
void *gk_cuda_scratch(struct slot *slot, size_t bytes);

bool gk_cuda_on_device(const void *pointer);

/* Device pointers to the arguments; NULL stays NULL. */
const void *gk_cuda_in(struct slot *slot, const void *memory, size_t bytes);
void *gk_cuda_inout(struct slot *slot, void *memory, size_t bytes);

/* Device memory for a result that nobody reads before: what is written first is copied back by
 * gk_cuda_give_back(), or was written in place. */
void *gk_cuda_out(struct slot *slot, void *memory, size_t bytes);
void gk_cuda_give_back(struct slot *slot, void *memory, const void *device, size_t bytes);

/* From and to what the slot's own host code reads and writes; `read` waits for the stream. */
void gk_cuda_write(struct slot *slot, void *device, const void *host, size_t bytes);
void gk_cuda_read(struct slot *slot, void *host, const void *device, size_t bytes);

void gk_cuda_zero(struct slot *slot, void *device, size_t bytes);

/* Blocks that fill the device, or as many as there is work for. */
uint32_t gk_cuda_grid(const struct slot *slot, uint64_t work_count, uint32_t blocks_per_processor);

/* The same, for one thread an element. */
static inline uint32_t gk_cuda_grid_for(const struct slot *slot, uint64_t elements)
{
    return gk_cuda_grid(slot, (elements + BLOCK - 1) / BLOCK, 8);
}

/* blas.cu: gives back what the first product took. */
void gk_cuda_blas_close(struct gk_queue *queue);

template <typename... Parameters, typename... Arguments>
static inline void gk_cuda_launch(struct slot *slot, uint32_t grid, void (*kernel)(Parameters...),
                                  Arguments... arguments)
{
    cudaLaunchConfig_t config = {};

    if (slot->queue->err) {
        return;
    }
    config.gridDim = dim3(grid);
    config.blockDim = dim3(BLOCK);
    config.stream = slot->queue->stream;
    (void)gk_cuda_check(slot->queue, cudaLaunchKernelEx(&config, kernel, arguments...));
}

/* The slots, in the files of their names. */
extern "C" {
enum gk_err gk_cuda_open(int device, struct gk_queue **ret_queue, struct gk_words *words);
void gk_cuda_close(struct gk_queue *queue);
const struct gk_caps *gk_cuda_caps(const struct gk_queue *queue);
void *gk_cuda_alloc(struct gk_queue *queue, enum gk_memory kind, size_t bytes);
void gk_cuda_free(struct gk_queue *queue, enum gk_memory kind, void *memory);
struct gk_ticket gk_cuda_copy(struct gk_queue *queue, void *target, const void *source,
                              size_t bytes);
void gk_cuda_settle(struct gk_queue *queue, void *stream);
enum gk_err gk_cuda_wait(struct gk_queue *queue, struct gk_ticket ticket);
bool gk_cuda_poll(struct gk_queue *queue, struct gk_ticket ticket);
struct gk_ticket gk_cuda_accumulate(struct gk_queue *queue, const struct gk_accumulate_args *args);
struct gk_ticket gk_cuda_select(struct gk_queue *queue, const struct gk_select_args *args);
struct gk_ticket gk_cuda_select_ge(struct gk_queue *queue, const struct gk_select_ge_args *args);
struct gk_ticket gk_cuda_stats(struct gk_queue *queue, const struct gk_stats_args *args);
struct gk_ticket gk_cuda_sample(struct gk_queue *queue, const struct gk_sample_args *args);
struct gk_ticket gk_cuda_take(struct gk_queue *queue, const struct gk_take_args *args);
struct gk_ticket gk_cuda_give(struct gk_queue *queue, const struct gk_give_args *args);
struct gk_ticket gk_cuda_sum(struct gk_queue *queue, const struct gk_sum_args *args);
struct gk_ticket gk_cuda_apply(struct gk_queue *queue, const struct gk_apply_args *args);
struct gk_ticket gk_cuda_hash(struct gk_queue *queue, const struct gk_hash_args *args);
}

#endif
