/* The selection loops for AVX2: 32 elements at a time, one branch for all of them, and a table that
 * moves the chosen of 8 lanes to the front. */
#include "common/cpu/loops_avx2.h"

/* Byte j of entry m: the position of the j-th set bit of m. */
#define BIT(m, b) (((m) >> (b)) & 1u)
#define RANK(m, b)                                                                                 \
    (((b) > 0 ? BIT(m, 0) : 0u) + ((b) > 1 ? BIT(m, 1) : 0u) + ((b) > 2 ? BIT(m, 2) : 0u) +        \
     ((b) > 3 ? BIT(m, 3) : 0u) + ((b) > 4 ? BIT(m, 4) : 0u) + ((b) > 5 ? BIT(m, 5) : 0u) +        \
     ((b) > 6 ? BIT(m, 6) : 0u))
#define PLACE(m, b) (BIT(m, b) ? UINT64_C(b) << (8 * RANK(m, b)) : 0)
#define ROW1(m)                                                                                    \
    (PLACE(m, 1) | PLACE(m, 2) | PLACE(m, 3) | PLACE(m, 4) | PLACE(m, 5) | PLACE(m, 6) |           \
     PLACE(m, 7))
#define ROW4(m) ROW1(m), ROW1((m) + 1u), ROW1((m) + 2u), ROW1((m) + 3u)
#define ROW16(m) ROW4(m), ROW4((m) + 4u), ROW4((m) + 8u), ROW4((m) + 12u)
#define ROW64(m) ROW16(m), ROW16((m) + 16u), ROW16((m) + 32u), ROW16((m) + 48u)

static const uint64_t to_front[256] = {ROW64(0u), ROW64(64u), ROW64(128u), ROW64(192u)};

/* Vectors, named one by one: an array would live in memory. */
struct four {
    __m256 v0, v1, v2, v3;
};

/* Append the lanes of x that the mask names.  8 entries are written, whatever the mask: they fit,
 * because the list has room for every element that is still to come, these 8 among them. */
GK_AVX2_INLINE uint64_t append8(struct gk_cpu_list out, uint64_t n, uint64_t i, __m256 x,
                                __m256 hits)
{
    unsigned mask = (unsigned)_mm256_movemask_ps(hits);
    __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)to_front[mask]));
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)i), lanes);

    _mm256_storeu_ps(out.val + n, _mm256_permutevar8x32_ps(x, lanes));
    _mm256_storeu_si256((__m256i *)(void *)(out.idx + n), at);
    return n + (unsigned)__builtin_popcount(mask);
}

GK_AVX2_INLINE uint64_t append1(struct gk_cpu_list out, uint64_t n, uint64_t i, float x, bool hit)
{
    if (!hit) {
        return n;
    }
    out.idx[n] = (uint32_t)i;
    out.val[n] = x;
    return n + 1;
}

/* Of the 32 elements from i on. */
GK_AVX2_INLINE uint64_t append32(struct gk_cpu_list out, uint64_t n, uint64_t i, struct four x,
                                 struct four hits)
{
    __m256 any = _mm256_or_ps(_mm256_or_ps(hits.v0, hits.v1), _mm256_or_ps(hits.v2, hits.v3));

    if (_mm256_movemask_ps(any) == 0) {
        return n;
    }
    n = append8(out, n, i, x.v0, hits.v0);
    n = append8(out, n, i + 8, x.v1, hits.v1);
    n = append8(out, n, i + 16, x.v2, hits.v2);
    return append8(out, n, i + 24, x.v3, hits.v3);
}

GK_AVX2_INLINE struct four load32(const float *x)
{
    return (struct four){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                         _mm256_loadu_ps(x + 24)};
}

GK_AVX2_INLINE struct four add32(struct four a, struct four b)
{
    return (struct four){_mm256_add_ps(a.v0, b.v0), _mm256_add_ps(a.v1, b.v1),
                         _mm256_add_ps(a.v2, b.v2), _mm256_add_ps(a.v3, b.v3)};
}

GK_AVX2_INLINE void store32(float *to, struct four x)
{
    _mm256_storeu_ps(to, x.v0);
    _mm256_storeu_ps(to + 8, x.v1);
    _mm256_storeu_ps(to + 16, x.v2);
    _mm256_storeu_ps(to + 24, x.v3);
}

GK_AVX2_INLINE struct four zero32(void)
{
    const __m256 zero = _mm256_setzero_ps();

    return (struct four){zero, zero, zero, zero};
}

/* Not below t: also what is not a number. */
GK_AVX2_INLINE __m256 reaches8(__m256 x, __m256 t)
{
    return _mm256_cmp_ps(gk_avx2_abs(x), t, _CMP_NLT_UQ);
}

GK_AVX2_INLINE struct four reaches32(struct four x, __m256 t)
{
    return (struct four){reaches8(x.v0, t), reaches8(x.v1, t), reaches8(x.v2, t),
                         reaches8(x.v3, t)};
}

