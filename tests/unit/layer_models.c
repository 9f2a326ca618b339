/* Goal: a model computes on the CUDA layer table what it computes on the CPU's: gradients, losses,
 * hits, and the state that a restart must bring back.  Method: two training steps and an evaluation
 * through both, with the same random parameters and samples, and as many samples in a chunk of a
 * convolution.  Under the emulation all bits are the same, since both take gemm and exp from the
 * same libraries.  On a device each tensor is compared as a whole, because a rounding can take a
 * ReLU to the other side of zero, and with it a sample's part of some entries. */
#include "tests/unit/layer_rig.h"

#include "worker/model/layer.h"

#include <stdio.h>

enum { TURNS = 3, CLASSES = 5 };

static const double bound = 0.02; /* on a device, of the length of a tensor */

struct outcome {
    float *grads[TURNS - 1];
    float *aux;
    struct gk_score scores[TURNS];
};

struct job {
    struct gk_model_setup setup;
    const struct gk_model_plan *plan;
    uint32_t count;
    const struct gk_tensor *tensors; /* owned by the model of the CPU */
    uint32_t tensors_count;
    uint64_t d, aux_count;
    float *params, *x;
    uint32_t *labels, *tokens;
};

static uint64_t answers_of(const struct job *job)
{
    return (uint64_t)job->count * (job->setup.sequence ? job->setup.sequence : 1);
}

static void fill(struct job *job, const struct gk_model *model)
{
    uint64_t inputs = (uint64_t)job->count * job->setup.features;

    job->params = calloc(job->d, sizeof(float));
    job->x = calloc(inputs + 1, sizeof(float));
    job->labels = calloc(answers_of(job), sizeof(*job->labels));
    job->tokens = calloc(answers_of(job), sizeof(*job->tokens));
    gk_model_init(model, 3, job->params);
    for (uint64_t i = 0; i < inputs; i++)
        job->x[i] = uniform();
    for (uint64_t i = 0; i < answers_of(job); i++) {
        job->labels[i] = (uint32_t)below(job->setup.classes);
        job->tokens[i] = (uint32_t)below(job->setup.classes);
    }
}

/* Memory of the device. */
static float *take(const struct job *job)
{
    float *memory = tables[0]->alloc(queues[0], GK_MEMORY_DEVICE, job->d * sizeof(float));

    cr_assert_not_null(memory);
    return memory;
}

static void move(const struct job *job, float *target, const float *source)
{
    cr_assert_eq(tables[0]->wait(
                     queues[0], tables[0]->copy(queues[0], target, source, job->d * sizeof(float))),
                 GK_OK);
}

static void turns(const struct job *job, struct gk_model *model, const float *params, float *grad,
                  struct outcome *outcome)
{
    struct gk_batch batch = {
        .x = job->x, .labels = job->labels, .count = job->count, .tokens = job->tokens};

    for (unsigned turn = 0; turn < TURNS - 1; turn++) {
        next_schedule();
        cr_assert_eq(gk_model_gradient(model, params, &batch, grad, &outcome->scores[turn]), GK_OK);
        outcome->grads[turn] = calloc(job->d, sizeof(float));
        if (job->setup.layers->on_host)
            memcpy(outcome->grads[turn], grad, job->d * sizeof(float));
        else
            move(job, outcome->grads[turn], grad);
        batch.count = turn == 0 && job->count > 1 ? job->count - 1 : job->count;
    }
    cr_assert_eq(gk_model_evaluate(model, params, &batch, &outcome->scores[TURNS - 1]), GK_OK);
}

static void keep_aux(struct gk_model *model, struct outcome *outcome)
{
    uint64_t count;
    const float *aux = gk_model_aux(model, &count);

    outcome->aux = calloc(count + 1, sizeof(float));
    if (count > 0)
        memcpy(outcome->aux, aux, count * sizeof(float));
}

/* Of the CPU; the job is filled in. */
static struct gk_model *expect(struct job *job, struct outcome *outcome)
{
    struct gk_words words = {""};
    struct gk_model *model;
    float *grad;

    cr_assert_eq(gk_model_new_of(job->plan, &job->setup, &model, &words), GK_OK, "%s", words.text);
    job->tensors = gk_model_tensors(model, &job->tensors_count, &job->d);
    (void)gk_model_aux(model, &job->aux_count);
    fill(job, model);
    grad = calloc(job->d, sizeof(float));
    turns(job, model, job->params, grad, outcome);
    keep_aux(model, outcome);
    free(grad);
    return model;
}

