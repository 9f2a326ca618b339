/* Goal: models, data and batches together train.  Method: momentum SGD in one process on the
 * built-in digits, 500 steps of 128 images: fnn3 gets 95 % of the test images right (96 to 97 % for
 * several seeds), softmax 90 % (95 %). */
#include "worker/data/data.h"
#include "worker/model/model.h"

#include <criterion/criterion.h>

#include <stdlib.h>

enum { BATCH = 128, STEPS = 500 };

static double accuracy(struct gk_model *model, const struct gk_dataset *dataset,
                       const float *params)
{
    uint64_t right = 0;

    for (uint32_t at = 0; at < dataset->test_count; at += BATCH) {
        uint32_t left = dataset->test_count - at;
        const struct gk_batch batch = {.x = dataset->test + (size_t)at * dataset->features,
                                       .labels = dataset->test_labels + at,
                                       .count = left < BATCH ? left : BATCH};
        struct gk_score score;

        gk_model_evaluate(model, params, &batch, &score);
        right += score.hits;
    }
    return (double)right / dataset->test_count;
}

static double train(const char *name, const struct gk_dataset *dataset)
{
    const struct gk_model_setup setup = {.layers = gk_layers_cpu(),
                                         .features = dataset->features,
                                         .classes = dataset->classes,
                                         .batch_max = BATCH};
    struct gk_model *model = NULL;
    struct gk_batcher batcher;
    float *params, *grad, *velocity, *x = calloc((size_t)BATCH * dataset->features, sizeof(*x));
    uint32_t samples[BATCH], labels[BATCH], count;
    double result;
    uint64_t d;

    cr_assert_eq(gk_model_new(name, &setup, &model, NULL), GK_OK);
    cr_assert_eq(gk_batcher_init(&batcher, dataset, 1, 0, 1, BATCH), GK_OK);
    (void)gk_model_tensors(model, &count, &d);
    params = calloc(d, sizeof(*params));
    grad = calloc(d, sizeof(*grad));
    velocity = calloc(d, sizeof(*velocity));
    gk_model_init(model, 1, params);
    cr_assert_lt(accuracy(model, dataset, params), 0.4);
    for (uint64_t step = 0; step < STEPS; step++) {
        struct gk_score score;

        gk_batcher_at(&batcher, step, samples);
        gk_dataset_gather(dataset, samples, BATCH, x, labels);
        gk_model_gradient(model, params,
                          &(struct gk_batch){.x = x, .labels = labels, .count = BATCH}, grad,
                          &score);
        for (uint64_t i = 0; i < d; i++) {
            velocity[i] = 0.9f * velocity[i] + grad[i] / BATCH;
            params[i] -= 0.1f * velocity[i];
        }
    }
    result = accuracy(model, dataset, params);
    gk_batcher_fini(&batcher);
    gk_model_free(model);
    free(params);
    free(grad);
    free(velocity);
    free(x);
    return result;
}

Test(model_training, digits)
{
    struct gk_dataset *dataset = NULL;
    double fnn3, softmax;

    cr_assert_eq(gk_dataset_open("digits", &dataset, NULL), GK_OK);
    fnn3 = train("fnn3", dataset);
    softmax = train("softmax", dataset);
    cr_log_info("test accuracy after %d steps: fnn3 %.4f, softmax %.4f", STEPS, fnn3, softmax);
    cr_assert_geq(fnn3, 0.95, "fnn3: %.4f", fnn3);
    cr_assert_geq(softmax, 0.90, "softmax: %.4f", softmax);
    gk_dataset_free(dataset);
}
