/* The selection loops for AVX2: 32 elements at a time, one branch for all of them, and a table that
 * moves the chosen of 8 lanes to the front. */
#include "common/cpu/loops_avx2.h"

/* Byte j of entry m: the position of the j-th set bit of m. */
#define BIT(m, b) ((m) >> (b)&1u)
#define RANK(m, b)                                                                                 \
    (((b) > 0 ? BIT(m, 0) : 0u) + ((b) > 1 ? BIT(m, 1) : 0u) + ((b) > 2 ? BIT(m, 2) : 0u) +        \
     ((b) > 3 ? BIT(m, 3) : 0u) + ((b) > 4 ? BIT(m, 4) : 0u) + ((b) > 5 ? BIT(m, 5) : 0u) +        \
     ((b) > 6 ? BIT(m, 6) : 0u))
#define PLACE(m, b) (BIT(m, b) ? UINT64_C(b) << (8 * RANK(m, b)) : 0)
#define ROW1(m)                                                                                    \
    (PLACE(m, 1) | PLACE(m, 2) | PLACE(m, 3) | PLACE(m, 4) | PLACE(m, 5) | PLACE(m, 6) |           \
     PLACE(m, 7))
#define ROW4(m) ROW1(m), ROW1(m + 1u), ROW1(m + 2u), ROW1(m + 3u)
#define ROW16(m) ROW4(m), ROW4(m + 4u), ROW4(m + 8u), ROW4(m + 12u)
#define ROW64(m) ROW16(m), ROW16(m + 16u), ROW16(m + 32u), ROW16(m + 48u)

static const uint64_t to_front[256] = {ROW64(0u), ROW64(64u), ROW64(128u), ROW64(192u)};

/* Append the lanes of x that the mask names.  8 entries are written, whatever the mask: they fit,
 * because the list has room for every element that is still to come, these 8 among them. */
static inline uint64_t append8(uint32_t *restrict idx, float *restrict val, uint64_t n, uint64_t i,
                               __m256 x, unsigned mask)
{
    __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)to_front[mask]));

    _mm256_storeu_ps(val + n, _mm256_permutevar8x32_ps(x, lanes));
    _mm256_storeu_si256((__m256i *)(void *)(idx + n),
                        _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)i), lanes));
    return n + (unsigned)__builtin_popcount(mask);
}

static inline uint64_t append1(uint32_t *restrict idx, float *restrict val, uint64_t n, uint64_t i,
                               float x, bool hit)
{
    if (!hit)
        return n;
    idx[n] = (uint32_t)i;
    val[n] = x;
    return n + 1;
}

/* Four vectors and their four hit masks, from element i on. */
static inline uint64_t append32(uint32_t *restrict idx, float *restrict val, uint64_t n, uint64_t i,
                                const __m256 *x, const __m256 *hits)
{
    __m256 any = _mm256_or_ps(_mm256_or_ps(hits[0], hits[1]), _mm256_or_ps(hits[2], hits[3]));

    if (_mm256_testz_ps(any, any))
        return n;
    for (unsigned j = 0; j < 4; j++)
        n = append8(idx, val, n, i + 8 * j, x[j], (unsigned)_mm256_movemask_ps(hits[j]));
    return n;
}

static inline __m256 add8(const float *g, const float *e, uint64_t i, bool with_e)
{
    return _mm256_add_ps(_mm256_loadu_ps(g + i),
                         with_e ? _mm256_loadu_ps(e + i) : _mm256_setzero_ps());
}

static inline void add_append_with(float *dst, const float *g, const float *e,
                                   struct gk_range range, float t, struct gk_cpu_list *list,
                                   bool with_e)
{
    const __m256 threshold = _mm256_set1_ps(t);
    uint32_t *idx = list->idx;
    float *val = list->val;
    uint64_t n = list->n;
    uint64_t i = range.lo;

    for (; i + 32 <= range.hi; i += 32) {
        __m256 x[4], hits[4];

        for (unsigned j = 0; j < 4; j++)
            x[j] = add8(g, e, i + 8 * j, with_e);
        for (unsigned j = 0; j < 4; j++) {
            _mm256_storeu_ps(dst + i + 8 * j, x[j]);
            hits[j] = _mm256_cmp_ps(gk_avx2_abs(x[j]), threshold, _CMP_NLT_UQ);
        }
        n = append32(idx, val, n, i, x, hits);
    }
    for (; i < range.hi; i++) {
        float x = g[i] + (with_e ? e[i] : 0.0f);

        dst[i] = x;
        n = append1(idx, val, n, i, x, !(fabsf(x) < t));
    }
    list->n = n;
}

