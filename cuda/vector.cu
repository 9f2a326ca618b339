/* The CUDA tables, one a device: they differ in whom open() asks. */
#include "cuda/queue.cuh"

extern "C" {
#include "common/words.h"
#include "cuda/backend.h"
}

enum { DEVICES_MAX = 16 };

template <int device>
static enum gk_err open_device(struct gk_queue **ret_queue, struct gk_words *words)
{
    return gk_cuda_open(device, ret_queue, words);
}

typedef enum gk_err (*open_function)(struct gk_queue **ret_queue, struct gk_words *words);

static const open_function opens[DEVICES_MAX] = {
    open_device<0>,  open_device<1>,  open_device<2>,  open_device<3>,
    open_device<4>,  open_device<5>,  open_device<6>,  open_device<7>,
    open_device<8>,  open_device<9>,  open_device<10>, open_device<11>,
    open_device<12>, open_device<13>, open_device<14>, open_device<15>,
};

static struct gk_vector_ops table_of(open_function open)
{
    struct gk_vector_ops ops = {};

    ops.open = open;
    ops.close = gk_cuda_close;
    ops.caps = gk_cuda_caps;
    ops.alloc = gk_cuda_alloc;
    ops.free = gk_cuda_free;
    ops.copy = gk_cuda_copy;
    ops.settle = gk_cuda_settle;
    ops.wait = gk_cuda_wait;
    ops.poll = gk_cuda_poll;
    ops.accumulate = gk_cuda_accumulate;
    ops.select = gk_cuda_select;
    ops.select_ge = gk_cuda_select_ge;
    ops.stats = gk_cuda_stats;
    ops.sample = gk_cuda_sample;
    ops.take = gk_cuda_take;
    ops.give = gk_cuda_give;
    ops.sum = gk_cuda_sum;
    ops.apply = gk_cuda_apply;
    ops.hash = gk_cuda_hash;
    return ops;
}

const struct gk_vector_ops *gk_vector_cuda_device(uint32_t device, struct gk_words *words)
{
    static const struct gk_vector_ops tables[DEVICES_MAX] = {
        table_of(opens[0]),  table_of(opens[1]),  table_of(opens[2]),  table_of(opens[3]),
        table_of(opens[4]),  table_of(opens[5]),  table_of(opens[6]),  table_of(opens[7]),
        table_of(opens[8]),  table_of(opens[9]),  table_of(opens[10]), table_of(opens[11]),
        table_of(opens[12]), table_of(opens[13]), table_of(opens[14]), table_of(opens[15]),
    };
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);

    if (error) {
        (void)cudaGetLastError();
        gk_words_set(words, "no CUDA device: %s%s",
                     error == cudaErrorInsufficientDriver
                         ? "there is no NVIDIA driver, or an old one: "
                         : "",
                     cudaGetErrorString(error));
        return nullptr;
    }
    if (device >= DEVICES_MAX || static_cast<int>(device) >= count) {
        gk_words_set(words, "no CUDA device %u: this machine has %d, counted from 0", device,
                     count);
        return nullptr;
    }
    return &tables[device];
}

uint32_t gk_vector_cuda_count(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count < DEVICES_MAX ? static_cast<uint32_t>(count) : uint32_t(DEVICES_MAX);
}

static cudaPointerAttributes attributes_of(uint32_t device, const void *memory)
{
    cudaPointerAttributes attributes = {};

    /* The question makes a context on the current device, which on another one is memory lost. */
    if (cudaSetDevice(static_cast<int>(device)) != cudaSuccess ||
        cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
        (void)cudaGetLastError();
        attributes.type = cudaMemoryTypeUnregistered;
    }
    return attributes;
}

bool gk_vector_cuda_owns(uint32_t device, const void *memory)
{
    const cudaPointerAttributes attributes = attributes_of(device, memory);

    return attributes.type == cudaMemoryTypeManaged ||
           (attributes.type == cudaMemoryTypeDevice &&
            attributes.device == static_cast<int>(device));
}

bool gk_vector_cuda_hides(uint32_t device, const void *memory)
{
    return attributes_of(device, memory).type == cudaMemoryTypeDevice;
}

const struct gk_vector_ops *gk_vector_cuda(struct gk_words *words)
{
    return gk_vector_cuda_device(0, words);
}
