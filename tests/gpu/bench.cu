/* What the CUDA table costs on this device: one line a measurement, as columns for check.sh.
 *
 * Everything is a ratio to a kernel that reads two vectors and writes one, at the same length and
 * in the same run: that is what adding the residual costs alone.  Medians of several runs; the
 * vectors are larger than the caches from 2^24 on.
 *
 * usage: gpu_bench LOG2_FROM LOG2_TO */
#include <cuda_runtime.h>

#ifndef GK_SIMT
#include <cub/device/device_radix_sort.cuh>
#endif

extern "C" {
#include "common/backend.h"
#include "common/bits.h"
#include "common/words.h"
#include "cuda/backend.h"
#include "worker/select/select.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <vector>

enum { THREADS = 256, RUNS = 9 };

static const struct gk_vector_ops *ops;
static struct gk_queue *queue;
static cudaStream_t stream;
static int processors;

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "gpu_bench: %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
        exit(1);
    }
}

static double now_us()
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

template <typename... Parameters, typename... Arguments>
static void start(void (*kernel)(Parameters...), Arguments... arguments)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(static_cast<unsigned>(processors * 8));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    must(cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess, "a launch");
}

static __global__ void add(float *out, const float *a, const float *b, uint64_t n)
{
    for (uint64_t i = blockIdx.x * uint64_t(THREADS) + threadIdx.x; i < n;
         i += gridDim.x * uint64_t(THREADS)) {
        out[i] = a[i] + b[i];
    }
}

/* Sums of four uniform numbers, of either sign: a bell, without a library. */
static __global__ void fill(float *out, uint64_t n, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * uint64_t(THREADS) + threadIdx.x; i < n;
         i += gridDim.x * uint64_t(THREADS)) {
        const uint64_t bits = gk_mix64(gk_mix64(seed) + i);
        float sum = 0.0f;

        for (unsigned j = 0; j < 4; j++) {
            sum += static_cast<float>(bits >> 16 * j & 0xffff) * 0x1p-15f - 1.0f;
        }
        out[i] = sum;
    }
}

static void synchronise()
{
    must(cudaStreamSynchronize(stream) == cudaSuccess, "waiting");
}

static void finish(struct gk_ticket ticket)
{
    must(ops->wait(queue, ticket) == GK_OK, "a slot");
}

static float *device_floats(uint64_t n)
{
    return static_cast<float *>(ops->alloc(queue, GK_MEMORY_DEVICE, n * sizeof(float)));
}

