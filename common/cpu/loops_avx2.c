/* The arithmetic loops for AVX2: the same operations on the same elements as in plain C, eight at a
 * time, so that the bits are the same.  The elements that do not fill a vector take the scalar
 * form. */
#include "common/cpu/loops_avx2.h"

GK_AVX2_INLINE __m256 all_ones(void)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32(-1));
}

static void accumulate(const struct gk_accumulate_args *args)
{
    const float *g = args->g;
    const float *e = args->e;
    const float *m = args->m;
    const __m256 scale = _mm256_set1_ps(args->scale);
    const __m256 beta = _mm256_set1_ps(args->beta);
    uint64_t i = 0;

    for (; i + 8 <= args->n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(g + i), scale);

        if (m) {
            x = _mm256_fmadd_ps(beta, _mm256_loadu_ps(m + i), x);
            _mm256_storeu_ps(args->m_out + i, x);
        }
        _mm256_storeu_ps(args->dst + i,
                         _mm256_add_ps(x, e ? _mm256_loadu_ps(e + i) : _mm256_setzero_ps()));
    }
    for (; i < args->n; i++) {
        float x = g[i] * args->scale;

        if (m) {
            x = fmaf(args->beta, m[i], x);
            args->m_out[i] = x;
        }
        args->dst[i] = x + (e ? e[i] : 0.0f);
    }
}

/* ---- Moments and hash ---- */

GK_AVX2_INLINE void store_lanes(double *lanes, __m256d low, __m256d high)
{
    _mm256_storeu_pd(lanes, low);
    _mm256_storeu_pd(lanes + 4, high);
}

GK_AVX2_INLINE uint32_t sum_epi32(__m256i x)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(sum);
}

