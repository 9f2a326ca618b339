/* A model without meaning: its gradient depends on every parameter, on the rank and on the step,
 * and its values differ so much in size that the order of a sum shows in the bits.
 *
 * Selection runs through the reference table, and what comes out is checked entry by entry against
 * what went in: nothing is lost between gradient, residual and push (P1). */
#include "common/assert.h"
#include "common/hash.h"
#include "tests/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 24 random bits in [-1, 1), times a power of two from 2^-8 to 2^7. */
static float noise(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = gk_mix64(gk_mix64(gk_mix64(seed + a) + b) + c);
    float mantissa = (float)(int32_t)(x & 0xffffff) * 0x1p-23f - 1.0f;

    return ldexpf(mantissa, (int)(x >> 32 & 15) - 8);
}

void gk_sim_toy_initial(const struct gk_sim_job *job, uint32_t init, float *ret)
{
    for (uint64_t i = 0; i < job->spec.params_count; i++) {
        ret[i] = noise(job->toy_seed, 1, init, i);
    }
}

uint64_t gk_sim_toy_init_id(const struct gk_sim_job *job, const float *initial)
{
    uint64_t id = gk_hash64_more(0, job->spec_bytes, job->spec_bytes_count);

    id = gk_hash64_more(id, initial, job->spec.params_count * sizeof(float));
    return id ? id : 1;
}

uint64_t gk_sim_toy_samples(const struct gk_sim *sim, uint32_t rank, uint64_t step)
{
    uint64_t x = gk_mix64(gk_mix64(sim->job.toy_seed + 2 + rank) + step);

    return x % 1000 < sim->options.idle ? 0 : 1 + (x >> 32) % 4;
}

void gk_sim_toy_gradient(const struct gk_sim *sim, uint32_t rank, uint64_t step,
                         const float *params, float *ret)
{
    bool idle = gk_sim_toy_samples(sim, rank, step) == 0;

    for (uint64_t i = 0; i < sim->job.spec.params_count; i++) {
        ret[i] =
            idle ? 0.0f
                 : noise(sim->job.toy_seed, UINT64_C(0x100) + rank, step, i) + 0.125f * params[i];
    }
}

/* Every coordinate of u is either pushed whole or kept whole. */
static void check_conservation(struct gk_sim *sim, const struct gk_sim_proc *proc,
                               const struct gk_sim_push *push)
{
    for (uint64_t i = 0; i < sim->job.spec.params_count; i++) {
        float u = proc->gradient[i] + proc->residual[i];
        float kept = proc->next[i];
        float sent = push->values[i];
        bool whole = (gk_float_bits(sent) == gk_float_bits(u) && kept == 0) ||
                     (sent == 0 && gk_float_bits(kept) == gk_float_bits(u)) ||
                     (u == 0 && sent == 0 && kept == 0);

        if (!whole) {
            gk_sim_fail(sim, "P1",
                        "rank %u step %llu parameter %llu: gradient %a + residual %a, but %a was "
                        "pushed and %a kept",
                        proc->rank, (unsigned long long)proc->step, (unsigned long long)i,
                        (double)proc->gradient[i], (double)proc->residual[i], (double)sent,
                        (double)kept);
            return;
        }
    }
}

float gk_sim_toy_rate(const struct gk_sim *sim, uint64_t step)
{
    return 0.015625f * (float)(1 + gk_mix64(sim->job.toy_seed + 9 + step) % 8);
}

static struct gk_push *encode(const struct gk_sim *sim, const struct gk_sim_proc *proc,
                              const uint32_t *idx, const float *val, uint64_t n)
{
    struct gk_push_source source = {
        .step = proc->step,
        .samples = gk_sim_toy_samples(sim, proc->rank, proc->step),
        .has_rate = sim->options.rates,
        .lr = gk_sim_toy_rate(sim, proc->step) + proc->wrong_rate,
        .rank = proc->rank,
        .servers = sim->options.servers,
        .params_count = sim->job.spec.params_count,
        .idx = idx,
        .val = val,
        .n = n,
        .chunk_floats = sim->options.worker_chunk,
    };
    struct gk_push *push = NULL;
    struct gk_words words;
    enum gk_err err = gk_push_encode(&source, &push, &words);

    GK_ASSERT(!err);
    return push;
}

/* u = gradient + residual into `next`; what is selected goes into the push and out of `next`. */
struct gk_push *gk_sim_toy_push(struct gk_sim *sim, struct gk_sim_proc *proc)
{
    uint64_t d = sim->job.spec.params_count;
    bool idle = gk_sim_toy_samples(sim, proc->rank, proc->step) == 0;
    bool dense = sim->options.k == d && !idle;
    struct gk_range whole = {.lo = 0, .hi = d};
    struct gk_select_report report = {0};
    uint32_t *idx = calloc(d, sizeof(*idx));
    float *val = calloc(d, sizeof(*val));
    struct gk_select_args select = {.dst = proc->next,
                                    .g = proc->gradient,
                                    .e = proc->residual,
                                    .segments = &whole,
                                    .k = &sim->options.k,
                                    .segments_count = 1,
                                    .policy = GK_NONFINITE_ABORT,
                                    .idx = idx,
                                    .val = val,
                                    .room = d,
                                    .report = &report};
    struct gk_take_args take = {.u = proc->next, .idx = idx, .encoding = GK_VALUE_F32, .val = val};
    struct gk_push *push;
    struct gk_sim_push *made;

    GK_ASSERT(idx && val);
    (void)sim->ops->select(sim->vectors, &select);
    take.n = idle ? 0 : report.n;
    if (dense) {
        memcpy(val, proc->next, d * sizeof(*val));
        memset(proc->next, 0, d * sizeof(*proc->next));
    } else {
        (void)sim->ops->take(sim->vectors, &take);
    }
    push = encode(sim, proc, dense ? NULL : idx, val, dense ? d : take.n);
    made = gk_sim_ledger_push(sim, proc, push);
    if (report.bad > 0) {
        gk_sim_fail(sim, "P1", "rank %u step %llu: the toy model overflows", proc->rank,
                    (unsigned long long)proc->step);
    } else {
        check_conservation(sim, proc, made);
    }
    free(idx);
    free(val);
    return push;
}
