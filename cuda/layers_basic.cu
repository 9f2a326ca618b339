/* Slots that touch every element once: copies, transposition, bias and activation, shortcuts. */
#include "cuda/layers.cuh"
#include "cuda/packs.cuh"

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

struct squares_call {
    float *y;
    const float *x;
    uint64_t rows, columns;
    uint32_t squares_count;
    divisor<uint32_t> squares_down, squares_across; /* of one matrix */
};

/* Through squares in shared memory, so that both sides are read and written along their rows. */
static __global__ void __launch_bounds__(BLOCK) transpose_squares(squares_call call)
{
    GK_SHARED_ARRAY(float, square, SIDE *PITCH);

    for (uint32_t s = blockIdx.x; s < call.squares_count; s += gridDim.x) {
        uint32_t across = s;
        uint32_t down = split(&across, call.squares_across);
        const uint64_t matrix = split(&down, call.squares_down) * call.rows * call.columns;
        const uint64_t row = static_cast<uint64_t>(down) * SIDE;
        const uint64_t column = static_cast<uint64_t>(across) * SIDE;
        float mine[SIDE / WARPS]; /* all on their way before one is waited for */

#pragma unroll
        for (uint32_t i = 0; i < SIDE / WARPS; i++) {
            const uint64_t r = row + warp_id() + i * WARPS;
            const uint64_t c = column + lane_id();

            mine[i] =
                r < call.rows && c < call.columns ? call.x[matrix + r * call.columns + c] : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < SIDE / WARPS; i++) {
            square[(warp_id() + i * WARPS) * PITCH + lane_id()] = mine[i];
        }
        __syncthreads();
        for (uint32_t i = warp_id(); i < SIDE; i += WARPS) {
            const uint64_t r = row + lane_id();
            const uint64_t c = column + i;

            if (r < call.rows && c < call.columns) {
                call.y[matrix + c * call.rows + r] = square[lane_id() * PITCH + i];
            }
        }
        __syncthreads(); /* the next one is stored in the same place */
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
    for (number i = first_element<number>(); i < call.count; i += element_step<number>()) {
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

static void launch_squares(struct slot *slot, float *y, const float *x, const uint64_t sides[3])
{
    const uint64_t down = (sides[1] + SIDE - 1) / SIDE;
    const uint64_t across = (sides[2] + SIDE - 1) / SIDE;
    const uint64_t count = sides[0] * down * across;
    squares_call call = {};

    GK_ASSERT(count <= INT32_MAX); /* no device has the memory for more */
    call.y = y;
    call.x = x;
    call.rows = sides[1];
    call.columns = sides[2];
    call.squares_count = static_cast<uint32_t>(count);
    set_divisor(&call.squares_down, down);
    set_divisor(&call.squares_across, across);
    gk_cuda_launch(slot, gk_cuda_grid(slot, count, 8), transpose_squares, call);
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
        launch_squares(&slot, y, x, sides);
    } else if (is_narrow(count)) {
        launch_thin<uint32_t>(&slot, y, x, sides);
    } else {
        launch_thin<uint64_t>(&slot, y, x, sides);
    }
}

/* ---- Bias and activation ---- */

template <typename number, uint32_t width> struct bias_call {
    pack<float, width> *x;
    const pack<float, width> *bias;
    number count;
    divisor<number> columns;
    bool is_relu;
};

template <typename number, uint32_t width>
static __global__ void __launch_bounds__(BLOCK) add_bias(bias_call<number, width> call)
{
    for (number i = first_element<number>(); i < call.count; i += element_step<number>()) {
        number column = i;
        pack<float, width> x = call.x[i];
        pack<float, width> bias;

        (void)split(&column, call.columns);
        bias = call.bias[column];
#pragma unroll
        for (uint32_t w = 0; w < width; w++) {
            x.at[w] = activate(__fadd_rn(x.at[w], bias.at[w]), call.is_relu);
        }
        call.x[i] = x;
    }
}

struct bias_start {
    struct slot *slot;
    const struct gk_bias_args *args;

    template <typename number, uint32_t width> void launch() const
    {
        const uint64_t count = args->rows * args->columns / width;
        bias_call<number, width> call = {};

        call.x = in_packs<width>(args->x);
        call.bias = in_packs<width>(args->bias);
        call.count = static_cast<number>(count);
        call.is_relu = args->activation == GK_ACTIVATION_RELU;
        set_divisor(&call.columns, args->columns / width);
        gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), add_bias<number, width>, call);
    }
};

void gk_cuda_layer_bias_forward(struct gk_queue *queue, const struct gk_bias_args *args)
{
    const uint64_t count = args->rows * args->columns;
    struct slot slot;

    if (gk_cuda_begin(&slot, queue) && count > 0) {
        launch_form(bias_start{&slot, args}, is_narrow(count),
                    args->columns % PACK == 0 && is_packed(args->x) && is_packed(args->bias));
    }
}

template <uint32_t width>
static __global__ void __launch_bounds__(BLOCK)
    mask(pack<float, width> *dx, const pack<float, width> *y, uint64_t count)
{
    for (uint64_t i = thread_number(); i < count; i += threads_count()) {
        const pack<float, width> output = y[i];
        pack<float, width> gradient = dx[i];

#pragma unroll
        for (uint32_t w = 0; w < width; w++) {
            gradient.at[w] = output.at[w] <= 0.0f ? 0.0f : gradient.at[w];
        }
        dx[i] = gradient;
    }
}

