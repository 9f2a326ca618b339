/* Goal: the slots of the CPU layer table do what common/backend.h says.  Method: gemm against plain
 * sums in double for all transpositions and beta, the others against values worked out by hand,
 * NaN, ties and large logits included. */
#include "worker/model/model.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_MAX = 70, AREA_MAX = SIDE_MAX * SIDE_MAX };

static float draw(uint32_t *state)
{
    *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static double plain_product(const struct gk_gemm_args *args, uint64_t row, uint64_t column)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < args->k; i++) {
        double a = args->transpose_a ? args->a[i * args->m + row] : args->a[row * args->k + i];
        double b =
            args->transpose_b ? args->b[column * args->k + i] : args->b[i * args->n + column];

        sum += a * b;
    }
    return sum;
}

/* beta = 0 must not read c. */
Test(model_layers, gemm)
{
    static const uint64_t sides[][3] = {{1, 1, 1},   {2, 3, 4},   {7, 1, 5},
                                        {1, 33, 64}, {64, 70, 3}, {17, 19, 70}};
    static float a[AREA_MAX], b[AREA_MAX], c[AREA_MAX], before[AREA_MAX];
    const struct gk_layer_ops *ops = gk_layers_cpu();
    uint32_t state = 1;

    for (unsigned i = 0; i < 8 * sizeof(sides) / sizeof(sides[0]); i++) {
        const uint64_t *side = sides[i / 8];
        struct gk_gemm_args args = {.transpose_a = i & 1,
                                    .transpose_b = i & 2,
                                    .m = side[0],
                                    .n = side[1],
                                    .k = side[2],
                                    .a = a,
                                    .b = b,
                                    .c = c,
                                    .beta = i & 4 ? 0.5f : 0.0f};

        for (int j = 0; j < AREA_MAX; j++) {
            a[j] = draw(&state);
            b[j] = draw(&state);
            before[j] = c[j] = i & 4 ? draw(&state) : NAN;
        }
        ops->gemm(NULL, &args);
        for (uint64_t j = 0; j < args.m * args.n; j++) {
            double expected = plain_product(&args, j / args.n, j % args.n);

            expected += i & 4 ? 0.5 * before[j] : 0.0;
            cr_assert(fabs(c[j] - expected) < 1e-5 * (1.0 + (double)args.k), "case %u: %g %g", i,
                      c[j], expected);
        }
        cr_assert_eq(memcmp(c + args.m * args.n, before + args.m * args.n, sizeof(float)), 0,
                     "case %u", i);
    }
}

Test(model_layers, bias_and_activation)
{
    static const float bias[3] = {1.0f, -2.0f, 0.0f};
    static const float start[6] = {-2.0f, 1.0f, 3.0f, 4.0f, NAN, -0.0f};
    const struct gk_layer_ops *ops = gk_layers_cpu();
    float x[6], dx[6] = {1, 2, 3, 4, 5, 6};

    memcpy(x, start, sizeof(x));
    ops->bias_forward(NULL, &(struct gk_bias_args){x, bias, 2, 3, GK_ACTIVATION_NONE});
    cr_assert(x[0] == -1.0f && x[1] == -1.0f && x[2] == 3.0f && x[3] == 5.0f && isnan(x[4]) &&
              x[5] == 0.0f);
    ops->activation_backward(NULL, dx, x, 6, GK_ACTIVATION_NONE);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(dx[i], (float)(i + 1));
    }
    memcpy(x, start, sizeof(x));
    ops->bias_forward(NULL, &(struct gk_bias_args){x, bias, 2, 3, GK_ACTIVATION_RELU});
    cr_assert(x[0] == 0.0f && x[1] == 0.0f && x[2] == 3.0f && x[3] == 5.0f && isnan(x[4]) &&
              x[5] == 0.0f);
    ops->activation_backward(NULL, dx, x, 6, GK_ACTIVATION_RELU);
    cr_assert(dx[0] == 0.0f && dx[1] == 0.0f && dx[2] == 3.0f && dx[3] == 4.0f && dx[4] == 5.0f &&
              dx[5] == 0.0f);
}

