/* The runtime: memory, streams, events.
 *
 * Device memory is one arena that nobody can touch unless a stream runs.  A stream is a queue of
 * operations that run when somebody waits for it, and not before; so a host that reads a result too
 * early, or changes a source that has not been copied yet, always meets it, and not only on a bad
 * day.  Copies from and to memory that is not pinned behave as the manual says: their source is
 * read at the call, and their target is written when the call returns. */
#include "tests/simt/cuda_runtime.h"
#include "tests/simt/fiber.h"
#include "tests/simt/simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#ifdef GK_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(memory, bytes) __asan_poison_memory_region(memory, bytes)
#define UNPOISON(memory, bytes) __asan_unpoison_memory_region(memory, bytes)
#else
#define POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#endif

using simt::fault;

static const size_t arena_bytes = size_t(1) << 30;
static const size_t unit = 256; /* alignment of device memory, and the gap behind each piece */
static const unsigned char canary = 0xc5;
static const unsigned char poison = 0xa5;

struct operation {
    std::function<void()> run;
    cudaEvent_t event; /* recorded by it, or NULL */
};

struct gk_simt_stream {
    std::deque<operation> pending;
};

struct gk_simt_event {
    cudaStream_t stream; /* with which it is pending; NULL: it has happened */
};

/* Of pinned memory. */
struct piece {
    char *memory;
    size_t bytes;
};

static std::recursive_mutex lock;
static char *arena;
static size_t arena_top;                 /* what was ever in use */
static std::map<char *, size_t> devices; /* pieces of device memory */
static std::map<char *, size_t> pinned;
static std::vector<piece> targets; /* of copies that have not run */
static std::vector<piece> sources;
static std::vector<cudaStream_t> streams;
static bool open_now;
static int devices_count = 1;
static int64_t allocations_left = -1;
static int64_t launches_left = -1;
static int64_t copies_left = -1;
static int64_t waits_left = -1;
static uint64_t launches;
static cudaError_t last_error;

