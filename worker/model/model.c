/* A model walks through its layers: forward, keeping every activation, and back from the gradient
 * of the logits.  Two buffers of gradients take turns; a residual layer holds its gradient in a
 * third until the layers that it bridges are through, since the shortcut's part is added then.
 *
 * On a table that is not on_host all arrays lie in its memory; the samples, and the state that a
 * restart must bring back, are copied to them and back in every call. */
#include "worker/model/model.h"

#include "common/assert.h"
#include "common/rng.h"
#include "worker/model/layer.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Tensors are drawn from streams of 2^34 numbers. */
#define PARAMS_MAX (UINT64_C(1) << 34)

enum { DELTAS = 3, BLOCKS_MAX = 3 * GK_LAYERS_MAX + 16 };

struct block {
    void *memory;
    bool on_host;
};

struct gk_model {
    struct gk_model_setup setup; /* batch_max and streams filled in */
    struct gk_plan plan;
    struct gk_layer layers[GK_LAYERS_MAX];
    uint32_t layers_count;
    struct gk_tensor *tensors; /* of all layers */
    uint32_t tensors_count;
    uint64_t params_count;
    float *deltas[DELTAS]; /* the third: NULL without residual layers */
    float *scratch;
    float *aux; /* host */
    uint64_t aux_count;
    float *aux_there; /* where the layers see it; aux itself on the host */
    float *x;         /* samples, where the layers see them; NULL on the host, as these */
    uint32_t *labels, *tokens;
    struct gk_loss *loss;
    struct block blocks[BLOCKS_MAX]; /* what was allocated */
    uint32_t blocks_count;
    uint64_t bytes;
};

const char *gk_model_choices(void)
{
    return "charlstm|fnn3|lenet5|resnet20|softmax|vgg16";
}

uint32_t gk_model_eval_batch(const char *name)
{
    const struct gk_model_plan *plan = gk_model_plan_find(name);

    return plan ? plan->eval_batch : 1;
}

static enum gk_err check_setup(const struct gk_model_setup *setup, struct gk_words *words)
{
    const uint32_t features = setup->sequence ? setup->sequence : setup->features;
    const uint32_t sizes[] = {features, setup->classes, setup->batch_max};
    static const char *const names[] = {"features", "classes", "batch"};

    GK_ASSERT(setup->layers && (setup->layers->on_host || setup->ops));
    for (int i = 0; i < 3; i++) {
        if (sizes[i] == 0) {
            gk_words_set(words, "a model needs at least one of: %s", names[i]);
            return GK_E_INVALID;
        }
        if (sizes[i] > INT_MAX) {
            gk_words_set(words, "%s = %u is more than BLAS can count", names[i],
                         (unsigned)sizes[i]);
            return GK_E_LIMIT;
        }
    }
    if ((uint64_t)setup->sequence * setup->batch_max > INT_MAX) {
        gk_words_set(words, "a batch of %u texts of %u characters is more than BLAS can count",
                     (unsigned)setup->batch_max, (unsigned)setup->sequence);
        return GK_E_LIMIT;
    }
    return GK_OK;
}

static struct gk_shape input_shape(const struct gk_model_setup *setup)
{
    struct gk_shape shape = {.rows = 1, .columns = 1, .channels = setup->features};

    if (setup->sequence) {
        return (struct gk_shape){
            .rows = setup->sequence, .columns = 1, .channels = 1, .is_sequence = true};
    }
    if (setup->rows) {
        shape = (struct gk_shape){
            .rows = setup->rows, .columns = setup->columns, .channels = setup->channels};
        GK_ASSERT(gk_shape_size(&shape) == setup->features);
    }
    return shape;
}

