#include "worker/trainer.h"

#include "common/assert.h"
#include "common/exit.h"
#include "cuda/backend.h"
#include "worker/data/dealer.h"
#include "worker/model/model.h"
#include "worker/start.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct gk_trainer {
    const struct gk_worker_options *options;
    struct gk_dataset *dataset;
    struct gk_dealer *dealer; /* of our rank; NULL until that is known */
    struct gk_model *model;
    struct gk_spec spec; /* its model table alone */
    const struct gk_layer_ops *layers;
    const struct gk_vector_ops *ops; /* whose memory they work on */
    struct gk_queue *queue;          /* of both */
    char device[24];
    float *params, *gradient; /* d floats each, memory of the tables */
};

/* The tables that --backend names.  In the order in which its parts can be missing: a device, what
 * it takes to compute on it. */
static enum gk_err open_tables(struct gk_trainer *trainer, int *ret_exit, struct gk_words *words)
{
    const struct gk_worker_options *options = trainer->options;
    const struct gk_settings_place place = {.values = &options->settings,
                                            .config = options->config};
    uint32_t number;
    enum gk_err err = gk_settings_table(&place, &trainer->ops, ret_exit, words);

    if (err) {
        return err;
    }
    err = trainer->ops->open(&trainer->queue, words);
    if (err) {
        *ret_exit = GK_EXIT_INTERNAL;
        return err;
    }
    trainer->layers = gk_layers_cpu();
    (void)snprintf(trainer->device, sizeof(trainer->device), "cpu");
    if (gk_settings_device(&place, &number)) {
        trainer->layers = gk_layers_cuda(words);
        (void)snprintf(trainer->device, sizeof(trainer->device), "cuda:%" PRIu32, number);
    }
    if (!trainer->layers) {
        (void)gk_config_blame(options->config, "backend", words);
        *ret_exit = GK_EXIT_CONFIG; /* of this machine: the wish is well written */
        return GK_E_UNSUPPORTED;
    }
    return GK_OK;
}

static enum gk_err open_data(struct gk_trainer *trainer, int *ret_exit, struct gk_words *words)
{
    enum gk_err err = gk_dataset_open(trainer->options->data, &trainer->dataset, words);

    *ret_exit = err == GK_E_CONFIG ? gk_config_blame(trainer->options->config, "data", words)
                                   : GK_EXIT_DATA;
    return err;
}

static enum gk_err open_model(struct gk_trainer *trainer, int *ret_exit, struct gk_words *words)
{
    const struct gk_worker_options *options = trainer->options;
    const struct gk_dataset *dataset = trainer->dataset;
    uint32_t batch = (uint32_t)options->batch;
    uint32_t test_batch = gk_model_eval_batch(options->model);
    struct gk_model_setup setup = {.layers = trainer->layers,
                                   .ops = trainer->ops,
                                   .queue = trainer->queue,
                                   .features = dataset->features,
                                   .classes = dataset->classes,
                                   .batch_max = batch > test_batch ? batch : test_batch,
                                   .rows = dataset->rows,
                                   .columns = dataset->columns,
                                   .channels = dataset->channels,
                                   .sequence = dataset->sequence,
                                   .streams = batch};
    enum gk_err err = gk_model_new(options->model, &setup, &trainer->model, words);

    *ret_exit = GK_EXIT_USAGE;
    if (err == GK_E_NOTFOUND || err == GK_E_INVALID) {
        *ret_exit = gk_config_blame(options->config, "model", words);
    }
    return err;
}

static enum gk_err alloc_memory(struct gk_trainer *trainer, struct gk_words *words)
{
    uint64_t d;

    trainer->spec.tensors =
        gk_model_tensors(trainer->model, &trainer->spec.tensors_count, &trainer->spec.params_count);
    (void)snprintf(trainer->spec.model, sizeof(trainer->spec.model), "%s", trainer->options->model);
    d = trainer->spec.params_count;
    trainer->params =
        trainer->ops->alloc(trainer->queue, GK_MEMORY_DEVICE, d * sizeof(*trainer->params));
    trainer->gradient =
        trainer->ops->alloc(trainer->queue, GK_MEMORY_DEVICE, d * sizeof(*trainer->gradient));
    if (!trainer->params || !trainer->gradient) {
        gk_words_set(words, "no memory for %" PRIu64 " parameters", d);
        return GK_E_NOMEM;
    }
    return GK_OK;
}

enum gk_err gk_trainer_open(const struct gk_worker_options *options,
                            struct gk_trainer **ret_trainer, int *ret_exit, struct gk_words *words)
{
    struct gk_trainer *trainer = calloc(1, sizeof(*trainer));
    enum gk_err err;

    *ret_exit = GK_EXIT_INTERNAL;
    if (!trainer) {
        gk_words_set(words, "no memory for a trainer");
        return GK_E_NOMEM;
    }
    trainer->options = options;
    err = open_data(trainer, ret_exit, words);
    err = err ? err : open_tables(trainer, ret_exit, words);
    err = err ? err : open_model(trainer, ret_exit, words);
    err = err ? err : alloc_memory(trainer, words);
    if (err) {
        *ret_exit = err == GK_E_NOMEM ? GK_EXIT_INTERNAL : *ret_exit;
        gk_trainer_close(trainer);
        return err;
    }
    *ret_trainer = trainer;
    return GK_OK;
}

void gk_trainer_close(struct gk_trainer *trainer)
{
    if (!trainer) {
        return;
    }
    gk_dealer_free(trainer->dealer);
    gk_model_free(trainer->model);
    gk_dataset_free(trainer->dataset);
    if (trainer->queue) {
        trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->params);
        trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->gradient);
        trainer->ops->close(trainer->queue);
    }
    free(trainer);
}

