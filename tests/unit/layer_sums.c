/* Goal: what the CUDA layer table adds over the rows of a batch (column sums, norms, losses) are
 * the CPU's bits, on every device; softmax too, as far as exp and log are the same.  Method: random
 * matrices of odd sides and with rows at the borders of tiles, with NaN, infinities, values of all
 * exponents, ties; labels at both ends.  On a device logits and losses may differ by a few
 * roundings of exp and log; hits may not. */
#include "tests/unit/layer_rig.h"

static const uint64_t row_counts[] = {1, 2, 31, 255, 256, 257, 513, 1000};
static const uint64_t column_counts[] = {1, 3, 16, 65};
static const enum content contents[] = {SMOOTH, WIDE, ROUGH};

enum { CASES = 8 * 4 * 3 };

/* More tiles than are fetched at a time. */
static uint64_t many_rows(void)
{
    return rig_emulated ? 33 * GK_LAYER_TILE + 7 : 129 * GK_LAYER_TILE + 7;
}

static void check_column_sums(uint64_t rows, uint64_t columns, enum content content,
                              uint64_t number)
{
    struct twin x = twin_random(rows * columns, content);
    struct twin sums = twin_random(columns, SMOOTH);

    cpu->column_sums(NULL, x.here, rows, columns, sums.here);
    cuda->column_sums(queues[0], x.there, rows, columns, sums.there);
    twin_expect(&sums, "column sums", number);
    twin_free(&x);
    twin_free(&sums);
}

Test(layer_sums, columns)
{
    open_layers();
    random_state = 21;
    for (uint64_t i = 0; i < CASES; i++)
        check_column_sums(row_counts[i / 12], column_counts[i / 3 % 4], contents[i % 3], i);
    check_column_sums(many_rows(), 3, WIDE, CASES);
    check_column_sums(many_rows(), 9, WIDE, CASES + 1);
    check_column_sums(300, 1000, WIDE, CASES + 2);
    close_layers();
}

enum { X, Y, WEIGHT, BIAS, MEAN, SCALE, RUNNING_MEAN, RUNNING_VARIANCE, NORM_TWINS };

static struct gk_norm_args norm_args(struct twin *twins, bool there)
{
    float *a[NORM_TWINS];

    for (int i = 0; i < NORM_TWINS; i++)
        a[i] = there ? twins[i].there : twins[i].here;
    return (struct gk_norm_args){.x = a[X],
                                 .y = a[Y],
                                 .weight = a[WEIGHT],
                                 .bias = a[BIAS],
                                 .mean = a[MEAN],
                                 .scale = a[SCALE],
                                 .running_mean = a[RUNNING_MEAN],
                                 .running_variance = a[RUNNING_VARIANCE]};
}

static void check_norm(uint64_t rows, uint64_t columns, enum content content, uint64_t number)
{
    struct twin twins[NORM_TWINS];
    const bool training = below(3) > 0;
    const enum gk_activation activation = below(2) ? GK_ACTIVATION_RELU : GK_ACTIVATION_NONE;

    for (int i = 0; i < NORM_TWINS; i++)
        twins[i] = twin_random(i <= Y ? rows * columns : columns, i == X ? content : SMOOTH);
    for (int side = 0; side < 2; side++) {
        struct gk_norm_args args = norm_args(twins, side == 1);

        args.rows = rows;
        args.columns = columns;
        args.training = training;
        args.momentum = 0.1f;
        args.epsilon = 1e-5f;
        args.activation = activation;
        (side == 0 ? cpu : cuda)->norm_forward(side == 0 ? NULL : queues[0], &args);
    }
    for (int i = 0; i < NORM_TWINS; i++) {
        twin_expect(&twins[i], training ? "norm, training" : "norm", number);
        twin_free(&twins[i]);
    }
}

Test(layer_sums, norm_forward)
{
    open_layers();
    random_state = 22;
    for (uint64_t i = 0; i < CASES; i++)
        check_norm(row_counts[i / 12], column_counts[i / 3 % 4], contents[i % 3], i);
    check_norm(many_rows(), 3, WIDE, CASES);
    close_layers();
}

enum { DY = 1, DX, WEIGHT_OF_DY, MEAN_OF_X, SCALE_OF_X, DWEIGHT, DBIAS, GRADIENT_TWINS };

