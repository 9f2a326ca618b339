/* What a training step of the built-in models costs on this device beside its products of matrices:
 * one line a measurement, as columns for check.sh.
 *
 * A step is gk_model_gradient() on made-up images of CIFAR-10's size: the samples go to the device,
 * forward, loss, backward, and the score comes back.  The products of that same step, noted in a
 * first one and started again one after the other on the same arrays, are the floor that it is a
 * ratio to: what cuBLAS takes, and nothing else.  Medians of several runs.  Then where a step's
 * time goes, by slot of the layer table: there each call is waited for, so that it adds up to more
 * than the step.
 *
 * usage: gpu_models SAMPLES RUNS MODEL... */
#include "common/backend.h"
#include "common/bits.h"
#include "common/words.h"
#include "cuda/backend.h"
#include "worker/model/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 32, CHANNELS = 3, FEATURES = SIDE * SIDE * CHANNELS, CLASSES = 10 };
enum { PRODUCTS_MAX = 4096, RUNS_MAX = 99, SAMPLES_MAX = 4096 };

static const struct gk_vector_ops *ops;
static const struct gk_layer_ops *layers;
static struct gk_layer_ops table; /* the models': layers, or what notes */
static struct gk_queue *queue;

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "gpu_models: %s\n", what);
        exit(1);
    }
}

/* What the step asked of gemm, in order. */
static struct gk_gemm_args products[PRODUCTS_MAX];
static unsigned products_count;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* All that was started. */
static void finish(const float *there)
{
    float here;

    must(ops->wait(queue, ops->copy(queue, &here, there, sizeof(here))) == GK_OK, "a slot failed");
}

/* ---- A table that notes ---- */

/* X(slot, what it takes, that handed on) */
#define SLOTS(X)                                                                                   \
    X(copy, (struct gk_queue * q, float *y, const float *x, uint64_t n), (q, y, x, n))             \
    X(fill, (struct gk_queue * q, float *y, float x, uint64_t n), (q, y, x, n))                    \
    X(transpose, (struct gk_queue * q, float *y, const float *x, const uint64_t n[3]),             \
      (q, y, x, n))                                                                                \
    X(bias_forward, (struct gk_queue * q, const struct gk_bias_args *a), (q, a))                   \
    X(activation_backward,                                                                         \
      (struct gk_queue * q, float *dx, const float *y, uint64_t n, enum gk_activation a),          \
      (q, dx, y, n, a))                                                                            \
    X(column_sums, (struct gk_queue * q, const float *x, uint64_t r, uint64_t c, float *y),        \
      (q, x, r, c, y))                                                                             \
    X(softmax_cross_entropy, (struct gk_queue * q, const struct gk_softmax_args *a), (q, a))       \
    X(im2col, (struct gk_queue * q, const struct gk_layer_window *w, const float *x, float *y),    \
      (q, w, x, y))                                                                                \
    X(col2im, (struct gk_queue * q, const struct gk_layer_window *w, const float *x, float *y),    \
      (q, w, x, y))                                                                                \
    X(max_pool_forward,                                                                            \
      (struct gk_queue * q, const struct gk_layer_window *w, const float *x, float *y,             \
       uint32_t *i),                                                                               \
      (q, w, x, y, i))                                                                             \
    X(max_pool_backward,                                                                           \
      (struct gk_queue * q, const struct gk_layer_window *w, const float *x, const uint32_t *i,    \
       float *y),                                                                                  \
      (q, w, x, i, y))                                                                             \
    X(average_pool_forward,                                                                        \
      (struct gk_queue * q, const struct gk_layer_window *w, const float *x, float *y),            \
      (q, w, x, y))                                                                                \
    X(average_pool_backward,                                                                       \
      (struct gk_queue * q, const struct gk_layer_window *w, const float *x, float *y),            \
      (q, w, x, y))                                                                                \
    X(norm_forward, (struct gk_queue * q, const struct gk_norm_args *a), (q, a))                   \
    X(norm_backward, (struct gk_queue * q, const struct gk_norm_gradient_args *a), (q, a))         \
    X(residual_forward, (struct gk_queue * q, const struct gk_residual_args *a), (q, a))           \
    X(residual_backward, (struct gk_queue * q, const struct gk_residual_gradient_args *a), (q, a))