template <typename Prepare, typename Work> static double median_us(Prepare prepare, Work work)
{
    std::vector<double> times;

    for (unsigned run = 0; run < RUNS + 2; run++) {
        double begin;

        prepare();
        synchronise();
        begin = now_us();
        work();
        if (run >= 2) {
            times.push_back(now_us() - begin);
        }
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static void line(const char *what, unsigned log2, double density, double us, double floor_us)
{
    printf("%-28s 2^%-3u %-8g %12.1f us %8.2fx %+10.1f us\n", what, log2, density, us,
           us / floor_us, us - floor_us);
    fflush(stdout);
}

/* ---- Selection ---- */

struct vectors {
    float *g, *e, *work;
    uint64_t n;
    unsigned log2;
    double floor_us;
};

static void copy_gradient(const vectors &v)
{
    must(cudaMemcpyAsync(v.work, v.g, v.n * sizeof(float), cudaMemcpyDeviceToDevice, stream) ==
             cudaSuccess,
         "a copy");
}

/* The slot alone; the pairs stay on the device. */
static void slot(const vectors &v, double density, bool warm)
{
    const struct gk_range whole = {0, v.n};
    const uint64_t k = gk_select_k(density, v.n);
    struct gk_select_state state = {};
    struct gk_select_report report = {};
    struct gk_select_args args = {};

    args.dst = v.work;
    args.g = v.work;
    args.e = v.e;
    args.segments = &whole;
    args.k = &k;
    args.segments_count = 1;
    args.state = &state;
    args.policy = GK_NONFINITE_ABORT;
    args.idx = static_cast<uint32_t *>(ops->alloc(queue, GK_MEMORY_DEVICE, k * sizeof(uint32_t)));
    args.val = device_floats(k);
    args.room = k;
    args.report = &report;
    must(args.idx && args.val, "memory");
    line(warm ? "select, warm" : "select, cold", v.log2, density,
         median_us(
             [&]() {
                 copy_gradient(v);
                 state = warm ? state : gk_select_state{};
             },
             [&]() { finish(ops->select(queue, &args)); }),
         v.floor_us);
    must(report.n == k, "the number of entries");
    ops->free(queue, GK_MEMORY_DEVICE, args.idx);
    ops->free(queue, GK_MEMORY_DEVICE, args.val);
}

/* What a worker's step costs: the pairs end in host memory, the residual on the device. */
static void step(const vectors &v, const char *name, double density)
{
    const struct gk_range whole = {0, v.n};
    struct gk_select_setup setup = {};
    struct gk_select_step args = {};
    struct gk_selected selected = {};
    struct gk_selector *selector = nullptr;
    struct gk_words words = {};
    char what[64];

    setup.ops = ops;
    setup.queue = queue;
    setup.params_count = v.n;
    setup.segments = &whole;
    setup.segments_count = 1;
    if (gk_selector_new(name, density, &setup, &selector, &words) != GK_OK) {
        printf("%-28s 2^%-3u %-8g left out: %s\n", name, v.log2, density, words.text);
        return;
    }
    args.density = density;
    args.g = v.work;
    args.e = v.e;
    (void)snprintf(what, sizeof(what), "step of %s", name);
    line(what, v.log2, density,
         median_us([&]() { copy_gradient(v); },
                   [&]() {
                       if (gk_selector_step(selector, &args, &selected, &words) != GK_OK) {
                           fprintf(stderr, "gpu_bench: %s\n", words.text);
                           exit(1);
                       }
                   }),
         v.floor_us);
    gk_selector_free(selector);
}

#ifndef GK_SIMT

static __global__ void keys_and_indices(const float *u, uint32_t *keys, uint32_t *indices,
                                        uint64_t n)
{
    for (uint64_t i = blockIdx.x * uint64_t(THREADS) + threadIdx.x; i < n;
         i += gridDim.x * uint64_t(THREADS)) {
        keys[i] = __float_as_uint(u[i]) & 0x7fffffff;
        indices[i] = static_cast<uint32_t>(i);
    }
}

/* Residual add, keys, and a full sort by CUB. */
static void sorted(const vectors &v, double density)
{
    uint32_t *arrays[4] = {};
    void *temporary = nullptr;
    size_t bytes = 0;
    bool room = true;
    const int n = static_cast<int>(v.n);

    for (uint32_t *&array : arrays) {
        room = room && cudaMalloc(&array, v.n * sizeof(uint32_t)) == cudaSuccess;
    }
    room = room && cub::DeviceRadixSort::SortPairsDescending(nullptr, bytes, arrays[0], arrays[1],
                                                             arrays[2], arrays[3], n, 0, 31,
                                                             stream) == cudaSuccess;
    room = room && cudaMalloc(&temporary, bytes) == cudaSuccess;
    if (room) {
        line("top-k by sorting (CUB)", v.log2, density,
             median_us([&]() { copy_gradient(v); },
                       [&]() {
                           start(add, v.work, static_cast<const float *>(v.work),
                                 static_cast<const float *>(v.e), v.n);
                           start(keys_and_indices, static_cast<const float *>(v.work), arrays[0],
                                 arrays[2], v.n);
                           (void)cub::DeviceRadixSort::SortPairsDescending(
                               temporary, bytes, arrays[0], arrays[1], arrays[2], arrays[3], n, 0,
                               31, stream);
                           synchronise();
                       }),
             v.floor_us);
    } else {
        (void)cudaGetLastError();
        printf("%-28s 2^%-3u %-8g left out: no memory\n", "top-k by sorting (CUB)", v.log2,
               density);
    }
    for (uint32_t *array : arrays) {
        (void)cudaFree(array);
    }
    (void)cudaFree(temporary);
}

#else

static void sorted(const vectors &v, double density)
{
    (void)v;
    (void)density; /* CUB does not run on the emulator */
}

#endif

static void selection(unsigned log2)
{
    vectors v = {};

    v.n = uint64_t(1) << log2;
    v.log2 = log2;
    v.g = device_floats(v.n);
    v.e = device_floats(v.n);
    v.work = device_floats(v.n);
    if (!v.g || !v.e || !v.work) {
        printf("2^%u left out: no memory on the device\n", log2);
    } else {
        start(fill, v.g, v.n, uint64_t(1));
        start(fill, v.e, v.n, uint64_t(2));
        v.floor_us = median_us([]() {},
                               [&]() {
                                   start(add, v.work, static_cast<const float *>(v.g),
                                         static_cast<const float *>(v.e), v.n);
                                   synchronise();
                               });
        line("two reads, one write", log2, 0, v.floor_us, v.floor_us);
        slot(v, 0.001, true);
        slot(v, 0.01, true);
        slot(v, 0.001, false);
        step(v, "gaussk", 0.001);
        step(v, "gaussk-paper", 0.001);
        step(v, "dgc", 0.001);
        step(v, "topk", 0.001);
        sorted(v, 0.001);
    }
    ops->free(queue, GK_MEMORY_DEVICE, v.g);
    ops->free(queue, GK_MEMORY_DEVICE, v.e);
    ops->free(queue, GK_MEMORY_DEVICE, v.work);
}

/* ---- Replay of updates ---- */

static void replay(enum gk_optimizer optimizer, const char *what, unsigned log2, unsigned records)
{
    const uint64_t n = uint64_t(1) << log2;
    const uint64_t k = n / 1000;
    std::vector<uint32_t> idx(k);
    std::vector<struct gk_update> updates(records);
    float *planes[3] = {device_floats(n), device_floats(n), device_floats(n)};
    float *val = device_floats(k);
    uint32_t *idx_device =
        static_cast<uint32_t *>(ops->alloc(queue, GK_MEMORY_DEVICE, k * sizeof(uint32_t)));
    struct gk_apply_args args = {};
    double floor_us;

    must(planes[0] && planes[1] && planes[2] && val && idx_device, "memory");
    for (uint64_t j = 0; j < k; j++) {
        idx[j] = static_cast<uint32_t>(j * 1000 + gk_mix64(j) % 1000);
    }
    start(fill, val, k, uint64_t(3));
    finish(ops->copy(queue, idx_device, idx.data(), k * sizeof(uint32_t)));
    for (struct gk_update &update : updates) {
        update = {};
        update.idx = idx_device;
        update.val = val;
        update.n = k;
        update.samples = 32;
        update.hyper = {0.1f, 0.9f, 0.999f, 1e-8f, 0.1f, 0.001f, 0.0f};
    }
    args.optimizer = optimizer;
    args.p = planes[0];
    args.m = planes[1];
    args.v = planes[2];
    args.len = n;
    args.updates = updates.data();
    args.updates_count = records;
    floor_us = median_us([]() {},
                         [&]() {
                             start(add, planes[0], static_cast<const float *>(planes[1]),
                                   static_cast<const float *>(planes[2]), n);
                             synchronise();
                         });
    line(what, log2, 0.001, median_us([]() {}, [&]() { finish(ops->apply(queue, &args)); }),
         floor_us);
    for (float *plane : planes) {
        ops->free(queue, GK_MEMORY_DEVICE, plane);
    }
    ops->free(queue, GK_MEMORY_DEVICE, val);
    ops->free(queue, GK_MEMORY_DEVICE, idx_device);
}

int main(int argc, char **argv)
{
    struct gk_words words = {};
    cudaDeviceProp properties;
    const int from = argc == 3 ? atoi(argv[1]) : 0;
    const int to = argc == 3 ? atoi(argv[2]) : 0;

    if (from < 10 || to > 31 || from > to) {
        fprintf(stderr, "usage: gpu_bench LOG2_FROM LOG2_TO        10 to 31\n");
        return 2;
    }
    ops = gk_vector_cuda(&words);
    if (!ops || ops->open(&queue, &words) != GK_OK) {
        fprintf(stderr, "gpu_bench: %s\n", words.text);
        return 1;
    }
    must(cudaGetDeviceProperties(&properties, 0) == cudaSuccess, "the device");
    processors = properties.multiProcessorCount;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "a stream");
    printf("%s, %d multiprocessors, %zu MiB\n", ops->caps(queue)->name, processors,
           properties.totalGlobalMem >> 20);
    printf("%-28s %-5s %-8s %15s %9s %13s\n", "what", "d", "density", "median", "ratio",
           "beyond it");
    for (int log2 = from; log2 <= to; log2++) {
        selection(static_cast<unsigned>(log2));
    }
    replay(GK_OPTIMIZER_MOMENTUM, "16 records, momentum", static_cast<unsigned>(to < 26 ? to : 26),
           16);
    replay(GK_OPTIMIZER_ADAMW, "16 records, adamw", static_cast<unsigned>(to < 26 ? to : 26), 16);
    ops->close(queue);
    return 0;
}