static const struct gk_layer_kind *kind_of(enum gk_layer_type type)
{
    static const struct gk_layer_kind *const kinds[] = {
        [GK_LAYER_LINEAR] = &gk_layer_linear,
        [GK_LAYER_CONV] = &gk_layer_conv,
        [GK_LAYER_NORM] = &gk_layer_norm,
        [GK_LAYER_MAX_POOL] = &gk_layer_max_pool,
        [GK_LAYER_AVERAGE_POOL] = &gk_layer_average_pool,
        [GK_LAYER_FLATTEN] = &gk_layer_flatten,
        [GK_LAYER_RESIDUAL] = &gk_layer_residual,
        [GK_LAYER_EMBEDDING] = &gk_layer_embedding,
        [GK_LAYER_LSTM] = &gk_layer_lstm,
    };

    return kinds[type];
}

/* Shapes, tensors and needs of all layers. */
static enum gk_err plan_layers(struct gk_model *model, struct gk_words *words)
{
    const struct gk_layer_setup setup = {.ops = model->setup.layers,
                                         .batch_max = model->setup.batch_max,
                                         .streams = model->setup.streams};
    struct gk_shape shapes[GK_LAYERS_MAX + 1] = {input_shape(&model->setup)};

    model->layers_count = model->plan.layers_count;
    for (uint32_t l = 0; l < model->layers_count; l++) {
        struct gk_layer *layer = &model->layers[l];
        enum gk_err err;

        layer->plan = &model->plan.layers[l];
        layer->kind = kind_of(layer->plan->type);
        layer->in = shapes[l];
        layer->skip = shapes[layer->plan->skip];
        err = layer->kind->plan(layer, &setup, words);
        if (err) {
            return err;
        }
        shapes[l + 1] = layer->out;
        model->tensors_count += layer->tensors_count;
        model->aux_count += layer->needs.aux;
        for (uint32_t i = 0; i < layer->tensors_count; i++) {
            layer->tensors[i].offset = model->params_count;
            model->params_count += layer->tensors[i].count;
        }
    }
    if (model->params_count > PARAMS_MAX) {
        gk_words_set(words, "it would have %" PRIu64 " parameters; %" PRIu64 " is the most",
                     model->params_count, PARAMS_MAX);
        return GK_E_LIMIT;
    }
    return GK_OK;
}

/* Zeroed memory of the host or of the table, owned by the model.  NULL: there is none, and *failed
 * is set; none was asked for: NULL. */
static void *take(struct gk_model *model, bool on_host, uint64_t count, size_t size, bool *failed)
{
    struct block *block = &model->blocks[model->blocks_count];

    if (count == 0) {
        return NULL;
    }
    GK_ASSERT(model->blocks_count < BLOCKS_MAX);
    block->on_host = on_host;
    block->memory =
        on_host ? calloc(count, size)
                : model->setup.ops->alloc(model->setup.queue, GK_MEMORY_DEVICE, count * size);
    if (!block->memory) {
        *failed = true;
        return NULL;
    }
    model->blocks_count++;
    model->bytes += count * size;
    return block->memory;
}

static void take_inputs(struct gk_model *model, bool *failed)
{
    const struct gk_model_setup *setup = &model->setup;
    uint64_t answers = (uint64_t)setup->batch_max * (setup->sequence ? setup->sequence : 1);
    bool on_host = setup->layers->on_host;

    model->loss = take(model, on_host, 1, sizeof(*model->loss), failed);
    model->aux = take(model, true, model->aux_count, sizeof(*model->aux), failed);
    model->aux_there = model->aux;
    if (on_host) {
        return;
    }
    model->aux_there = take(model, false, model->aux_count, sizeof(*model->aux), failed);
    model->labels = take(model, false, answers, sizeof(*model->labels), failed);
    if (setup->sequence) {
        model->tokens = take(model, false, answers, sizeof(*model->tokens), failed);
    } else {
        model->x = take(model, false, (uint64_t)setup->batch_max * setup->features,
                        sizeof(*model->x), failed);
    }
}

static enum gk_err allocate(struct gk_model *model)
{
    const bool on_host = model->setup.layers->on_host;
    uint64_t widest = 0;
    uint64_t scratch = 0;
    uint64_t aux_at = 0;
    bool failed = false;
    bool has_residuals = false;

