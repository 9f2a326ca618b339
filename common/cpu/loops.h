/* The hot loops of the CPU tables: stand-alone functions on plain pointers, once in plain C, once
 * for AVX2.  Both give the same bits. */
#ifndef GK_COMMON_CPU_LOOPS_H
#define GK_COMMON_CPU_LOOPS_H

#include "common/backend.h"
#include "common/bits.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    GK_CPU_STATS_TILE = 2048, /* elements; part of the specified order of summation */
    GK_CPU_STATS_LANES = 32,
};

/* Marks a sum that no list touched: a sum that starts at +0 is never -0. */
#define GK_CPU_UNTOUCHED UINT32_C(0x80000000)

/* Entries in index order.  The caller has made room for as many as a call looks at elements. */
struct gk_cpu_list {
    uint32_t *idx;
    float *val;
    uint64_t n;
};

/* Of one tile; starts as zeros. */
struct gk_cpu_moments {
    double sum[GK_CPU_STATS_LANES];
    double squares[GK_CPU_STATS_LANES];
    double abs[GK_CPU_STATS_LANES];
    uint64_t count, bad, nonzeros;
    uint32_t key_max;
};

/* One optimizer step. */
struct gk_cpu_step {
    float samples;
    float minus_lr;
    float momentum; /* or beta1 */
    float weight_decay;
    bool decays;
    /* AdamW. */
    float fresh1; /* 1 - beta1 */
    float beta2, fresh2;
    float bias2, epsilon;
    float minus_rate;  /* -(lr / bias1) */
    float minus_decay; /* -(lr weight_decay) */
};

struct gk_cpu_loops {
    const char *name;

    /* Selection.  Ranges are absolute, pointers are to element 0; `e` may be NULL, dst may be g. */

    /* dst = g + e; appends what is NOT(|dst| < t), which takes NaN too. */
    void (*add_append)(float *dst, const float *g, const float *e, struct gk_range range, float t,
                       struct gk_cpu_list *list);
    /* Appends NOT(|u| < t). */
    void (*append)(const float *u, struct gk_range range, float t, struct gk_cpu_list *list);
    /* Appends lo <= |u| < hi. */
    void (*append_band)(const float *u, struct gk_range range, float lo, float hi,
                        struct gk_cpu_list *list);
    /* dst = g + e. */
    void (*add)(float *dst, const float *g, const float *e, struct gk_range range);

    /* The rest works on n elements from the pointers. */

    void (*accumulate)(const struct gk_accumulate_args *args);
    void (*moments)(const float *u, uint64_t n, float lo,
                    struct gk_cpu_moments *moments);              /* n <= a tile */
    uint64_t (*count_above)(const float *u, uint64_t n, float t); /* finite, |u| > t */
    uint64_t (*hash)(const float *x, uint64_t n,
                     uint64_t base); /* base: plane << 56 + first index */

    void (*sum_dense)(float *restrict sums, const float *restrict x, uint64_t n);
    /* Appends what was touched, and makes it untouched; returns whether all of it is finite. */
    bool (*sum_emit)(float *sums, uint64_t n, uint64_t index0, struct gk_cpu_list *list);
    bool (*finite)(const float *x, uint64_t n);

    void (*divide)(float *restrict quotients, const float *restrict x, uint64_t n, float by);
    void (*sgd)(float *restrict p, const float *restrict sums, uint64_t n,
                const struct gk_cpu_step *step);
    void (*sgd_sparse)(float *restrict p, const uint32_t *restrict idx, const float *restrict sums,
                       uint64_t n, const struct gk_cpu_step *step);
    void (*momentum)(float *restrict p, float *restrict m, const float *restrict sums, uint64_t n,
                     const struct gk_cpu_step *step);
    void (*nesterov)(float *restrict p, float *restrict m, const float *restrict sums, uint64_t n,
                     const struct gk_cpu_step *step);
    void (*adamw)(float *restrict p, float *restrict m, float *restrict v,
                  const float *restrict sums, uint64_t n, const struct gk_cpu_step *step);
};

extern const struct gk_cpu_loops gk_cpu_loops_reference;
extern const struct gk_cpu_loops gk_cpu_loops_avx2; /* only where the processor has AVX2 and FMA */

static inline uint32_t gk_cpu_key(float x)
{
    return gk_float_bits(x) & GK_KEY_MASK;
}

static inline float gk_cpu_magnitude(uint32_t key)
{
    return gk_bits_float(key);
}

#endif
