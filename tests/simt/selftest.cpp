/* Goal: the emulator finds what it is there to find, and runs what is right.
 *
 * Method: small kernels, each with one mistake, in a child process each, in every order; the child
 * must end abnormally and say the words of that mistake.  Beside each there is the same kernel
 * without the mistake, which must end well. */
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "tests/simt/fiber.h"
#include "tests/simt/simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static cudaStream_t stream;
static unsigned *numbers; /* device, 4096 */
static unsigned *host;    /* pinned, 4096 */
enum { COUNT = 4096, BYTES = COUNT * sizeof(unsigned) };

static void check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "selftest: %s\n", what);
        _exit(3);
    }
}

template <typename... Parameters, typename... Arguments>
static cudaError_t start(unsigned grid, unsigned block, void (*kernel)(Parameters...),
                         Arguments... arguments)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(grid);
    config.blockDim = dim3(block);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

static void read_back()
{
    check(cudaMemcpyAsync(host, numbers, BYTES, cudaMemcpyDeviceToHost, stream) == cudaSuccess,
          "copy back");
    check(cudaStreamSynchronize(stream) == cudaSuccess, "synchronise");
}

/* ---- Barriers and shared memory ---- */

static __global__ void reverse(unsigned *out, bool with_barrier)
{
    GK_SHARED_ARRAY(unsigned, shared, 64);

    shared[threadIdx.x] = threadIdx.x;
    if (with_barrier) {
        __syncthreads();
    }
    out[blockIdx.x * 64 + threadIdx.x] = shared[63 - threadIdx.x];
}

static void reverse_with(bool barrier)
{
    start(8, 64, reverse, numbers, barrier);
    read_back();
    for (unsigned i = 0; i < 512; i++) {
        check(host[i] == 63 - i % 64, "reversed");
    }
}

static void missing_barrier()
{
    reverse_with(false);
}

/* Reads, then the next turn of the loop writes: the barrier at its end. */
static __global__ void turns(unsigned *out, bool with_barrier)
{
    GK_SHARED_ARRAY(unsigned, shared, 64);
    unsigned sum = 0;

    for (unsigned turn = 0; turn < 3; turn++) {
        shared[threadIdx.x] = threadIdx.x + turn;
        __syncthreads();
        sum += shared[(threadIdx.x + 33) % 64];
        if (with_barrier) {
            __syncthreads();
        }
    }
    out[threadIdx.x] = sum;
}

static void missing_barrier_after_reading()
{
    start(1, 64, turns, numbers, false);
    read_back();
}

static __global__ void read_unwritten(unsigned *out)
{
    GK_SHARED_ARRAY(unsigned, shared, 4);

    out[threadIdx.x] = shared[threadIdx.x % 4];
}

static void shared_memory_is_poisoned()
{
    start(2, 32, read_unwritten, numbers);
    read_back();
    check(host[5] == 0xa5a5a5a5, "poison");
}

static __global__ void early_end(unsigned *out, unsigned stay)
{
    if (threadIdx.x >= stay) {
        return;
    }
    __syncthreads();
    out[threadIdx.x] = 1;
}

static void barrier_after_exit()
{
    start(1, 64, early_end, numbers, 40u);
    read_back();
}

static __global__ void two_barriers(unsigned *out)
{
    if (threadIdx.x < 32) {
        __syncthreads();
        out[threadIdx.x] = 1;
    } else {
        __syncthreads();
        out[threadIdx.x] = 2;
    }
}

static void barriers_in_two_branches()
{
    start(1, 64, two_barriers, numbers);
    read_back();
}

static __global__ void too_much_shared(unsigned *out)
{
    GK_SHARED_ARRAY(unsigned, large, 13000);

    large[0] = 1;
    out[0] = large[0];
}

static void shared_memory_limit()
{
    start(1, 32, too_much_shared, numbers);
    read_back();
}