template <uint32_t width>
static void launch_mask(struct slot *slot, float *dx, const float *y, uint64_t count)
{
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count / width), mask<width>, in_packs<width>(dx),
                   in_packs<width>(y), count / width);
}

void gk_cuda_layer_activation_backward(struct gk_queue *queue, float *dx, const float *y,
                                       uint64_t count, enum gk_activation activation)
{
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0 || activation == GK_ACTIVATION_NONE) {
        return;
    }
    if (count % PACK == 0 && is_packed(dx) && is_packed(y)) {
        launch_mask<PACK>(&slot, dx, y, count);
    } else {
        launch_mask<1>(&slot, dx, y, count);
    }
}

/* ---- Shortcuts ---- */

/* Numbers run over the pixels of the image that is not skipped, and, innermost, over `channels` of
 * each; channels are counted in packs. */
template <typename number> struct shortcut {
    number count;
    divisor<number> channels, columns, rows;
    number skip_rows, skip_columns, skip_channels, stride;
};

/* Both structs of arguments have these sides. */
template <typename number, typename Args>
static shortcut<number> shortcut_of(const Args *args, uint64_t channels, uint32_t width)
{
    shortcut<number> s = {};

    s.count = static_cast<number>(static_cast<uint64_t>(args->samples) * args->rows *
                                  args->columns * (channels / width));
    set_divisor(&s.channels, channels / width);
    set_divisor(&s.columns, args->columns);
    set_divisor(&s.rows, args->rows);
    s.skip_rows = args->skip_rows;
    s.skip_columns = args->skip_columns;
    s.skip_channels = args->skip_channels / width;
    s.stride = args->stride;
    return s;
}

template <typename Args> static uint64_t elements_of(const Args *args)
{
    return static_cast<uint64_t>(args->samples) * args->rows * args->columns * args->channels;
}

template <typename Args> static bool is_narrow_shortcut(const Args *args)
{
    return is_narrow(elements_of(args)) &&
           is_narrow(static_cast<uint64_t>(args->samples) * args->skip_rows * args->skip_columns *
                     args->skip_channels);
}

/* Where the shortcut finds an element: its pixel, its channel, and the first channel of the skipped
 * pixel. */
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

template <typename number, uint32_t width>
static __global__ void __launch_bounds__(BLOCK)
    add_skip(shortcut<number> s, const pack<float, width> *x, const pack<float, width> *skip,
             pack<float, width> *y, bool is_relu)
{
    for (number i = first_element<number>(); i < s.count; i += element_step<number>()) {
        number pixel;
        number channel;
        const number at = find_skip(s, i, &pixel, &channel);
        pack<float, width> sum = x[i];

        if (channel < s.skip_channels) {
            add_pack(&sum, skip[at + channel]);
        }
#pragma unroll
        for (uint32_t w = 0; w < width; w++) {
            sum.at[w] = activate(sum.at[w], is_relu);
        }
        y[i] = sum;
    }
}

struct add_skip_start {
    struct slot *slot;
    const struct gk_residual_args *args;

    template <typename number, uint32_t width> void launch() const
    {
        const shortcut<number> s = shortcut_of<number>(args, args->channels, width);

        gk_cuda_launch(slot, gk_cuda_grid_for(slot, s.count), add_skip<number, width>, s,
                       in_packs<width>(args->x), in_packs<width>(args->skip),
                       in_packs<width>(args->y), args->activation == GK_ACTIVATION_RELU);
    }
};

void gk_cuda_layer_residual_forward(struct gk_queue *queue, const struct gk_residual_args *args)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue) && elements_of(args) > 0) {
        launch_form(add_skip_start{&slot, args}, is_narrow_shortcut(args),
                    args->channels % PACK == 0 && args->skip_channels % PACK == 0 &&
                        is_packed(args->x) && is_packed(args->skip) && is_packed(args->y));
    }
}

/* Numbers run over the channels that both have, so that every skipped element is met once at most.
 */
template <typename number, uint32_t width>
static __global__ void __launch_bounds__(BLOCK)
    add_gradient(shortcut<number> s, number channels, const pack<float, width> *dy,
                 pack<float, width> *dskip)
{
    for (number i = first_element<number>(); i < s.count; i += element_step<number>()) {
        number pixel;
        number channel;
        const number at = find_skip(s, i, &pixel, &channel) + channel;
        pack<float, width> sum = dskip[at];

        add_pack(&sum, dy[pixel * channels + channel]);
        dskip[at] = sum;
    }
}

struct add_gradient_start {
    struct slot *slot;
    const struct gk_residual_gradient_args *args;

    template <typename number, uint32_t width> void launch() const
    {
        const uint64_t both = gk_min_u64(args->channels, args->skip_channels);
        const shortcut<number> s = shortcut_of<number>(args, both, width);

        gk_cuda_launch(slot, gk_cuda_grid_for(slot, s.count), add_gradient<number, width>, s,
                       static_cast<number>(args->channels / width), in_packs<width>(args->dy),
                       in_packs<width>(args->dskip));
    }
};

void gk_cuda_layer_residual_backward(struct gk_queue *queue,
                                     const struct gk_residual_gradient_args *args)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue) && elements_of(args) > 0 && args->skip_channels > 0) {
        launch_form(add_gradient_start{&slot, args}, is_narrow_shortcut(args),
                    args->channels % PACK == 0 && args->skip_channels % PACK == 0 &&
                        is_packed(args->dy) && is_packed(args->dskip));
    }
}