GK_AVX2_INLINE __m256 within8(__m256 x, __m256 lo, __m256 hi)
{
    __m256 abs = gk_avx2_abs(x);

    return _mm256_and_ps(_mm256_cmp_ps(abs, lo, _CMP_GE_OQ), _mm256_cmp_ps(abs, hi, _CMP_LT_OQ));
}

GK_AVX2_INLINE __m256 touched8(__m256 x)
{
    const __m256i untouched = _mm256_set1_epi32((int)GK_CPU_UNTOUCHED);

    return _mm256_castsi256_ps(_mm256_xor_si256(
        _mm256_cmpeq_epi32(_mm256_castps_si256(x), untouched), _mm256_set1_epi32(-1)));
}

GK_AVX2_INLINE void add_append(float *dst, const float *g, const float *e, struct gk_range range,
                               float t, struct gk_cpu_list *list)
{
    const __m256 threshold = _mm256_set1_ps(t);
    const struct gk_cpu_list out = *list;
    uint64_t n = out.n;
    uint64_t i = range.lo;

    for (; i + 32 <= range.hi; i += 32) {
        struct four x = add32(load32(g + i), e ? load32(e + i) : zero32());

        store32(dst + i, x);
        n = append32(out, n, i, x, reaches32(x, threshold));
    }
    for (; i < range.hi; i++) {
        float x = g[i] + (e ? e[i] : 0.0f);

        dst[i] = x;
        n = append1(out, n, i, x, !(fabsf(x) < t));
    }
    list->n = n;
}

void gk_avx2_add_append(float *dst, const float *g, const float *e, struct gk_range range, float t,
                        struct gk_cpu_list *list)
{
    if (e) {
        add_append(dst, g, e, range, t, list);
    } else {
        add_append(dst, g, NULL, range, t, list);
    }
}

void gk_avx2_append(const float *u, struct gk_range range, float t, struct gk_cpu_list *list)
{
    const __m256 threshold = _mm256_set1_ps(t);
    const struct gk_cpu_list out = *list;
    uint64_t n = out.n;
    uint64_t i = range.lo;

    for (; i + 32 <= range.hi; i += 32) {
        struct four x = load32(u + i);

        n = append32(out, n, i, x, reaches32(x, threshold));
    }
    for (; i < range.hi; i++) {
        n = append1(out, n, i, u[i], !(fabsf(u[i]) < t));
    }
    list->n = n;
}

void gk_avx2_append_band(const float *u, struct gk_range range, float lo, float hi,
                         struct gk_cpu_list *list)
{
    const __m256 low = _mm256_set1_ps(lo);
    const __m256 high = _mm256_set1_ps(hi);
    const struct gk_cpu_list out = *list;
    uint64_t n = out.n;
    uint64_t i = range.lo;

    for (; i + 32 <= range.hi; i += 32) {
        struct four x = load32(u + i);
        struct four hits = {within8(x.v0, low, high), within8(x.v1, low, high),
                            within8(x.v2, low, high), within8(x.v3, low, high)};

        n = append32(out, n, i, x, hits);
    }
    for (; i < range.hi; i++) {
        n = append1(out, n, i, u[i], fabsf(u[i]) >= lo && fabsf(u[i]) < hi);
    }
    list->n = n;
}

void gk_avx2_add(float *dst, const float *g, const float *e, struct gk_range range)
{
    const __m256 zero = _mm256_setzero_ps();
    uint64_t i = range.lo;

    for (; i + 8 <= range.hi; i += 8) {
        _mm256_storeu_ps(dst + i,
                         _mm256_add_ps(_mm256_loadu_ps(g + i), e ? _mm256_loadu_ps(e + i) : zero));
    }
    for (; i < range.hi; i++) {
        dst[i] = g[i] + (e ? e[i] : 0.0f);
    }
}

bool gk_avx2_sum_emit(float *sums, uint64_t n, uint64_t index0, struct gk_cpu_list *list)
{
    const __m256 untouched = _mm256_set1_ps(-0.0f);
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    const struct gk_cpu_list out = *list;
    __m256 bad = _mm256_setzero_ps();
    uint64_t count = out.n;
    bool finite;
    uint64_t i = 0;

    for (; i + 32 <= n; i += 32) {
        struct four x = load32(sums + i);
        struct four hits = {touched8(x.v0), touched8(x.v1), touched8(x.v2), touched8(x.v3)};
        uint64_t before = count;

        count = append32(out, count, index0 + i, x, hits);
        if (count == before) {
            continue;
        }
        hits = reaches32(x, infinity);
        bad = _mm256_or_ps(
            bad, _mm256_or_ps(_mm256_or_ps(hits.v0, hits.v1), _mm256_or_ps(hits.v2, hits.v3)));
        store32(sums + i, (struct four){untouched, untouched, untouched, untouched});
    }
    finite = _mm256_movemask_ps(bad) == 0;
    for (; i < n; i++) {
        count =
            append1(out, count, index0 + i, sums[i], gk_float_bits(sums[i]) != GK_CPU_UNTOUCHED);
        finite = finite && isfinite(sums[i]);
        sums[i] = gk_bits_float(GK_CPU_UNTOUCHED);
    }
    list->n = count;
    return finite;
}
