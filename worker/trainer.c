#include "worker/trainer.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/option_rows.h"
#include "common/net/clock.h"
#include "worker/data/feed.h"
#include "worker/model/model.h"
#include "worker/select/select.h"
#include "worker/start.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gk_trainer {
    const struct gk_worker_options *options;
    uint32_t rank, servers;
    struct gk_dataset *dataset;
    struct gk_feed *feed; /* of our rank; NULL until that is known */
    struct gk_model *model;
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_selector *selector;
    struct gk_slot *slot; /* NULL: gradient and residual are our own */
    struct gk_spec spec;
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t spec_hash;
    uint64_t params_count;
    float *params, *gradient, *residual,
        *initial; /* d floats each; gradient and residual change places */
};

static enum gk_err parse_milestones(const char *text, struct gk_spec *spec, struct gk_words *words)
{
    while (*text) {
        char *end;
        unsigned long long value;

        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno || *text < '0' || *text > '9' || (*end && *end != ',')) {
            gk_words_set(words, "'%.60s': expected rising step numbers like 500,750", text);
            return GK_E_CONFIG;
        }
        if (spec->milestones_count == GK_MILESTONES_MAX) {
            gk_words_set(words, "more than %d steps", GK_MILESTONES_MAX);
            return GK_E_CONFIG;
        }
        spec->milestones[spec->milestones_count++] = value;
        text = *end ? end + 1 : end;
    }
    return GK_OK;
}

/* The largest number of entries that one step of this operator may push. */
static enum gk_err push_max(const struct gk_worker_options *options, uint64_t params_count,
                            uint64_t *ret_max, struct gk_words *words)
{
    uint32_t count;
    const struct gk_operator *const *operators = gk_operators(&count);

    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(operators[i]->name, options->compressor) == 0) {
            *ret_max = operators[i]->unbounded ? params_count
                                               : gk_select_k(options->density, params_count);
            return GK_OK;
        }
    }
    gk_words_set(words, "'%.60s' does not exist: %s", options->compressor, gk_operator_choices());
    return GK_E_CONFIG;
}

/* An option that the others would make silently idle: its name and words; NULL: there is none. */
static const char *idle_option(const struct gk_worker_options *options, uint32_t optimizer,
                               uint32_t schedule, struct gk_words *words)
{
    bool adamw = optimizer == GK_OPTIMIZER_ADAMW;
    const struct {
        const char *name, *usual;
        double value;
        bool used;
        const char *needs;
    } of_optimizers[] = {
        {"momentum", GK_OPTION_MOMENTUM, options->momentum,
         optimizer >= GK_OPTIMIZER_MOMENTUM && !adamw,
         adamw ? "momentum or nesterov (adamw has --beta1)" : "momentum or nesterov"},
        {"beta1", GK_OPTION_BETA1, options->beta1, adamw, "adamw"},
        {"beta2", GK_OPTION_BETA2, options->beta2, adamw, "adamw"},
        {"epsilon", GK_OPTION_EPSILON, options->epsilon, adamw, "adamw"},
    };

    for (size_t i = 0; i < sizeof(of_optimizers) / sizeof(of_optimizers[0]); i++) {
        if (!of_optimizers[i].used &&
            of_optimizers[i].value != strtod(of_optimizers[i].usual, NULL)) {
            gk_words_set(words, "%g needs --optimizer %s", of_optimizers[i].value,
                         of_optimizers[i].needs);
            return of_optimizers[i].name;
        }
    }
    if (options->milestones[0] && schedule != GK_SCHEDULE_MILESTONES) {
        gk_words_set(words, "'%.60s' needs --schedule milestones", options->milestones);
        return "milestones";
    }
    if (options->lr_min > 0 && schedule != GK_SCHEDULE_COSINE) {
        gk_words_set(words, "%g needs --schedule cosine", options->lr_min);
        return "lr-min";
    }
    return NULL;
}

static void set_optimizer(const struct gk_worker_options *options, uint32_t optimizer,
                          struct gk_spec *spec)
{
    spec->optimizer = optimizer;
    spec->lr = (float)options->lr;
    spec->weight_decay = (float)options->weight_decay;
    if (optimizer == GK_OPTIMIZER_ADAMW) {
        spec->momentum = (float)options->beta1;
        spec->beta2 = (float)options->beta2;
        spec->epsilon = (float)options->epsilon;
    } else if (optimizer >= GK_OPTIMIZER_MOMENTUM) {
        spec->momentum = (float)options->momentum;
    }
}

