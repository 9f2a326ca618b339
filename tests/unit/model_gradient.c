/* Goal: loss, hits and gradients of both models are right for every batch size up to the largest.
 * Method: a second forward pass in double, written here with plain loops; its central differences
 * (step 1e-5) in 40 coordinates of each tensor against the gradient in float (tolerance 2e-5 of the
 * tensor's largest entry).  The zeros of a ReLU do not disturb that: with random inputs none lies
 * within 1e-5.  Sums over batches: the gradient of a batch against the sum over its samples, each
 * alone (tolerance 1e-5 of the largest entry). */
#include "worker/model/model.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 12, CLASSES = 5, BATCH_MAX = 9, WIDTH_MAX = 200, TRIES = 40 };

struct rig {
    struct gk_model *model;
    const struct gk_tensor *tensors;
    uint32_t tensors_count;
    uint64_t d;
    float *params, *grad;
    float x[BATCH_MAX * FEATURES];
    uint32_t labels[BATCH_MAX];
};

static const char *const names[] = {"softmax", "fnn3"};

static uint32_t draw(uint32_t *state)
{
    *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
    return *state >> 8;
}

static void set_up(struct rig *rig, const char *name)
{
    const struct gk_model_setup setup = {.layers = gk_layers_cpu(),
                                         .features = FEATURES,
                                         .classes = CLASSES,
                                         .batch_max = BATCH_MAX};
    struct gk_words words = {""};
    uint32_t state = 3;

    cr_assert_eq(gk_model_new(name, &setup, &rig->model, &words), GK_OK, "%s", words.text);
    rig->tensors = gk_model_tensors(rig->model, &rig->tensors_count, &rig->d);
    rig->params = calloc(rig->d, sizeof(float));
    rig->grad = calloc(rig->d, sizeof(float));
    gk_model_init(rig->model, 17, rig->params);
    for (int i = 0; i < BATCH_MAX * FEATURES; i++) {
        rig->x[i] = (float)draw(&state) * 0x1p-23f - 1.0f;
    }
    for (int i = 0; i < BATCH_MAX; i++) {
        rig->labels[i] = draw(&state) % CLASSES;
    }
}

static void tear_down(struct rig *rig)
{
    gk_model_free(rig->model);
    free(rig->params);
    free(rig->grad);
}

/* One layer: outputs of `tensors[0]` (weight) and `tensors[1]` (bias), one parameter moved by
 * `moved`. */
static uint32_t plain_layer(const struct rig *rig, uint32_t layer, const double *input,
                            double *output, uint64_t at, double moved)
{
    const struct gk_tensor *weight = &rig->tensors[2 * layer];
    const struct gk_tensor *bias = &rig->tensors[2 * layer + 1];

    for (uint32_t o = 0; o < weight->dims[0]; o++) {
        double sum = (double)rig->params[bias->offset + o] + (bias->offset + o == at ? moved : 0.0);

        for (uint32_t i = 0; i < weight->dims[1]; i++) {
            uint64_t index = weight->offset + (uint64_t)o * weight->dims[1] + i;

            sum += ((double)rig->params[index] + (index == at ? moved : 0.0)) * input[i];
        }
        output[o] = sum;
    }
    return weight->dims[0];
}

static double plain_loss(const struct rig *rig, uint32_t count, uint64_t at, double moved)
{
    double total = 0.0;

    for (uint32_t s = 0; s < count; s++) {
        double planes[2][WIDTH_MAX];
        double *y = planes[0];
        double sum = 0.0;
        uint32_t layers_count = rig->tensors_count / 2;

        for (uint32_t i = 0; i < FEATURES; i++) {
            planes[1][i] = rig->x[s * FEATURES + i];
        }
        for (uint32_t l = 0; l < layers_count; l++) {
            uint32_t outputs;

            y = planes[l % 2];
            outputs = plain_layer(rig, l, planes[(l + 1) % 2], y, at, moved);
            for (uint32_t o = 0; o < outputs && l + 1 < layers_count; o++) {
                y[o] = y[o] > 0.0 ? y[o] : 0.0;
            }
        }
        for (int c = 0; c < CLASSES; c++) {
            sum += exp(y[c]);
        }
        total += log(sum) - y[rig->labels[s]];
    }
    return total;
}

static double largest(const float *x, uint64_t count)
{
    double most = 0.0;

    for (uint64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(x[i]));
    }
    return most;
}

static void check_tensor(const struct rig *rig, const struct gk_tensor *tensor, uint32_t count)
{
    const double step = 1e-5;
    double scale = largest(rig->grad + tensor->offset, tensor->count);
    uint32_t state = 99;

    cr_assert_gt(scale, 1e-4, "%s: nothing to compare", tensor->name);
    for (int i = 0; i < TRIES; i++) {
        uint64_t at = tensor->offset + draw(&state) % tensor->count;
        double slope =
            (plain_loss(rig, count, at, step) - plain_loss(rig, count, at, -step)) / (2 * step);

        cr_assert(fabs(rig->grad[at] - slope) <= 2e-5 * scale, "%s[%u]: %.9g, by differences %.9g",
                  tensor->name, (unsigned)(at - tensor->offset), rig->grad[at], slope);
    }
}

