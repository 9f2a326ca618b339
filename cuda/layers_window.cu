/* Windows over images.  A thread has an element of the result; what it adds up it gathers in the
 * order of the places in the window, so that there is nothing to scatter. */
#include "cuda/divide.cuh"
#include "cuda/layers.cuh"

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

/* Whether all numbers that a kernel over these windows forms are narrow, with `largest` elements in
 * the largest array. */
static bool fits_narrow(const struct gk_layer_window *window, uint64_t largest)
{
    const uint64_t down = static_cast<uint64_t>(window->out_rows) * window->stride + window->kernel;
    const uint64_t across =
        static_cast<uint64_t>(window->out_columns) * window->stride + window->kernel;

    return is_narrow(largest) && is_narrow(down + window->rows + window->pad_rows) &&
           is_narrow((across + window->columns + window->pad_columns) * window->channels);
}

/* ---- im2col ---- */

/* A row of a window is a run of kernel x channels elements, and lies in one piece in a row of the
 * image, but for what hangs over its ends. */
template <typename number> struct unfold_call {
    const float *x;
    float *windows;
    number count;
    divisor<number> run, kernel, out_columns, out_rows;
    number rows, row;    /* of the image: how many, and the elements of one */
    number stride, step; /* from window to window: in rows, and in elements */
    number pad_rows, pad;
};

template <typename number>
static __global__ void __launch_bounds__(BLOCK) unfold(unfold_call<number> call)
{
    for (number e = static_cast<number>(thread_number()); e < call.count;
         e += static_cast<number>(threads_count())) {
        number within = e;
        number i = split(&within, call.run);
        number column = split(&i, call.kernel);
        number r = split(&column, call.out_columns);
        const number sample = split(&r, call.out_rows);
        /* Below zero wraps to a number that is larger than any image. */
        const number row = r * call.stride + i - call.pad_rows;
        const number at = column * call.step + within - call.pad;

        call.windows[e] = row < call.rows && at < call.row
                              ? call.x[(sample * call.rows + row) * call.row + at]
                              : 0.0f;
    }
}

template <typename number>
static void launch_unfold(struct slot *slot, const struct gk_layer_window *window, const float *x,
                          float *windows)
{
    const number channels = window->channels;
    const uint64_t count = out_elements(window) * window->kernel * window->kernel;
    unfold_call<number> call = {};

    call.x = x;
    call.windows = windows;
    call.count = static_cast<number>(count);
    set_divisor(&call.run, static_cast<uint64_t>(window->kernel) * window->channels);
    set_divisor(&call.kernel, window->kernel);
    set_divisor(&call.out_columns, window->out_columns);
    set_divisor(&call.out_rows, window->out_rows);
    call.rows = window->rows;
    call.row = window->columns * channels;
    call.stride = window->stride;
    call.step = window->stride * channels;
    call.pad_rows = window->pad_rows;
    call.pad = window->pad_columns * channels;
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), unfold<number>, call);
}

void gk_cuda_layer_im2col(struct gk_queue *queue, const struct gk_layer_window *window,
                          const float *x, float *windows)
{
    const uint64_t count = out_elements(window) * window->kernel * window->kernel;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || count == 0) {
        return;
    }
    if (fits_narrow(window, gk_max_u64(count, image_elements(window)))) {
        launch_unfold<uint32_t>(&slot, window, x, windows);
    } else {
        launch_unfold<uint64_t>(&slot, window, x, windows);
    }
}

/* ---- What goes back to the image ---- */

enum gather_kind { GATHER_WINDOWS, GATHER_CHOSEN, GATHER_AVERAGE };

template <typename number> struct gather_call {
    const float *source; /* the windows, or dy */
    const uint32_t *index;
    float *dx;
    number count;
    divisor<number> channels, columns, rows, stride;
    number kernel, pad_rows, pad_columns, out_rows, out_columns;
    float area;
};

/* The entry of the window at `o` whose place p fell on this element. */
template <typename number, gather_kind kind>
static __device__ inline float entry_of(const gather_call<number> &call, number o, number p,
                                        number channel)
{
    if (kind == GATHER_WINDOWS) {
        return call.source[(o * call.kernel * call.kernel + p) * call.channels.value + channel];
    }
    o = o * call.channels.value + channel;
    if (kind == GATHER_CHOSEN) {
        return call.index[o] == p ? call.source[o] : 0.0f;
    }
    return call.source[o];
}

