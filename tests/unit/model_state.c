/* Goal: the built-in models have the tensors they are known by, repeat bit for bit, take no more
 * memory than their plan, and keep in gk_model_aux() all that must survive a restart.  Method:
 * the numbers of parameters that the literature states; two models side by side, one of which is
 * thrown away and made anew at every step with only the parameters and the state copied; a text in
 * one piece against the same text in two.
 */
#include "worker/model/model.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 7, SEQUENCE = 5, BATCH = 3, FEATURES = 32 * 32 * 3 };

static const struct gk_model_setup images = {.features = FEATURES,
                                             .classes = 10,
                                             .batch_max = BATCH,
                                             .rows = 32,
                                             .columns = 32,
                                             .channels = 3};
static const struct gk_model_setup text = {
    .classes = CLASSES, .batch_max = BATCH + 1, .sequence = SEQUENCE, .streams = BATCH};

static struct gk_model *new_model(const char *name, const struct gk_model_setup *setup)
{
    struct gk_model_setup copy = *setup;
    struct gk_model *model = NULL;
    struct gk_words words = {""};

    copy.layers = gk_layers_cpu();
    cr_assert_eq(gk_model_new(name, &copy, &model, &words), GK_OK, "%s", words.text);
    return model;
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
    return *state >> 8;
}

struct data {
    float x[BATCH * FEATURES];
    uint32_t labels[BATCH * SEQUENCE], tokens[BATCH * SEQUENCE];
};

static struct gk_batch fill(struct data *data, const struct gk_model_setup *setup, uint32_t seed)
{
    for (int i = 0; i < BATCH * FEATURES; i++) {
        data->x[i] = (float)draw(&seed) * 0x1p-23f - 1.0f;
    }
    for (int i = 0; i < BATCH * SEQUENCE; i++) {
        data->labels[i] = draw(&seed) % setup->classes;
        data->tokens[i] = draw(&seed) % setup->classes;
    }
    return (struct gk_batch){
        .x = data->x, .labels = data->labels, .count = BATCH, .tokens = data->tokens};
}