static cudaError_t give(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

/* ---- Device memory ---- */

static void protect(bool open)
{
    if (open == open_now || arena_top == 0) {
        return;
    }
    if (mprotect(arena, arena_top, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
        perror("simt: mprotect");
        abort();
    }
    open_now = open;
}

static void write_canary(char *memory, size_t bytes)
{
    const size_t gap = (bytes + unit - 1) / unit * unit - bytes + unit;

    memset(memory + bytes, canary, gap);
    POISON(memory + bytes, gap);
}

static void check_canary(char *memory, size_t bytes)
{
    const size_t gap = (bytes + unit - 1) / unit * unit - bytes + unit;

    UNPOISON(memory + bytes, gap);
    for (size_t i = 0; i < gap; i++) {
        if (static_cast<unsigned char>(memory[bytes + i]) != canary) {
            fault("out of bounds: a kernel wrote %zu bytes behind a piece of device memory of %zu "
                  "bytes",
                  i, bytes);
        }
    }
    POISON(memory + bytes, gap);
}

static bool fails()
{
    return allocations_left >= 0 && allocations_left-- == 0;
}

/* The first gap that is wide enough. */
static char *find_room(size_t bytes)
{
    char *at = arena + unit;

    for (const auto &piece : devices) {
        if (static_cast<size_t>(piece.first - at) >= bytes + 2 * unit) {
            return at;
        }
        at = piece.first + (piece.second + unit - 1) / unit * unit + unit;
    }
    return static_cast<size_t>(arena + arena_bytes - at) >= bytes + 2 * unit ? at : nullptr;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    char *at;
    size_t top;

    if (!arena) {
        arena = static_cast<char *>(mmap(nullptr, arena_bytes, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (arena == MAP_FAILED) {
            perror("simt: mmap");
            abort();
        }
    }
    if (fails() || bytes > arena_bytes) {
        return give(cudaErrorMemoryAllocation);
    }
    at = find_room(bytes);
    if (!at) {
        return give(cudaErrorMemoryAllocation);
    }
    top = static_cast<size_t>(at - arena) + bytes + 2 * unit;
    top = (top + 65535) / 65536 * 65536;
    protect(false);
    arena_top = top > arena_top ? top : arena_top;
    protect(true);
    UNPOISON(at, bytes + 2 * unit);
    memset(at, poison, bytes);
    write_canary(at, bytes);
    POISON(at - unit, unit);
    protect(false);
    devices[at] = bytes;
    *memory = at;
    return cudaSuccess;
}

static void run_stream(cudaStream_t stream);

static void run_all()
{
    for (cudaStream_t stream : streams) {
        run_stream(stream);
    }
}

cudaError_t cudaFree(void *memory)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    auto piece = devices.find(static_cast<char *>(memory));

    if (!memory) {
        return cudaSuccess;
    }
    if (piece == devices.end()) {
        return give(cudaErrorInvalidValue);
    }
    run_all();
    protect(true);
    check_canary(piece->first, piece->second);
    memset(piece->first, poison, piece->second);
    POISON(piece->first, piece->second);
    protect(false);
    devices.erase(piece);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    void *at = nullptr;

    if (fails() || bytes > arena_bytes || posix_memalign(&at, 4096, bytes) != 0) {
        return give(cudaErrorMemoryAllocation);
    }
    memset(at, poison, bytes);
    pinned[static_cast<char *>(at)] = bytes;
    *memory = at;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (!memory) {
        return cudaSuccess;
    }
    run_all();
    if (pinned.erase(static_cast<char *>(memory)) == 0) {
        return give(cudaErrorInvalidValue);
    }
    free(memory);
    return cudaSuccess;
}

static bool lies_in(const std::map<char *, size_t> &pieces, const void *pointer, size_t bytes)
{
    char *at = static_cast<char *>(const_cast<void *>(pointer));
    auto piece = pieces.upper_bound(at);

    if (piece == pieces.begin()) {
        return false;
    }
    --piece;
    return at + bytes <= piece->first + piece->second && at < piece->first + piece->second;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    void *at = const_cast<void *>(pointer);

    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, at};
    if (lies_in(devices, pointer, 0)) {
        *attributes = {cudaMemoryTypeDevice, 0, at, nullptr};
    } else if (lies_in(pinned, pointer, 0)) {
        *attributes = {cudaMemoryTypeHost, 0, at, at};
    }
    return cudaSuccess;
}

/* ---- Streams ---- */

static void check_canaries()
{
#ifndef GK_SIMT_ASAN
    for (const auto &piece : devices) {
        check_canary(piece.first, piece.second);
    }
#endif
}

/* Until and with the operation that records the event; NULL: all. */
static void run_until(cudaStream_t stream, cudaEvent_t event)
{
    while (!stream->pending.empty()) {
        operation next = std::move(stream->pending.front());

        stream->pending.pop_front();
        if (next.run) {
            protect(true);
            next.run();
        }
        if (next.event) {
            next.event->stream = nullptr;
            if (next.event == event) {
                break;
            }
        }
    }
    if (open_now) {
        check_canaries();
        protect(false);
    }
}

static void run_stream(cudaStream_t stream)
{
    run_until(stream, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    *stream = new gk_simt_stream;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    run_stream(stream);
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) {
            streams.erase(streams.begin() + static_cast<long>(i));
            break;
        }
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (stream) { /* nobody uses the default stream here */
        run_stream(stream);
    }
    if (waits_left >= 0 && waits_left-- == 0) {
        return give(cudaErrorLaunchFailure);
    }
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new gk_simt_event{nullptr};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (event->stream) {
        run_stream(event->stream);
    }
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (event->stream) { /* what it stood for before is forgotten */
        for (operation &operation : event->stream->pending) {
            operation.event = operation.event == event ? nullptr : operation.event;
        }
    }
    event->stream = stream;
    stream->pending.push_back({nullptr, event});
    return cudaSuccess;
}

/* One operation a question, so that who asks in a loop gets there. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (event->stream) {
        cudaStream_t stream = event->stream;
        operation next = std::move(stream->pending.front());

        stream->pending.pop_front();
        protect(true);
        if (next.run) {
            next.run();
        }
        if (next.event) {
            next.event->stream = nullptr;
        }
        protect(false);
    }
    return event->stream ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (event->stream) {
        run_until(event->stream, event);
    }
    return cudaSuccess;
}

/* ---- Copies ---- */

static uint64_t checksum(const void *memory, size_t bytes)
{
    const unsigned char *at = static_cast<const unsigned char *>(memory);
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++) {
        sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

static bool overlaps(const std::vector<piece> &pieces, const char *memory, size_t bytes)
{
    for (const piece &piece : pieces) {
        if (memory < piece.memory + piece.bytes && piece.memory < memory + bytes) {
            return true;
        }
    }
    return false;
}

static void forget(std::vector<piece> &pieces, const char *memory, size_t bytes)
{
    for (size_t i = 0; i < pieces.size(); i++) {
        if (pieces[i].memory == memory && pieces[i].bytes == bytes) {
            pieces.erase(pieces.begin() + static_cast<long>(i));
            return;
        }
    }
}

/* From pinned memory: it must be then what it is now, unless a copy before this one writes it. */
static void queue_from_pinned(void *target, const void *source, size_t bytes, cudaStream_t stream)
{
    char *from = static_cast<char *>(const_cast<void *>(source));
    const bool written_before = overlaps(targets, from, bytes);
    const uint64_t sum = written_before ? 0 : checksum(source, bytes);

    sources.push_back({from, bytes});
    stream->pending.push_back(
        {[=]() {
             forget(sources, from, bytes);
             if (!written_before && checksum(source, bytes) != sum) {
                 fault("the source of an asynchronous copy of %zu bytes was changed before it ran",
                       bytes);
             }
             memcpy(target, source, bytes);
         },
         nullptr});
}

/* Poisoned, unless a copy before this one still reads it. */
static void queue_to_pinned(void *target, const void *source, size_t bytes, cudaStream_t stream)
{
    char *to = static_cast<char *>(target);

    if (!overlaps(sources, to, bytes)) {
        memset(target, poison, bytes);
        POISON(target, bytes);
    }
    targets.push_back({to, bytes});
    stream->pending.push_back({[=]() {
                                   forget(targets, to, bytes);
                                   UNPOISON(to, bytes);
                                   memcpy(target, source, bytes);
                               },
                               nullptr});
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    const bool to_device = lies_in(devices, target, bytes);
    const bool from_device = lies_in(devices, source, bytes);

    if (bytes == 0) {
        return cudaSuccess;
    }
    if (copies_left >= 0 && copies_left-- == 0) {
        return give(cudaErrorLaunchFailure);
    }
    if ((kind == cudaMemcpyHostToDevice && (!to_device || from_device)) ||
        (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) ||
        (kind == cudaMemcpyDeviceToDevice && !(to_device && from_device))) {
        return give(cudaErrorInvalidValue);
    }
    if (to_device && !from_device && lies_in(pinned, source, bytes)) {
        queue_from_pinned(target, source, bytes, stream);
    } else if (to_device && !from_device) {
        std::vector<char> copy(static_cast<const char *>(source),
                               static_cast<const char *>(source) + bytes);

        stream->pending.push_back({[=]() { memcpy(target, copy.data(), bytes); }, nullptr});
    } else if (from_device && !to_device && lies_in(pinned, target, bytes)) {
        queue_to_pinned(target, source, bytes, stream);
    } else if (!to_device && !from_device) {
        run_stream(stream);
        memmove(target, source, bytes);
    } else {
        stream->pending.push_back({[=]() { memmove(target, source, bytes); }, nullptr});
        if (!to_device) {
            run_stream(stream);
        }
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (bytes > 0 && !lies_in(devices, memory, bytes)) {
        return give(cudaErrorInvalidValue);
    }
    stream->pending.push_back({[=]() { memset(memory, value, bytes); }, nullptr});
    return cudaSuccess;
}

/* ---- Launches ---- */

static void call(void *context)
{
    (*static_cast<std::function<void()> *>(context))();
}

cudaError_t simt::queue_launch(const cudaLaunchConfig_t &config, size_t arguments_bytes,
                               const char *name, std::function<void()> body)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    const dim3 grid = config.gridDim;
    const dim3 block = config.blockDim;

    if (launches_left >= 0 && launches_left-- == 0) {
        return give(cudaErrorLaunchFailure);
    }
    if (grid.x == 0 || grid.x > 0x7fffffff || block.x == 0 || block.x > 1024 ||
        arguments_bytes > 4096 || config.dynamicSmemBytes > 48 * 1024 || !config.stream) {
        return give(cudaErrorInvalidConfiguration);
    }
    if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 || config.dynamicSmemBytes > 0) {
        fault("the emulator knows launches of one dimension without dynamic shared memory alone");
    }
    config.stream->pending.push_back({[=]() {
                                          std::function<void()> thread = body;

                                          launches++;
                                          run({name, grid, block, call, &thread});
                                      },
                                      nullptr});
    return cudaSuccess;
}

void simt::queue_work(cudaStream_t stream, std::function<void()> work)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    stream->pending.push_back({std::move(work), nullptr});
}

bool simt::lies_on_device(const void *memory, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    return lies_in(devices, memory, bytes);
}

/* ---- Devices and errors ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    if (devices_count < 0) {
        return give(cudaErrorInsufficientDriver);
    }
    *count = devices_count;
    return devices_count > 0 ? cudaSuccess : give(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    return device >= 0 && device < devices_count ? cudaSuccess : give(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 8 : 2;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (device < 0 || device >= devices_count) {
        return give(cudaErrorInvalidDevice);
    }
    *properties = {};
    snprintf(properties->name, sizeof(properties->name), "emulated");
    properties->totalGlobalMem = arena_bytes;
    properties->major = 8;
    properties->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    }
    return "unknown";
}

extern "C" void gk_simt_fail_allocation(int64_t after)
{
    allocations_left = after;
}

extern "C" void gk_simt_fail_launch(int64_t after)
{
    launches_left = after;
}

extern "C" void gk_simt_fail_copy(int64_t after)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    copies_left = after;
}

extern "C" void gk_simt_fail_wait(int64_t after)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    waits_left = after;
}

extern "C" void gk_simt_devices(int count)
{
    devices_count = count;
}

extern "C" uint64_t gk_simt_launches(void)
{
    return launches;
}
