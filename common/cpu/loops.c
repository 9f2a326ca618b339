/* The loops in plain C: the reference, written to be read, and what runs where there is no AVX2.
 *
 * What each gives is a contract to the last bit: order of additions, rounding (explicit fmaf, no
 * contraction), sign of zeros, and comparisons that are false for NaN where a non-finite entry has
 * to come through.  loops_avx2.c and select_avx2.c give the same bits. */
#include "common/cpu/loops.h"

#include <math.h>

/* ---- Selection ---- */

static float add_zero_or(const float *e, uint64_t i, float g)
{
    return g + (e ? e[i] : 0.0f);
}

static void put(struct gk_cpu_list *list, uint64_t i, float x)
{
    list->idx[list->n] = (uint32_t)i;
    list->val[list->n] = x;
    list->n++;
}

static void add_append(float *dst, const float *g, const float *e, struct gk_range range, float t,
                       struct gk_cpu_list *list)
{
    for (uint64_t i = range.lo; i < range.hi; i++) {
        float x = add_zero_or(e, i, g[i]);

        dst[i] = x;
        if (!(fabsf(x) < t)) {
            put(list, i, x);
        }
    }
}

static void append(const float *u, struct gk_range range, float t, struct gk_cpu_list *list)
{
    for (uint64_t i = range.lo; i < range.hi; i++) {
        if (!(fabsf(u[i]) < t)) {
            put(list, i, u[i]);
        }
    }
}

static void append_band(const float *u, struct gk_range range, float lo, float hi,
                        struct gk_cpu_list *list)
{
    for (uint64_t i = range.lo; i < range.hi; i++) {
        if (fabsf(u[i]) >= lo && fabsf(u[i]) < hi) {
            put(list, i, u[i]);
        }
    }
}

static void add(float *dst, const float *g, const float *e, struct gk_range range)
{
    for (uint64_t i = range.lo; i < range.hi; i++) {
        dst[i] = add_zero_or(e, i, g[i]);
    }
}

static void accumulate(const struct gk_accumulate_args *args)
{
    for (uint64_t i = 0; i < args->n; i++) {
        float x = args->g[i] * args->scale;

        if (args->m) {
            x = fmaf(args->beta, args->m[i], x);
            args->m_out[i] = x;
        }
        args->dst[i] = add_zero_or(args->e, i, x);
    }
}

/* ---- Moments and hash ---- */

static void moments(const float *u, uint64_t n, float lo, struct gk_cpu_moments *ret)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t lane = i % GK_CPU_STATS_LANES;
        double x = (double)u[i];

        if (!isfinite(u[i])) {
            ret->bad++;
            continue;
        }
        if (gk_cpu_key(u[i]) > ret->key_max) {
            ret->key_max = gk_cpu_key(u[i]);
        }
        ret->nonzeros += u[i] != 0.0f;
        if (!(fabsf(u[i]) >= lo)) {
            continue;
        }
        ret->count++;
        ret->sum[lane] += x;
        ret->squares[lane] += x * x;
        ret->abs[lane] += fabs(x);
    }
}

static uint64_t count_above(const float *u, uint64_t n, float t)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < n; i++) {
        count += fabsf(u[i]) > t && isfinite(u[i]);
    }
    return count;
}

static uint64_t hash(const float *x, uint64_t n, uint64_t base)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n; i++) {
        sum += gk_hash_term(0, base + i, gk_float_bits(x[i]));
    }
    return sum;
}

/* ---- Sums ---- */

static void sum_dense(float *restrict sums, const float *restrict x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        sums[i] += x[i];
    }
}

static bool sum_emit(float *sums, uint64_t n, uint64_t index0, struct gk_cpu_list *list)
{
    bool finite = true;

    for (uint64_t i = 0; i < n; i++) {
        if (gk_float_bits(sums[i]) == GK_CPU_UNTOUCHED) {
            continue;
        }
        put(list, index0 + i, sums[i]);
        finite = finite && isfinite(sums[i]);
        sums[i] = gk_bits_float(GK_CPU_UNTOUCHED);
    }
    return finite;
}

static bool finite_all(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

/* ---- Optimizers ---- */

static float gradient(float p, float sum, const struct gk_cpu_step *step)
{
    float g = sum / step->samples;

    return step->decays ? fmaf(step->weight_decay, p, g) : g;
}

/* A moment that only decays would end as a denormal that never reaches 0, and slow every step. */
static float moment(float m, float g, float momentum)
{
    float next = fmaf(momentum, m, g);

    return fabsf(next) < 0x1p-100f ? 0.0f : next;
}

static void divide(float *restrict quotients, const float *restrict x, uint64_t n, float by)
{
    for (uint64_t i = 0; i < n; i++) {
        quotients[i] = x[i] / by;
    }
}

static void sgd(float *restrict p, const float *restrict sums, uint64_t n,
                const struct gk_cpu_step *step)
{
    for (uint64_t i = 0; i < n; i++) {
        p[i] = fmaf(step->minus_lr, gradient(p[i], sums[i], step), p[i]);
    }
}

static void sgd_sparse(float *restrict p, const uint32_t *restrict idx, const float *restrict sums,
                       uint64_t n, const struct gk_cpu_step *step)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = p[idx[i]];

        p[idx[i]] = fmaf(step->minus_lr, gradient(x, sums[i], step), x);
    }
}

static void momentum(float *restrict p, float *restrict m, const float *restrict sums, uint64_t n,
                     const struct gk_cpu_step *step)
{
    for (uint64_t i = 0; i < n; i++) {
        m[i] = moment(m[i], gradient(p[i], sums[i], step), step->momentum);
        p[i] = fmaf(step->minus_lr, m[i], p[i]);
    }
}

static void nesterov(float *restrict p, float *restrict m, const float *restrict sums, uint64_t n,
                     const struct gk_cpu_step *step)
{
    for (uint64_t i = 0; i < n; i++) {
        float g = gradient(p[i], sums[i], step);

        m[i] = moment(m[i], g, step->momentum);
        p[i] = fmaf(step->minus_lr, fmaf(step->momentum, m[i], g), p[i]);
    }
}

static void adamw(float *restrict p, float *restrict m, float *restrict v,
                  const float *restrict sums, uint64_t n, const struct gk_cpu_step *step)
{
    for (uint64_t i = 0; i < n; i++) {
        float g = sums[i] / step->samples;
        float x = step->decays ? fmaf(step->minus_decay, p[i], p[i]) : p[i];
        float square = fmaf(step->beta2, v[i], step->fresh2 * g * g);

        m[i] = moment(m[i], step->fresh1 * g, step->momentum);
        v[i] = square < 0x1p-126f ? 0.0f : square;
        p[i] = fmaf(step->minus_rate, m[i] / (sqrtf(v[i] / step->bias2) + step->epsilon), x);
    }
}

const struct gk_cpu_loops gk_cpu_loops_reference = {
    .name = "cpu reference",
    .add_append = add_append,
    .append = append,
    .append_band = append_band,
    .add = add,
    .accumulate = accumulate,
    .moments = moments,
    .count_above = count_above,
    .hash = hash,
    .sum_dense = sum_dense,
    .sum_emit = sum_emit,
    .finite = finite_all,
    .divide = divide,
    .sgd = sgd,
    .sgd_sparse = sgd_sparse,
    .momentum = momentum,
    .nesterov = nesterov,
    .adamw = adamw,
};
