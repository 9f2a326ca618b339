/* Windows over images.  A thread has a pack of the result, along the channels; what it adds up it
 * gathers in the order of the places in the window, so that there is nothing to scatter. */
#include "cuda/layers.cuh"
#include "cuda/packs.cuh"

extern "C" {
#include "common/assert.h"
}

static uint64_t image_elements(const struct gk_layer_window *window)
{
    return static_cast<uint64_t>(window->samples) * window->rows * window->columns *
           window->channels;
}

static uint64_t out_elements(const struct gk_layer_window *window)
{
    return static_cast<uint64_t>(window->samples) * window->out_rows * window->out_columns *
           window->channels;
}

static uint64_t windows_elements(const struct gk_layer_window *window)
{
    return out_elements(window) * window->kernel * window->kernel;
}

/* Whether all numbers that a kernel over these windows forms are narrow, with `largest` elements in
 * the largest array. */
static bool is_narrow_window(const struct gk_layer_window *window, uint64_t largest)
{
    const uint64_t down = static_cast<uint64_t>(window->out_rows) * window->stride + window->kernel;
    const uint64_t across =
        static_cast<uint64_t>(window->out_columns) * window->stride + window->kernel;

    return is_narrow(largest) && is_narrow(down + window->rows + window->pad_rows) &&
           is_narrow((across + window->columns + window->pad_columns) * window->channels);
}

/* ---- im2col ---- */

/* A row of a window is a run of kernel x channels elements, and lies in one piece in a row of the
 * image, but for what hangs over its ends.  Elements are counted in packs. */
template <typename number, uint32_t width> struct unfold_call {
    const pack<float, width> *x;
    pack<float, width> *windows;
    number count;
    divisor<number> run, kernel, out_columns, out_rows;
    number rows, row;    /* of the image: how many, and the elements of one */
    number stride, step; /* from window to window: in rows, and in elements */
    number pad_rows, pad;
};

template <typename number, uint32_t width>
static __global__ void __launch_bounds__(BLOCK) unfold(unfold_call<number, width> call)
{
    for (number e = first_element<number>(); e < call.count; e += element_step<number>()) {
        number within = e;
        number i = split(&within, call.run);
        number column = split(&i, call.kernel);
        number r = split(&column, call.out_columns);
        const number sample = split(&r, call.out_rows);
        /* Below zero wraps to a number that is larger than any image. */
        const number row = r * call.stride + i - call.pad_rows;
        const number at = column * call.step + within - call.pad;
        pack<float, width> value = {};

        if (row < call.rows && at < call.row) {
            value = call.x[(sample * call.rows + row) * call.row + at];
        }
        call.windows[e] = value;
    }
}

struct unfold_start {
    struct slot *slot;
    const struct gk_layer_window *window;
    const float *x;
    float *windows;

    template <typename number, uint32_t width> void launch() const
    {
        const number channels = window->channels / width;
        unfold_call<number, width> call = {};

        call.x = in_packs<width>(x);
        call.windows = in_packs<width>(windows);
        call.count = static_cast<number>(windows_elements(window) / width);
        set_divisor(&call.run, static_cast<uint64_t>(window->kernel) * channels);
        set_divisor(&call.kernel, window->kernel);
        set_divisor(&call.out_columns, window->out_columns);
        set_divisor(&call.out_rows, window->out_rows);
        call.rows = window->rows;
        call.row = window->columns * channels;
        call.stride = window->stride;
        call.step = window->stride * channels;
        call.pad_rows = window->pad_rows;
        call.pad = window->pad_columns * channels;
        gk_cuda_launch(slot, gk_cuda_grid_for(slot, call.count), unfold<number, width>, call);
    }
};

void gk_cuda_layer_im2col(struct gk_queue *queue, const struct gk_layer_window *window,
                          const float *x, float *windows)
{
    const uint64_t largest = gk_max_u64(windows_elements(window), image_elements(window));
    struct slot slot;

    if (gk_cuda_begin(&slot, queue) && windows_elements(window) > 0) {
        launch_form(unfold_start{&slot, window, x, windows}, is_narrow_window(window, largest),
                    window->channels % PACK == 0 && is_packed(x) && is_packed(windows));
    }
}

/* ---- What goes back to the image ---- */

/* From the matrix of windows; from dy, where the window chose the element; from dy. */
enum gather_kind { GATHER_WINDOWS, GATHER_CHOSEN, GATHER_AVERAGE };

template <typename number, uint32_t width> struct fold_call {
    const pack<float, width> *source;
    const pack<uint32_t, width> *index;
    pack<float, width> *dx;
    number count;
    divisor<number> channels, columns, rows, stride;
    number kernel, pad_rows, pad_columns, out_rows, out_columns;
    float area;
};

