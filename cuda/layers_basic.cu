/* Slots that touch every element once: bias and activation, shortcuts, transposition. */
#include "cuda/divide.cuh"
#include "cuda/layers.cuh"

extern "C" {
#include "common/assert.h"
}

enum { SIDE = LANES, PITCH = SIDE + 1 /* so that a column lies in all banks */ };

/* A NaN stays. */
static __device__ inline float activate(float x, bool is_relu)
{
    return is_relu && x <= 0.0f ? 0.0f : x;
}

/* ---- Copies ---- */

static void copy_elements(struct slot *slot, float *y, const float *x, uint64_t count)
{
    if (count > 0) {
        (void)gk_cuda_check(slot->queue,
                            cudaMemcpyAsync(y, x, count * sizeof(*y), cudaMemcpyDeviceToDevice,
                                            slot->queue->stream));
    }
}

void gk_cuda_layer_copy(struct gk_queue *queue, float *y, const float *x, uint64_t count)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue)) {
        copy_elements(&slot, y, x, count);
    }
}

static __global__ void __launch_bounds__(BLOCK) fill(float *y, float value, uint64_t count)
{
    for (uint64_t i = thread_number(); i < count; i += threads_count()) {
        y[i] = value;
    }
}

void gk_cuda_layer_fill(struct gk_queue *queue, float *y, float value, uint64_t count)
{
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0) {
        return;
    }
    if (gk_float_bits(value) == 0) {
        gk_cuda_zero(&slot, y, count * sizeof(*y));
        return;
    }
    gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, count), fill, y, value, count);
}

/* ---- Transposition ---- */

struct transpose_call {
    float *y;
    const float *x;
    uint64_t rows, columns;
    uint32_t tiles_count;
    divisor<uint32_t> tiles_down, tiles_across; /* of one matrix */
};

/* Through squares in shared memory, so that both sides are read and written along their rows. */
static __global__ void __launch_bounds__(BLOCK) transpose_tiles(transpose_call call)
{
    GK_SHARED_ARRAY(float, square, SIDE *PITCH);

    for (uint32_t tile = blockIdx.x; tile < call.tiles_count; tile += gridDim.x) {
        uint32_t across = tile;
        uint32_t down = split(&across, call.tiles_across);
        const uint64_t matrix = split(&down, call.tiles_down) * call.rows * call.columns;
        const uint64_t row = static_cast<uint64_t>(down) * SIDE;
        const uint64_t column = static_cast<uint64_t>(across) * SIDE;

        for (uint32_t i = warp_id(); i < SIDE; i += WARPS) {
            if (row + i < call.rows && column + lane_id() < call.columns) {
                square[i * PITCH + lane_id()] =
                    call.x[matrix + (row + i) * call.columns + column + lane_id()];
            }
        }
        __syncthreads();
        for (uint32_t i = warp_id(); i < SIDE; i += WARPS) {
            if (column + i < call.columns && row + lane_id() < call.rows) {
                call.y[matrix + (column + i) * call.rows + row + lane_id()] =
                    square[lane_id() * PITCH + i];
            }
        }
        __syncthreads(); /* the next tile goes into the same square */
    }
}

template <typename number> struct thin_call {
    float *y;
    const float *x;
    number count;
    divisor<number> rows, columns;
};

/* Of matrices too thin for squares; what lies between the elements that a warp reads is in the
 * cache when the next one needs it. */
template <typename number>
static __global__ void __launch_bounds__(BLOCK) transpose_thin(thin_call<number> call)
{
    for (number i = static_cast<number>(thread_number()); i < call.count;
         i += static_cast<number>(threads_count())) {
        number row = i;
        number column = split(&row, call.rows);
        const number matrix = split(&column, call.columns);

        call.y[i] = call.x[(matrix * call.rows.value + row) * call.columns.value + column];
    }
}

template <typename number>
static void launch_thin(struct slot *slot, float *y, const float *x, const uint64_t sides[3])
{
    const uint64_t count = sides[0] * sides[1] * sides[2];
    thin_call<number> call = {};

    call.y = y;
    call.x = x;
    call.count = static_cast<number>(count);
    set_divisor(&call.rows, sides[1]);
    set_divisor(&call.columns, sides[2]);
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), transpose_thin<number>, call);
}