static enum gk_err make_spec(struct gk_trainer *trainer, int *ret_exit, struct gk_words *words)
{
    static const uint32_t optimizers[] = {GK_OPTIMIZER_NONE, GK_OPTIMIZER_SGD,
                                          GK_OPTIMIZER_MOMENTUM, GK_OPTIMIZER_NESTEROV,
                                          GK_OPTIMIZER_ADAMW};
    static const uint32_t schedules[] = {GK_SCHEDULE_CONSTANT, GK_SCHEDULE_MILESTONES,
                                         GK_SCHEDULE_COSINE};
    const struct gk_worker_options *options = trainer->options;
    struct gk_spec *spec = &trainer->spec;
    const char *idle =
        idle_option(options, optimizers[options->optimizer], schedules[options->schedule], words);
    enum gk_err err;

    if (idle) {
        *ret_exit = gk_config_blame(options->config, idle, words);
        return GK_E_CONFIG;
    }
    spec->workers = (uint32_t)options->workers;
    spec->servers = trainer->servers;
    spec->mode = GK_MODE_BSP;
    spec->lost_policy = GK_LOST_WAIT;
    spec->nonfinite_policy = options->nonfinite;
    spec->seed = options->seed;
    spec->steps = options->steps;
    set_optimizer(options, optimizers[options->optimizer], spec);
    spec->schedule = schedules[options->schedule];
    spec->warmup_steps = options->warmup;
    if (spec->schedule == GK_SCHEDULE_MILESTONES) {
        spec->lr_gamma = (float)options->lr_gamma;
        err = parse_milestones(options->milestones, spec, words);
        if (err) {
            *ret_exit = gk_config_blame(options->config, "milestones", words);
            return err;
        }
    }
    spec->lr_min = spec->schedule == GK_SCHEDULE_COSINE ? (float)options->lr_min : 0;
    (void)snprintf(spec->model, sizeof(spec->model), "%s", options->model);
    spec->tensors = gk_model_tensors(trainer->model, &spec->tensors_count, &spec->params_count);
    trainer->params_count = spec->params_count;
    err = push_max(options, spec->params_count, &spec->push_max, words);
    if (err) {
        *ret_exit = gk_config_blame(options->config, "compressor", words);
        return err;
    }
    err = gk_spec_check(spec, words); /* of values beside each other: no single one is to blame */
    *ret_exit = GK_EXIT_USAGE;
    if (!err) {
        err = gk_spec_encode(spec, trainer->spec_bytes, &trainer->spec_bytes_count, words);
    }
    trainer->spec_hash = gk_spec_hash(trainer->spec_bytes, trainer->spec_bytes_count);
    return err;
}

static float *alloc_floats(struct gk_trainer *trainer, uint64_t count)
{
    return trainer->ops->alloc(trainer->queue, GK_MEMORY_DEVICE, count * sizeof(float));
}

static enum gk_err alloc_memory(struct gk_trainer *trainer, struct gk_words *words)
{
    bool in_slot = trainer->options->state_dir != NULL;

    trainer->params = alloc_floats(trainer, trainer->params_count);
    if (!in_slot) {
        trainer->gradient = alloc_floats(trainer, trainer->params_count);
        trainer->residual = alloc_floats(trainer, trainer->params_count);
    }
    if (!trainer->params || (!in_slot && (!trainer->gradient || !trainer->residual))) {
        gk_words_set(words, "no memory for %" PRIu64 " parameters", trainer->params_count);
        return GK_E_NOMEM;
    }
    return GK_OK;
}

static enum gk_err open_backend(struct gk_trainer *trainer, int *ret_exit, struct gk_words *words)
{
    enum gk_err err = gk_vector_cpu((enum gk_cpu)trainer->options->cpu, &trainer->ops, words);

