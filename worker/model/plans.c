/* The layers of each model.  Sizes of the first and the last layer come from the data. */
#include "worker/model/layer.h"

#include "common/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Images count as so large at least, black around: LeNet's sizes are for that. */
enum { CANVAS = 32 };

/* Variance 2 / fan-in, for layers with ReLU: sqrt(6). */
#define INIT_RELU 2.44948974f
/* Variance 1 / (3 fan-in). */
#define INIT_PLAIN 1.0f

static struct gk_layer_plan *add(struct gk_plan *plan, enum gk_layer_type type, const char *format,
                                 ...) __attribute__((format(printf, 3, 4)));

static struct gk_layer_plan *add(struct gk_plan *plan, enum gk_layer_type type, const char *format,
                                 ...)
{
    struct gk_layer_plan *layer = &plan->layers[plan->layers_count++];
    va_list arguments;

    GK_ASSERT(plan->layers_count <= GK_LAYERS_MAX);
    *layer = (struct gk_layer_plan){.type = type};
    va_start(arguments, format);
    (void)vsnprintf(layer->name, sizeof(layer->name), format, arguments);
    va_end(arguments);
    return layer;
}

static struct gk_layer_plan *add_linear(struct gk_plan *plan, const char *name, uint32_t outputs)
{
    struct gk_layer_plan *layer = add(plan, GK_LAYER_LINEAR, "%s", name);

    layer->outputs = outputs;
    layer->flattens = true;
    layer->init = INIT_PLAIN;
    return layer;
}

static void add_max_pool(struct gk_plan *plan)
{
    struct gk_layer_plan *layer = add(plan, GK_LAYER_MAX_POOL, "pool");

    layer->kernel = 2;
    layer->stride = 2;
}

static void set_window(struct gk_layer_plan *layer, uint32_t outputs, uint32_t kernel, uint32_t pad)
{
    layer->outputs = outputs;
    layer->kernel = kernel;
    layer->stride = 1;
    layer->pad = pad;
}

static enum gk_err check_images(const struct gk_plan_input *input, struct gk_words *words)
{
    if (input->shape.is_sequence) {
        gk_words_set(words, "takes images, not text: charlstm does");
        return GK_E_INVALID;
    }
    return GK_OK;
}

/* Models whose layers are made for images of this size. */
static enum gk_err check_canvas(const struct gk_plan_input *input, struct gk_words *words)
{
    enum gk_err err = check_images(input, words);

    if (!err && (input->shape.rows > CANVAS || input->shape.columns > CANVAS)) {
        gk_words_set(words, "takes images of at most %d x %d, not %u x %u", CANVAS, CANVAS,
                     (unsigned)input->shape.rows, (unsigned)input->shape.columns);
        return GK_E_INVALID;
    }
    return err;
}

static enum gk_err fill_softmax(struct gk_plan *plan, const struct gk_plan_input *input,
                                struct gk_words *words)
{
    (void)add_linear(plan, "fc1", input->classes);
    return check_images(input, words);
}

static enum gk_err fill_fnn3(struct gk_plan *plan, const struct gk_plan_input *input,
                             struct gk_words *words)
{
    enum { HIDDEN = 200 };

    add_linear(plan, "fc1", HIDDEN)->activation = GK_ACTIVATION_RELU;
    add_linear(plan, "fc2", HIDDEN)->activation = GK_ACTIVATION_RELU;
    (void)add_linear(plan, "fc3", input->classes);
    return check_images(input, words);
}

static void add_lenet_conv(struct gk_plan *plan, const char *name, uint32_t outputs,
                           uint32_t canvas)
{
    struct gk_layer_plan *layer = add(plan, GK_LAYER_CONV, "%s", name);

    set_window(layer, outputs, 5, 0);
    layer->canvas = canvas;
    layer->has_bias = true;
    layer->init = INIT_PLAIN;
    layer->activation = GK_ACTIVATION_RELU;
    add_max_pool(plan);
}

static enum gk_err fill_lenet5(struct gk_plan *plan, const struct gk_plan_input *input,
                               struct gk_words *words)
{
    add_lenet_conv(plan, "conv1", 6, CANVAS);
    add_lenet_conv(plan, "conv2", 16, 0);
    (void)add(plan, GK_LAYER_FLATTEN, "flatten");
    add_linear(plan, "fc1", 120)->activation = GK_ACTIVATION_RELU;
    add_linear(plan, "fc2", 84)->activation = GK_ACTIVATION_RELU;
    (void)add_linear(plan, "fc3", input->classes);
    return check_canvas(input, words);
}

/* One convolution with its norm; the last of a block has its ReLU behind the shortcut. */
struct unit {
    const char *path; /* "layer1.0." */
    uint32_t number;  /* conv1, bn1 */
    uint32_t outputs, stride, canvas;
    enum gk_activation activation;
};