static void launch_tiles(struct slot *slot, float *y, const float *x, const uint64_t sides[3])
{
    const uint64_t down = (sides[1] + SIDE - 1) / SIDE;
    const uint64_t across = (sides[2] + SIDE - 1) / SIDE;
    const uint64_t count = sides[0] * down * across;
    transpose_call call = {};

    GK_ASSERT(count <= INT32_MAX); /* no device has the memory for more */
    call.y = y;
    call.x = x;
    call.rows = sides[1];
    call.columns = sides[2];
    call.tiles_count = static_cast<uint32_t>(count);
    set_divisor(&call.tiles_down, down);
    set_divisor(&call.tiles_across, across);
    gk_cuda_launch(slot, gk_cuda_grid(slot, count, 8), transpose_tiles, call);
}

void gk_cuda_layer_transpose(struct gk_queue *queue, float *y, const float *x,
                             const uint64_t sides[3])
{
    const uint64_t thin = gk_min_u64(sides[1], sides[2]);
    const uint64_t count = sides[0] * sides[1] * sides[2];
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0) {
        return;
    }
    if (thin == 1) { /* the same elements in the same order */
        copy_elements(&slot, y, x, count);
    } else if (thin >= SIDE / 2) {
        launch_tiles(&slot, y, x, sides);
    } else if (is_narrow(count)) {
        launch_thin<uint32_t>(&slot, y, x, sides);
    } else {
        launch_thin<uint64_t>(&slot, y, x, sides);
    }
}

/* ---- Bias and activation ---- */

template <typename number> struct bias_call {
    float *x;
    const float *bias;
    number count;
    divisor<number> columns;
    bool is_relu;
};

template <typename number>
static __global__ void __launch_bounds__(BLOCK) add_bias(bias_call<number> call)
{
    for (number i = static_cast<number>(thread_number()); i < call.count;
         i += static_cast<number>(threads_count())) {
        number column = i;

        (void)split(&column, call.columns);
        call.x[i] = activate(__fadd_rn(call.x[i], call.bias[column]), call.is_relu);
    }
}

template <typename number>
static void launch_bias(struct slot *slot, const struct gk_bias_args *args, uint64_t count)
{
    bias_call<number> call = {};

    call.x = args->x;
    call.bias = args->bias;
    call.count = static_cast<number>(count);
    call.is_relu = args->activation == GK_ACTIVATION_RELU;
    set_divisor(&call.columns, args->columns);
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), add_bias<number>, call);
}

void gk_cuda_layer_bias_forward(struct gk_queue *queue, const struct gk_bias_args *args)
{
    const uint64_t count = args->rows * args->columns;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0) {
        return;
    }
    if (is_narrow(count)) {
        launch_bias<uint32_t>(&slot, args, count);
    } else {
        launch_bias<uint64_t>(&slot, args, count);
    }
}

static __global__ void __launch_bounds__(BLOCK) mask(float *dx, const float *y, uint64_t count)
{
    for (uint64_t i = thread_number(); i < count; i += threads_count()) {
        if (y[i] <= 0.0f) {
            dx[i] = 0.0f;
        }
    }
}

void gk_cuda_layer_activation_backward(struct gk_queue *queue, float *dx, const float *y,
                                       uint64_t count, enum gk_activation activation)
{
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0 || activation == GK_ACTIVATION_NONE) {
        return;
    }
    gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, count), mask, dx, y, count);
}

/* ---- Shortcuts ---- */

/* Numbers run over pixels and, innermost, `channels` of each. */
template <typename number> struct shortcut {
    number count;
    divisor<number> channels, columns, rows;
    number skip_rows, skip_columns, skip_channels, stride;
};

/* Where the shortcut finds an element: its pixel, its channel and the skipped pixel's first
 * channel. */