/* 1 is lost beside 2^24 unless the rows are added in their order. */
Test(model_layers, column_sums_in_order)
{
    static const float x[8] = {0x1p24f, 1.0f, 1.0f, 0x1p24f, -0x1p24f, 1.0f, 0.5f, -0x1p24f};
    float sums[2] = {NAN, NAN};

    gk_layers_cpu()->column_sums(NULL, x, 4, 2, sums);
    cr_assert(sums[0] == 0.5f && sums[1] == 0.0f, "%g %g", sums[0], sums[1]);
    gk_layers_cpu()->column_sums(NULL, x, 1, 2, sums);
    cr_assert(sums[0] == 0x1p24f && sums[1] == 1.0f);
}

/* Rows of three logits. */
static void softmax(float *x, const uint32_t *labels, uint64_t rows, float scale,
                    struct gk_loss *result)
{
    const struct gk_softmax_args args = {x, labels, rows, 3, scale, result};

    gk_layers_cpu()->softmax_cross_entropy(NULL, &args);
}

Test(model_layers, softmax_values)
{
    static const uint32_t labels[3] = {1, 2, 0};
    float x[9] = {0, logf(2.0f), 0, 5, 5, 5, 1000, 0, -1000};
    struct gk_loss result = {10.0, 7};

    softmax(x, labels, 3, 1.0f, &result);
    cr_assert_float_eq(result.loss, log(2.0) + log(3.0), 1e-6);
    cr_assert_eq(result.hits, 2);
    cr_assert_float_eq(x[0], 0.25, 1e-6);
    cr_assert_float_eq(x[1], -0.5, 1e-6);
    cr_assert_float_eq(x[3], 1.0 / 3, 1e-6);
    cr_assert_float_eq(x[5], 1.0 / 3 - 1, 1e-6);
    cr_assert(x[6] == 0.0f && x[7] == 0.0f && x[8] == 0.0f);
    x[0] = x[1] = x[2] = 0.0f;
    softmax(x, labels, 1, 0.125f, &result);
    cr_assert_float_eq(x[0], 0.125 / 3, 1e-7);
    cr_assert_float_eq(x[1], -0.25 / 3, 1e-7);
    cr_assert_float_eq(result.loss, log(3.0), 1e-6);
}

/* Equal logits: the first of them is the answer.  NaN: nobody is right, and the loss shows it. */
Test(model_layers, hits)
{
    static const struct {
        float logits[3];
        uint32_t label;
        uint64_t hits;
    } cases[] = {
        {{1, 2, 2}, 1, 1},         {{1, 2, 2}, 2, 0},    {{3, 3, 3}, 0, 1},
        {{3, 3, 3}, 2, 0},         {{NAN, 1, 2}, 2, 0},  {{NAN, NAN, NAN}, 0, 0},
        {{-INFINITY, 0, 1}, 2, 1}, {{-1, -2, -3}, 0, 1}, {{-1, -2, -3}, 1, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float x[3];
        struct gk_loss result;

        memcpy(x, cases[i].logits, sizeof(x));
        softmax(x, &cases[i].label, 1, 1.0f, &result);
        cr_assert_eq(result.hits, cases[i].hits, "case %zu", i);
        cr_assert_eq(isnan(result.loss) != 0, isnan(cases[i].logits[0]) != 0, "case %zu: %g", i,
                     result.loss);
    }
}

Test(model_layers, fingerprint)
{
    cr_assert(strstr(gk_layers_cpu()->fingerprint(), "OpenBLAS"), "%s",
              gk_layers_cpu()->fingerprint());
    cr_assert(strstr(gk_layers_cpu()->fingerprint(), "threads 1"));
}