    take_inputs(model, &failed);
    for (uint32_t l = 0; l < model->layers_count && !failed; l++) {
        struct gk_layer *layer = &model->layers[l];
        uint64_t size = gk_shape_size(&layer->out);

        layer->activation = take(model, on_host, layer->needs.out, sizeof(float), &failed);
        layer->saved = take(model, on_host, layer->needs.saved, sizeof(float), &failed);
        layer->index = take(model, on_host, layer->needs.index, sizeof(*layer->index), &failed);
        layer->aux = model->aux_there ? model->aux_there + aux_at : NULL;
        aux_at += layer->needs.aux;
        scratch = layer->needs.scratch > scratch ? layer->needs.scratch : scratch;
        widest = l + 1 < model->layers_count && size > widest ? size : widest;
        has_residuals = has_residuals || layer->plan->type == GK_LAYER_RESIDUAL;
    }
    for (int i = 0; i < (has_residuals ? DELTAS : DELTAS - 1) && !failed; i++) {
        model->deltas[i] =
            take(model, on_host, model->setup.streams * widest, sizeof(float), &failed);
    }
    if (!failed) {
        model->scratch = take(model, on_host, scratch, sizeof(float), &failed);
    }
    if (!failed) {
        model->tensors = take(model, true, model->tensors_count, sizeof(*model->tensors), &failed);
    }
    return failed ? GK_E_NOMEM : GK_OK;
}

/* The table of all tensors, and the state as it begins. */
static void fill_in(struct gk_model *model)
{
    float *aux = model->aux;
    uint32_t count = 0;

    for (uint32_t l = 0; l < model->layers_count; l++) {
        const struct gk_layer *layer = &model->layers[l];

        for (uint32_t i = 0; i < layer->tensors_count; i++) {
            model->tensors[count++] = layer->tensors[i];
        }
        if (layer->kind->aux_init) {
            layer->kind->aux_init(layer, aux);
        }
        aux = aux ? aux + layer->needs.aux : NULL;
    }
}

static enum gk_err build(struct gk_model *model, const struct gk_model_plan *plan,
                         struct gk_words *words)
{
    const struct gk_plan_input input = {.shape = input_shape(&model->setup),
                                        .classes = model->setup.classes};
    enum gk_err err = plan->fill(&model->plan, &input, words);

    if (!err) {
        err = plan_layers(model, words);
    }
    if (err) {
        return err;
    }
    err = allocate(model);
    if (err) {
        gk_words_set(words, "out of memory with batches of %u", (unsigned)model->setup.batch_max);
        return err;
    }
    fill_in(model);
    return GK_OK;
}

enum gk_err gk_model_new_of(const struct gk_model_plan *plan, const struct gk_model_setup *setup,
                            struct gk_model **ret_model, struct gk_words *words)
{
    struct gk_model *model;
    enum gk_err err = check_setup(setup, words);

    if (err) {
        return err;
    }
    model = calloc(1, sizeof(*model));
    if (!model) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    model->setup = *setup;
    model->setup.streams = setup->streams ? setup->streams : setup->batch_max;
    GK_ASSERT(model->setup.streams <= setup->batch_max);
    err = build(model, plan, words);
    if (err) {
        gk_words_prefix(words, "model %s: ", plan->name);
        gk_model_free(model);
        return err;
    }
    *ret_model = model;
    return GK_OK;
}

enum gk_err gk_model_new(const char *name, const struct gk_model_setup *setup,
                         struct gk_model **ret_model, struct gk_words *words)
{
    const struct gk_model_plan *plan = gk_model_plan_find(name);

    if (!plan) {
        gk_words_set(words, "there is no model \"%s\"; choose %s", name, gk_model_choices());
        return GK_E_NOTFOUND;
    }
    return gk_model_new_of(plan, setup, ret_model, words);
}

void gk_model_free(struct gk_model *model)
{
    if (!model) {
        return;
    }
    for (uint32_t i = 0; i < model->blocks_count; i++) {
        if (model->blocks[i].on_host) {
            free(model->blocks[i].memory);
        } else {
            model->setup.ops->free(model->setup.queue, GK_MEMORY_DEVICE, model->blocks[i].memory);
        }
    }
    free(model);
}

uint64_t gk_model_bytes(const struct gk_model *model)
{
    return model->bytes;
}

