/* Embedding and LSTM.  The operations of an element are those of the CPU's slots, one by one. */
#include "cuda/layers.cuh"
#include "cuda/rows.cuh"

#include <math.h>

enum { BLOCKS_PER_PROCESSOR = 8 };

/* ---- Embedding ---- */

struct embedding {
    const float *from; /* the table, or dy */
    const uint32_t *tokens;
    float *to; /* y, or the gradient of the table */
    uint64_t rows, width, table;
};

/* Tokens are below the size of the table: the data set saw to that. */
static __global__ void __launch_bounds__(BLOCK) embed(embedding call)
{
    for (walk walk = walk_from_here(call.width); walk.row < call.rows; walk_on(&walk, call.width)) {
        call.to[walk.at] = call.from[call.tokens[walk.row] * call.width + walk.column];
    }
}

void gk_cuda_layer_embedding_forward(struct gk_queue *queue, const float *table,
                                     const uint32_t *tokens, const uint64_t sides[2], float *y)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue)) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, sides[0] * sides[1]), embed,
                       embedding{table, tokens, y, sides[0], sides[1], 0});
    }
}

enum {
    TOKENS_EACH = 4,
    TOKENS_CHUNK = BLOCK * TOKENS_EACH,
    ROWS_AHEAD = 16, /* that a thread fetches before it adds them */
};

/* The rows from `base` on, of one chunk, that have this token, in order; returns how many. */
static __device__ inline uint32_t find_rows(const embedding &call, uint64_t token, uint64_t base,
                                            GK_SHARED_POINTER(uint32_t) found,
                                            GK_SHARED_POINTER(uint32_t) sums)
{
    const uint32_t from = threadIdx.x * TOKENS_EACH;
    uint32_t hits = 0; /* bits */
    uint32_t total;
    uint32_t at;

    for (uint32_t i = 0; i < TOKENS_EACH; i++) {
        const uint64_t row = base + from + i;

        hits |= row < call.rows && call.tokens[row] == token ? 1u << i : 0u;
    }
    at = block_scan(static_cast<uint32_t>(__popc(hits)), sums, &total);
    for (uint32_t i = 0; i < TOKENS_EACH; i++) {
        if (hits >> i & 1) {
            found[at++] = from + i;
        }
    }
    return total;
}

static __device__ inline float add_rows(const embedding &call, const float *column, float sum,
                                        GK_SHARED_POINTER(uint32_t) found, uint32_t count)
{
    float values[ROWS_AHEAD];
    uint32_t i = 0;

    for (; i + ROWS_AHEAD <= count; i += ROWS_AHEAD) {
#pragma unroll
        for (uint32_t j = 0; j < ROWS_AHEAD; j++) {
            values[j] = column[found[i + j] * call.width];
        }
#pragma unroll
        for (uint32_t j = 0; j < ROWS_AHEAD; j++) {
            sum = __fadd_rn(sum, values[j]);
        }
    }
    for (; i < count; i++) {
        sum = __fadd_rn(sum, column[found[i] * call.width]);
    }
    return sum;
}

/* A block a token: it looks for the rows that have it, a chunk at a time, and a thread a column
 * adds them.  Between the reading of what was found and the next search lies the barrier of the
 * prefix sum. */
static __global__ void __launch_bounds__(BLOCK) embed_backward(embedding call)
{
    GK_SHARED_ARRAY(uint32_t, found, TOKENS_CHUNK);
    GK_SHARED_ARRAY(uint32_t, sums, WARPS);

    for (uint64_t token = blockIdx.x; token < call.table; token += gridDim.x) {
        float *to = call.to + token * call.width;

        for (uint64_t base = 0; base < call.rows; base += TOKENS_CHUNK) {
            const uint32_t count = find_rows(call, token, base, found, sums);

            __syncthreads();
            for (uint64_t c = threadIdx.x; c < call.width; c += BLOCK) {
                to[c] = add_rows(call, call.from + base * call.width + c, base == 0 ? 0.0f : to[c],
                                 found, count);
            }
        }
    }
}

void gk_cuda_layer_embedding_backward(struct gk_queue *queue, const float *dy,
                                      const uint32_t *tokens, const uint64_t sides[3],
                                      float *dtable)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue)) {
        gk_cuda_launch(&slot, gk_cuda_grid(&slot, sides[2], BLOCKS_PER_PROCESSOR), embed_backward,
                       embedding{dy, tokens, dtable, sides[0], sides[1], sides[2]});
    }
}

/* ---- LSTM ---- */

static __device__ inline float sigmoid(float a)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-a)));
}

/* One gate's sum, at place j of a row of gates. */
static __device__ inline float gate_sum(const struct gk_lstm_args &args, const float *gates,
                                        uint64_t j)
{
    return __fadd_rn(__fadd_rn(gates[j], args.bias_x[j]), args.bias_h[j]);
}

static __global__ void __launch_bounds__(BLOCK) lstm_forward(struct gk_lstm_args args)
{
    const uint64_t width = args.width;

    for (walk walk = walk_from_here(width); walk.row < args.rows; walk_on(&walk, width)) {
        const uint64_t j = walk.column;
        float *gates = args.gates + walk.row * 4 * width;
        const float i = sigmoid(gate_sum(args, gates, j));
        const float f = sigmoid(gate_sum(args, gates, width + j));
        const float g = tanhf(gate_sum(args, gates, 2 * width + j));
        const float o = sigmoid(gate_sum(args, gates, 3 * width + j));
        const float c = __fadd_rn(__fmul_rn(f, args.c_before[walk.at]), __fmul_rn(i, g));

        gates[j] = i;
        gates[width + j] = f;
        gates[2 * width + j] = g;
        gates[3 * width + j] = o;
        args.c[walk.at] = c;
        args.h[walk.at] = __fmul_rn(o, tanhf(c));
    }
}

void gk_cuda_layer_lstm_forward(struct gk_queue *queue, const struct gk_lstm_args *args)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue)) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->rows * args->width), lstm_forward,
                       *args);
    }
}

static __global__ void __launch_bounds__(BLOCK) lstm_backward(struct gk_lstm_gradient_args args)
{
    const uint64_t width = args.width;

    for (walk walk = walk_from_here(width); walk.row < args.rows; walk_on(&walk, width)) {
        const uint64_t j = walk.column;
        float *gates = args.gates + walk.row * 4 * width;
        const float i = gates[j], f = gates[width + j], g = gates[2 * width + j];
        const float o = gates[3 * width + j];
        const float bent = tanhf(args.c[walk.at]);
        const float dh = args.dh[walk.at];
        const float slope = __fsub_rn(1.0f, __fmul_rn(bent, bent));
        const float dc = __fadd_rn(args.dc[walk.at], __fmul_rn(__fmul_rn(dh, o), slope));
        const float before = args.c_before[walk.at];

        gates[j] = __fmul_rn(__fmul_rn(__fmul_rn(dc, g), i), __fsub_rn(1.0f, i));
        gates[width + j] = __fmul_rn(__fmul_rn(__fmul_rn(dc, before), f), __fsub_rn(1.0f, f));
        gates[2 * width + j] = __fmul_rn(__fmul_rn(dc, i), __fsub_rn(1.0f, __fmul_rn(g, g)));
        gates[3 * width + j] = __fmul_rn(__fmul_rn(__fmul_rn(dh, bent), o), __fsub_rn(1.0f, o));
        args.dc[walk.at] = __fmul_rn(dc, f);
    }
}

void gk_cuda_layer_lstm_backward(struct gk_queue *queue, const struct gk_lstm_gradient_args *args)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue)) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->rows * args->width), lstm_backward,
                       *args);
    }
}
