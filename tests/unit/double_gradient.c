/* Goal: the gradients of every layer and of every model are those of their losses.  Method: the
 * models compiled in double precision (double_model.h), where central differences with a step of
 * 1e-6 are good to about 1e-8.  Small networks that between them hold every layer in every geometry
 * that models use and some that they do not (windows that overlap, skip pixels, run over borders;
 * shortcuts within and between sizes; one and two LSTMs, with and without a carried state; chunks
 * of samples that do not fill the last one): single coordinates of every tensor.  The models
 * themselves: random directions through all tensors at once, with a step of 1e-8: among their
 * hundreds of thousands of ReLUs a larger one changes some, which shows as a difference. */
#include <criterion/criterion.h>

#include "tests/unit/double_model.h"

#include "worker/model/layer.h"
#include "worker/model/model.h"

enum { CLASSES = 5, COORDINATES = 6 };

static const double step = 1e-6;

struct rig {
    struct gk_model *model;
    const struct gk_tensor *tensors;
    uint32_t tensors_count;
    uint64_t d, aux_count;
    double *params, *grad, *aux, *x;
    uint32_t *labels, *tokens;
    struct gk_batch batch;
    uint32_t state; /* of the random numbers */
};

static uint32_t draw(struct rig *rig)
{
    rig->state = rig->state * UINT32_C(1664525) + UINT32_C(1013904223);
    return rig->state >> 8;
}

static double draw_real(struct rig *rig)
{
    return draw(rig) * 0x1p-23 - 1.0;
}

/* Parameters of the size that training begins with; state that is not zero. */
static void fill(struct rig *rig, const struct gk_model_setup *setup, uint32_t count)
{
    uint64_t answers = (uint64_t)count * (setup->sequence ? setup->sequence : 1);

    for (uint32_t i = 0; i < rig->tensors_count; i++) {
        const struct gk_tensor *tensor = &rig->tensors[i];
        double bound =
            tensor->dims_count > 1 ? sqrt(3.0 * tensor->dims[0] / (double)tensor->count) : 0.3;
        bool is_scale = tensor->dims_count == 1 && strstr(tensor->name, "n.weight");

        for (uint64_t j = 0; j < tensor->count; j++) {
            rig->params[tensor->offset + j] = draw_real(rig) * bound + (is_scale ? 1.0 : 0.0);
        }
    }
    for (uint64_t i = 0; i < rig->aux_count; i++) {
        rig->aux[i] = 0.5 * draw_real(rig);
    }
    for (uint64_t i = 0; i < (uint64_t)count * setup->features; i++) {
        rig->x[i] = draw_real(rig);
    }
    for (uint64_t i = 0; i < answers; i++) {
        rig->labels[i] = draw(rig) % setup->classes;
        rig->tokens[i] = draw(rig) % setup->classes;
    }
    rig->batch = (struct gk_batch){
        .x = rig->x, .labels = rig->labels, .count = count, .tokens = rig->tokens};
}

static void set_up(struct rig *rig, const struct gk_model_plan *plan,
                   const struct gk_model_setup *setup, uint32_t count)
{
    struct gk_words words = {""};
    uint64_t answers = (uint64_t)count * (setup->sequence ? setup->sequence : 1);

    *rig = (struct rig){.state = 11};
    cr_assert_eq(gk_model_new_of(plan, setup, &rig->model, &words), GK_OK, "%s", words.text);
    rig->tensors = gk_model_tensors(rig->model, &rig->tensors_count, &rig->d);
    (void)gk_model_aux(rig->model, &rig->aux_count);
    rig->params = calloc(rig->d, sizeof(double));
    rig->grad = calloc(rig->d, sizeof(double));
    rig->aux = calloc(rig->aux_count + 1, sizeof(double));
    rig->x = calloc((size_t)count * setup->features + 1, sizeof(double));
    rig->labels = calloc(answers, sizeof(*rig->labels));
    rig->tokens = calloc(answers, sizeof(*rig->tokens));
    fill(rig, setup, count);
}