const struct gk_tensor *gk_model_tensors(const struct gk_model *model, uint32_t *ret_count,
                                         uint64_t *ret_params)
{
    *ret_count = model->tensors_count;
    *ret_params = model->params_count;
    return model->tensors;
}

float *gk_model_aux(struct gk_model *model, uint64_t *ret_count)
{
    *ret_count = model->aux_count;
    return model->aux;
}

static void init_tensor(const struct gk_rng *rng, const struct gk_tensor_init *init, float *x,
                        uint64_t count)
{
    for (uint64_t j = 0; j < count; j++) {
        x[j] =
            init->bound > 0.0f ? (2.0f * gk_rng_float(rng, j) - 1.0f) * init->bound : init->middle;
    }
}

void gk_model_init(const struct gk_model *model, uint64_t seed, float *params)
{
    struct gk_rng rng = {.seed = seed, .purpose = GK_RNG_INIT};

    for (uint32_t l = 0; l < model->layers_count; l++) {
        const struct gk_layer *layer = &model->layers[l];

        for (uint32_t i = 0; i < layer->tensors_count; i++) {
            init_tensor(&rng, &layer->inits[i], params + layer->tensors[i].offset,
                        layer->tensors[i].count);
            rng.a++;
        }
    }
}

/* Where the layers see an array of the caller. */
static const void *stage(const struct gk_model *model, void *there, const void *here,
                         uint64_t count, size_t size)
{
    if (model->setup.layers->on_host) {
        return here;
    }
    if (!there) { /* this model takes none */
        return NULL;
    }
    (void)model->setup.ops->copy(model->setup.queue, there, here, count * size);
    return there;
}

static void move_aux(const struct gk_model *model, void *target, const void *source)
{
    if (!model->setup.layers->on_host && model->aux_count > 0) {
        (void)model->setup.ops->copy(model->setup.queue, target, source,
                                     model->aux_count * sizeof(*model->aux));
    }
}

static uint64_t answers_of(const struct gk_model *model, const struct gk_batch *batch)
{
    return (uint64_t)batch->count * (model->setup.sequence ? model->setup.sequence : 1);
}

static const float *activation_at(const struct gk_model *model, const float *x, uint32_t index)
{
    return index > 0 ? model->layers[index - 1].activation : x;
}

/* Up to the gradient of the logits, which takes their place. */
static void forward(struct gk_model *model, struct gk_pass *pass, const float *x,
                    const struct gk_batch *batch)
{
    uint64_t answers = answers_of(model, batch);
    struct gk_softmax_args softmax = {
        .logits = model->layers[model->layers_count - 1].activation,
        .labels = stage(model, model->labels, batch->labels, answers, sizeof(*batch->labels)),
        .rows = answers,
        .classes = model->setup.classes,
        .scale = model->setup.sequence ? 1.0f / (float)model->setup.sequence : 1.0f,
        .result = model->loss};

    for (uint32_t l = 0; l < model->layers_count; l++) {
        struct gk_layer *layer = &model->layers[l];

        layer->kind->forward(layer, pass, activation_at(model, x, l),
                             activation_at(model, x, layer->plan->skip));
    }
    pass->ops->softmax_cross_entropy(pass->queue, &softmax);
}

static struct gk_pass begin(struct gk_model *model, const float *params,
                            const struct gk_batch *batch, bool training)
{
    uint32_t most = training ? model->setup.streams : model->setup.batch_max;

    GK_ASSERT(batch->count > 0 && batch->count <= most);
    GK_ASSERT(model->setup.sequence ? batch->tokens != NULL : batch->x != NULL);
    move_aux(model, model->aux_there, model->aux);
    return (struct gk_pass){.ops = model->setup.layers,
                            .queue = model->setup.queue,
                            .params = params,
                            .tokens = stage(model, model->tokens, batch->tokens,
                                            answers_of(model, batch), sizeof(*batch->tokens)),
                            .count = batch->count,
                            .batch_max = model->setup.batch_max,
                            .streams = model->setup.streams,
                            .training = training,
                            .fresh = batch->fresh,
                            .scratch = model->scratch};
}