void gk_avx2_add_append(float *dst, const float *g, const float *e, struct gk_range range, float t,
                        struct gk_cpu_list *list)
{
    if (e)
        add_append_with(dst, g, e, range, t, list, true);
    else
        add_append_with(dst, g, e, range, t, list, false);
}

void gk_avx2_append(const float *u, struct gk_range range, float t, struct gk_cpu_list *list)
{
    const __m256 threshold = _mm256_set1_ps(t);
    uint32_t *idx = list->idx;
    float *val = list->val;
    uint64_t n = list->n;
    uint64_t i = range.lo;

    for (; i + 32 <= range.hi; i += 32) {
        __m256 x[4], hits[4];

        for (unsigned j = 0; j < 4; j++) {
            x[j] = _mm256_loadu_ps(u + i + 8 * j);
            hits[j] = _mm256_cmp_ps(gk_avx2_abs(x[j]), threshold, _CMP_NLT_UQ);
        }
        n = append32(idx, val, n, i, x, hits);
    }
    for (; i < range.hi; i++)
        n = append1(idx, val, n, i, u[i], !(fabsf(u[i]) < t));
    list->n = n;
}

void gk_avx2_append_band(const float *u, struct gk_range range, float lo, float hi,
                         struct gk_cpu_list *list)
{
    const __m256 low = _mm256_set1_ps(lo);
    const __m256 high = _mm256_set1_ps(hi);
    uint32_t *idx = list->idx;
    float *val = list->val;
    uint64_t n = list->n;
    uint64_t i = range.lo;

    for (; i + 32 <= range.hi; i += 32) {
        __m256 x[4], hits[4];

        for (unsigned j = 0; j < 4; j++) {
            __m256 abs;

            x[j] = _mm256_loadu_ps(u + i + 8 * j);
            abs = gk_avx2_abs(x[j]);
            hits[j] = _mm256_and_ps(_mm256_cmp_ps(abs, low, _CMP_GE_OQ),
                                    _mm256_cmp_ps(abs, high, _CMP_LT_OQ));
        }
        n = append32(idx, val, n, i, x, hits);
    }
    for (; i < range.hi; i++)
        n = append1(idx, val, n, i, u[i], fabsf(u[i]) >= lo && fabsf(u[i]) < hi);
    list->n = n;
}

void gk_avx2_add(float *dst, const float *g, const float *e, struct gk_range range)
{
    uint64_t i = range.lo;

    for (; i + 8 <= range.hi; i += 8)
        _mm256_storeu_ps(dst + i, e ? add8(g, e, i, true) : add8(g, e, i, false));
    for (; i < range.hi; i++)
        dst[i] = g[i] + (e ? e[i] : 0.0f);
}

bool gk_avx2_sum_emit(const float *sums, uint64_t n, uint64_t index0, struct gk_cpu_list *list)
{
    const __m256i untouched = _mm256_set1_epi32((int)GK_CPU_UNTOUCHED);
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    __m256 bad = _mm256_setzero_ps();
    uint32_t *idx = list->idx;
    float *val = list->val;
    uint64_t out = list->n;
    bool finite;
    uint64_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m256 x[4], hits[4];

        for (unsigned j = 0; j < 4; j++) {
            __m256i same;

            x[j] = _mm256_loadu_ps(sums + i + 8 * j);
            same = _mm256_cmpeq_epi32(_mm256_castps_si256(x[j]), untouched);
            hits[j] = _mm256_castsi256_ps(_mm256_xor_si256(same, _mm256_set1_epi32(-1)));
            bad = _mm256_or_ps(bad, _mm256_cmp_ps(gk_avx2_abs(x[j]), infinity, _CMP_NLT_UQ));
        }
        out = append32(idx, val, out, index0 + i, x, hits);
    }
    finite = _mm256_testz_ps(bad, bad);
    for (; i < n; i++) {
        out =
            append1(idx, val, out, index0 + i, sums[i], gk_float_bits(sums[i]) != GK_CPU_UNTOUCHED);
        finite = finite && isfinite(sums[i]);
    }
    list->n = out;
    return finite;
}
