/* Windows over images: convolutions by way of a matrix of windows, and pooling.  All inner loops
 * run over channels, which lie side by side.  What goes back to an input pixel is gathered from the
 * windows that cover it, in the order of the places in the window: never scattered, so that every
 * table can add in the same order. */
#include "worker/model/layers_cpu.h"

#include "common/assert.h"

#include <string.h>

/* Place (i, j) of the window at (row, column), and the pixel it falls on. */
struct place {
    uint32_t i, j;
    uint32_t row, column;
    bool inside;
    uint64_t at; /* of the pixel's first channel, when it is inside */
};

static uint64_t image_size(const struct gk_layer_window *window)
{
    return (uint64_t)window->rows * window->columns * window->channels;
}

static uint64_t out_size(const struct gk_layer_window *window)
{
    return (uint64_t)window->out_rows * window->out_columns * window->channels;
}

static void find_pixel(const struct gk_layer_window *window, struct place *place)
{
    /* Below zero wraps to a number that is larger than any image. */
    uint32_t r = place->row * window->stride + place->i - window->pad_rows;
    uint32_t c = place->column * window->stride + place->j - window->pad_columns;

    place->inside = r < window->rows && c < window->columns;
    place->at = ((uint64_t)r * window->columns + c) * window->channels;
}

void gk_cpu_im2col(struct gk_queue *queue, const struct gk_layer_window *window, const float *x,
                   float *windows)
{
    const size_t bytes = window->channels * sizeof(*x);
    uint32_t places = window->kernel * window->kernel;

    (void)queue;
    for (uint32_t s = 0; s < window->samples; s++, x += image_size(window)) {
        for (uint32_t o = 0; o < window->out_rows * window->out_columns; o++) {
            struct place place = {.row = o / window->out_columns,
                                  .column = o % window->out_columns};

            for (uint32_t p = 0; p < places; p++, windows += window->channels) {
                place.i = p / window->kernel;
                place.j = p % window->kernel;
                find_pixel(window, &place);
                if (place.inside) {
                    memcpy(windows, x + place.at, bytes);
                } else {
                    memset(windows, 0, bytes);
                }
            }
        }
    }
}

/* The window whose place (i, j) falls on the pixel (row, column): false when there is none. */
static bool find_window(const struct gk_layer_window *window, uint32_t row, uint32_t column,
                        struct place *place)
{
    uint32_t r = row + window->pad_rows - place->i;
    uint32_t c = column + window->pad_columns - place->j;

    if (row + window->pad_rows < place->i || column + window->pad_columns < place->j ||
        r % window->stride || c % window->stride) {
        return false;
    }
    place->row = r / window->stride;
    place->column = c / window->stride;
    return place->row < window->out_rows && place->column < window->out_columns;
}

static void add(float *sums, const float *x, uint32_t count)
{
    for (uint32_t c = 0; c < count; c++) {
        sums[c] += x[c];
    }
}

/* What one pixel gathers: from windows (col2im), or from dy, all of it or what was chosen. */
struct gather {
    const struct gk_layer_window *window;
    const float *windows;
    const float *dy;
    const uint32_t *index;
    float *dx;
};

static void gather_pixel(const struct gather *gather, uint32_t row, uint32_t column)
{
    const struct gk_layer_window *window = gather->window;
    const uint32_t channels = window->channels;
    uint32_t places = window->kernel * window->kernel;
    float *sums = gather->dx + ((uint64_t)row * window->columns + column) * channels;

    memset(sums, 0, channels * sizeof(*sums));
    for (uint32_t p = 0; p < places; p++) {
        struct place place = {.i = p / window->kernel, .j = p % window->kernel};
        uint64_t o;

        if (!find_window(window, row, column, &place)) {
            continue;
        }
        o = (uint64_t)place.row * window->out_columns + place.column;
        if (gather->windows) {
            add(sums, gather->windows + (o * places + p) * channels, channels);
        } else if (gather->index) {
            for (uint32_t c = 0; c < channels; c++) {
                sums[c] +=
                    gather->index[o * channels + c] == p ? gather->dy[o * channels + c] : 0.0f;
            }
        } else {
            add(sums, gather->dy + o * channels, channels);
        }
    }
}