    *ret_exit = GK_EXIT_CONFIG; /* of this machine: the wish is well written */
    if (err) {
        (void)gk_config_blame(trainer->options->config, "cpu", words);
        return err;
    }
    return trainer->ops->open(&trainer->queue, words);
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
    struct gk_model_setup setup = {.layers = gk_layers_cpu(),
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

static enum gk_err open_selector(struct gk_trainer *trainer, struct gk_words *words)
{
    struct gk_range whole = {.lo = 0, .hi = trainer->params_count};
    struct gk_select_setup setup = {.ops = trainer->ops,
                                    .queue = trainer->queue,
                                    .params_count = trainer->params_count,
                                    .segments = &whole,
                                    .segments_count = 1,
                                    .seed = trainer->options->seed,
                                    .rank = trainer->rank,
                                    .policy = GK_NONFINITE_ABORT};

    return gk_selector_new(trainer->options->compressor, trainer->options->density, &setup,
                           &trainer->selector, words);
}

enum gk_err gk_trainer_set_rank(struct gk_trainer *trainer, uint32_t rank, struct gk_words *words)
{
    const struct gk_worker_options *options = trainer->options;
    enum gk_err err;

    GK_ASSERT(rank < options->workers);
    gk_selector_free(trainer->selector); /* of a rank that shard 0 gave to somebody else since */
    trainer->selector = NULL;
    gk_feed_free(trainer->feed);
    trainer->feed = NULL;
    trainer->rank = rank;
    err = gk_feed_new(&(struct gk_feed_setup){.dataset = trainer->dataset,
                                              .seed = options->seed,
                                              .rank = rank,
                                              .workers = (uint32_t)options->workers,
                                              .batch = (uint32_t)options->batch,
                                              .test_batch = gk_model_eval_batch(options->model)},
                      &trainer->feed);
    if (err) {
        gk_words_set(words, "no memory for batches of %" PRIu64 " out of %" PRIu32 " samples",
                     options->batch, trainer->dataset->train_count);
        return err;
    }
    return open_selector(trainer, words);
}

enum gk_err gk_trainer_open(const struct gk_worker_options *options, uint32_t servers,
                            struct gk_trainer **ret_trainer, int *ret_exit, struct gk_words *words)
{
    struct gk_trainer *trainer = calloc(1, sizeof(*trainer));
    enum gk_err err;

    *ret_exit = GK_EXIT_INTERNAL;
    if (!trainer) {
        gk_words_set(words, "no memory");
        return GK_E_NOMEM;
    }
    trainer->options = options;
    trainer->servers = servers;
    err = open_backend(trainer, ret_exit, words);
    err = err ? err : open_data(trainer, ret_exit, words);
    err = err ? err : open_model(trainer, ret_exit, words);
    err = err ? err : make_spec(trainer, ret_exit, words);
    err = err ? err : alloc_memory(trainer, words);
    if (err) {
        *ret_exit = err == GK_E_NOMEM ? GK_EXIT_INTERNAL : *ret_exit;
        goto out;
    }
    *ret_trainer = trainer;
    return GK_OK;
out:
    gk_trainer_close(trainer);
    return err;
}

void gk_trainer_close(struct gk_trainer *trainer)
{
    if (!trainer) {
        return;
    }
    gk_selector_free(trainer->selector);
    gk_feed_free(trainer->feed);
    GK_ASSERT(!trainer->slot);
    if (trainer->queue) {
        trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->params);
        trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->gradient);
        trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->residual);
        trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->initial);
        trainer->ops->close(trainer->queue);
    }
    gk_model_free(trainer->model);
    gk_dataset_free(trainer->dataset);
    free(trainer);
}

const struct gk_spec *gk_trainer_spec(const struct gk_trainer *trainer)
{
    return &trainer->spec;
}

const uint8_t *gk_trainer_spec_bytes(const struct gk_trainer *trainer, size_t *ret_bytes,
                                     uint64_t *ret_hash)
{
    *ret_bytes = trainer->spec_bytes_count;
    *ret_hash = trainer->spec_hash;
    return trainer->spec_bytes;
}