static void compute(struct job *job, struct outcome *outcome)
{
    struct gk_words words = {""};
    struct gk_model *model;
    float *params = take(job);
    float *grad = take(job);

    cr_assert_eq(gk_model_new_of(job->plan, &job->setup, &model, &words), GK_OK, "%s", words.text);
    move(job, params, job->params);
    turns(job, model, params, grad, outcome);
    keep_aux(model, outcome);
    gk_model_free(model);
    tables[0]->free(queues[0], GK_MEMORY_DEVICE, params);
    tables[0]->free(queues[0], GK_MEMORY_DEVICE, grad);
}

static void compare_floats(const float *is, const float *expected, uint64_t count, const char *what)
{
    double distance = 0.0, length = 0.0;

    for (uint64_t i = 0; i < count; i++) {
        cr_assert(!rig_emulated || is[i] == expected[i], "%s[%u]: %.9g, on the CPU %.9g", what,
                  (unsigned)i, (double)is[i], (double)expected[i]);
        distance += pow((double)is[i] - (double)expected[i], 2.0);
        length += pow((double)expected[i], 2.0);
    }
    cr_assert(sqrt(distance) <= bound * sqrt(length), "%s: %g from a vector of length %g", what,
              sqrt(distance), sqrt(length));
}

static void compare(const struct job *job, const struct outcome *is, const struct outcome *expected)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const struct gk_score *a = &is->scores[turn], *b = &expected->scores[turn];

        cr_assert_eq(a->answers, b->answers);
        cr_assert(rig_emulated ? a->loss == b->loss : fabs(a->loss - b->loss) <= bound * b->loss,
                  "%s, turn %u: loss %.17g, on the CPU %.17g", job->plan->name, turn, a->loss,
                  b->loss);
        cr_assert(!rig_emulated || a->hits == b->hits, "%s, turn %u", job->plan->name, turn);
        for (uint32_t i = 0; turn < TURNS - 1 && i < job->tensors_count; i++)
            compare_floats(is->grads[turn] + job->tensors[i].offset,
                           expected->grads[turn] + job->tensors[i].offset, job->tensors[i].count,
                           job->tensors[i].name);
    }
    compare_floats(is->aux, expected->aux, job->aux_count, "aux");
}

static void release(struct outcome *outcome)
{
    for (unsigned turn = 0; turn < TURNS - 1; turn++)
        free(outcome->grads[turn]);
    free(outcome->aux);
}

/* The tables with as many rows in a chunk: `window_rows` decides the order of sums. */
static void check(const struct gk_model_plan *plan, struct gk_model_setup setup, uint32_t count,
                  uint32_t window_rows)
{
    struct gk_layer_ops here = *cpu, there = *cuda;
    struct job job = {.plan = plan, .setup = setup, .count = count};
    struct outcome outcomes[2] = {{.aux = NULL}};
    struct gk_model *model;

    here.window_rows = there.window_rows = window_rows;
    job.setup.batch_max = count;
    job.setup.layers = &here;
    model = expect(&job, &outcomes[0]);
    job.setup.layers = &there;
    job.setup.ops = tables[0];
    job.setup.queue = queues[0];
    compute(&job, &outcomes[1]);
    compare(&job, &outcomes[1], &outcomes[0]);
    release(&outcomes[0]);
    release(&outcomes[1]);
    gk_model_free(model);
    free(job.params);
    free(job.x);
    free(job.labels);
    free(job.tokens);
}

static struct gk_layer_plan *add(struct gk_plan *plan, const char *name, enum gk_layer_type type)
{
    struct gk_layer_plan *layer = &plan->layers[plan->layers_count++];

    *layer = (struct gk_layer_plan){.type = type};
    (void)snprintf(layer->name, sizeof(layer->name), "%s", name);
    return layer;
}

static void add_conv(struct gk_plan *plan, const char *name, uint32_t outputs, uint32_t stride)
{
    struct gk_layer_plan *layer = add(plan, name, GK_LAYER_CONV);
    char norm[GK_LAYER_NAME_BYTES];

    layer->outputs = outputs;
    layer->kernel = 3;
    layer->stride = stride;
    layer->pad = 1;
    layer->init = 1.0f;
    (void)snprintf(norm, sizeof(norm), "%.40s.n", name);
    layer = add(plan, norm, GK_LAYER_NORM);
    layer->activation = GK_ACTIVATION_RELU;
}

/* A small one: a shortcut within a size, one to the next. */
static enum gk_err fill_resnet(struct gk_plan *plan, const struct gk_plan_input *input,
                               struct gk_words *words)
{
    struct gk_layer_plan *layer;

    (void)input;
    (void)words;
    add_conv(plan, "a", 4, 1);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t skip = plan->layers_count;

