/* The same job without processes, messages or faults: plain loops in the order that the protocol
 * promises (PROTOCOL 7), with code of its own for selection, sums and optimizers. */
#include "common/assert.h"
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_tensor(struct gk_sim_job *job, uint32_t index, uint64_t count, uint32_t flags)
{
    struct gk_tensor *tensor = &job->tensors[index];

    (void)snprintf(tensor->name, sizeof(tensor->name), "tensor %u", index);
    tensor->offset =
        index == 0 ? 0 : job->tensors[index - 1].offset + job->tensors[index - 1].count;
    tensor->count = count;
    tensor->dims[0] = (uint32_t)count;
    tensor->dims_count = 1;
    tensor->flags = flags;
}

bool gk_sim_job_init(struct gk_sim *sim)
{
    const struct gk_sim_options *o = &sim->options;
    struct gk_sim_job *job = &sim->job;
    uint64_t first = o->params_count / 3, second = o->params_count / 4;
    struct gk_words words;

    set_tensor(job, 0, first, 0);
    set_tensor(job, 1, second, GK_TENSOR_NO_DECAY);
    set_tensor(job, 2, o->params_count - first - second, 0);
    job->toy_seed = gk_mix64(o->seed + 77);
    job->spec = (struct gk_spec){
        .workers = o->workers,
        .servers = o->servers,
        .mode = GK_MODE_BSP,
        .lost_policy = GK_LOST_WAIT,
        .seed = o->seed,
        .steps = o->endless ? UINT32_MAX : o->steps,
        .push_max = o->k,
        .optimizer = o->optimizer,
        .lr = o->lr,
        .momentum = o->momentum,
        .weight_decay = o->weight_decay,
        .beta2 = o->optimizer == GK_OPTIMIZER_ADAMW ? 0.999f : 0,
        .epsilon = o->optimizer == GK_OPTIMIZER_ADAMW ? 1e-8f : 0,
        .schedule = GK_SCHEDULE_CONSTANT,
        .warmup_steps = o->warmup ? 2 : 0,
        .model = "toy",
        .params_count = o->params_count,
        .tensors = job->tensors,
        .tensors_count = 3,
    };
    if (gk_spec_check(&job->spec, &words) ||
        gk_spec_encode(&job->spec, job->spec_bytes, &job->spec_bytes_count, &words)) {
        gk_sim_fail(sim, "options", "%s", words.text);
        return false;
    }
    job->spec_hash = gk_spec_hash(job->spec_bytes, job->spec_bytes_count);
    job->model_signature = gk_spec_model_signature(&job->spec);
    for (uint32_t s = 0; s <= o->servers; s++) {
        job->lo[s] = gk_partition_lo(o->params_count, o->servers, s);
    }
    return true;
}

/* State of the sequential job. */
struct sequence {
    float *moments; /* [2 * d] */
    float *gradient, *sum;
    float *residuals; /* [workers * d] */
    uint64_t *order;
    uint64_t optimizer_step;
};