GK_AVX2_INLINE uint32_t max_epu32(__m256i x)
{
    __m128i max = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

    max = _mm_max_epu32(max, _mm_shuffle_epi32(max, 0x4e));
    max = _mm_max_epu32(max, _mm_shuffle_epi32(max, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(max);
}

/* Eight of the 32 lanes, over `rows` full rows of a tile.  Entries that do not count add +0, which
 * changes no lane: a sum that starts at +0 is never -0.  A product of two floats is exact in
 * double, so fusing it changes nothing. */
static void moments_lanes(const float *u, uint64_t rows, float lo, unsigned lane,
                          struct gk_cpu_moments *ret)
{
    const __m256 low = _mm256_set1_ps(lo);
    const __m256i inf = _mm256_set1_epi32((int)GK_KEY_NONFINITE);
    const __m256i zero = _mm256_setzero_si256();
    __m256d sum0 = _mm256_setzero_pd(), sum1 = sum0, sq0 = sum0, sq1 = sum0, abs0 = sum0,
            abs1 = sum0;
    __m256i count = zero, finite_count = zero, zeros = zero, key_max = zero;

    for (uint64_t row = 0; row < rows; row++) {
        __m256 x = _mm256_loadu_ps(u + row * GK_CPU_STATS_LANES + lane);
        __m256i key = _mm256_castps_si256(gk_avx2_abs(x));
        __m256i finite = _mm256_cmpgt_epi32(inf, key);
        __m256 takes = _mm256_and_ps(_mm256_cmp_ps(gk_avx2_abs(x), low, _CMP_GE_OQ),
                                     _mm256_castsi256_ps(finite));
        __m256d x0, x1;

        count = _mm256_sub_epi32(count, _mm256_castps_si256(takes));
        finite_count = _mm256_sub_epi32(finite_count, finite);
        zeros = _mm256_sub_epi32(zeros, _mm256_cmpeq_epi32(key, zero));
        key_max = _mm256_max_epu32(key_max, _mm256_and_si256(key, finite));
        x = _mm256_and_ps(x, takes);
        x0 = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        x1 = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
        sum0 = _mm256_add_pd(sum0, x0);
        sum1 = _mm256_add_pd(sum1, x1);
        sq0 = _mm256_fmadd_pd(x0, x0, sq0);
        sq1 = _mm256_fmadd_pd(x1, x1, sq1);
        abs0 = _mm256_add_pd(abs0, _mm256_andnot_pd(_mm256_set1_pd(-0.0), x0));
        abs1 = _mm256_add_pd(abs1, _mm256_andnot_pd(_mm256_set1_pd(-0.0), x1));
    }
    store_lanes(ret->sum + lane, sum0, sum1);
    store_lanes(ret->squares + lane, sq0, sq1);
    store_lanes(ret->abs + lane, abs0, abs1);
    ret->count += sum_epi32(count);
    ret->bad += 8 * rows - sum_epi32(finite_count);
    ret->nonzeros += sum_epi32(finite_count) - sum_epi32(zeros);
    if (max_epu32(key_max) > ret->key_max) {
        ret->key_max = max_epu32(key_max);
    }
}

static void moments(const float *u, uint64_t n, float lo, struct gk_cpu_moments *ret)
{
    const uint64_t rows = n / GK_CPU_STATS_LANES;
    struct gk_cpu_moments rest = {0};

    for (unsigned lane = 0; lane < GK_CPU_STATS_LANES; lane += 8) {
        moments_lanes(u, rows, lo, lane, ret);
    }
    gk_cpu_loops_reference.moments(u + rows * GK_CPU_STATS_LANES, n % GK_CPU_STATS_LANES, lo,
                                   &rest);
    for (unsigned lane = 0; lane < GK_CPU_STATS_LANES; lane++) {
        ret->sum[lane] += rest.sum[lane];
        ret->squares[lane] += rest.squares[lane];
        ret->abs[lane] += rest.abs[lane];
    }
    ret->count += rest.count;
    ret->bad += rest.bad;
    ret->nonzeros += rest.nonzeros;
    if (rest.key_max > ret->key_max) {
        ret->key_max = rest.key_max;
    }
}

static uint64_t count_above(const float *u, uint64_t n, float t)
{
    const __m256 threshold = _mm256_set1_ps(t);
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    uint64_t count = 0;
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 abs = gk_avx2_abs(_mm256_loadu_ps(u + i));
        __m256 above = _mm256_and_ps(_mm256_cmp_ps(abs, threshold, _CMP_GT_OQ),
                                     _mm256_cmp_ps(abs, infinity, _CMP_LT_OQ));

        count += (unsigned)__builtin_popcount((unsigned)_mm256_movemask_ps(above));
    }
    for (; i < n; i++) {
        count += fabsf(u[i]) > t && isfinite(u[i]);
    }
    return count;
}

/* x * factor mod 2^64. */
GK_AVX2_INLINE __m256i mul_epi64(__m256i x, uint64_t factor)
{
    const __m256i low = _mm256_set1_epi64x((long long)(factor & UINT32_MAX));
    const __m256i high = _mm256_set1_epi64x((long long)(factor >> 32));
    __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low),
                                     _mm256_mul_epu32(x, high));

    return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

GK_AVX2_INLINE __m256i mix64(__m256i x) /* gk_mix64 */
{
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 30));
    x = mul_epi64(x, UINT64_C(0xbf58476d1ce4e5b9));
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 27));
    x = mul_epi64(x, UINT64_C(0x94d049bb133111eb));
    return _mm256_xor_si256(x, _mm256_srli_epi64(x, 31));
}

static uint64_t hash(const float *x, uint64_t n, uint64_t base)
{
    const uint64_t first = base + UINT64_C(0x9e3779b97f4a7c15);
    const __m256i step = _mm256_set1_epi64x(4);
    __m256i at =
        _mm256_add_epi64(_mm256_set1_epi64x((long long)first), _mm256_setr_epi64x(0, 1, 2, 3));
    __m256i sum = _mm256_setzero_si256();
    uint64_t parts[4];
    uint64_t i = 0;

    for (; i + 4 <= n; i += 4) {
        __m256i bits = _mm256_cvtepu32_epi64(_mm_castps_si128(_mm_loadu_ps(x + i)));

        sum = _mm256_add_epi64(sum, mix64(_mm256_add_epi64(mix64(at), bits)));
        at = _mm256_add_epi64(at, step);
    }
    _mm256_storeu_si256((__m256i *)(void *)parts, sum);
    return parts[0] + parts[1] + parts[2] + parts[3] +
           gk_cpu_loops_reference.hash(x + i, n - i, base + i);
}