static void gather_image(const struct gather *gather)
{
    for (uint32_t r = 0; r < gather->window->rows; r++) {
        for (uint32_t c = 0; c < gather->window->columns; c++) {
            gather_pixel(gather, r, c);
        }
    }
}

void gk_cpu_col2im(struct gk_queue *queue, const struct gk_layer_window *window,
                   const float *windows, float *dx)
{
    struct gather gather = {.window = window, .windows = windows, .dx = dx};

    (void)queue;
    for (uint32_t s = 0; s < window->samples; s++) {
        gather_image(&gather);
        gather.windows += out_size(window) * window->kernel * window->kernel;
        gather.dx += image_size(window);
    }
}

static void choose(const struct gk_layer_window *window, const float *x, struct place place,
                   float *best, uint32_t *index)
{
    bool is_first = true;

    for (uint32_t p = 0; p < window->kernel * window->kernel; p++) {
        place.i = p / window->kernel;
        place.j = p % window->kernel;
        find_pixel(window, &place);
        if (!place.inside) {
            continue;
        }
        for (uint32_t c = 0; c < window->channels; c++) {
            float value = x[place.at + c];

            if (is_first || value > best[c] || value != value) {
                index[c] = is_first || best[c] == best[c] ? p : index[c];
                best[c] = value;
            }
        }
        is_first = false;
    }
    GK_ASSERT(!is_first);
}

void gk_cpu_max_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                             const float *x, float *y, uint32_t *index)
{
    (void)queue;
    for (uint32_t s = 0; s < window->samples; s++, x += image_size(window)) {
        for (uint32_t o = 0; o < window->out_rows * window->out_columns; o++) {
            const struct place place = {.row = o / window->out_columns,
                                        .column = o % window->out_columns};

            choose(window, x, place, y, index);
            y += window->channels;
            index += window->channels;
        }
    }
}

void gk_cpu_max_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                              const float *dy, const uint32_t *index, float *dx)
{
    struct gather gather = {.window = window, .dy = dy, .index = index, .dx = dx};

    (void)queue;
    for (uint32_t s = 0; s < window->samples; s++) {
        gather_image(&gather);
        gather.dy += out_size(window);
        gather.index += out_size(window);
        gather.dx += image_size(window);
    }
}

static void average(const struct gk_layer_window *window, const float *x, struct place place,
                    float *y)
{
    const float area = (float)(window->kernel * window->kernel);

    memset(y, 0, window->channels * sizeof(*y));
    for (uint32_t p = 0; p < window->kernel * window->kernel; p++) {
        place.i = p / window->kernel;
        place.j = p % window->kernel;
        find_pixel(window, &place);
        if (place.inside) {
            add(y, x + place.at, window->channels);
        }
    }
    for (uint32_t c = 0; c < window->channels; c++) {
        y[c] /= area;
    }
}

void gk_cpu_average_pool_forward(struct gk_queue *queue, const struct gk_layer_window *window,
                                 const float *x, float *y)
{
    (void)queue;
    for (uint32_t s = 0; s < window->samples; s++, x += image_size(window)) {
        for (uint32_t o = 0; o < window->out_rows * window->out_columns; o++) {
            const struct place place = {.row = o / window->out_columns,
                                        .column = o % window->out_columns};

            average(window, x, place, y);
            y += window->channels;
        }
    }
}

void gk_cpu_average_pool_backward(struct gk_queue *queue, const struct gk_layer_window *window,
                                  const float *dy, float *dx)
{
    struct gather gather = {.window = window, .dy = dy, .dx = dx};
    const float area = (float)(window->kernel * window->kernel);

    (void)queue;
    for (uint32_t s = 0; s < window->samples; s++) {
        gather_image(&gather);
        for (uint64_t i = 0; i < image_size(window); i++) {
            gather.dx[i] /= area;
        }
        gather.dy += out_size(window);
        gather.dx += image_size(window);
    }
}
