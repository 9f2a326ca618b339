/* Inside the AVX2 loops only: whoever includes this is compiled for AVX2 and FMA. */
#ifndef GK_COMMON_CPU_LOOPS_AVX2_H
#define GK_COMMON_CPU_LOOPS_AVX2_H

#include "common/cpu/loops.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* The loops are written from small pieces that must not become calls, nor pass vectors through
 * memory. */
#define GK_AVX2_INLINE static inline __attribute__((always_inline))

GK_AVX2_INLINE __m256 gk_avx2_abs(__m256 x)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)GK_KEY_MASK)));
}

void gk_avx2_add_append(float *dst, const float *g, const float *e, struct gk_range range, float t,
                        struct gk_cpu_list *list);
void gk_avx2_append(const float *u, struct gk_range range, float t, struct gk_cpu_list *list);
void gk_avx2_append_band(const float *u, struct gk_range range, float lo, float hi,
                         struct gk_cpu_list *list);
void gk_avx2_add(float *dst, const float *g, const float *e, struct gk_range range);
bool gk_avx2_sum_emit(float *sums, uint64_t n, uint64_t index0, struct gk_cpu_list *list);

#endif