/* ---- Sums ---- */

static void sum_dense(float *restrict sums, const float *restrict x, uint64_t n)
{
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(sums + i,
                         _mm256_add_ps(_mm256_loadu_ps(sums + i), _mm256_loadu_ps(x + i)));
    }
    for (; i < n; i++) {
        sums[i] += x[i];
    }
}

static bool finite_all(const float *x, uint64_t n)
{
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    __m256 good = all_ones();
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        good = _mm256_and_ps(
            good, _mm256_cmp_ps(gk_avx2_abs(_mm256_loadu_ps(x + i)), infinity, _CMP_LT_OQ));
    }
    for (; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return _mm256_movemask_ps(good) == 0xff;
}

/* ---- Optimizers ---- */

static void divide(float *restrict quotients, const float *restrict x, uint64_t n, float by)
{
    const __m256 by8 = _mm256_set1_ps(by);
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(quotients + i, _mm256_div_ps(_mm256_loadu_ps(x + i), by8));
    }
    for (; i < n; i++) {
        quotients[i] = x[i] / by;
    }
}

GK_AVX2_INLINE __m256 gradient8(__m256 p, __m256 sum, const struct gk_cpu_step *step, bool decays)
{
    __m256 g = _mm256_div_ps(sum, _mm256_set1_ps(step->samples));

    return decays ? _mm256_fmadd_ps(_mm256_set1_ps(step->weight_decay), p, g) : g;
}

GK_AVX2_INLINE float gradient1(float p, float sum, const struct gk_cpu_step *step, bool decays)
{
    float g = sum / step->samples;

    return decays ? fmaf(step->weight_decay, p, g) : g;
}

GK_AVX2_INLINE void sgd_with(float *restrict p, const float *restrict sums, uint64_t n,
                             const struct gk_cpu_step *step, bool decays)
{
    const __m256 minus_lr = _mm256_set1_ps(step->minus_lr);
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(p + i);

        _mm256_storeu_ps(
            p + i,
            _mm256_fmadd_ps(minus_lr, gradient8(x, _mm256_loadu_ps(sums + i), step, decays), x));
    }
    for (; i < n; i++) {
        p[i] = fmaf(step->minus_lr, gradient1(p[i], sums[i], step, decays), p[i]);
    }
}

static void sgd(float *restrict p, const float *restrict sums, uint64_t n,
                const struct gk_cpu_step *step)
{
    if (step->decays) {
        sgd_with(p, sums, n, step, true);
    } else {
        sgd_with(p, sums, n, step, false);
    }
}

static void sgd_sparse(float *restrict p, const uint32_t *restrict idx, const float *restrict sums,
                       uint64_t n, const struct gk_cpu_step *step)
{
    const struct gk_cpu_step local = *step;

    for (uint64_t i = 0; i < n; i++) {
        float x = p[idx[i]];

        p[idx[i]] = fmaf(local.minus_lr, gradient1(x, sums[i], &local, local.decays), x);
    }
}

GK_AVX2_INLINE __m256 moment8(__m256 m, __m256 g, __m256 momentum)
{
    __m256 next = _mm256_fmadd_ps(momentum, m, g);

    return _mm256_and_ps(next,
                         _mm256_cmp_ps(gk_avx2_abs(next), _mm256_set1_ps(0x1p-100f), _CMP_NLT_UQ));
}