enum slot {
#define X(name, parameters, arguments) SLOT_##name,
    SLOTS(X)
#undef X
        SLOT_gemm,
    SLOTS_COUNT
};

static const char *const slot_names[SLOTS_COUNT] = {
#define X(name, parameters, arguments) #name,
    SLOTS(X)
#undef X
        "gemm"};

struct share {
    enum slot slot;
    unsigned calls;
    double us;
};

static struct share shares[SLOTS_COUNT];
static const float *waited_for; /* any array on the device */

static void note(enum slot slot, double begin)
{
    finish(waited_for);
    shares[slot].us += now_us() - begin;
    shares[slot].calls++;
}

#define X(name, parameters, arguments)                                                             \
    static void noting_##name parameters                                                           \
    {                                                                                              \
        const double begin = now_us();                                                             \
                                                                                                   \
        layers->name arguments;                                                                    \
        note(SLOT_##name, begin);                                                                  \
    }
SLOTS(X)
#undef X

static void noting_gemm(struct gk_queue *q, const struct gk_gemm_args *a)
{
    const double begin = now_us();

    must(products_count < PRODUCTS_MAX, "more products than there is room for");
    products[products_count++] = *a;
    layers->gemm(q, a);
    note(SLOT_gemm, begin);
}

static void take_notes(const float *there)
{
    for (int i = 0; i < SLOTS_COUNT; i++) {
        shares[i] = (struct share){.slot = (enum slot)i};
    }
    products_count = 0;
    waited_for = there;
#define X(name, parameters, arguments) table.name = noting_##name;
    SLOTS(X)
#undef X
    table.gemm = noting_gemm;
}

/* ---- Steps ---- */

static int compare(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

struct step {
    struct gk_model *model;
    struct gk_batch batch;
    float *params, *grad; /* on the device */
};

static void run_step(const struct step *step)
{
    struct gk_score score;

    must(gk_model_gradient(step->model, step->params, &step->batch, step->grad, &score) == GK_OK,
         "the gradient failed"); /* it has waited for the score */
    must(isfinite(score.loss) && score.loss > 0.0, "the loss is not one");
}

static void run_products(const struct step *step)
{
    for (unsigned i = 0; i < products_count; i++) {
        layers->gemm(queue, &products[i]);
    }
    finish(step->grad);
}

static double median_us(void (*work)(const struct step *step), const struct step *step,
                        unsigned runs)
{
    double times[RUNS_MAX];

    for (unsigned run = 0; run < runs; run++) {
        const double begin = now_us();

        work(step);
        times[run] = now_us() - begin;
    }
    qsort(times, runs, sizeof(times[0]), compare);
    return times[runs / 2];
}

static double operations(void)
{
    double sum = 0;

    for (unsigned i = 0; i < products_count; i++) {
        sum += 2.0 * (double)products[i].m * (double)products[i].n * (double)products[i].k;
    }
    return sum;
}

static int compare_shares(const void *a, const void *b)
{
    const struct share *x = a;
    const struct share *y = b;

    return (x->us < y->us) - (x->us > y->us);
}

static void print_shares(void)
{
    qsort(shares, SLOTS_COUNT, sizeof(shares[0]), compare_shares);
    for (int i = 0; i < SLOTS_COUNT && shares[i].calls > 0; i++) {
        printf("  %-26s %6u calls   %12.1f us\n", slot_names[shares[i].slot], shares[i].calls,
               shares[i].us);
    }
}

static void measure(const char *name, const struct step *step, uint32_t samples, unsigned runs)
{
    double products_us, step_us;
    char what[64];

    for (int i = 0; i < (runs > 1 ? 2 : 1); i++) { /* the first finds cold clocks and caches */
        take_notes(step->grad);
        run_step(step);
    }
    table = *layers;
    if (runs > 1) {
        run_step(step);
        run_products(step);
    }
    products_us = median_us(run_products, step, runs);
    step_us = median_us(run_step, step, runs);
    (void)snprintf(what, sizeof(what), "%u products of %s", products_count, name);
    printf("%-28s %-14" PRIu32 " %12.1f us %8.2fx %8.2f Tflop/s\n", what, samples, products_us, 1.0,
           operations() / products_us * 1e-6);
    (void)snprintf(what, sizeof(what), "gradient of %s", name);
    printf("%-28s %-14" PRIu32 " %12.1f us %8.2fx %+10.1f us\n", what, samples, step_us,
           step_us / products_us, step_us - products_us);
    print_shares();
    fflush(stdout);
}

/* Uniform in [-1, 1), and labels; the same every time. */
static void make_up(float *x, uint32_t *labels, uint32_t samples)
{
    for (uint64_t i = 0; i < (uint64_t)samples * FEATURES; i++) {
        x[i] = (float)(gk_mix64(i + 1) >> 40) * 0x1p-23f - 1.0f;
    }
    for (uint32_t i = 0; i < samples; i++) {
        labels[i] = i % CLASSES;
    }
}

static void model(const char *name, const float *x, const uint32_t *labels, uint32_t samples,
                  unsigned runs)
{
    const struct gk_model_setup setup = {.layers = &table,
                                         .features = FEATURES,
                                         .classes = CLASSES,
                                         .batch_max = samples,
                                         .rows = SIDE,
                                         .columns = SIDE,
                                         .channels = CHANNELS,
                                         .ops = ops,
                                         .queue = queue};
    struct step step = {.batch = {.x = x, .labels = labels, .count = samples}};
    struct gk_words words = {""};
    uint32_t tensors_count;
    uint64_t params_count;
    float *initial;

    must(gk_model_new(name, &setup, &step.model, &words) == GK_OK, words.text);
    (void)gk_model_tensors(step.model, &tensors_count, &params_count);
    step.params = ops->alloc(queue, GK_MEMORY_DEVICE, params_count * sizeof(float));
    step.grad = ops->alloc(queue, GK_MEMORY_DEVICE, params_count * sizeof(float));
    initial = malloc(params_count * sizeof(float));
    must(step.params && step.grad && initial, "no memory");
    gk_model_init(step.model, 1, initial);
    must(ops->wait(queue, ops->copy(queue, step.params, initial, params_count * sizeof(float))) ==
             GK_OK,
         "a copy failed");
    measure(name, &step, samples, runs);
    free(initial);
    ops->free(queue, GK_MEMORY_DEVICE, step.params);
    ops->free(queue, GK_MEMORY_DEVICE, step.grad);
    gk_model_free(step.model);
}

int main(int argc, char **argv)
{
    const int samples = argc > 3 ? atoi(argv[1]) : 0;
    const int runs = argc > 3 ? atoi(argv[2]) : 0;
    struct gk_words words = {""};
    uint32_t *labels;
    float *x;

    if (samples < 1 || samples > SAMPLES_MAX || runs < 1 || runs > RUNS_MAX) {
        fprintf(stderr, "usage: gpu_models SAMPLES RUNS MODEL...        1 to %d, 1 to %d\n",
                SAMPLES_MAX, RUNS_MAX);
        return 2;
    }
    ops = gk_vector_cuda(&words);
    layers = ops ? gk_layers_cuda(&words) : NULL;
    if (!layers || ops->open(&queue, &words) != GK_OK) {
        fprintf(stderr, "gpu_models: %s\n", words.text);
        return 1;
    }
    table = *layers;
    x = malloc((size_t)samples * FEATURES * sizeof(*x));
    labels = malloc((size_t)samples * sizeof(*labels));
    must(x && labels, "no memory");
    make_up(x, labels, (uint32_t)samples);
    printf("%s\n", layers->fingerprint());
    printf("%-28s %-14s %15s %9s %13s\n", "what", "samples", "median", "ratio", "beyond it");
    for (int i = 3; i < argc; i++) {
        model(argv[i], x, labels, (uint32_t)samples, (unsigned)runs);
    }
    printf("%d models, %d samples a step\n", argc - 3, samples);
    free(labels);
    free(x);
    ops->close(queue);
    return 0;
}