static void tear_down(struct rig *rig)
{
    gk_model_free(rig->model);
    free(rig->params);
    free(rig->grad);
    free(rig->aux);
    free(rig->x);
    free(rig->labels);
    free(rig->tokens);
}

/* Mean over the answers of a sample, as the gradient is. */
static double loss_of(struct rig *rig, double *grad)
{
    struct gk_score score;
    uint64_t count;

    if (rig->aux_count) {
        memcpy(gk_model_aux(rig->model, &count), rig->aux, rig->aux_count * sizeof(double));
    }
    (void)gk_model_gradient(rig->model, rig->params, &rig->batch, grad, &score);
    return score.loss * rig->batch.count / (double)score.answers;
}

static double largest(const double *x, uint64_t count)
{
    double most = 0.0;

    for (uint64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(x[i]));
    }
    return most;
}

static void check_coordinates(struct rig *rig, const char *name)
{
    double *unused = calloc(rig->d, sizeof(double));

    (void)loss_of(rig, rig->grad);
    for (uint32_t i = 0; i < rig->tensors_count; i++) {
        const struct gk_tensor *tensor = &rig->tensors[i];
        double scale = largest(rig->grad + tensor->offset, tensor->count);

        for (int j = 0; j < COORDINATES; j++) {
            double *p = rig->params + tensor->offset + draw(rig) % tensor->count;
            double kept = *p, slope;

            *p = kept + step;
            slope = loss_of(rig, unused);
            *p = kept - step;
            slope = (slope - loss_of(rig, unused)) / (2 * step);
            *p = kept;
            cr_assert(fabs(rig->grad[p - rig->params] - slope) <= 1e-6 * scale + 1e-8,
                      "%s, %s[%u]: %.12g, by differences %.12g", name, tensor->name,
                      (unsigned)(p - rig->params - tensor->offset), rig->grad[p - rig->params],
                      slope);
        }
    }
    free(unused);
}

/* The same weight for each tensor: a small one does not vanish beside the others. */
static void check_directions(struct rig *rig, const char *name, int count)
{
    const double small = 1e-8;
    double *kept = calloc(rig->d, sizeof(double)), *way = calloc(rig->d, sizeof(double));
    double *unused = calloc(rig->d, sizeof(double));

    memcpy(kept, rig->params, rig->d * sizeof(double));
    (void)loss_of(rig, rig->grad);
    for (int n = 0; n < count; n++) {
        double slope, expected = 0.0, size = 0.0;

        for (uint32_t i = 0; i < rig->tensors_count; i++) {
            const struct gk_tensor *tensor = &rig->tensors[i];
            double length = sqrt((double)tensor->count);

            for (uint64_t j = tensor->offset; j < tensor->offset + tensor->count; j++) {
                way[j] = draw_real(rig) / length;
                expected += way[j] * rig->grad[j];
                size += way[j] * way[j] * rig->grad[j] * rig->grad[j];
            }
        }
        for (uint64_t j = 0; j < rig->d; j++) {
            rig->params[j] = kept[j] + small * way[j];
        }
        slope = loss_of(rig, unused);
        for (uint64_t j = 0; j < rig->d; j++) {
            rig->params[j] = kept[j] - small * way[j];
        }
        slope = (slope - loss_of(rig, unused)) / (2 * small);
        cr_assert_gt(size, 0.0);
        cr_assert(fabs(slope - expected) <= 1e-5 * sqrt(size), "%s: %.12g, by differences %.12g",
                  name, expected, slope);
    }
    free(kept);
    free(way);
    free(unused);
}

static struct gk_layer_plan *add(struct gk_plan *plan, const char *name, enum gk_layer_type type)
{
    struct gk_layer_plan *layer = &plan->layers[plan->layers_count++];