template <typename number>
static __device__ inline number find_skip(const shortcut<number> &s, number i, number *ret_pixel,
                                          number *ret_channel)
{
    number row;
    number column;
    number sample;

    *ret_channel = i;
    *ret_pixel = split(ret_channel, s.channels);
    column = *ret_pixel;
    row = split(&column, s.columns);
    sample = split(&row, s.rows);
    return ((sample * s.skip_rows + row * s.stride) * s.skip_columns + column * s.stride) *
           s.skip_channels;
}

template <typename number>
static __global__ void __launch_bounds__(BLOCK)
    add_skip(shortcut<number> s, const float *x, const float *skip, float *y, bool is_relu)
{
    for (number i = static_cast<number>(thread_number()); i < s.count;
         i += static_cast<number>(threads_count())) {
        number pixel;
        number channel;
        const number at = find_skip(s, i, &pixel, &channel);
        const float value = channel < s.skip_channels ? __fadd_rn(x[i], skip[at + channel]) : x[i];

        y[i] = activate(value, is_relu);
    }
}

/* Each skipped element is met once at most. */
template <typename number>
static __global__ void __launch_bounds__(BLOCK)
    add_gradient(shortcut<number> s, number channels, const float *dy, float *dskip)
{
    for (number i = static_cast<number>(thread_number()); i < s.count;
         i += static_cast<number>(threads_count())) {
        number pixel;
        number channel;
        const number at = find_skip(s, i, &pixel, &channel) + channel;

        dskip[at] = __fadd_rn(dskip[at], dy[pixel * channels + channel]);
    }
}

template <typename number>
static void launch_add_skip(struct slot *slot, const struct gk_residual_args *args, uint64_t count)
{
    shortcut<number> s = {};

    s.count = static_cast<number>(count);
    set_divisor(&s.channels, args->channels);
    set_divisor(&s.columns, args->columns);
    set_divisor(&s.rows, args->rows);
    s.skip_rows = args->skip_rows;
    s.skip_columns = args->skip_columns;
    s.skip_channels = args->skip_channels;
    s.stride = args->stride;
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), add_skip<number>, s, args->x, args->skip,
                   args->y, args->activation == GK_ACTIVATION_RELU);
}

void gk_cuda_layer_residual_forward(struct gk_queue *queue, const struct gk_residual_args *args)
{
    const uint64_t images = static_cast<uint64_t>(args->samples) * args->channels;
    const uint64_t count = images * args->rows * args->columns;
    const uint64_t skip_count = static_cast<uint64_t>(args->samples) * args->skip_channels *
                                args->skip_rows * args->skip_columns;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0) {
        return;
    }
    if (is_narrow(count) && is_narrow(skip_count)) {
        launch_add_skip<uint32_t>(&slot, args, count);
    } else {
        launch_add_skip<uint64_t>(&slot, args, count);
    }
}

template <typename number>
static void launch_add_gradient(struct slot *slot, const struct gk_residual_gradient_args *args,
                                uint64_t shared, uint64_t count)
{
    shortcut<number> s = {};

    s.count = static_cast<number>(count);
    set_divisor(&s.channels, shared);
    set_divisor(&s.columns, args->columns);
    set_divisor(&s.rows, args->rows);
    s.skip_rows = args->skip_rows;
    s.skip_columns = args->skip_columns;
    s.skip_channels = args->skip_channels;
    s.stride = args->stride;
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), add_gradient<number>, s,
                   static_cast<number>(args->channels), args->dy, args->dskip);
}

void gk_cuda_layer_residual_backward(struct gk_queue *queue,
                                     const struct gk_residual_gradient_args *args)
{
    const uint64_t pixels = static_cast<uint64_t>(args->samples) * args->rows * args->columns;
    const uint64_t skip_pixels =
        static_cast<uint64_t>(args->samples) * args->skip_rows * args->skip_columns;
    const uint64_t shared = gk_min_u64(args->channels, args->skip_channels);
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || pixels * shared == 0) {
        return;
    }
    if (is_narrow(pixels * args->channels) && is_narrow(skip_pixels * args->skip_channels)) {
        launch_add_gradient<uint32_t>(&slot, args, shared, pixels * shared);
    } else {
        launch_add_gradient<uint64_t>(&slot, args, shared, pixels * shared);
    }
}