void gk_trainer_describe(const struct gk_trainer *trainer, struct gk_words *ret_words)
{
    const struct gk_worker_options *options = trainer->options;

    gk_words_set(ret_words,
                 "%s on %s: %" PRIu64 " parameters, %" PRIu32 " training and %" PRIu32
                 " test samples; %s at density %g; "
                 "%s, %s; %.1f MiB for "
                 "parameters, gradient and residual",
                 options->model, trainer->dataset->name, trainer->params_count,
                 trainer->dataset->train_count, trainer->dataset->test_count, options->compressor,
                 options->density, trainer->ops->caps(trainer->queue)->name,
                 gk_layers_cpu()->fingerprint(),
                 3.0 * sizeof(float) * (double)trainer->params_count / (1 << 20));
}

const char *gk_trainer_data_note(const struct gk_trainer *trainer)
{
    return trainer->dataset->note;
}

static enum gk_err fill_initial(struct gk_trainer *trainer, struct gk_words *words)
{
    struct gk_tensors *tensors;
    enum gk_err err;

    if (!trainer->options->init) {
        gk_model_init(trainer->model, trainer->options->seed, trainer->initial);
        return GK_OK;
    }
    err = gk_start_read(trainer->options->init, &trainer->spec, &tensors, words);
    if (!err) {
        gk_start_put(tensors, &trainer->spec, trainer->initial);
        gk_tensors_free(tensors);
    }
    return err;
}

enum gk_err gk_trainer_make_init(struct gk_trainer *trainer, uint64_t *ret_init_id,
                                 struct gk_words *words)
{
    uint64_t id;
    enum gk_err err;

    GK_ASSERT(!trainer->initial);
    trainer->initial = alloc_floats(trainer, trainer->params_count);
    if (!trainer->initial) {
        gk_words_set(words, "no memory for the initial parameters");
        return GK_E_NOMEM;
    }
    err = fill_initial(trainer, words);
    if (err) {
        return err;
    }
    id = gk_hash64_more(0, trainer->spec_bytes, trainer->spec_bytes_count);
    id = gk_hash64_more(id, trainer->initial, trainer->params_count * sizeof(float));
    *ret_init_id = id ? id : 1;
    return GK_OK;
}

const float *gk_trainer_initial(const struct gk_trainer *trainer)
{
    return trainer->initial;
}

void gk_trainer_drop_initial(struct gk_trainer *trainer)
{
    trainer->ops->free(trainer->queue, GK_MEMORY_DEVICE, trainer->initial);
    trainer->initial = NULL;
}

void gk_trainer_install(struct gk_trainer *trainer, uint64_t lo, uint64_t hi, const float *values)
{
    GK_ASSERT(lo < hi && hi <= trainer->params_count);
    memcpy(trainer->params + lo, values, (hi - lo) * sizeof(float));
}

static void look_into_slot(struct gk_trainer *trainer)
{
    trainer->gradient = trainer->slot ? gk_slot_target(trainer->slot) : NULL;
    trainer->residual = trainer->slot ? gk_slot_residual(trainer->slot) : NULL;
}

void gk_trainer_use_slot(struct gk_trainer *trainer, struct gk_slot *slot)
{
    trainer->slot = slot;
    look_into_slot(trainer);
}

enum gk_err gk_trainer_reset(struct gk_trainer *trainer, struct gk_words *words)
{
    if (trainer->slot) {
        return gk_slot_void(trainer->slot, words);
    }
    memset(trainer->residual, 0, trainer->params_count * sizeof(float));
    return GK_OK;
}

static enum gk_err encode(struct gk_trainer *trainer, const struct gk_selected *selected,
                          struct gk_trainer_step *step)
{
    struct gk_push_source source = {.step = step->step,
                                    .samples = trainer->options->batch,
                                    .rank = trainer->rank,
                                    .servers = trainer->servers,
                                    .params_count = trainer->params_count,
                                    .idx = selected->idx,
                                    .val = selected->val,
                                    .n = selected->n,
                                    .chunk_floats = GK_CHUNK_FLOATS};

    return gk_push_encode(&source, &step->push, &step->words);
}

/* The gradient is the sum over the samples; the bound is for that of their mean. */
static enum gk_err clip(const struct gk_trainer *trainer)
{
    const struct gk_range whole = {.hi = trainer->params_count};
    const double bound = trainer->options->clip * (double)trainer->options->batch;
    struct gk_stats stats;
    const struct gk_stats_args measure = {
        .u = trainer->gradient, .segments = &whole, .segments_count = 1, .stats = &stats};
    struct gk_accumulate_args scale = {
        .dst = trainer->gradient, .g = trainer->gradient, .n = trainer->params_count};
    struct gk_ticket ticket;
    enum gk_err err;