static void add_unit(struct gk_plan *plan, const struct unit *unit)
{
    struct gk_layer_plan *layer =
        add(plan, GK_LAYER_CONV, "%sconv%u", unit->path, (unsigned)unit->number);

    set_window(layer, unit->outputs, 3, 1);
    layer->stride = unit->stride;
    layer->canvas = unit->canvas;
    layer->init = INIT_RELU;
    add(plan, GK_LAYER_NORM, "%sbn%u", unit->path, (unsigned)unit->number)->activation =
        unit->activation;
}

static void add_block(struct gk_plan *plan, uint32_t stage, uint32_t block)
{
    uint32_t skip = plan->layers_count; /* the activation that the block begins with */
    struct gk_layer_plan *layer;
    char path[GK_LAYER_NAME_BYTES / 2];
    struct unit unit = {.path = path,
                        .number = 1,
                        .outputs = UINT32_C(16) << stage,
                        .stride = stage > 0 && block == 0 ? 2 : 1,
                        .activation = GK_ACTIVATION_RELU};
    uint32_t stride = unit.stride;

    (void)snprintf(path, sizeof(path), "layer%u.%u.", (unsigned)stage + 1, (unsigned)block);
    add_unit(plan, &unit);
    unit.number = 2;
    unit.stride = 1;
    unit.activation = GK_ACTIVATION_NONE;
    add_unit(plan, &unit);
    layer = add(plan, GK_LAYER_RESIDUAL, "%sadd", path);
    layer->skip = skip;
    layer->stride = stride;
    layer->activation = GK_ACTIVATION_RELU;
}

/* Shortcuts between stages take every second pixel and leave the new channels at zero: they have no
 * parameters. */
static enum gk_err fill_resnet20(struct gk_plan *plan, const struct gk_plan_input *input,
                                 struct gk_words *words)
{
    enum { STAGES = 3, BLOCKS = 3, LAST_SIDE = CANVAS / 4 };
    const struct unit first = {.path = "",
                               .number = 1,
                               .outputs = 16,
                               .stride = 1,
                               .canvas = CANVAS,
                               .activation = GK_ACTIVATION_RELU};
    struct gk_layer_plan *layer;

    add_unit(plan, &first);
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        for (uint32_t block = 0; block < BLOCKS; block++) {
            add_block(plan, stage, block);
        }
    }
    layer = add(plan, GK_LAYER_AVERAGE_POOL, "pool");
    layer->kernel = LAST_SIDE;
    layer->stride = LAST_SIDE;
    add_linear(plan, "fc", input->classes)->zero_biases = true;
    return check_canvas(input, words);
}

/* Numbers in names count every convolution, norm, ReLU and pool. */
static enum gk_err fill_vgg16(struct gk_plan *plan, const struct gk_plan_input *input,
                              struct gk_words *words)
{
    static const uint32_t outputs[] = {64, 64,  0,   128, 128, 0,   256, 256, 256,
                                       0,  512, 512, 512, 0,   512, 512, 512, 0};
    uint32_t number = 0;

    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        struct gk_layer_plan *layer;

        if (outputs[i] == 0) {
            add_max_pool(plan);
            number++;
            continue;
        }
        layer = add(plan, GK_LAYER_CONV, "features.%u", (unsigned)number);
        set_window(layer, outputs[i], 3, 1);
        layer->canvas = i == 0 ? CANVAS : 0;
        layer->has_bias = true;
        layer->init = INIT_RELU;
        layer->zero_biases = true;
        add(plan, GK_LAYER_NORM, "features.%u", (unsigned)number + 1)->activation =
            GK_ACTIVATION_RELU;
        number += 3;
    }
    add_linear(plan, "classifier", input->classes)->zero_biases = true;
    return check_canvas(input, words);
}

static enum gk_err fill_charlstm(struct gk_plan *plan, const struct gk_plan_input *input,
                                 struct gk_words *words)
{
    enum { EMBEDDING = 64, UNITS = 128 };
    struct gk_layer_plan *layer = add(plan, GK_LAYER_EMBEDDING, "embedding");

    layer->table = input->classes;
    layer->outputs = EMBEDDING;
    add(plan, GK_LAYER_LSTM, "lstm")->outputs = UNITS;
    layer = add(plan, GK_LAYER_LINEAR, "fc");
    layer->outputs = input->classes;
    if (!input->shape.is_sequence) {
        gk_words_set(words, "takes text, not images: --data text:FILE");
        return GK_E_INVALID;
    }
    return GK_OK;
}

static const struct gk_model_plan plans[] = {
    {"charlstm", 32, fill_charlstm}, {"fnn3", 256, fill_fnn3},       {"lenet5", 256, fill_lenet5},
    {"resnet20", 64, fill_resnet20}, {"softmax", 256, fill_softmax}, {"vgg16", 32, fill_vgg16},
};

const struct gk_model_plan *gk_model_plan_find(const char *name)
{
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        if (!strcmp(plans[i].name, name)) {
            return &plans[i];
        }
    }
    return NULL;
}