const char *gk_trainer_device(const struct gk_trainer *trainer)
{
    return trainer->device;
}

const char *gk_trainer_arithmetic(const struct gk_trainer *trainer)
{
    return trainer->layers->fingerprint();
}

const struct gk_tensor *gk_trainer_tensors(const struct gk_trainer *trainer, uint32_t *ret_count)
{
    *ret_count = trainer->spec.tensors_count;
    return trainer->spec.tensors;
}

float *gk_trainer_params(struct gk_trainer *trainer)
{
    return trainer->params;
}

float *gk_trainer_gradient(struct gk_trainer *trainer)
{
    return trainer->gradient;
}

float *gk_trainer_aux(struct gk_trainer *trainer, uint64_t *ret_count)
{
    return gk_model_aux(trainer->model, ret_count);
}

void gk_trainer_describe(const struct gk_trainer *trainer, struct gk_words *ret_words)
{
    const struct gk_worker_options *options = trainer->options;
    const struct gk_settings *settings = &options->settings;

    gk_words_set(ret_words,
                 "%s on %s: %" PRIu64 " parameters, %" PRIu32 " training and %" PRIu32
                 " test samples; %s at density %g; %s",
                 options->model, trainer->dataset->name, trainer->spec.params_count,
                 trainer->dataset->train_count, trainer->dataset->test_count, settings->compressor,
                 settings->density, trainer->layers->fingerprint());
}

const char *gk_trainer_data_note(const struct gk_trainer *trainer)
{
    return trainer->dataset->note;
}

/* Into memory of the host. */
static enum gk_err make_initial(const struct gk_trainer *trainer, float *params,
                                struct gk_words *words)
{
    struct gk_tensors *tensors;
    enum gk_err err;

    if (!trainer->options->init) {
        gk_model_init(trainer->model, trainer->options->settings.seed, params);
        return GK_OK;
    }
    err = gk_start_read(trainer->options->init, &trainer->spec, &tensors, words);
    if (!err) {
        gk_start_put(tensors, &trainer->spec, params);
        gk_tensors_free(tensors);
    }
    return err;
}

enum gk_err gk_trainer_initialise(struct gk_trainer *trainer, struct gk_words *words)
{
    const struct gk_vector_ops *ops = trainer->ops;
    size_t bytes = trainer->spec.params_count * sizeof(float);
    float *params = ops->alloc(trainer->queue, GK_MEMORY_PINNED, bytes);
    enum gk_err err;

    if (!params) {
        gk_words_set(words, "no memory for the initial parameters");
        return GK_E_NOMEM;
    }
    err = make_initial(trainer, params, words);
    if (!err) {
        err = ops->wait(trainer->queue, ops->copy(trainer->queue, trainer->params, params, bytes));
        if (err) {
            gk_words_set(words, "the initial parameters cannot be copied to %s: %s",
                         trainer->device, gk_err_text(err));
        }
    }
    ops->free(trainer->queue, GK_MEMORY_PINNED, params);
    return err;
}

enum gk_err gk_trainer_set_rank(struct gk_trainer *trainer, uint32_t rank, struct gk_words *words)
{
    const struct gk_worker_options *options = trainer->options;
    enum gk_err err;

    GK_ASSERT(rank < options->settings.workers);
    err =
        gk_dealer_new(&(struct gk_dealer_setup){.dataset = trainer->dataset,
                                                .seed = options->settings.seed,
                                                .rank = rank,
                                                .workers = (uint32_t)options->settings.workers,
                                                .batch = (uint32_t)options->batch,
                                                .test_batch = gk_model_eval_batch(options->model)},
                      &trainer->dealer);
    if (err) {
        gk_words_set(words, "no memory for batches of %" PRIu64 " out of %" PRIu32 " samples",
                     options->batch, trainer->dataset->train_count);
    }
    return err;
}

static struct gk_batch batch_of(const struct gk_samples *samples)
{
    return (struct gk_batch){.x = samples->x,
                             .labels = samples->labels,
                             .count = samples->count,
                             .tokens = samples->tokens,
                             .fresh = samples->fresh};
}

enum gk_err gk_trainer_compute(struct gk_trainer *trainer, uint64_t step,
                               struct gk_trainer_result *ret_result, struct gk_words *words)
{
    struct gk_samples samples;
    struct gk_batch batch;
    struct gk_score score;
    enum gk_err err;

    gk_dealer_train(trainer->dealer, step, &samples);
    batch = batch_of(&samples);
    err = gk_model_gradient(trainer->model, trainer->params, &batch, trainer->gradient, &score);
    if (err) {
        gk_words_set(words, "the gradient of step %" PRIu64 ": %s", step, gk_err_text(err));
        return err;
    }
    ret_result->accuracy = (double)score.hits / (double)score.answers;
    ret_result->loss = score.loss / (double)score.answers;
    return GK_OK;
}

enum gk_err gk_trainer_evaluate(struct gk_trainer *trainer, uint64_t version,
                                struct gk_trainer_result *ret_result, struct gk_words *words)
{
    struct gk_samples samples;
    double loss = 0;
    uint64_t hits = 0, answers = 0;
    enum gk_err err;

    for (uint32_t i = 0; gk_dealer_test(trainer->dealer, i, &samples); i++) {
        const struct gk_batch batch = batch_of(&samples);
        struct gk_score score;

        err = gk_model_evaluate(trainer->model, trainer->params, &batch, &score);
        if (err) {
            gk_words_set(words, "the accuracy of version %" PRIu64 ": %s", version,
                         gk_err_text(err));
            return err;
        }
        loss += score.loss;
        hits += score.hits;
        answers += score.answers;
    }
    ret_result->accuracy = (double)hits / (double)answers;
    ret_result->loss = loss / (double)answers;
    return GK_OK;
}