    ticket = trainer->ops->stats(trainer->queue, &measure);
    err = trainer->ops->wait(trainer->queue, ticket);
    if (err || !(stats.sum_squares > bound * bound)) {
        return err;
    }
    scale.scale = (float)(bound / sqrt(stats.sum_squares));
    ticket = trainer->ops->accumulate(trainer->queue, &scale);
    return trainer->ops->wait(trainer->queue, ticket);
}

/* The gradient of this step's batch, and what it says about the model. */
static enum gk_err compute(struct gk_trainer *trainer, struct gk_trainer_step *step)
{
    struct gk_samples samples;
    struct gk_batch batch;
    struct gk_score score;
    enum gk_err err;

    gk_feed_train(trainer->feed, step->step, &samples);
    batch = (struct gk_batch){.x = samples.x,
                              .labels = samples.labels,
                              .count = samples.count,
                              .tokens = samples.tokens,
                              .fresh = samples.fresh};
    err = gk_model_gradient(trainer->model, trainer->params, &batch, trainer->gradient, &score);
    if (!err && trainer->options->clip > 0) {
        err = clip(trainer);
    }
    if (err) {
        gk_words_set(&step->words, "the gradient of step %" PRIu64 ": %s", step->step,
                     gk_err_text(err));
        return err;
    }
    step->hits = score.hits;
    step->loss = score.loss / (double)score.answers;
    return GK_OK;
}

void gk_trainer_step(struct gk_trainer *trainer, struct gk_trainer_step *step)
{
    struct gk_select_step select = {.step = step->step, .density = trainer->options->density};
    struct gk_selected selected;
    uint64_t start_us = gk_now_us();
    uint64_t computed_us;
    enum gk_err err;
    float *swap;

    step->push = NULL;
    if (trainer->slot) {
        gk_slot_begin(trainer->slot, step->step);
    }
    err = compute(trainer, step);
    computed_us = gk_now_us();
    step->compute_us = computed_us - start_us;
    select.g = trainer->gradient;
    select.e = trainer->residual;
    if (!err) {
        err = gk_selector_step(trainer->selector, &select, &selected, &step->words);
    }
    if (!err) {
        step->selected = selected.n;
        err = encode(trainer, &selected, step);
    }
    if (!err && trainer->slot) {
        err = gk_slot_put(trainer->slot, step->push, &step->words);
    }
    step->select_us = gk_now_us() - computed_us;
    if (err) {
        gk_push_free(step->push);
        step->push = NULL;
        step->exit_code = err == GK_E_NONFINITE ? GK_EXIT_DATA : GK_EXIT_INTERNAL;
        return;
    }
    if (!trainer->slot) {
        swap = trainer->gradient; /* it holds the new residual now */
        trainer->gradient = trainer->residual;
        trainer->residual = swap;
    }
}

enum gk_err gk_trainer_persist(struct gk_trainer *trainer, const struct gk_worker_memory *memory,
                               struct gk_words *words)
{
    enum gk_err err = gk_slot_persist(trainer->slot, memory, words);

    look_into_slot(trainer);
    return err;
}

void gk_trainer_evaluate(struct gk_trainer *trainer, struct gk_trainer_eval *eval)
{
    struct gk_samples samples;
    double loss = 0;
    uint64_t hits = 0, answers = 0;

    for (uint32_t i = 0; gk_feed_test(trainer->feed, i, &samples); i++) {
        const struct gk_batch batch = {.x = samples.x,
                                       .labels = samples.labels,
                                       .count = samples.count,
                                       .tokens = samples.tokens,
                                       .fresh = samples.fresh};
        struct gk_score score;

        if (gk_model_evaluate(trainer->model, trainer->params, &batch, &score)) {
            loss = NAN; /* whatever it is, the next step meets it too, and can say so */
            break;
        }
        loss += score.loss;
        hits += score.hits;
        answers += score.answers;
    }
    eval->accuracy = (double)hits / (double)answers;
    eval->loss = loss / (double)answers;
}
