/* Goal: windows and pools of the CUDA table give the bits of the CPU's.  Method: random geometries
 * (windows that overlap, skip pixels, hang over borders, are larger than the image; one sample, one
 * channel, one pixel; arrays that do not begin where four elements can go at once) with NaNs,
 * infinities, ties and both zeros, of sizes on both sides of where numbers become wide. */
#include "tests/unit/layer_rig.h"

static uint64_t pixels_in(const struct gk_layer_window *w)
{
    return (uint64_t)w->samples * w->rows * w->columns * w->channels;
}

static uint64_t pixels_out(const struct gk_layer_window *w)
{
    return (uint64_t)w->samples * w->out_rows * w->out_columns * w->channels;
}

/* As many windows along a side as there is room for, or fewer. */
static uint32_t random_out(uint32_t side, uint32_t pad, const struct gk_layer_window *w)
{
    const uint32_t most = (side + 2 * pad - w->kernel) / w->stride + 1;

    return below(3) ? most : 1 + (uint32_t)below(most);
}

/* Multiples of four, which go four at a time, and others. */
static uint32_t random_channels(void)
{
    return below(2) ? 4 * (1 + (uint32_t)below(3)) : 1 + (uint32_t)below(9);
}

static struct gk_layer_window random_window(void)
{
    struct gk_layer_window w = {.samples = 1 + (uint32_t)below(3),
                                .channels = random_channels(),
                                .kernel = 1 + (uint32_t)below(5),
                                .stride = 1 + (uint32_t)below(4)};

    w.rows = 1 + (uint32_t)below(9);
    w.columns = 1 + (uint32_t)below(9);
    w.pad_rows = (uint32_t)below(w.kernel + 2);
    w.pad_columns = (uint32_t)below(w.kernel + 2);
    while (w.rows + 2 * w.pad_rows < w.kernel)
        w.rows++;
    while (w.columns + 2 * w.pad_columns < w.kernel)
        w.columns++;
    w.out_rows = random_out(w.rows, w.pad_rows, &w);
    w.out_columns = random_out(w.columns, w.pad_columns, &w);
    return w;
}

Test(layer_window, im2col_and_back)
{
    open_layers();
    random_state = 1;
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        const struct gk_layer_window w = random_window();
        const uint64_t count = pixels_out(&w) * w.kernel * w.kernel, shift = below(4) == 0;
        struct twin x = twin_random(pixels_in(&w) + shift, ROUGH);
        struct twin dx = twin_random(pixels_in(&w), WIDE);
        struct twin windows = twin_random(count, WIDE);

        cpu->im2col(NULL, &w, x.here + shift, windows.here);
        cuda->im2col(queues[0], &w, x.there + shift, windows.there);
        twin_expect(&windows, "im2col", round);
        twin_free(&windows);
        windows = twin_random(count + shift, below(3) ? SMOOTH : ROUGH);
        cpu->col2im(NULL, &w, windows.here + shift, dx.here);
        cuda->col2im(queues[0], &w, windows.there + shift, dx.there);
        twin_expect(&dx, "col2im", round);
        twin_free(&x);
        twin_free(&dx);
        twin_free(&windows);
    }
    close_layers();
}

/* Padding of less than a window, and no window that begins behind the image. */
static bool may_be_pooled(const struct gk_layer_window *w)
{
    return w->pad_rows < w->kernel && w->pad_columns < w->kernel &&
           (w->out_rows - 1) * w->stride < w->rows + w->pad_rows &&
           (w->out_columns - 1) * w->stride < w->columns + w->pad_columns;
}

Test(layer_window, max_pool)
{
    open_layers();
    random_state = 2;
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        const struct gk_layer_window w = random_window();
        const uint64_t shift = below(4) == 0;
        struct twin x = twin_random(pixels_in(&w) + shift, (enum content)below(4));
        struct twin dx = twin_random(pixels_in(&w), WIDE);
        struct twin y = twin_random(pixels_out(&w), WIDE), index = twin_zeros(pixels_out(&w));
        struct twin dy = twin_random(pixels_out(&w), below(3) ? SMOOTH : ROUGH);

        if (may_be_pooled(&w)) {
            twin_send(&index);
            cpu->max_pool_forward(NULL, &w, x.here + shift, y.here, (uint32_t *)index.here);
            cuda->max_pool_forward(queues[0], &w, x.there + shift, y.there,
                                   (uint32_t *)index.there);
            twin_expect(&y, "max_pool_forward", round);
            twin_expect(&index, "index", round);
            cpu->max_pool_backward(NULL, &w, dy.here, (uint32_t *)index.here, dx.here);
            cuda->max_pool_backward(queues[0], &w, dy.there, (uint32_t *)index.there, dx.there);
            twin_expect(&dx, "max_pool_backward", round);
        }
        twin_free(&x);
        twin_free(&dx);
        twin_free(&y);
        twin_free(&index);
        twin_free(&dy);
    }
    close_layers();
}

Test(layer_window, average_pool)
{
    open_layers();
    random_state = 3;
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        const struct gk_layer_window w = random_window();
        const uint64_t shift = below(4) == 0;
        struct twin x = twin_random(pixels_in(&w) + shift, below(3) ? SMOOTH : ROUGH);
        struct twin y = twin_random(pixels_out(&w), WIDE);

        cpu->average_pool_forward(NULL, &w, x.here + shift, y.here);
        cuda->average_pool_forward(queues[0], &w, x.there + shift, y.there);
        twin_expect(&y, "average_pool_forward", round);
        cpu->average_pool_backward(NULL, &w, y.here, x.here + shift);
        cuda->average_pool_backward(queues[0], &w, y.there, x.there + shift);
        twin_expect(&x, "average_pool_backward", round);
        twin_free(&x);
        twin_free(&y);
    }
    close_layers();
}