static __global__ void shared_overrun(unsigned *out, unsigned at)
{
    GK_SHARED_ARRAY(unsigned, shared, 64);

    shared[threadIdx.x + at] = 1;
    __syncthreads();
    out[threadIdx.x] = shared[threadIdx.x];
}

static void shared_out_of_bounds()
{
    start(1, 32, shared_overrun, numbers, 40u);
    read_back();
}

/* ---- Collectives ---- */

static __global__ void divergent_ballot(unsigned *out, unsigned mask)
{
    if (threadIdx.x % 2) {
        out[threadIdx.x] = __ballot_sync(mask, 1);
    }
}

static void full_mask_in_a_branch()
{
    start(1, 32, divergent_ballot, numbers, 0xffffffffu);
    read_back();
}

static void odd_mask_in_a_branch()
{
    start(1, 32, divergent_ballot, numbers, 0xaaaaaaaau);
    read_back();
    check(host[1] == 0xaaaaaaaa, "ballot of a branch");
}

static void mask_without_the_caller()
{
    start(1, 32, divergent_ballot, numbers, 0xaaaaaaa8u);
    read_back();
}

static __global__ void mixed(unsigned *out)
{
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __ballot_sync(0xffffffff, 1);
    } else {
        out[threadIdx.x] = __shfl_sync(0xffffffff, threadIdx.x, 3);
    }
}

static void ballot_mixed_with_shuffle()
{
    start(1, 32, mixed, numbers);
    read_back();
}

static __global__ void two_sites(unsigned *out)
{
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __ballot_sync(0xffffffff, 1);
    } else {
        out[threadIdx.x] = __ballot_sync(0xffffffff, 0);
    }
}

static void one_operation_at_two_places()
{
    start(1, 32, two_sites, numbers);
    read_back();
}

static __global__ void absent_lane(unsigned *out)
{
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_sync(0x0000ffff, threadIdx.x, 20);
    }
}

static void shuffle_from_an_absent_lane()
{
    start(1, 32, absent_lane, numbers);
    read_back();
}

static __global__ void warp_exchange(unsigned *out, bool sync)
{
    GK_SHARED_ARRAY(unsigned, shared, 32);

    shared[threadIdx.x] = threadIdx.x;
    if (sync) {
        __syncwarp();
    }
    out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

static void missing_syncwarp()
{
    start(1, 32, warp_exchange, numbers, false);
    read_back();
}

static __global__ void shuffles(unsigned *out)
{
    unsigned x = threadIdx.x;
    double half = x;

    for (int by = 16; by > 0; by /= 2) {
        x += __shfl_xor_sync(0xffffffff, x, by);
        half += __shfl_down_sync(0xffffffff, half, static_cast<unsigned>(by));
    }
    out[threadIdx.x] = x;
    out[32 + threadIdx.x] = __shfl_up_sync(0xffffffff, threadIdx.x, 1);
    if (threadIdx.x == 0) {
        out[64] = static_cast<unsigned>(half);
    }
}

/* ---- Atomics ---- */

static __global__ void count(unsigned *counter, unsigned *out)
{
    GK_SHARED_ARRAY(unsigned, sum, 1);

    if (threadIdx.x == 0) {
        sum[0] = 0;
    }
    __syncthreads();
    atomicAdd(&sum[0], 1u);
    __syncthreads();
    if (threadIdx.x == 0) {
        out[atomicAdd(counter, sum[0]) / 64] = blockIdx.x;
    }
}

static __global__ void lost_update(unsigned *counter)
{
    unsigned seen = *counter;

    atomicAdd(counter + 1, 1u); /* somebody else may run here */
    *counter = seen + 1;
}

/* Whatever the order: some block's turn comes between another's read and write. */
static void blocks_interleave_at_atomics()
{
    check(cudaMemsetAsync(numbers, 0, BYTES, stream) == cudaSuccess, "set");
    start(16, 32, lost_update, numbers);
    read_back();
    check(host[1] == 512, "atomics lose nothing");
    if (host[0] < 512) {
        fprintf(stderr, "update lost\n");
        abort();
    }
}

/* ---- Host and device ---- */

static __global__ void fill(unsigned *out, unsigned count)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * blockDim.x) {
        out[i] = i;
    }
}