/* `heavy`: what p moves by is m; otherwise (Nesterov) momentum m + g. */
GK_AVX2_INLINE void momentum_with(float *restrict p, float *restrict m, const float *restrict sums,
                                  uint64_t n, const struct gk_cpu_step *step, bool heavy)
{
    const __m256 minus_lr = _mm256_set1_ps(step->minus_lr);
    const __m256 momentum8 = _mm256_set1_ps(step->momentum);
    const bool decays = step->decays;

    for (uint64_t i = 0; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(p + i);
        __m256 g = gradient8(x, _mm256_loadu_ps(sums + i), step, decays);
        __m256 next = moment8(_mm256_loadu_ps(m + i), g, momentum8);

        _mm256_storeu_ps(m + i, next);
        _mm256_storeu_ps(
            p + i,
            _mm256_fmadd_ps(minus_lr, heavy ? next : _mm256_fmadd_ps(momentum8, next, g), x));
    }
}

static void momentum(float *restrict p, float *restrict m, const float *restrict sums, uint64_t n,
                     const struct gk_cpu_step *step)
{
    const uint64_t full = n / 8 * 8;

    momentum_with(p, m, sums, n, step, true);
    gk_cpu_loops_reference.momentum(p + full, m + full, sums + full, n - full, step);
}

static void nesterov(float *restrict p, float *restrict m, const float *restrict sums, uint64_t n,
                     const struct gk_cpu_step *step)
{
    const uint64_t full = n / 8 * 8;

    momentum_with(p, m, sums, n, step, false);
    gk_cpu_loops_reference.nesterov(p + full, m + full, sums + full, n - full, step);
}

static void adamw(float *restrict p, float *restrict m, float *restrict v,
                  const float *restrict sums, uint64_t n, const struct gk_cpu_step *step)
{
    const __m256 beta1 = _mm256_set1_ps(step->momentum), fresh1 = _mm256_set1_ps(step->fresh1);
    const __m256 beta2 = _mm256_set1_ps(step->beta2), fresh2 = _mm256_set1_ps(step->fresh2);
    const __m256 bias2 = _mm256_set1_ps(step->bias2), epsilon = _mm256_set1_ps(step->epsilon);
    const __m256 samples = _mm256_set1_ps(step->samples), least = _mm256_set1_ps(0x1p-126f);
    const __m256 rate = _mm256_set1_ps(step->minus_rate);
    const __m256 decay = _mm256_set1_ps(step->minus_decay);
    const bool decays = step->decays;
    const uint64_t full = n / 8 * 8;

    for (uint64_t i = 0; i < full; i += 8) {
        __m256 g = _mm256_div_ps(_mm256_loadu_ps(sums + i), samples);
        __m256 x = _mm256_loadu_ps(p + i);
        __m256 first = moment8(_mm256_loadu_ps(m + i), _mm256_mul_ps(fresh1, g), beta1);
        __m256 second = _mm256_fmadd_ps(beta2, _mm256_loadu_ps(v + i),
                                        _mm256_mul_ps(_mm256_mul_ps(fresh2, g), g));
        __m256 root;

        x = decays ? _mm256_fmadd_ps(decay, x, x) : x;
        second = _mm256_and_ps(second, _mm256_cmp_ps(second, least, _CMP_NLT_UQ));
        root = _mm256_add_ps(_mm256_sqrt_ps(_mm256_div_ps(second, bias2)), epsilon);
        _mm256_storeu_ps(m + i, first);
        _mm256_storeu_ps(v + i, second);
        _mm256_storeu_ps(p + i, _mm256_fmadd_ps(rate, _mm256_div_ps(first, root), x));
    }
    gk_cpu_loops_reference.adamw(p + full, m + full, v + full, sums + full, n - full, step);
}

const struct gk_cpu_loops gk_cpu_loops_avx2 = {
    .name = "cpu avx2",
    .add_append = gk_avx2_add_append,
    .append = gk_avx2_append,
    .append_band = gk_avx2_append_band,
    .add = gk_avx2_add,
    .accumulate = accumulate,
    .moments = moments,
    .count_above = count_above,
    .hash = hash,
    .sum_dense = sum_dense,
    .sum_emit = gk_avx2_sum_emit,
    .finite = finite_all,
    .divide = divide,
    .sgd = sgd,
    .sgd_sparse = sgd_sparse,
    .momentum = momentum,
    .nesterov = nesterov,
    .adamw = adamw,
};