/* The windows that cover row t (counted from the padding's first) have it at the places t mod
 * stride, + stride, ..., the lowest window last; columns likewise.  A window below zero wraps to a
 * number that is larger than any. */
template <typename number, gather_kind kind>
static __global__ void __launch_bounds__(BLOCK) fold(gather_call<number> call)
{
    for (number e = static_cast<number>(thread_number()); e < call.count;
         e += static_cast<number>(threads_count())) {
        number channel = e;
        number first_j = split(&channel, call.channels);
        number first_i = split(&first_j, call.columns);
        const number sample = split(&first_i, call.rows);
        number r;
        number first_column;
        float sum = 0.0f;

        first_i += call.pad_rows;
        first_j += call.pad_columns;
        r = split(&first_i, call.stride);
        first_column = split(&first_j, call.stride);
        for (number i = first_i; i < call.kernel; i += call.stride.value, r--) {
            number c = first_column;

            if (r >= call.out_rows) {
                continue;
            }
            for (number j = first_j; j < call.kernel; j += call.stride.value, c--) {
                if (c < call.out_columns) {
                    sum = __fadd_rn(sum,
                                    entry_of<number, kind>(
                                        call, (sample * call.out_rows + r) * call.out_columns + c,
                                        i * call.kernel + j, channel));
                }
            }
        }
        call.dx[e] = kind == GATHER_AVERAGE ? __fdiv_rn(sum, call.area) : sum;
    }
}

/* What differs: source, index, dx. */
template <typename number, gather_kind kind>
static void launch_fold(struct slot *slot, const struct gk_layer_window *window,
                        const gather_call<uint32_t> &arrays)
{
    const uint64_t count = image_elements(window);
    gather_call<number> call = {};

    call.source = arrays.source;
    call.index = arrays.index;
    call.dx = arrays.dx;
    call.count = static_cast<number>(count);
    set_divisor(&call.channels, window->channels);
    set_divisor(&call.columns, window->columns);
    set_divisor(&call.rows, window->rows);
    set_divisor(&call.stride, window->stride);
    call.kernel = window->kernel;
    call.pad_rows = window->pad_rows;
    call.pad_columns = window->pad_columns;
    call.out_rows = window->out_rows;
    call.out_columns = window->out_columns;
    call.area = static_cast<float>(window->kernel * window->kernel);
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), fold<number, kind>, call);
}

template <gather_kind kind>
static void gather(struct gk_queue *queue, const struct gk_layer_window *window,
                   const gather_call<uint32_t> &arrays)
{
    const uint64_t places =
        kind == GATHER_WINDOWS ? static_cast<uint64_t>(window->kernel) * window->kernel : 1;
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || image_elements(window) == 0) {
        return;
    }
    if (fits_narrow(window, gk_max_u64(image_elements(window), out_elements(window) * places))) {
        launch_fold<uint32_t, kind>(&slot, window, arrays);
    } else {
        launch_fold<uint64_t, kind>(&slot, window, arrays);
    }
}

void gk_cuda_layer_col2im(struct gk_queue *queue, const struct gk_layer_window *window,
                          const float *windows, float *dx)
{
    gather_call<uint32_t> arrays = {};

    arrays.source = windows;
    arrays.dx = dx;
    gather<GATHER_WINDOWS>(queue, window, arrays);
}

void gk_cuda_layer_max_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                                     const float *dy, const uint32_t *index, float *dx)
{
    gather_call<uint32_t> arrays = {};

    arrays.source = dy;
    arrays.index = index;
    arrays.dx = dx;
    gather<GATHER_CHOSEN>(queue, window, arrays);
}

void gk_cuda_layer_average_pool_backward(struct gk_queue *queue,
                                         const struct gk_layer_window *window, const float *dy,
                                         float *dx)
{
    gather_call<uint32_t> arrays = {};

    arrays.source = dy;
    arrays.dx = dx;
    gather<GATHER_AVERAGE>(queue, window, arrays);
}

/* ---- Pooling ---- */