    *layer = (struct gk_layer_plan){.type = type};
    (void)snprintf(layer->name, sizeof(layer->name), "%s", name);
    return layer;
}

static struct gk_layer_plan *add_window(struct gk_plan *plan, const char *name,
                                        enum gk_layer_type type, uint32_t kernel, uint32_t stride)
{
    struct gk_layer_plan *layer = add(plan, name, type);

    layer->kernel = kernel;
    layer->stride = stride;
    return layer;
}

static void add_conv(struct gk_plan *plan, const char *name, uint32_t outputs, uint32_t kernel,
                     uint32_t stride, uint32_t pad)
{
    struct gk_layer_plan *layer = add_window(plan, name, GK_LAYER_CONV, kernel, stride);

    layer->outputs = outputs;
    layer->pad = pad;
}

static enum gk_err add_end(struct gk_plan *plan)
{
    struct gk_layer_plan *layer = add(plan, "end", GK_LAYER_LINEAR);

    layer->outputs = CLASSES;
    layer->flattens = true;
    return GK_OK;
}

static enum gk_err fill_windows(struct gk_plan *plan, const struct gk_plan_input *input,
                                struct gk_words *words)
{
    (void)input;
    (void)words;
    add_conv(plan, "a", 4, 3, 1, 1);
    plan->layers[0].has_bias = true;
    plan->layers[0].activation = GK_ACTIVATION_RELU;
    add_window(plan, "pool", GK_LAYER_MAX_POOL, 3, 2); /* windows overlap */
    add_conv(plan, "b", 3, 2, 3, 2);                   /* pixels are skipped */
    add_conv(plan, "c", 6, 3, 2, 1);
    add(plan, "n", GK_LAYER_NORM)->activation = GK_ACTIVATION_RELU;
    (void)add(plan, "flatten", GK_LAYER_FLATTEN);
    return add_end(plan);
}

static enum gk_err fill_averages(struct gk_plan *plan, const struct gk_plan_input *input,
                                 struct gk_words *words)
{
    (void)input;
    (void)words;
    add_conv(plan, "a", 3, 1, 1, 0);
    plan->layers[0].canvas = 13;
    add(plan, "n", GK_LAYER_NORM);
    add_window(plan, "pool", GK_LAYER_AVERAGE_POOL, 3, 2);
    add_conv(plan, "b", 70, 3, 1, 0);
    add(plan, "m.n", GK_LAYER_NORM)->activation = GK_ACTIVATION_RELU; /* two blocks of columns */
    add_window(plan, "pool", GK_LAYER_AVERAGE_POOL, 2, 2);
    return add_end(plan);
}

/* Two shortcuts within a size, one to the next. */
static enum gk_err fill_shortcuts(struct gk_plan *plan, const struct gk_plan_input *input,
                                  struct gk_words *words)
{
    (void)input;
    (void)words;
    add_conv(plan, "a", 3, 3, 1, 1);
    add(plan, "a.n", GK_LAYER_NORM)->activation = GK_ACTIVATION_RELU;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t skip = plan->layers_count, outputs = i < 2 ? 3 : 5, stride = i < 2 ? 1 : 2;
        struct gk_layer_plan *layer;
        char name[16];

        (void)snprintf(name, sizeof(name), "%u.a", i);
        add_conv(plan, name, outputs, 3, stride, 1);
        (void)snprintf(name, sizeof(name), "%u.an", i);
        add(plan, name, GK_LAYER_NORM)->activation = GK_ACTIVATION_RELU;
        (void)snprintf(name, sizeof(name), "%u.b", i);
        add_conv(plan, name, outputs, 3, 1, 1);
        (void)snprintf(name, sizeof(name), "%u.bn", i);
        add(plan, name, GK_LAYER_NORM);
        layer = add(plan, "add", GK_LAYER_RESIDUAL);
        layer->skip = skip;
        layer->stride = stride;
        layer->activation = i == 1 ? GK_ACTIVATION_NONE : GK_ACTIVATION_RELU;
    }
    return add_end(plan);
}