Test(model_state, tensors)
{
    static const struct {
        const char *name;
        uint32_t side, channels, tensors;
        uint64_t params;
        const char *names[3]; /* one of the first, in the middle, the last */
    } cases[] = {
        {"lenet5", 28, 1, 10, 61706, {"conv1.weight", "conv2.bias", "fc3.bias"}},
        {"lenet5", 32, 1, 10, 61706, {"conv1.weight", "fc1.weight", "fc3.bias"}},
        {"lenet5", 8, 1, 10, 61706, {"conv1.bias", "fc2.weight", "fc3.bias"}},
        {"resnet20", 32, 3, 59, 269722, {"conv1.weight", "layer2.0.bn1.weight", "fc.bias"}},
        {"resnet20",
         28,
         1,
         59,
         269722 - 2 * 9 * 16,
         {"bn1.bias", "layer3.2.conv2.weight", "fc.bias"}},
        {"vgg16",
         32,
         3,
         54,
         14728266,
         {"features.0.weight", "features.1.weight", "classifier.bias"}},
        {"vgg16",
         32,
         3,
         54,
         14728266,
         {"features.40.weight", "features.41.bias", "classifier.bias"}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct gk_model_setup setup = {.features =
                                                 cases[i].side * cases[i].side * cases[i].channels,
                                             .classes = 10,
                                             .batch_max = 1,
                                             .rows = cases[i].side,
                                             .columns = cases[i].side,
                                             .channels = cases[i].channels};
        struct gk_model *model = new_model(cases[i].name, &setup);
        uint64_t params, offset = 0;
        uint32_t count;
        const struct gk_tensor *tensors = gk_model_tensors(model, &count, &params);
        int found = 0;

        cr_assert(count == cases[i].tensors && params == cases[i].params, "%s: %u tensors, %u",
                  cases[i].name, count, (unsigned)params);
        for (uint32_t t = 0; t < count; t++) {
            uint64_t product = 1;

            for (uint32_t j = 0; j < tensors[t].dims_count; j++) {
                product *= tensors[t].dims[j];
            }
            cr_assert(tensors[t].offset == offset && tensors[t].count == product);
            cr_assert_eq(tensors[t].flags, tensors[t].dims_count == 1 ? GK_TENSOR_NO_DECAY : 0);
            offset += product;
            found += found < 3 && !strcmp(tensors[t].name, cases[i].names[found]);
            for (uint32_t u = 0; u < t; u++) {
                cr_assert_str_neq(tensors[u].name, tensors[t].name);
            }
        }
        cr_assert(offset == params && found == 3, "%s: %d names", cases[i].name, found);
        cr_assert_str_eq(tensors[count - 1].name, cases[i].names[2]);
        gk_model_free(model);
    }
}

Test(model_state, tensors_of_text)
{
    static const char *const names[] = {
        "embedding.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0",
        "lstm.bias_ih_l0",  "lstm.bias_hh_l0",   "fc.weight",
        "fc.bias"};
    struct gk_model *model = new_model("charlstm", &text);
    uint64_t params, aux;
    uint32_t count;
    const struct gk_tensor *tensors = gk_model_tensors(model, &count, &params);
    uint64_t units = tensors[2].dims[1], width = tensors[0].dims[1];

    cr_assert_eq(count, 7);
    for (uint32_t t = 0; t < count; t++) {
        cr_assert_str_eq(tensors[t].name, names[t]);
    }
    cr_assert_eq(params,
                 CLASSES * width + 4 * units * (width + units + 2) + CLASSES * units + CLASSES);
    (void)gk_model_aux(model, &aux);
    cr_assert_eq(aux, 2 * BATCH * units);
    gk_model_free(model);
}

/* What a tensor begins with: its largest magnitude and its mean, as its model says. */
Test(model_state, beginnings)
{
    static const struct {
        const char *model, *tensor;
        double bound, mean;
    } cases[] = {
        {"lenet5", "conv1.weight", 0.11547, 0},            /* 1 / sqrt(75) */
        {"lenet5", "fc1.bias", 0.05, 0},                   /* 1 / sqrt(400) */
        {"resnet20", "layer3.1.conv1.weight", 0.10206, 0}, /* sqrt(6 / 576) */
        {"resnet20", "layer1.0.bn2.weight", 1, 1},
        {"resnet20", "layer1.0.bn2.bias", 0, 0},
        {"resnet20", "fc.weight", 0.125, 0},
        {"resnet20", "fc.bias", 0, 0},
        {"charlstm", "embedding.weight", 0.1, 0},
        {"charlstm", "lstm.bias_hh_l0", 0.1, 0},
        {"charlstm", "fc.weight", 0.1, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool is_text = !strcmp(cases[i].model, "charlstm");
        struct gk_model *model = new_model(cases[i].model, is_text ? &text : &images);
        uint64_t d;
        uint32_t count;
        const struct gk_tensor *tensor = gk_model_tensors(model, &count, &d);
        float *params = calloc(d, sizeof(*params));
        double most = 0.0, sum = 0.0, n;

        gk_model_init(model, 5, params);
        while (strcmp(tensor->name, cases[i].tensor)) {
            tensor++;
        }
        n = (double)tensor->count;
        for (uint64_t j = 0; j < tensor->count; j++) {
            most = fmax(most, fabs(params[tensor->offset + j]));
            sum += params[tensor->offset + j];
        }
        cr_assert(most <= cases[i].bound * (1 + 1e-5) && most >= 0.9 * cases[i].bound,
                  "case %zu: %g", i, most);
        cr_assert(fabs(sum / n - cases[i].mean) <= 5 * cases[i].bound / sqrt(3 * n), "case %zu: %g",
                  i, sum / n);
        free(params);
        gk_model_free(model);
    }
}

/* Three steps of plain descent: in one life, and in three. */
static void check_restarts(const char *name, const struct gk_model_setup *setup)
{
    struct gk_model *whole = new_model(name, setup), *parts = new_model(name, setup);
    uint64_t d, aux_count, other_count;
    uint32_t count;
    float *params[2], *grad[2], *aux;
    struct data *data = calloc(1, sizeof(*data));
    struct gk_score score[2];

    (void)gk_model_tensors(whole, &count, &d);
    (void)gk_model_aux(whole, &aux_count);
    cr_assert_gt(aux_count, 0);
    aux = calloc(aux_count, sizeof(*aux));
    memcpy(aux, gk_model_aux(parts, &other_count), aux_count * sizeof(*aux));
    for (int i = 0; i < 2; i++) {
        params[i] = calloc(d, sizeof(float));
        grad[i] = calloc(d, sizeof(float));
        gk_model_init(whole, 3, params[i]);
    }
    for (uint32_t step = 0; step < 3; step++) {
        struct gk_batch batch = fill(data, setup, step);

        batch.fresh = setup->sequence && step == 0;
        cr_assert_eq(gk_model_gradient(whole, params[0], &batch, grad[0], &score[0]), GK_OK);
        memcpy(gk_model_aux(parts, &other_count), aux, aux_count * sizeof(*aux));
        cr_assert_eq(gk_model_gradient(parts, params[1], &batch, grad[1], &score[1]), GK_OK);
        cr_assert(!memcmp(grad[0], grad[1], d * sizeof(float)), "%s, step %u", name, step);
        cr_assert(score[0].loss == score[1].loss && score[0].hits == score[1].hits);
        memcpy(aux, gk_model_aux(parts, &other_count), aux_count * sizeof(*aux));
        cr_assert(!memcmp(aux, gk_model_aux(whole, &other_count), aux_count * sizeof(*aux)));
        gk_model_free(parts);
        parts = new_model(name, setup);
        for (int i = 0; i < 2; i++) {
            for (uint64_t j = 0; j < d; j++) {
                params[i][j] -= 0.01f * grad[i][j];
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        free(params[i]);
        free(grad[i]);
    }
    free(aux);
    free(data);
    gk_model_free(whole);
    gk_model_free(parts);
}

Test(model_state, restarts)
{
    check_restarts("resnet20", &images);
    check_restarts("charlstm", &text);
}

/* Evaluation neither moves the state nor sees another one than it: with the running statistics of
 * the very batch, and momentum 0.1 from (0, 1), its result is not that of training, but it repeats.
 */
Test(model_state, evaluation_leaves_the_state)
{
    static const struct {
        const char *name;
        const struct gk_model_setup *setup;
    } cases[] = {{"resnet20", &images}, {"charlstm", &text}};

    for (int i = 0; i < 2; i++) {
        struct gk_model *model = new_model(cases[i].name, cases[i].setup);
        struct data *data = calloc(1, sizeof(*data));
        struct gk_batch batch = fill(data, cases[i].setup, 1);
        struct gk_score trained, score[2];
        uint64_t d, aux_count;
        uint32_t count;
        float *params, *grad, *aux;

        (void)gk_model_tensors(model, &count, &d);
        params = calloc(d, sizeof(*params));
        grad = calloc(d, sizeof(*grad));
        gk_model_init(model, 3, params);
        (void)gk_model_gradient(model, params, &batch, grad, &trained);
        aux = calloc(1, sizeof(*aux) * (gk_model_aux(model, &aux_count), aux_count));
        memcpy(aux, gk_model_aux(model, &aux_count), aux_count * sizeof(*aux));
        batch.fresh = true;
        cr_assert_eq(gk_model_evaluate(model, params, &batch, &score[0]), GK_OK);
        cr_assert_eq(gk_model_evaluate(model, params, &batch, &score[1]), GK_OK);
        cr_assert(score[0].loss == score[1].loss && score[0].hits == score[1].hits);
        cr_assert_eq(score[0].answers, (uint64_t)BATCH * (i ? SEQUENCE : 1));
        cr_assert(i || score[0].loss != trained.loss);
        cr_assert(!memcmp(aux, gk_model_aux(model, &aux_count), aux_count * sizeof(*aux)));
        free(params);
        free(grad);
        free(aux);
        free(data);
        gk_model_free(model);
    }
}

/* A text of ten characters in one batch of ten, and in two of five that continue each other: the
 * same losses; a fresh second half: other ones. */
Test(model_state, carry)
{
    struct gk_model_setup setup = text;
    struct gk_model *half = new_model("charlstm", &setup), *whole;
    uint32_t tokens[2 * SEQUENCE * BATCH], labels[2 * SEQUENCE * BATCH], count, seed = 8;
    struct gk_batch batch = {.labels = labels, .tokens = tokens, .count = BATCH, .fresh = true};
    struct gk_score all, first, second, fresh;
    float *params, *grad;
    uint64_t d;

    setup.sequence = 2 * SEQUENCE;
    whole = new_model("charlstm", &setup);
    (void)gk_model_tensors(whole, &count, &d);
    params = calloc(d, sizeof(*params));
    grad = calloc(d, sizeof(*grad));
    gk_model_init(whole, 1, params);
    for (uint64_t i = 0; i < d; i++) {
        params[i] *= 5.0f; /* so that what is carried matters */
    }
    for (int i = 0; i < 2 * SEQUENCE * BATCH; i++) {
        tokens[i] = draw(&seed) % CLASSES;
        labels[i] = draw(&seed) % CLASSES;
    }
    for (int training = 0; training < 2; training++) {
        batch =
            (struct gk_batch){.labels = labels, .tokens = tokens, .count = BATCH, .fresh = true};
        (void)(training ? gk_model_gradient(whole, params, &batch, grad, &all)
                        : gk_model_evaluate(whole, params, &batch, &all));
        (void)(training ? gk_model_gradient(half, params, &batch, grad, &first)
                        : gk_model_evaluate(half, params, &batch, &first));
        batch = (struct gk_batch){.labels = labels + SEQUENCE * BATCH,
                                  .tokens = tokens + SEQUENCE * BATCH,
                                  .count = BATCH};
        (void)(training ? gk_model_gradient(half, params, &batch, grad, &second)
                        : gk_model_evaluate(half, params, &batch, &second));
        batch.fresh = true;
        (void)(training ? gk_model_gradient(half, params, &batch, grad, &fresh)
                        : gk_model_evaluate(half, params, &batch, &fresh));
        cr_assert_float_eq(all.loss, first.loss + second.loss, 1e-4);
        cr_assert_gt(fabs(fresh.loss - second.loss), 1e-3);
        cr_assert_eq(all.answers, first.answers + second.answers);
    }
    free(params);
    free(grad);
    gk_model_free(half);
    gk_model_free(whole);
}

/* Activations once for each layer, three gradients as large as the largest of them, at most 16 MiB
 * of windows, two copies of one layer's weights: nothing else that grows with the batch. */
Test(model_state, memory_is_bounded)
{
    static const struct {
        const char *name;
        uint64_t floats;  /* of the activations of one sample, without gradients */
        uint64_t largest; /* of these, and of the weights of a layer */
        uint64_t weights;
    } cases[] = {
        {"lenet5", 2 * (28 * 28 * 6 + 2 * 14 * 14 * 6 + 100 * 16 + 2 * 400 + 400) + 214,
         28 * 28 * 6, 2400},
        {"resnet20", 2 * 16384 + 3 * 5 * (16384 + 8192 + 4096) + 64 + 10, 16384, 36864},
        {"vgg16", 2 * 276480 + 2 * (16384 + 8192 + 4096 + 2048 + 512) + 10, 65536, 2359296},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t batch = 1; batch <= 4; batch += 3) {
            struct gk_model_setup setup = images;
            struct gk_model *model;
            uint64_t bound =
                batch * (cases[i].floats + 3 * cases[i].largest) + 2 * cases[i].weights;

            setup.batch_max = batch;
            model = new_model(cases[i].name, &setup);
            bound = 4 * bound + GK_WINDOWS_BYTES + (UINT64_C(1) << 18);
            cr_assert_leq(gk_model_bytes(model), bound, "%s, %u: %.0f of %.0f", cases[i].name,
                          batch, (double)gk_model_bytes(model), (double)bound);
            gk_model_free(model);
        }
    }
}

/* What a table with memory of its own sees. */
static const struct gk_layer_ops *host_table;
static const float *host_x;
static const uint32_t *host_tokens, *host_labels;

static void spy_im2col(struct gk_queue *queue, const struct gk_layer_window *window, const float *x,
                       float *windows)
{
    cr_assert(queue && x != host_x, "samples that were not copied");
    host_table->im2col(queue, window, x, windows);
}

static void spy_embedding(struct gk_queue *queue, const float *table, const uint32_t *tokens,
                          const uint64_t sides[2], float *y)
{
    cr_assert(queue && tokens != host_tokens, "tokens that were not copied");
    host_table->embedding_forward(queue, table, tokens, sides, y);
}

static void spy_softmax(struct gk_queue *queue, const struct gk_softmax_args *args)
{
    cr_assert(queue && args->labels != host_labels, "labels that were not copied");
    host_table->softmax_cross_entropy(queue, args);
}

/* A table that says it is not on the host, over a CPU queue: the same bits, and nothing but copies
 * of samples and state in its slots. */
static void check_copies(const char *name, const struct gk_model_setup *setup)
{
    const struct gk_vector_ops *ops = gk_vector_reference();
    struct gk_layer_ops table = *gk_layers_cpu();
    struct gk_model_setup there = *setup;
    struct gk_model *models[2] = {new_model(name, setup), NULL};
    struct gk_queue *queue = NULL;
    struct data *data = calloc(1, sizeof(*data));
    float *params, *grad[2];
    uint64_t d, aux_count;
    uint32_t count;

    host_table = gk_layers_cpu();
    table.on_host = false;
    table.im2col = spy_im2col;
    table.embedding_forward = spy_embedding;
    table.softmax_cross_entropy = spy_softmax;
    cr_assert_eq(ops->open(&queue, NULL), GK_OK);
    there.layers = &table;
    there.ops = ops;
    there.queue = queue;
    cr_assert_eq(gk_model_new(name, &there, &models[1], NULL), GK_OK);
    (void)gk_model_tensors(models[0], &count, &d);
    params = calloc(d, sizeof(*params));
    grad[0] = calloc(d, sizeof(float));
    grad[1] = calloc(d, sizeof(float));
    gk_model_init(models[1], 3, params);
    for (uint32_t step = 0; step < 4; step++) {
        struct gk_batch batch = fill(data, setup, step);
        struct gk_score score[2];
        float *aux[2] = {gk_model_aux(models[0], &aux_count), gk_model_aux(models[1], &aux_count)};

        host_x = batch.x;
        host_tokens = batch.tokens;
        host_labels = batch.labels;
        for (int i = 0; i < 2; i++) {
            if (aux_count) {
                aux[i][aux_count / 2] += 0.25f; /* as a restart would */
            }
            cr_assert_eq(step % 2
                             ? gk_model_evaluate(models[i], params, &batch, &score[i])
                             : gk_model_gradient(models[i], params, &batch, grad[i], &score[i]),
                         GK_OK);
        }
        cr_assert(score[0].loss == score[1].loss && score[0].hits == score[1].hits &&
                  score[0].answers == score[1].answers);
        cr_assert(!memcmp(grad[0], grad[1], d * sizeof(float)), "%s, step %u", name, step);
        cr_assert(!aux_count || !memcmp(aux[0], aux[1], aux_count * sizeof(float)));
    }
    gk_model_free(models[0]);
    gk_model_free(models[1]);
    ops->close(queue);
    free(params);
    free(grad[0]);
    free(grad[1]);
    free(data);
}

Test(model_state, table_with_memory_of_its_own)
{
    check_copies("lenet5", &images);
    check_copies("resnet20", &images);
    check_copies("charlstm", &text);
}

Test(model_state, wrong_data)
{
    static const struct {
        const char *name;
        struct gk_model_setup setup;
        const char *words;
    } cases[] = {
        {"charlstm",
         {.features = 64, .classes = 10, .batch_max = 1, .rows = 8, .columns = 8, .channels = 1},
         "model charlstm: takes text"},
        {"fnn3", {.classes = 10, .batch_max = 1, .sequence = 64}, "fnn3: takes images"},
        {"vgg16", {.classes = 10, .batch_max = 1, .sequence = 64}, "vgg16: takes images"},
        {"lenet5",
         {.features = 33 * 2,
          .classes = 10,
          .batch_max = 1,
          .rows = 33,
          .columns = 2,
          .channels = 1},
         "at most 32 x 32, not 33 x 2"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gk_model_setup setup = cases[i].setup;
        struct gk_model *model = NULL;
        struct gk_words words = {""};

        setup.layers = gk_layers_cpu();
        cr_assert_eq(gk_model_new(cases[i].name, &setup, &model, &words), GK_E_INVALID);
        cr_assert(strstr(words.text, cases[i].words), "%s", words.text);
    }
}