static const float *stage_x(struct gk_model *model, const struct gk_batch *batch)
{
    return stage(model, model->x, batch->x, (uint64_t)batch->count * model->setup.features,
                 sizeof(*batch->x));
}

static enum gk_err finish(struct gk_model *model, const struct gk_batch *batch,
                          struct gk_score *ret_score)
{
    struct gk_loss loss;
    enum gk_err err = GK_OK;

    if (model->setup.layers->on_host) {
        loss = *model->loss;
    } else {
        struct gk_ticket ticket =
            model->setup.ops->copy(model->setup.queue, &loss, model->loss, sizeof(loss));

        err = model->setup.ops->wait(model->setup.queue, ticket);
    }
    if (!err) {
        *ret_score = (struct gk_score){
            .loss = loss.loss, .hits = loss.hits, .answers = answers_of(model, batch)};
    }
    return err;
}

/* A buffer that neither this gradient nor the held one lies in. */
static float *free_delta(const struct gk_model *model, const float *dy, const float *held)
{
    float *found = NULL;

    for (int i = 0; i < DELTAS && !found; i++) {
        if (model->deltas[i] != dy && model->deltas[i] != held) {
            found = model->deltas[i];
        }
    }
    GK_ASSERT(found); /* or a residual layer stands inside of another */
    return found;
}

static void add_shortcut(const struct gk_pass *pass, const struct gk_layer *residual,
                         const float *dy, float *dskip)
{
    const struct gk_residual_gradient_args args = {.dy = dy,
                                                   .dskip = dskip,
                                                   .samples = pass->count,
                                                   .rows = residual->in.rows,
                                                   .columns = residual->in.columns,
                                                   .channels = residual->in.channels,
                                                   .skip_rows = residual->skip.rows,
                                                   .skip_columns = residual->skip.columns,
                                                   .skip_channels = residual->skip.channels,
                                                   .stride = residual->plan->stride};

    pass->ops->residual_backward(pass->queue, &args);
}

static void backward(struct gk_model *model, const struct gk_pass *pass, const float *x)
{
    float *dy = model->layers[model->layers_count - 1].activation;
    float *held = NULL; /* gradient of `bridge` */
    const struct gk_layer *bridge = NULL;

    for (uint32_t l = model->layers_count; l-- > 0;) {
        struct gk_layer *layer = &model->layers[l];
        float *dx;

        /* A held gradient is read once more. */
        GK_ASSERT(dy != held || layer->plan->activation == GK_ACTIVATION_NONE);
        if (layer->plan->activation != GK_ACTIVATION_NONE) {
            pass->ops->activation_backward(pass->queue, dy, layer->activation,
                                           pass->count * gk_shape_size(&layer->out),
                                           layer->plan->activation);
        }
        if (!layer->kind->backward) {
            held = dy;
            bridge = layer;
            continue;
        }
        dx = l > 0 ? free_delta(model, dy, held) : NULL;
        layer->kind->backward(layer, pass, activation_at(model, x, l), dy, dx);
        if (bridge && bridge->plan->skip == l) {
            GK_ASSERT(dx);
            add_shortcut(pass, bridge, held, dx);
            bridge = NULL;
            held = NULL;
        }
        dy = dx;
    }
}

enum gk_err gk_model_evaluate(struct gk_model *model, const float *params,
                              const struct gk_batch *batch, struct gk_score *ret_score)
{
    struct gk_pass pass = begin(model, params, batch, false);

    forward(model, &pass, stage_x(model, batch), batch);
    return finish(model, batch, ret_score);
}

enum gk_err gk_model_gradient(struct gk_model *model, const float *params,
                              const struct gk_batch *batch, float *grad, struct gk_score *ret_score)
{
    struct gk_pass pass = begin(model, params, batch, true);
    const float *x = stage_x(model, batch);

    pass.grad = grad;
    forward(model, &pass, x, batch);
    backward(model, &pass, x);
    move_aux(model, model->aux, model->aux_there);
    return finish(model, batch, ret_score);
}