        add_conv(plan, i == 0 ? "b" : "d", i == 0 ? 4 : 6, i + 1);
        add_conv(plan, i == 0 ? "c" : "e", i == 0 ? 4 : 6, 1);
        plan->layers[plan->layers_count - 1].activation = GK_ACTIVATION_NONE;
        layer = add(plan, "add", GK_LAYER_RESIDUAL);
        layer->skip = skip;
        layer->stride = i + 1;
        layer->activation = GK_ACTIVATION_RELU;
    }
    layer = add(plan, "pool", GK_LAYER_AVERAGE_POOL);
    layer->kernel = layer->stride = 2;
    layer = add(plan, "end", GK_LAYER_LINEAR);
    layer->outputs = input->classes;
    layer->flattens = true;
    layer->init = 1.0f;
    return GK_OK;
}

static struct gk_model_setup images(uint32_t side, uint32_t channels)
{
    return (struct gk_model_setup){.features = side * side * channels,
                                   .classes = CLASSES,
                                   .rows = side,
                                   .columns = side,
                                   .channels = channels};
}

Test(layer_models, named)
{
    static const struct {
        const char *name;
        uint32_t side, channels, count;
    } cases[] = {{"softmax", 6, 2, 4},
                 {"fnn3", 6, 2, 3},
                 {"lenet5", 28, 1, 2},
                 {"lenet5", 31, 2, 1},
                 {"resnet20", 32, 3, 2}};

    open_layers();
    random_state = 11;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check(gk_model_plan_find(cases[i].name), images(cases[i].side, cases[i].channels),
              cases[i].count, 512);
    close_layers();
}

/* Chunks of two samples, the last one with one. */
Test(layer_models, shortcuts)
{
    static const struct gk_model_plan plan = {"shortcuts", 1, fill_resnet};

    open_layers();
    random_state = 12;
    check(&plan, images(12, 3), 3, 200);
    close_layers();
}

/* The second batch goes on where the first has ended. */
Test(layer_models, charlstm)
{
    const struct gk_model_setup setup = {.classes = 20, .sequence = 5};

    open_layers();
    random_state = 13;
    check(gk_model_plan_find("charlstm"), setup, 3, 512);
    close_layers();
}

#ifdef RIG_EMULATED
/* A launch that fails is the error of its call: the state stays as it was, and the same call gives
 * the gradient afterwards. */
Test(layer_models, failures)
{
    static const struct gk_model_plan plan = {"shortcuts", 1, fill_resnet};
    struct job job = {.plan = &plan, .setup = images(8, 2), .count = 2};
    struct gk_words words = {""};
    struct gk_batch batch;
    struct gk_model *model;
    struct gk_score score;
    struct outcome outcome;
    float *params, *grad, *back;
    int64_t after;

    open_layers();
    random_state = 14;
    job.setup.batch_max = job.count;
    job.setup.layers = cuda;
    job.setup.ops = tables[0];
    job.setup.queue = queues[0];
    cr_assert_eq(gk_model_new_of(&plan, &job.setup, &model, &words), GK_OK, "%s", words.text);
    (void)gk_model_tensors(model, &job.tensors_count, &job.d);
    fill(&job, model);
    keep_aux(model, &outcome);
    params = take(&job);
    grad = take(&job);
    back = calloc(2 * job.d, sizeof(float));
    move(&job, params, job.params);
    batch = (struct gk_batch){.x = job.x, .labels = job.labels, .count = job.count};
    for (after = -1; after < 1000; after = after < 0 ? 0 : after + 5) {
        float *aux = gk_model_aux(model, &job.aux_count);
        enum gk_err err;

        gk_simt_fail_launch(after);
        err = gk_model_gradient(model, params, &batch, grad, &score);
        gk_simt_fail_launch(-1);
        if (after >= 0 && err == GK_OK)
            break;
        cr_assert_eq(err, after < 0 ? GK_OK : GK_E_IO);
        if (after < 0) {
            move(&job, back, grad);
        } else {
            cr_assert_eq(memcmp(aux, outcome.aux, job.aux_count * sizeof(float)), 0);
            cr_assert_eq(gk_model_gradient(model, params, &batch, grad, &score), GK_OK);
            move(&job, back + job.d, grad);
            cr_assert_eq(memcmp(back, back + job.d, job.d * sizeof(float)), 0);
        }
        memcpy(aux, outcome.aux, job.aux_count * sizeof(float));
    }
    cr_assert(after > 50 && after < 1000, "%d launches", (int)after);
    gk_model_free(model);
    tables[0]->free(queues[0], GK_MEMORY_DEVICE, params);
    tables[0]->free(queues[0], GK_MEMORY_DEVICE, grad);
    free(outcome.aux);
    free(back);
    free(job.params);
    free(job.x);
    free(job.labels);
    free(job.tokens);
    close_layers();
}
#endif