/* Larger magnitudes first, ties to the lower index: as one number. */
static uint64_t place(float x, uint64_t i)
{
    return (uint64_t)(GK_KEY_MASK - (gk_float_bits(x) & GK_KEY_MASK)) << 32 | i;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* What rank `rank` pushes is added to the sum; what it keeps stays in its residual. */
static void contribute(const struct gk_sim *sim, struct sequence *seq, uint32_t rank, uint64_t step,
                       const float *params)
{
    uint64_t d = sim->options.params_count;
    float *residual = seq->residuals + rank * d;
    uint64_t k = gk_sim_toy_samples(sim, rank, step) > 0 ? sim->options.k : 0;

    gk_sim_toy_gradient(sim, rank, step, params, seq->gradient);
    for (uint64_t i = 0; i < d; i++) {
        residual[i] = seq->gradient[i] + residual[i];
        seq->order[i] = place(residual[i], i);
    }
    if (k < d) {
        qsort(seq->order, d, sizeof(*seq->order), compare);
    }
    for (uint64_t i = 0; i < k; i++) {
        uint32_t at = (uint32_t)seq->order[i];

        seq->sum[at] += residual[at];
        residual[at] = 0;
    }
}

static bool decays(const struct gk_sim_job *job, uint64_t i)
{
    const struct gk_tensor *bias = &job->tensors[1];

    return i < bias->offset || i >= bias->offset + bias->count;
}

static void adamw(const struct gk_sim *sim, const struct gk_hyper *hyper, uint64_t i, float g,
                  const struct gk_sim_vector *vector)
{
    float *p = &vector->params[i], *m = &vector->moments[i];
    float *v = &vector->moments[sim->options.params_count + i];

    if (decays(&sim->job, i)) {
        *p = fmaf(-(hyper->lr * hyper->weight_decay), *p, *p);
    }
    *m = fmaf(hyper->momentum, *m, (1.0f - hyper->momentum) * g);
    *m = fabsf(*m) < 0x1p-100f ? 0 : *m;
    *v = fmaf(hyper->beta2, *v, (1.0f - hyper->beta2) * g * g);
    *v = *v < 0x1p-126f ? 0 : *v;
    *p = fmaf(-(hyper->lr / hyper->bias1), *m / (sqrtf(*v / hyper->bias2) + hyper->epsilon), *p);
}

void gk_sim_oracle_apply(const struct gk_sim *sim, uint64_t optimizer_step, uint64_t samples,
                         const struct gk_sim_vector *vector)
{
    const struct gk_spec *spec = &sim->job.spec;
    struct gk_hyper hyper = gk_spec_hyper(spec, optimizer_step);
    float lr = sim->options.rates ? gk_sim_toy_rate(sim, vector->step) : hyper.lr;

    if (spec->optimizer == GK_OPTIMIZER_NONE) {
        for (uint64_t i = vector->lo; i < vector->hi; i++) {
            vector->moments[i] = samples > 0 ? vector->sum[i] / (float)samples : 0.0f;
        }
        return;
    }
    if (samples == 0) {
        return;
    }
    for (uint64_t i = vector->lo; i < vector->hi; i++) {
        float *p = &vector->params[i], *m = &vector->moments[i];
        float g = vector->sum[i] / (float)samples;

        if (spec->optimizer == GK_OPTIMIZER_ADAMW) {
            hyper.lr = lr;
            adamw(sim, &hyper, i, g, vector);
            continue;
        }
        if (decays(&sim->job, i)) {
            g = fmaf(spec->weight_decay, *p, g);
        }
        if (spec->optimizer == GK_OPTIMIZER_SGD) {
            *p = fmaf(-lr, g, *p);
            continue;
        }
        *m = fmaf(spec->momentum, *m, g);
        if (fabsf(*m) < 0x1p-100f) {
            *m = 0;
        }
        *p = fmaf(-lr, spec->optimizer == GK_OPTIMIZER_NESTEROV ? fmaf(spec->momentum, *m, g) : *m,
                  *p);
    }
}

/* Of every worker that has an optimizer of its own. */
void gk_sim_own_step(const struct gk_sim *sim, uint64_t samples, const float *quotients,
                     float *params)
{
    for (uint64_t i = 0; samples > 0 && i < sim->options.params_count; i++) {
        params[i] = fmaf(-0.0625f, quotients[i], 0.9375f * params[i]);
    }
}

uint64_t gk_sim_oracle_hash(const float *params, uint64_t lo, uint64_t hi)
{
    uint64_t hash = 0;

    for (uint64_t i = lo; i < hi; i++) {
        hash += gk_hash_term(0, i, gk_float_bits(params[i]));
    }
    return hash;
}

static void advance(struct gk_sim *sim, struct sequence *seq, uint64_t step)
{
    uint64_t d = sim->options.params_count;
    const float *params = sim->oracle.params + step * d;
    struct gk_sim_vector vector = {.step = step,
                                   .hi = d,
                                   .params = sim->oracle.params + (step + 1) * d,
                                   .moments = seq->moments,
                                   .sum = seq->sum};
    uint64_t samples = 0;

    memset(seq->sum, 0, d * sizeof(*seq->sum));
    for (uint32_t r = 0; r < sim->options.workers; r++) {
        if (step < gk_sim_leave_at(&sim->options, r)) {
            contribute(sim, seq, r, step, params);
            samples += gk_sim_toy_samples(sim, r, step);
        }
    }
    memcpy(vector.params, params, d * sizeof(*params));
    gk_sim_oracle_apply(sim, seq->optimizer_step, samples, &vector);
    seq->optimizer_step += samples > 0;
    if (sim->options.sums) {
        gk_sim_own_step(sim, samples, seq->moments, vector.params);
    }
}

void gk_sim_oracle_init(struct gk_sim *sim, uint32_t init)
{
    const struct gk_sim_options *o = &sim->options;
    struct gk_sim_oracle *oracle = &sim->oracle;
    uint64_t d = o->params_count;
    struct sequence seq = {
        .moments = calloc(2 * d, sizeof(float)),
        .gradient = calloc(d, sizeof(float)),
        .sum = calloc(d, sizeof(float)),
        .residuals = calloc(o->workers * d, sizeof(float)),
        .order = calloc(d, sizeof(uint64_t)),
    };

    gk_sim_oracle_fini(oracle);
    oracle->params = calloc((o->steps + 1) * d, sizeof(float));
    oracle->hashes = calloc((o->steps + 1) * o->servers, sizeof(uint64_t));
    GK_ASSERT(seq.moments && seq.gradient && seq.sum && seq.residuals && seq.order &&
              oracle->params && oracle->hashes);
    gk_sim_toy_initial(&sim->job, init, oracle->params);
    for (uint64_t t = 0; t <= o->steps; t++) {
        for (uint32_t s = 0; s < o->servers; s++) {
            oracle->hashes[t * o->servers + s] = gk_sim_oracle_hash(
                oracle->params + (o->sums ? 0 : t * d), sim->job.lo[s], sim->job.lo[s + 1]);
        }
        if (t < o->steps) {
            advance(sim, &seq, t);
        }
    }
    free(seq.moments);
    free(seq.gradient);
    free(seq.sum);
    free(seq.residuals);
    free(seq.order);
}

void gk_sim_oracle_fini(struct gk_sim_oracle *oracle)
{
    free(oracle->params);
    free(oracle->hashes);
    memset(oracle, 0, sizeof(*oracle));
}