/* What window o adds at place p. */
template <gather_kind kind, typename number, uint32_t width>
static __device__ inline pack<float, width> entry_of(const fold_call<number, width> &call, number o,
                                                     number p, number channel)
{
    const number row = kind == GATHER_WINDOWS ? o * call.kernel * call.kernel + p : o;
    const number at = row * call.channels.value + channel;
    pack<float, width> entry = call.source[at];

    if (kind == GATHER_CHOSEN) {
        const pack<uint32_t, width> index = call.index[at];

#pragma unroll
        for (uint32_t w = 0; w < width; w++) {
            entry.at[w] = index.at[w] == p ? entry.at[w] : 0.0f;
        }
    }
    return entry;
}

/* The windows that cover row t (counted from the padding's first) have it at the places t mod
 * stride, + stride, ..., the lowest window last; columns likewise.  A window below zero wraps to a
 * number that is larger than any. */
template <gather_kind kind, typename number, uint32_t width>
static __global__ void __launch_bounds__(BLOCK) fold(fold_call<number, width> call)
{
    for (number e = first_element<number>(); e < call.count; e += element_step<number>()) {
        number channel = e;
        number first_j = split(&channel, call.channels);
        number first_i = split(&first_j, call.columns);
        const number sample = split(&first_i, call.rows);
        number r;
        number first_c;
        pack<float, width> sum = {};

        first_i += call.pad_rows;
        first_j += call.pad_columns;
        r = split(&first_i, call.stride);
        first_c = split(&first_j, call.stride);
        for (number i = first_i; i < call.kernel; i += call.stride.value, r--) {
            number c = first_c;

            if (r >= call.out_rows) {
                continue;
            }
            for (number j = first_j; j < call.kernel; j += call.stride.value, c--) {
                if (c < call.out_columns) {
                    add_pack(&sum, entry_of<kind>(
                                       call, (sample * call.out_rows + r) * call.out_columns + c,
                                       i * call.kernel + j, channel));
                }
            }
        }
        if (kind == GATHER_AVERAGE) {
#pragma unroll
            for (uint32_t w = 0; w < width; w++) {
                sum.at[w] = __fdiv_rn(sum.at[w], call.area);
            }
        }
        call.dx[e] = sum;
    }
}

template <gather_kind kind> struct fold_start {
    struct slot *slot;
    const struct gk_layer_window *window;
    const float *source;
    const uint32_t *index;
    float *dx;

    template <typename number, uint32_t width> void launch() const
    {
        fold_call<number, width> call = {};

        call.source = in_packs<width>(source);
        call.index = reinterpret_cast<const pack<uint32_t, width> *>(index);
        call.dx = in_packs<width>(dx);
        call.count = static_cast<number>(image_elements(window) / width);
        set_divisor(&call.channels, window->channels / width);
        set_divisor(&call.columns, window->columns);
        set_divisor(&call.rows, window->rows);
        set_divisor(&call.stride, window->stride);
        call.kernel = window->kernel;
        call.pad_rows = window->pad_rows;
        call.pad_columns = window->pad_columns;
        call.out_rows = window->out_rows;
        call.out_columns = window->out_columns;
        call.area = static_cast<float>(window->kernel * window->kernel);
        gk_cuda_launch(slot, gk_cuda_grid_for(slot, call.count), fold<kind, number, width>, call);
    }

    void run(struct gk_queue *queue)
    {
        const uint64_t from =
            kind == GATHER_WINDOWS ? windows_elements(window) : out_elements(window);
        struct slot mine;

        slot = &mine;
        if (gk_cuda_begin(&mine, queue) && image_elements(window) > 0) {
            launch_form(*this, is_narrow_window(window, gk_max_u64(from, image_elements(window))),
                        window->channels % PACK == 0 && is_packed(source) && is_packed(index) &&
                            is_packed(dx));
        }
    }
};

void gk_cuda_layer_col2im(struct gk_queue *queue, const struct gk_layer_window *window,
                          const float *windows, float *dx)
{
    fold_start<GATHER_WINDOWS>{nullptr, window, windows, nullptr, dx}.run(queue);
}

void gk_cuda_layer_max_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                                     const float *dy, const uint32_t *index, float *dx)
{
    fold_start<GATHER_CHOSEN>{nullptr, window, dy, index, dx}.run(queue);
}

void gk_cuda_layer_average_pool_backward(struct gk_queue *queue,
                                         const struct gk_layer_window *window, const float *dy,
                                         float *dx)
{
    fold_start<GATHER_AVERAGE>{nullptr, window, dy, nullptr, dx}.run(queue);
}

/* ---- Pooling ---- */

template <typename number, uint32_t width> struct pool_call {
    const pack<float, width> *x;
    pack<float, width> *y;
    pack<uint32_t, width> *index; /* of the average: NULL */
    number count;
    divisor<number> channels, out_columns, out_rows;
    number rows, columns, kernel, stride, pad_rows, pad_columns;
    float area;
};