static void check_norm_gradient(uint64_t rows, uint64_t columns, enum content content,
                                uint64_t number)
{
    struct twin twins[GRADIENT_TWINS];
    const bool needs_dx = below(4) > 0;

    for (int i = 0; i < GRADIENT_TWINS; i++)
        twins[i] = twin_random(i <= DX ? rows * columns : columns, i <= DY ? content : SMOOTH);
    for (int side = 0; side < 2; side++) {
        float *a[GRADIENT_TWINS];
        struct gk_norm_gradient_args args;

        for (int i = 0; i < GRADIENT_TWINS; i++)
            a[i] = side == 0 ? twins[i].here : twins[i].there;
        args = (struct gk_norm_gradient_args){.x = a[X],
                                              .dy = a[DY],
                                              .dx = needs_dx ? a[DX] : NULL,
                                              .rows = rows,
                                              .columns = columns,
                                              .weight = a[WEIGHT_OF_DY],
                                              .mean = a[MEAN_OF_X],
                                              .scale = a[SCALE_OF_X],
                                              .dweight = a[DWEIGHT],
                                              .dbias = a[DBIAS]};
        (side == 0 ? cpu : cuda)->norm_backward(side == 0 ? NULL : queues[0], &args);
    }
    for (int i = 0; i < GRADIENT_TWINS; i++) {
        twin_expect(&twins[i], "norm backward", number);
        twin_free(&twins[i]);
    }
}

Test(layer_sums, norm_backward)
{
    open_layers();
    random_state = 23;
    for (uint64_t i = 0; i < CASES; i++)
        check_norm_gradient(row_counts[i / 12], column_counts[i / 3 % 4], contents[i % 3], i);
    check_norm_gradient(many_rows(), 3, WIDE, CASES);
    close_layers();
}

/* Which labels. */
enum labels { FIRST, LAST, ANY };

static struct twin random_labels(uint64_t rows, uint64_t classes, enum labels labels)
{
    struct twin twin = twin_zeros(rows);

    for (uint64_t r = 0; r < rows; r++) {
        const uint32_t label = labels == FIRST  ? 0
                               : labels == LAST ? (uint32_t)classes - 1
                                                : (uint32_t)below(classes);

        memcpy(&twin.here[r], &label, sizeof(label));
    }
    twin_send(&twin);
    return twin;
}

static void expect_loss(const struct twin *result, uint64_t rows, uint64_t number)
{
    float *back = twin_fetch(result);
    struct gk_loss is, expected;

    memcpy(&is, back, sizeof(is));
    memcpy(&expected, result->here, sizeof(expected));
    cr_assert_eq(is.hits, expected.hits, "softmax, case %u: %u hits, expected %u", (unsigned)number,
                 (unsigned)is.hits, (unsigned)expected.hits);
    cr_assert((isnan(is.loss) && isnan(expected.loss)) || is.loss == expected.loss ||
                  (!rig_emulated && fabs(is.loss - expected.loss) <=
                                        1e-5 * (double)rows + 1e-6 * fabs(expected.loss)),
              "softmax, case %u: loss %a, expected %a", (unsigned)number, is.loss, expected.loss);
    cr_assert(same_bits(back + result->count, result->here + result->count, TWIN_PAD));
    free(back);
}

static void check_softmax(uint64_t rows, uint64_t classes, enum content content, uint64_t number)
{
    const enum labels which = (enum labels)below(3);
    struct twin logits = twin_random(rows * classes, content);
    struct twin labels = random_labels(rows, classes, which);
    struct twin result = twin_random(sizeof(struct gk_loss) / sizeof(float), SMOOTH);
    const float scale = below(2) ? 1.0f : 1.0f / 50.0f;

    for (int side = 0; side < 2; side++) {
        const struct gk_softmax_args args = {
            .logits = side == 0 ? logits.here : logits.there,
            .labels = (const uint32_t *)(const void *)(side == 0 ? labels.here : labels.there),
            .rows = rows,
            .classes = classes,
            .scale = scale,
            .result = (struct gk_loss *)(void *)(side == 0 ? result.here : result.there)};

        (side == 0 ? cpu : cuda)->softmax_cross_entropy(side == 0 ? NULL : queues[0], &args);
    }
    twin_expect_near(&logits, 1e-5, 1e-6, "softmax", number);
    twin_expect(&labels, "labels", number);
    expect_loss(&result, rows, number);
    twin_free(&logits);
    twin_free(&labels);
    twin_free(&result);
}

Test(layer_sums, softmax)
{
    static const enum content kinds[] = {SMOOTH, TIES, WIDE, ROUGH};
    static const uint64_t sides[][2] = {{1, 1},  {1, 10},  {3, 2},    {40, 31},  {41, 32},
                                        {7, 33}, {12, 97}, {255, 10}, {256, 10}, {257, 3}};

    open_layers();
    random_state = 24;
    for (uint64_t i = 0; i < 4 * sizeof(sides) / sizeof(sides[0]); i++)
        check_softmax(sides[i / 4][0], sides[i / 4][1], kinds[i % 4], i);
    check_softmax(1000, 5, SMOOTH, 100);
    close_layers();
}