static void out_of_bounds_write()
{
    start(2, 64, fill, numbers, unsigned(COUNT) + 1);
    read_back();
}

static void host_touches_device_memory()
{
    *static_cast<volatile unsigned *>(numbers) = 1;
    fprintf(stderr, "host access went through\n");
}

static void early_read()
{
    start(1, 32, fill, numbers, 32u);
    check(cudaMemcpyAsync(host, numbers, BYTES, cudaMemcpyDeviceToHost, stream) == cudaSuccess,
          "copy");
    if (static_cast<volatile unsigned *>(host)[5] != 5) { /* before the wait */
        fprintf(stderr, "early read found %x\n", host[5]);
        abort();
    }
}

static void reused_staging_buffer()
{
    memset(host, 1, BYTES);
    check(cudaMemcpyAsync(numbers, host, BYTES, cudaMemcpyHostToDevice, stream) == cudaSuccess,
          "copy");
    host[7] = 9; /* the copy has not run */
    check(cudaStreamSynchronize(stream) == cudaSuccess, "synchronise");
}

static void launch_limits()
{
    static const struct {
        unsigned grid, block;
        cudaError_t error;
    } cases[] = {{1, 1025, cudaErrorInvalidConfiguration},
                 {1, 0, cudaErrorInvalidConfiguration},
                 {0, 32, cudaErrorInvalidConfiguration},
                 {0x80000000, 32, cudaErrorInvalidConfiguration},
                 {1, 1024, cudaSuccess}};

    for (const auto &limit : cases) {
        check(start(limit.grid, limit.block, fill, numbers, 1u) == limit.error, "launch limits");
        check(cudaGetLastError() == limit.error && cudaGetLastError() == cudaSuccess, "last error");
    }
}

static void failures_on_demand()
{
    void *memory = nullptr;
    int devices = 0;

    gk_simt_fail_allocation(1);
    check(cudaMalloc(&memory, 100) == cudaSuccess && cudaFree(memory) == cudaSuccess,
          "first allocation");
    check(cudaHostAlloc(&memory, 100, 0) == cudaErrorMemoryAllocation, "second allocation");
    check(cudaMalloc(&memory, 100) == cudaSuccess && cudaFree(memory) == cudaSuccess,
          "third allocation");
    gk_simt_fail_launch(0);
    check(start(1, 32, fill, numbers, 1u) == cudaErrorLaunchFailure, "launch");
    check(start(1, 32, fill, numbers, 1u) == cudaSuccess, "next launch");
    gk_simt_fail_copy(0);
    check(cudaMemcpyAsync(numbers, &devices, 4, cudaMemcpyDefault, stream) != 0, "copy");
    gk_simt_devices(0);
    check(cudaGetDeviceCount(&devices) == cudaErrorNoDevice, "no device");
    gk_simt_devices(-1);
    check(cudaGetDeviceCount(&devices) == cudaErrorInsufficientDriver, "no driver");
}

/* ---- cuBLAS ---- */

/* What a product needs to be the same in every run. */
enum need { STREAM = 1, WORKSPACE = 2, PEDANTIC = 4, ALL = 7 };

/* c = a a, of 2 x 2, a at the begin of `numbers`. */
static void multiply(unsigned needs, void *c)
{
    const float factors[2] = {1.0f, 0.0f};
    const float *a = reinterpret_cast<float *>(numbers);
    cublasHandle_t handle;

    check(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "handle");
    check(cublasSetWorkspace(handle, numbers + 1024, 1024) == 0, "workspace");
    if (needs & STREAM) {
        check(cublasSetStream(handle, stream) == 0, "stream"); /* takes the workspace away */
    }
    if (needs & WORKSPACE) {
        check(cublasSetWorkspace(handle, numbers + 1024, 1024) == 0, "workspace");
    }
    if (needs & PEDANTIC) {
        check(cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH) == 0, "mode");
    }
    check(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &factors[0], a, 2, a, 2,
                      &factors[1], static_cast<float *>(c), 2) == CUBLAS_STATUS_SUCCESS,
          "product");
    check(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS, "destroy");
}