/* What the windows of a pack have seen so far. */
template <uint32_t width> struct seen {
    pack<float, width> value;
    pack<uint32_t, width> index;
    bool any;
};

/* A NaN is the largest, and the first of them is the one that is named. */
template <uint32_t width>
static __device__ inline void see_largest(seen<width> *seen, const pack<float, width> &value,
                                          uint32_t p)
{
#pragma unroll
    for (uint32_t w = 0; w < width; w++) {
        const float best = seen->value.at[w];
        const float x = value.at[w];

        if (!seen->any || x > best || x != x) {
            seen->index.at[w] = !seen->any || best == best ? p : seen->index.at[w];
            seen->value.at[w] = x;
        }
    }
    seen->any = true;
}

/* The window (r, c) of a sample, at one channel. */
template <bool is_max, typename number, uint32_t width>
static __device__ inline seen<width> see_window(const pool_call<number, width> &call, number sample,
                                                number r, number c, number channel)
{
    seen<width> seen = {};

    for (number i = 0; i < call.kernel; i++) {
        const number row = r * call.stride + i - call.pad_rows;

        for (number j = 0; row < call.rows && j < call.kernel; j++) {
            const number column = c * call.stride + j - call.pad_columns;

            if (column < call.columns) {
                const number pixel = (sample * call.rows + row) * call.columns + column;
                const pack<float, width> value = call.x[pixel * call.channels.value + channel];

                if (is_max) {
                    see_largest(&seen, value, static_cast<uint32_t>(i * call.kernel + j));
                } else {
                    add_pack(&seen.value, value);
                }
            }
        }
    }
    return seen;
}

template <bool is_max, typename number, uint32_t width>
static __global__ void __launch_bounds__(BLOCK) pool(pool_call<number, width> call)
{
    for (number e = first_element<number>(); e < call.count; e += element_step<number>()) {
        number channel = e;
        number c = split(&channel, call.channels);
        number r = split(&c, call.out_columns);
        const number sample = split(&r, call.out_rows);
        seen<width> seen = see_window<is_max>(call, sample, r, c, channel);

        if (is_max) {
            call.index[e] = seen.index;
        } else {
#pragma unroll
            for (uint32_t w = 0; w < width; w++) {
                seen.value.at[w] = __fdiv_rn(seen.value.at[w], call.area);
            }
        }
        call.y[e] = seen.value;
    }
}

template <bool is_max> struct pool_start {
    struct slot *slot;
    const struct gk_layer_window *window;
    const float *x;
    float *y;
    uint32_t *index;

    template <typename number, uint32_t width> void launch() const
    {
        pool_call<number, width> call = {};

        call.x = in_packs<width>(x);
        call.y = in_packs<width>(y);
        call.index = reinterpret_cast<pack<uint32_t, width> *>(index);
        call.count = static_cast<number>(out_elements(window) / width);
        set_divisor(&call.channels, window->channels / width);
        set_divisor(&call.out_columns, window->out_columns);
        set_divisor(&call.out_rows, window->out_rows);
        call.rows = window->rows;
        call.columns = window->columns;
        call.kernel = window->kernel;
        call.stride = window->stride;
        call.pad_rows = window->pad_rows;
        call.pad_columns = window->pad_columns;
        call.area = static_cast<float>(window->kernel * window->kernel);
        gk_cuda_launch(slot, gk_cuda_grid_for(slot, call.count), pool<is_max, number, width>, call);
    }

    void run(struct gk_queue *queue)
    {
        const uint64_t largest = gk_max_u64(image_elements(window), out_elements(window));
        struct slot mine;

        slot = &mine;
        if (gk_cuda_begin(&mine, queue) && out_elements(window) > 0) {
            launch_form(*this, is_narrow_window(window, largest),
                        window->channels % PACK == 0 && is_packed(x) && is_packed(y) &&
                            is_packed(index));
        }
    }
};

/* Along one side, whether the first and the last window have a place inside. */
static bool reaches_image(uint64_t side, uint64_t out, const struct gk_layer_window *window,
                          uint64_t pad)
{
    return window->kernel > pad && (out - 1) * window->stride < side + pad;
}

void gk_cuda_layer_max_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                                    const float *x, float *y, uint32_t *index)
{
    GK_ASSERT(out_elements(window) == 0 ||
              (reaches_image(window->rows, window->out_rows, window, window->pad_rows) &&
               reaches_image(window->columns, window->out_columns, window, window->pad_columns)));
    pool_start<true>{nullptr, window, x, y, index}.run(queue);
}

void gk_cuda_layer_average_pool_forward(struct gk_queue *queue,
                                        const struct gk_layer_window *window, const float *x,
                                        float *y)
{
    pool_start<false>{nullptr, window, x, y, nullptr}.run(queue);
}