Test(model_gradient, central_differences)
{
    for (int m = 0; m < 2; m++) {
        struct rig rig;
        struct gk_score score;

        set_up(&rig, names[m]);
        gk_model_gradient(rig.model, rig.params,
                          &(struct gk_batch){.x = rig.x, .labels = rig.labels, .count = 4},
                          rig.grad, &score);
        cr_assert_float_eq(score.loss, plain_loss(&rig, 4, rig.d, 0.0), 1e-6 * score.loss);
        for (uint32_t i = 0; i < rig.tensors_count; i++) {
            check_tensor(&rig, &rig.tensors[i], 4);
        }
        tear_down(&rig);
    }
}

/* The gradient is written, not added to, whatever was there and whatever batch came before. */
Test(model_gradient, every_count_is_the_sum_of_its_samples)
{
    for (int m = 0; m < 2; m++) {
        struct rig rig;
        double *sums;

        set_up(&rig, names[m]);
        sums = calloc(rig.d, sizeof(*sums));
        for (uint32_t count = 1; count <= BATCH_MAX; count++) {
            struct gk_score score, sum = {.loss = 0.0};
            double scale;

            memset(sums, 0, rig.d * sizeof(*sums));
            for (uint32_t s = 0; s < count; s++) {
                memset(rig.grad, 0xff, rig.d * sizeof(float)); /* NaN */
                gk_model_gradient(rig.model, rig.params,
                                  &(struct gk_batch){.x = rig.x + s * FEATURES,
                                                     .labels = rig.labels + s,
                                                     .count = 1},
                                  rig.grad, &score);
                cr_assert_leq(score.hits, 1);
                sum.loss += score.loss;
                sum.hits += score.hits;
                for (uint64_t i = 0; i < rig.d; i++) {
                    sums[i] += rig.grad[i];
                }
            }
            memset(rig.grad, 0xff, rig.d * sizeof(float));
            gk_model_gradient(rig.model, rig.params,
                              &(struct gk_batch){.x = rig.x, .labels = rig.labels, .count = count},
                              rig.grad, &score);
            cr_assert_eq(score.hits, sum.hits, "%s, %u samples", names[m], count);
            cr_assert_float_eq(score.loss, sum.loss, 1e-5);
            scale = largest(rig.grad, rig.d);
            for (uint64_t i = 0; i < rig.d; i++) {
                cr_assert(fabs(rig.grad[i] - sums[i]) <= 1e-5 * scale,
                          "%s, %u samples, [%u]: %g %g", names[m], count, (unsigned)i, rig.grad[i],
                          sums[i]);
            }
        }
        free(sums);
        tear_down(&rig);
    }
}

Test(model_gradient, repeats_and_evaluates_bit_for_bit)
{
    for (int m = 0; m < 2; m++) {
        struct rig rig;
        struct gk_batch batch;
        struct gk_score score[3];
        float *first;

        set_up(&rig, names[m]);
        first = calloc(rig.d, sizeof(*first));
        batch = (struct gk_batch){.x = rig.x, .labels = rig.labels, .count = BATCH_MAX};
        gk_model_gradient(rig.model, rig.params, &batch, first, &score[0]);
        gk_model_evaluate(rig.model, rig.params, &batch, &score[1]);
        gk_model_gradient(rig.model, rig.params, &batch, rig.grad, &score[2]);
        cr_assert_eq(memcmp(first, rig.grad, rig.d * sizeof(*first)), 0);
        cr_assert(score[0].loss == score[1].loss && score[1].loss == score[2].loss &&
                  score[0].hits == score[1].hits && score[1].hits == score[2].hits);
        free(first);
        tear_down(&rig);
    }
}

/* The first class at weights and biases of 0 but one: the answer is known for every sample. */
Test(model_gradient, hits)
{
    struct rig rig;
    struct gk_score score;
    uint64_t expected = 0;

    set_up(&rig, "softmax");
    memset(rig.params, 0, rig.d * sizeof(float));
    rig.params[rig.tensors[1].offset + 2] = 1.0f;
    for (int i = 0; i < BATCH_MAX; i++) {
        expected += rig.labels[i] == 2;
    }
    gk_model_evaluate(rig.model, rig.params,
                      &(struct gk_batch){.x = rig.x, .labels = rig.labels, .count = BATCH_MAX},
                      &score);
    cr_assert_eq(score.hits, expected);
    cr_assert_float_eq(score.loss, BATCH_MAX * log(CLASSES - 1 + exp(1.0)) - (double)expected,
                       1e-5);
    tear_down(&rig);
}

Test(model_gradient, not_finite_is_seen)
{
    for (int m = 0; m < 2; m++) {
        struct rig rig;
        struct gk_score score;

        set_up(&rig, names[m]);
        rig.params[0] = NAN;
        gk_model_gradient(rig.model, rig.params,
                          &(struct gk_batch){.x = rig.x, .labels = rig.labels, .count = BATCH_MAX},
                          rig.grad, &score);
        cr_assert(isnan(score.loss));
        cr_assert_eq(score.hits, 0);
        tear_down(&rig);
    }
}