static void right_product()
{
    const float a[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    float c[4];

    check(cudaMemcpyAsync(numbers, a, sizeof(a), cudaMemcpyHostToDevice, stream) == 0, "copy");
    multiply(ALL, numbers + 4);
    read_back();
    memcpy(c, host + 4, sizeof(c));
    check(c[0] == 7.0f && c[1] == 10.0f && c[2] == 15.0f && c[3] == 22.0f, "columns of a a");
}

/* ---- What is right ---- */

static void right_kernels()
{
    reverse_with(true);
    start(1, 64, turns, numbers, true);
    start(1, 32, warp_exchange, numbers, true);
    start(1, 32, shuffles, numbers);
    read_back();
    check(host[0] == 496 && host[31] == 496 && host[64] == 496, "sums by shuffles");
    check(host[32] == 0 && host[40] == 7, "shuffle up");
    check(cudaMemsetAsync(numbers, 0, BYTES, stream) == cudaSuccess, "set");
    start(20, 64, count, numbers + 100, numbers);
    read_back();
    check(host[100] == 20 * 64, "counted");
    start(3, 96, fill, numbers, unsigned(COUNT));
    read_back();
    check(host[COUNT - 1] == COUNT - 1, "filled");
    odd_mask_in_a_branch();
    shared_memory_is_poisoned();
}

/* Blocks come in the order that was asked for; at random, in more than one. */
static void orders_differ()
{
    unsigned seen[8][20];
    bool differ = false;

    for (unsigned seed = 0; seed < 8; seed++) {
        gk_simt_schedule(GK_SIMT_RANDOM, seed);
        check(cudaMemsetAsync(numbers, 0, BYTES, stream) == cudaSuccess, "set");
        start(20, 64, count, numbers + 100, numbers);
        read_back();
        memcpy(seen[seed], host, sizeof(seen[seed]));
        differ = differ || memcmp(seen[seed], seen[0], sizeof(seen[0])) != 0;
    }
    check(differ, "seeds give different orders");
    for (unsigned again = 0; again < 2; again++) {
        gk_simt_schedule(GK_SIMT_RANDOM, 3);
        check(cudaMemsetAsync(numbers, 0, BYTES, stream) == cudaSuccess, "set");
        start(20, 64, count, numbers + 100, numbers);
        read_back();
        check(memcmp(seen[3], host, sizeof(seen[3])) == 0, "a seed gives the same order again");
    }
}

struct test {
    const char *name;
    void (*run)();
    const char *words[2]; /* one of them in its output; NULL: it ends well */
};

static const test tests[] = {
    {"right kernels", right_kernels, {}},
    {"launch limits", launch_limits, {}},
    {"failures on demand", failures_on_demand, {}},
    {"orders", orders_differ, {}},
    {"missing barrier", missing_barrier, {"race: "}},
    {"missing barrier after reading", missing_barrier_after_reading, {"race: "}},
    {"missing syncwarp", missing_syncwarp, {"race: "}},
    {"barrier after exit", barrier_after_exit, {"threads of the block had ended"}},
    {"barriers in two branches", barriers_in_two_branches, {"barriers at "}},
    {"shared memory limit", shared_memory_limit, {"bytes of shared memory; a block has"}},
    {"shared memory out of bounds", shared_out_of_bounds, {"out of bounds: element"}},
    {"full mask in a branch", full_mask_in_a_branch, {"has mask ffffffff, and only lanes"}},
    {"mask without the caller", mask_without_the_caller, {"does not name lane"}},
    {"ballot mixed with shuffle", ballot_mixed_with_shuffle, {"has mask ffffffff, and only lanes"}},
    {"one operation at two places",
     one_operation_at_two_places,
     {"has mask ffffffff, and only lanes"}},
    {"shuffle from an absent lane", shuffle_from_an_absent_lane, {"takes no part"}},
    {"blocks interleave at atomics", blocks_interleave_at_atomics, {"update lost"}},
    {"out of bounds", out_of_bounds_write, {"out of bounds: a kernel wrote", "use-after-poison"}},
    {"host touches device memory", host_touches_device_memory, {"signal 11", "SEGV"}},
    {"early read of a copy", early_read, {"early read found a5a5a5a5", "use-after-poison"}},
    {"reused staging buffer", reused_staging_buffer, {"was changed before it ran"}},
    {"right product", right_product, {}},
    {"product on the default stream",
     [] { multiply(WORKSPACE | PEDANTIC, numbers + 4); },
     {"the default stream"}},
    {"product without a workspace",
     [] { multiply(STREAM | PEDANTIC, numbers + 4); },
     {"without a workspace"}},
    {"product in another mode",
     [] { multiply(STREAM | WORKSPACE, numbers + 4); },
     {"in another mode"}},
    {"product in host memory", [] { multiply(ALL, host); }, {"operand c"}},
};

static void child(const test &test, enum gk_simt_order order, uint64_t seed, int output)
{
    void *memory;

    dup2(output, 1);
    dup2(output, 2);
    gk_simt_schedule(order, seed);
    check(cudaStreamCreateWithFlags(&stream, 0) == cudaSuccess, "stream");
    check(cudaMalloc(&memory, BYTES) == cudaSuccess, "device memory");
    numbers = static_cast<unsigned *>(memory);
    check(cudaHostAlloc(&memory, BYTES, 0) == cudaSuccess, "pinned memory");
    host = static_cast<unsigned *>(memory);
    test.run();
    check(cudaStreamSynchronize(stream) == cudaSuccess, "synchronise");
    _exit(0);
}

/* True: as expected. */
static bool run_one(const test &test, enum gk_simt_order order, uint64_t seed)
{
    static char output[65536];
    size_t bytes = 0;
    int status = 0;
    int pipes[2];
    pid_t pid;
    bool found = false;

    if (pipe(pipes) != 0 || (pid = fork()) < 0) {
        perror("selftest");
        return false;
    }
    if (pid == 0) {
        close(pipes[0]);
        child(test, order, seed, pipes[1]);
    }
    close(pipes[1]);
    for (ssize_t got = 1; got > 0 && bytes < sizeof(output) - 100;) {
        got = read(pipes[0], output + bytes, sizeof(output) - 100 - bytes);
        bytes += got > 0 ? static_cast<size_t>(got) : 0;
    }
    output[bytes] = 0;
    close(pipes[0]);
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) {
        snprintf(output + bytes, 100, "\nsignal %d", WTERMSIG(status));
    }
    for (const char *words : test.words) {
        found = found || (words && strstr(output, words));
    }
    if (test.words[0] ? found && status != 0 : status == 0) {
        return true;
    }
    printf("%s: order %d seed %llu: status %x, wanted '%s':\n%s\n", test.name, order,
           static_cast<unsigned long long>(seed), status, test.words[0] ? test.words[0] : "",
           output);
    return false;
}

int main()
{
    unsigned failed = 0;

    for (const test &test : tests) {
        bool ok = run_one(test, GK_SIMT_ASCENDING, 1) && run_one(test, GK_SIMT_DESCENDING, 1);

        for (uint64_t seed = 1; seed <= 4; seed++) {
            ok = run_one(test, GK_SIMT_RANDOM, seed) && ok;
        }
        printf("%-32s %s\n", test.name, ok ? "ok" : "FAILED");
        failed += !ok;
    }
    return failed ? 1 : 0;
}
