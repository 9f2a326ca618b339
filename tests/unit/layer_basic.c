/* Goal: the slots that touch every element once give the bits of the CPU's table.  Method: random
 * arrays with NaNs, infinities, zeros of both signs and denormals, some of which do not begin where
 * four elements can go at once; sides of 1, odd sides, sides
 * around those of the squares that transposition goes through, sizes on both sides of where
 * numbers become wide. */
#include "tests/unit/layer_rig.h"

static uint64_t odd_side(void)
{
    static const uint64_t sides[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 65};

    return below(2) ? sides[below(10)] : 1 + below(40);
}

Test(layer_basic, copy_and_fill)
{
    static const float values[] = {0.0f, -0.0f, 1.5f, INFINITY, NAN};

    open_layers();
    random_state = 1;
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        const uint64_t count = round < 2 ? round : below(3000);
        struct twin x = twin_random(count, ROUGH), y = twin_random(count, WIDE);

        cpu->copy(NULL, y.here, x.here, count);
        cuda->copy(queues[0], y.there, x.there, count);
        twin_expect(&y, "copy", round);
        cpu->fill(NULL, y.here, values[round % 5], count / 2);
        cuda->fill(queues[0], y.there, values[round % 5], count / 2);
        twin_expect(&y, "fill", round);
        twin_expect(&x, "source of a copy", round);
        twin_free(&x);
        twin_free(&y);
    }
    close_layers();
}

Test(layer_basic, transpose)
{
    open_layers();
    random_state = 2;
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        const uint64_t sides[3] = {1 + below(4), odd_side(), odd_side()};
        const uint64_t count = sides[0] * sides[1] * sides[2];
        struct twin x = twin_random(count, ROUGH), y = twin_random(count, WIDE);

        cpu->transpose(NULL, y.here, x.here, sides);
        cuda->transpose(queues[0], y.there, x.there, sides);
        twin_expect(&y, "transpose", round);
        twin_expect(&x, "what was transposed", round);
        twin_free(&x);
        twin_free(&y);
    }
    close_layers();
}

Test(layer_basic, bias_and_activation)
{
    open_layers();
    random_state = 3;
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        const uint64_t rows = round < 10 ? below(2) : odd_side(), columns = odd_side();
        const enum gk_activation activation = below(3) ? GK_ACTIVATION_RELU : GK_ACTIVATION_NONE;
        const uint64_t shift = below(4) == 0;
        struct twin x = twin_random(rows * columns + shift, below(2) ? ROUGH : TIES);
        struct twin dx = twin_random(rows * columns, ROUGH);
        struct twin bias = twin_random(columns, below(2) ? ROUGH : TIES);
        struct gk_bias_args args = {x.here + shift, bias.here, rows, columns, activation};

        cpu->bias_forward(NULL, &args);
        cpu->activation_backward(NULL, dx.here, x.here + shift, rows * columns, activation);
        args.x = x.there + shift;
        args.bias = bias.there;
        cuda->bias_forward(queues[0], &args);
        cuda->activation_backward(queues[0], dx.there, x.there + shift, rows * columns, activation);
        twin_expect(&x, "bias_forward", round);
        twin_expect(&dx, "activation_backward", round);
        twin_expect(&bias, "bias", round);
        twin_free(&x);
        twin_free(&dx);
        twin_free(&bias);
    }
    close_layers();
}

/* Multiples of four, which go four at a time, and others. */
static uint32_t random_channels(void)
{
    return below(2) ? 4 * (1 + (uint32_t)below(3)) : 1 + (uint32_t)below(9);
}

/* Fewer, as many and more channels than the skipped image has; its pixels skipped by a stride. */
static struct gk_residual_args random_shortcut(void)
{
    struct gk_residual_args args = {.samples = 1 + (uint32_t)below(3),
                                    .rows = 1 + (uint32_t)below(7),
                                    .columns = 1 + (uint32_t)below(7),
                                    .channels = random_channels(),
                                    .skip_channels = random_channels(),
                                    .stride = 1 + (uint32_t)below(3),
                                    .activation =
                                        below(2) ? GK_ACTIVATION_RELU : GK_ACTIVATION_NONE};

    args.skip_rows = (args.rows - 1) * args.stride + 1 + (uint32_t)below(args.stride);
    args.skip_columns = (args.columns - 1) * args.stride + 1 + (uint32_t)below(args.stride);
    return args;
}

static void check_shortcut(struct gk_residual_args args, unsigned round)
{
    const uint64_t count = (uint64_t)args.samples * args.rows * args.columns * args.channels;
    const uint64_t skip_count =
        (uint64_t)args.samples * args.skip_rows * args.skip_columns * args.skip_channels;
    const uint64_t shift = below(4) == 0;
    struct twin x = twin_random(count + shift, ROUGH), y = twin_random(count, WIDE);
    struct twin skip = twin_random(skip_count, ROUGH);
    struct gk_residual_gradient_args gradient = {.dy = x.here + shift,
                                                 .dskip = skip.here,
                                                 .samples = args.samples,
                                                 .rows = args.rows,
                                                 .columns = args.columns,
                                                 .channels = args.channels,
                                                 .skip_rows = args.skip_rows,
                                                 .skip_columns = args.skip_columns,
                                                 .skip_channels = args.skip_channels,
                                                 .stride = args.stride};

    args.x = x.here + shift;
    args.skip = skip.here;
    args.y = y.here;
    cpu->residual_forward(NULL, &args);
    cpu->residual_backward(NULL, &gradient);
    args.x = x.there + shift;
    args.skip = skip.there;
    args.y = y.there;
    gradient.dy = x.there + shift;
    gradient.dskip = skip.there;
    cuda->residual_forward(queues[0], &args);
    cuda->residual_backward(queues[0], &gradient);
    twin_expect(&y, "residual_forward", round);
    twin_expect(&skip, "residual_backward", round);
    twin_expect(&x, "x of a shortcut", round);
    twin_free(&x);
    twin_free(&y);
    twin_free(&skip);
}

Test(layer_basic, shortcuts)
{
    open_layers();
    random_state = 4;
    for (unsigned round = 0; round < ROUNDS(300); round++)
        check_shortcut(random_shortcut(), round);
    close_layers();
}

#ifdef RIG_EMULATED
/* A slot that fails leaves its error with the queue, and those behind it do nothing. */
Test(layer_basic, a_failed_launch_stops_the_queue)
{
    open_layers();
    for (int after = 0; after < 3; after++) {
        struct twin x = twin_zeros(100);
        uint64_t before = gk_simt_launches();

        gk_simt_fail_launch(after);
        for (int i = 0; i < 3; i++)
            cuda->fill(queues[0], x.there, 1.0f, 100);
        gk_simt_fail_launch(-1);
        cr_assert_eq(tables[0]->wait(queues[0], (struct gk_ticket){0}), GK_E_IO);
        twin_free(&x);
        cr_assert_eq(gk_simt_launches() - before, (uint64_t)after);
    }
    close_layers();
}
#endif
