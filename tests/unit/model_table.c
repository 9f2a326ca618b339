/* Goal: the table of tensors, the initial parameters and the errors of gk_model_new are as
 * specified. Method: known counts of parameters; values of the initial parameters that were
 * computed outside of this project from the layout of the random streams (common/rng.c), since
 * every trained model depends on them; wrong setups. */
#include "worker/model/model.h"

#include "common/bits.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct gk_model *new_model(const char *name, uint32_t features, uint32_t classes)
{
    const struct gk_model_setup setup = {
        .layers = gk_layers_cpu(), .features = features, .classes = classes, .batch_max = 8};
    struct gk_model *model = NULL;
    struct gk_words words = {""};

    cr_assert_eq(gk_model_new(name, &setup, &model, &words), GK_OK, "%s", words.text);
    return model;
}

Test(model_table, tensors)
{
    static const struct {
        const char *name;
        uint32_t features, tensors;
        uint64_t params;
        uint32_t sides[4]; /* widths */
    } cases[] = {
        {"fnn3", 784, 6, 199210, {784, 200, 200, 10}},
        {"fnn3", 64, 6, 55210, {64, 200, 200, 10}},
        {"softmax", 784, 2, 7850, {784, 10}},
        {"softmax", 64, 2, 650, {64, 10}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gk_model *model = new_model(cases[i].name, cases[i].features, 10);
        uint64_t params = 0, offset = 0;
        uint32_t count = 0;
        const struct gk_tensor *tensors = gk_model_tensors(model, &count, &params);

        cr_assert(count == cases[i].tensors && params == cases[i].params, "case %zu", i);
        for (uint32_t t = 0; t < count; t++) {
            uint32_t in = cases[i].sides[t / 2], out = cases[i].sides[t / 2 + 1];
            bool is_bias = t % 2;
            char name[32];

            (void)snprintf(name, sizeof(name), "fc%u.%s", t / 2 + 1, is_bias ? "bias" : "weight");
            cr_assert_str_eq(tensors[t].name, name);
            cr_assert_eq(tensors[t].offset, offset);
            cr_assert_eq(tensors[t].count, is_bias ? out : out * in);
            cr_assert_eq(tensors[t].flags, is_bias ? GK_TENSOR_NO_DECAY : 0);
            cr_assert_eq(tensors[t].dims_count, is_bias ? 1 : 2);
            cr_assert(tensors[t].dims[0] == out && (is_bias || tensors[t].dims[1] == in));
            offset += tensors[t].count;
        }
        cr_assert_eq(offset, params);
        gk_model_free(model);
    }
}

Test(model_table, initial_parameters_are_pinned)
{
    static const struct {
        uint32_t at, bits;
    } pins[] = {{0, 0x3c893c98},     {12799, 0x3cb5ac98}, {12800, 0x3dfcc70c}, {12999, 0x3b95a820},
                {13000, 0x3d3fc431}, {52999, 0xbd542b4a}, {53000, 0xbd167d39}, {53199, 0x3cda424f},
                {53200, 0xbd394107}, {55199, 0xbd435316}, {55200, 0xbd05c008}, {55209, 0x3d6a9741}};
    struct gk_model *model = new_model("fnn3", 64, 10);
    float *params = calloc(55210, sizeof(*params));

    gk_model_init(model, UINT64_C(0x123456789), params);
    for (size_t i = 0; i < sizeof(pins) / sizeof(pins[0]); i++) {
        cr_assert_eq(gk_float_bits(params[pins[i].at]), pins[i].bits, "[%u]: %08x, expected %08x",
                     pins[i].at, gk_float_bits(params[pins[i].at]), pins[i].bits);
    }
    free(params);
    gk_model_free(model);
}

/* Bounds hold; mean and variance are those of the uniform law within five deviations; seeds differ.
 */
Test(model_table, initial_parameters_are_uniform)
{
    struct gk_model *model = new_model("fnn3", 784, 10);
    float *params = calloc(199210, sizeof(*params)), *other = calloc(199210, sizeof(*other));
    uint64_t d;
    uint32_t count;
    const struct gk_tensor *tensors = gk_model_tensors(model, &count, &d);

    gk_model_init(model, 1, params);
    gk_model_init(model, 2, other);
    for (uint32_t t = 0; t < count; t++) {
        double bound = 1.0 / sqrt(t < 2 ? 784.0 : 200.0), sum = 0.0, squares = 0.0,
               n = (double)tensors[t].count;
        uint64_t same = 0;

        for (uint64_t i = 0; i < tensors[t].count; i++) {
            double x = params[tensors[t].offset + i] / bound;

            cr_assert_leq(fabs(x), 1.0 + 1e-6, "%s", tensors[t].name);
            sum += x;
            squares += x * x;
            same += params[tensors[t].offset + i] == other[tensors[t].offset + i];
        }
        cr_assert_lt(fabs(sum / n), 5 * sqrt(1.0 / 3 / n), "%s", tensors[t].name);
        cr_assert_lt(fabs(squares / n - 1.0 / 3), 5 * sqrt(4.0 / 45 / n), "%s", tensors[t].name);
        cr_assert_lt(same, 5, "%s", tensors[t].name);
    }
    free(params);
    free(other);
    gk_model_free(model);
}

Test(model_table, errors)
{
    static const struct {
        const char *name;
        uint32_t features, classes, batch;
        enum gk_err err;
        const char *words;
    } cases[] = {
        {"fnn4", 4, 2, 1, GK_E_NOTFOUND,
         "no model \"fnn4\"; choose charlstm|fnn3|lenet5|resnet20|softmax|vgg16"},
        {"", 4, 2, 1, GK_E_NOTFOUND, "choose charlstm|fnn3|lenet5|resnet20|softmax|vgg16"},
        {"fnn3", 0, 2, 1, GK_E_INVALID, "features"},
        {"fnn3", 4, 0, 1, GK_E_INVALID, "classes"},
        {"softmax", 4, 2, 0, GK_E_INVALID, "batch"},
        {"softmax", UINT32_C(1) << 31, 2, 1, GK_E_LIMIT, "features = 2147483648"},
        {"softmax", 4, UINT32_MAX, 1, GK_E_LIMIT, "classes = 4294967295"},
        {"softmax", 4, 2, UINT32_MAX, GK_E_LIMIT, "batch = 4294967295"},
        {"fnn3", UINT32_C(1) << 30, 10, 1, GK_E_LIMIT, "17179869184 is the most"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct gk_model_setup setup = {.layers = gk_layers_cpu(),
                                             .features = cases[i].features,
                                             .classes = cases[i].classes,
                                             .batch_max = cases[i].batch};
        struct gk_model *model = NULL;
        struct gk_words words = {""};
        enum gk_err err = gk_model_new(cases[i].name, &setup, &model, &words);

        cr_assert_eq(err, cases[i].err, "case %zu: %s", i, gk_err_name(err));
        cr_assert(strstr(words.text, cases[i].words), "case %zu: %s", i, words.text);
        cr_assert_null(model);
        cr_assert_eq(gk_model_new(cases[i].name, &setup, &model, NULL), cases[i].err);
    }
    gk_model_free(NULL);
}