template <typename number> struct pool_call {
    const float *x;
    float *y;
    uint32_t *index; /* NULL: the average */
    number count;
    divisor<number> channels, out_columns, out_rows;
    number rows, columns, kernel, stride, pad_rows, pad_columns;
    float area;
};

/* What the window has seen so far. */
struct seen {
    float value;
    uint32_t index;
    bool any;
};

/* A NaN is the largest, and the first of them is the one that is named. */
static __device__ inline void see_largest(struct seen *seen, float value, uint32_t p)
{
    if (!seen->any || value > seen->value || value != value) {
        seen->index = !seen->any || seen->value == seen->value ? p : seen->index;
        seen->value = value;
    }
    seen->any = true;
}

template <typename number, bool is_max>
static __global__ void __launch_bounds__(BLOCK) pool(pool_call<number> call)
{
    for (number e = static_cast<number>(thread_number()); e < call.count;
         e += static_cast<number>(threads_count())) {
        number channel = e;
        number c = split(&channel, call.channels);
        number r = split(&c, call.out_columns);
        const number sample = split(&r, call.out_rows);
        struct seen seen = {0.0f, 0, false};

        for (number i = 0; i < call.kernel; i++) {
            const number row = r * call.stride + i - call.pad_rows;

            for (number j = 0; row < call.rows && j < call.kernel; j++) {
                const number column = c * call.stride + j - call.pad_columns;
                float value;

                if (column >= call.columns) {
                    continue;
                }
                value = call.x[((sample * call.rows + row) * call.columns + column) *
                                   call.channels.value +
                               channel];
                if (is_max) {
                    see_largest(&seen, value, static_cast<uint32_t>(i * call.kernel + j));
                } else {
                    seen.value = __fadd_rn(seen.value, value);
                }
            }
        }
        call.y[e] = is_max ? seen.value : __fdiv_rn(seen.value, call.area);
        if (is_max) {
            call.index[e] = seen.index;
        }
    }
}

template <typename number, bool is_max>
static void launch_pool(struct slot *slot, const struct gk_layer_window *window,
                        const pool_call<uint32_t> &arrays)
{
    const uint64_t count = out_elements(window);
    pool_call<number> call = {};

    call.x = arrays.x;
    call.y = arrays.y;
    call.index = arrays.index;
    call.count = static_cast<number>(count);
    set_divisor(&call.channels, window->channels);
    set_divisor(&call.out_columns, window->out_columns);
    set_divisor(&call.out_rows, window->out_rows);
    call.rows = window->rows;
    call.columns = window->columns;
    call.kernel = window->kernel;
    call.stride = window->stride;
    call.pad_rows = window->pad_rows;
    call.pad_columns = window->pad_columns;
    call.area = static_cast<float>(window->kernel * window->kernel);
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, count), pool<number, is_max>, call);
}

template <bool is_max>
static void start_pool(struct gk_queue *queue, const struct gk_layer_window *window,
                       const pool_call<uint32_t> &arrays)
{
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue) || out_elements(window) == 0) {
        return;
    }
    if (fits_narrow(window, gk_max_u64(image_elements(window), out_elements(window)))) {
        launch_pool<uint32_t, is_max>(&slot, window, arrays);
    } else {
        launch_pool<uint64_t, is_max>(&slot, window, arrays);
    }
}

/* Along one side, whether the first and the last window have a place inside. */
static bool reaches_image(uint64_t side, uint64_t out, const struct gk_layer_window *window,
                          uint64_t pad)
{
    return window->kernel > pad && (out - 1) * window->stride < side + pad;
}

void gk_cuda_layer_max_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                                    const float *x, float *y, uint32_t *index)
{
    pool_call<uint32_t> arrays = {};

    GK_ASSERT(out_elements(window) == 0 ||
              (reaches_image(window->rows, window->out_rows, window, window->pad_rows) &&
               reaches_image(window->columns, window->out_columns, window, window->pad_columns)));
    arrays.x = x;
    arrays.y = y;
    arrays.index = index;
    start_pool<true>(queue, window, arrays);
}

void gk_cuda_layer_average_pool_forward(struct gk_queue *queue,
                                        const struct gk_layer_window *window, const float *x,
                                        float *y)
{
    pool_call<uint32_t> arrays = {};

    arrays.x = x;
    arrays.y = y;
    start_pool<false>(queue, window, arrays);
}
