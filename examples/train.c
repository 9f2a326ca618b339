/* A worker in C over libgkps: many processes find the weights of a linear function from noisy
 * samples.
 *
 *     cc -o train examples/train.c $(pkg-config --cflags --libs gkps) -lm
 *     gkps run --servers 2 --workers 4 -- ./train
 *
 * The gradient is computed by hand, so that all the rest is what a program of one's own needs. */
#include <gkps.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WEIGHTS = 1000, BATCH = 32, STEPS = 300 };

static float weights[WEIGHTS], bias;
static float weights_gradient[WEIGHTS], bias_gradient;

/* What a batch is made from: survives together with the step, so that a process that is started
 * again goes on with the right one. */
static uint64_t generator;

static float draw(void)
{
    generator = generator * 6364136223846793005u + 1442695040888963407u;
    return (float)(generator >> 40) / (float)(1 << 23) - 1;
}

/* The function to be found. */
static float truth(size_t i)
{
    return (float)sin((double)i);
}

/* Mean gradient of a batch of samples; its mean loss. */
static double compute_gradient(void)
{
    static float x[WEIGHTS];
    double loss = 0;

    for (size_t i = 0; i < WEIGHTS; i++) {
        weights_gradient[i] = 0;
    }
    bias_gradient = 0;
    for (int sample = 0; sample < BATCH; sample++) {
        float error = bias - 0.5f - 0.1f * draw();

        for (size_t i = 0; i < WEIGHTS; i++) {
            x[i] = draw();
            error += (weights[i] - truth(i)) * x[i];
        }
        for (size_t i = 0; i < WEIGHTS; i++) {
            weights_gradient[i] += error * x[i] / BATCH;
        }
        bias_gradient += error / BATCH;
        loss += 0.5 * error * error / BATCH;
    }
    return loss;
}

static int train(struct gkps *gkps)
{
    const uint64_t dims[] = {WEIGHTS};
    const struct gkps_tensor tensors[] = {
        {.size = sizeof(tensors[0]),
         .name = "weights",
         .dims = dims,
         .dims_count = 1,
         .params = weights,
         .gradient = weights_gradient},
        {.size = sizeof(tensors[0]),
         .name = "bias",
         .flags = GKPS_NO_DECAY | GKPS_DENSE,
         .params = &bias,
         .gradient = &bias_gradient},
    };
    struct gkps_start start = {.size = sizeof(start)};
    struct gkps_step step = {.size = sizeof(step), .flags = GKPS_LOSS, .samples = BATCH};

    if (gkps_tensors(gkps, tensors, 2) || gkps_aux(gkps, &generator, sizeof(generator)) ||
        gkps_start(gkps, &start) || start.left) {
        return start.left ? 0 : 1;
    }
    if (!start.resumed) {
        generator = 1 + start.rank;
    }
    for (step.version = start.step; step.version < STEPS && !step.finished;) {
        step.loss = compute_gradient();
        if (gkps_step(gkps, &step)) {
            return 1;
        }
    }
    return gkps_report(gkps, NAN, compute_gradient()) || gkps_leave(gkps, 0);
}

int main(void)
{
    const struct gkps_setting settings[] = {
        {.key = "density", .value = "0.05"},
        {.key = "optimizer", .value = "momentum"},
        {.key = "lr", .value = "0.02"},
    };
    const struct gkps_config config = {
        .size = sizeof(config), .settings = settings, .settings_count = 3, .arithmetic = "C"};
    struct gkps *gkps;
    int exit_code = 0;

    if (gkps_open(&config, &gkps) || train(gkps)) {
        fprintf(stderr, "train: %s\n", gkps_error(gkps, &exit_code));
    }
    gkps_close(gkps);
    return exit_code;
}