static enum gk_err fill_sequence(struct gk_plan *plan, const struct gk_plan_input *input,
                                 struct gk_words *words)
{
    struct gk_layer_plan *layer = add(plan, "embedding", GK_LAYER_EMBEDDING);

    (void)words;
    layer->table = input->classes;
    layer->outputs = 3;
    add(plan, "lstm", GK_LAYER_LSTM)->outputs = 4;
    layer = add(plan, "lstm", GK_LAYER_LSTM);
    layer->outputs = 5;
    layer->level = 1;
    add(plan, "end", GK_LAYER_LINEAR)->outputs = input->classes;
    return GK_OK;
}

/* The table of this test has few rows in a chunk: several samples, the last chunk not full. */
static const struct gk_layer_ops *layers(uint32_t rows)
{
    static struct gk_layer_ops ops;

    ops = *gk_layers_cpu();
    ops.window_rows = rows;
    return &ops;
}

Test(double_gradient, windows)
{
    static const struct gk_model_plan plans[] = {{"windows", 1, fill_windows},
                                                 {"averages", 1, fill_averages},
                                                 {"shortcuts", 1, fill_shortcuts}};

    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        for (uint32_t count = 1; count <= 5; count += 4) {
            struct rig rig;
            const struct gk_model_setup setup = {.layers = layers(300),
                                                 .features = 10 * 9 * 2,
                                                 .classes = CLASSES,
                                                 .batch_max = 6,
                                                 .rows = 10,
                                                 .columns = 9,
                                                 .channels = 2};

            /* A norm over one value is 0 whatever it is: nothing to measure. */
            set_up(&rig, &plans[i], &setup, count);
            check_coordinates(&rig, plans[i].name);
            tear_down(&rig);
        }
    }
}

Test(double_gradient, sequences)
{
    static const struct gk_model_plan plan = {"sequence", 1, fill_sequence};

    for (uint32_t count = 1; count <= 3; count++) {
        struct rig rig;
        const struct gk_model_setup setup = {
            .layers = layers(1), .classes = CLASSES, .batch_max = 4, .sequence = 6, .streams = 3};

        set_up(&rig, &plan, &setup, count);
        check_coordinates(&rig, "carried");
        rig.batch.fresh = true;
        check_coordinates(&rig, "fresh");
        tear_down(&rig);
    }
}

Test(double_gradient, models)
{
    static const struct {
        const char *name;
        uint32_t side, channels, count;
        int directions;
    } cases[] = {{"softmax", 6, 2, 4, 3}, {"fnn3", 6, 2, 4, 3},      {"lenet5", 28, 1, 3, 3},
                 {"lenet5", 31, 2, 1, 3}, {"resnet20", 32, 3, 2, 3}, {"vgg16", 32, 3, 1, 1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig rig;
        const struct gk_model_setup setup = {.layers = layers(512),
                                             .features =
                                                 cases[i].side * cases[i].side * cases[i].channels,
                                             .classes = CLASSES,
                                             .batch_max = cases[i].count,
                                             .rows = cases[i].side,
                                             .columns = cases[i].side,
                                             .channels = cases[i].channels};

        set_up(&rig, gk_model_plan_find(cases[i].name), &setup, cases[i].count);
        check_directions(&rig, cases[i].name, cases[i].directions);
        tear_down(&rig);
    }
}

Test(double_gradient, charlstm)
{
    struct rig rig;
    const struct gk_model_setup setup = {
        .layers = layers(1), .classes = 20, .batch_max = 3, .sequence = 9};

    set_up(&rig, gk_model_plan_find("charlstm"), &setup, 3);
    check_directions(&rig, "charlstm", 3);
    check_coordinates(&rig, "charlstm");
    tear_down(&rig);
}
