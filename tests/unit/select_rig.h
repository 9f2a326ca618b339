/* A selector over one table with its own gradient and residual buffers, for the selection tests.
 * Failures of the rig itself abort: they are not what is tested. */
#ifndef GK_TESTS_UNIT_SELECT_RIG_H
#define GK_TESTS_UNIT_SELECT_RIG_H

#include "common/assert.h"
#include "worker/select/select.h"
#ifdef RIG_CUDA
#include "cuda/backend.h"
#endif

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define RIG_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RIG_SANITIZED 1
#endif
#endif
#ifndef RIG_SANITIZED
#define RIG_SANITIZED 0
#endif

enum { RIG_TABLES_MAX = 2, RIG_SEGMENTS_MAX = 8 };

/* The tests look into the vectors: for the CUDA table they lie in pinned memory. */
#ifdef RIG_CUDA
#define RIG_MEMORY GK_MEMORY_PINNED
#else
#define RIG_MEMORY GK_MEMORY_DEVICE
#endif

/* The reference, and AVX2 where this processor has it; or the CUDA table, where the tests are
 * compiled for that. */
static inline unsigned rig_tables(const struct gk_vector_ops **ret_tables)
{
    unsigned count = 0;
#ifdef RIG_CUDA
    ret_tables[count] = gk_vector_cuda(NULL);
    GK_ASSERT(ret_tables[count] != NULL);
    return count + 1;
#endif
    ret_tables[count++] = gk_vector_reference();
    if (gk_vector_avx2() != NULL)
        ret_tables[count++] = gk_vector_avx2();
    return count;
}

/* Calls `check` for every operator on every table. */
static inline void rig_for_all(void (*check)(const struct gk_operator *op,
                                             const struct gk_vector_ops *ops))
{
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const unsigned tables_count = rig_tables(tables);
    uint32_t operators_count;
    const struct gk_operator *const *operators = gk_operators(&operators_count);

    for (uint32_t i = 0; i < operators_count; i++)
        for (unsigned t = 0; t < tables_count; t++)
            check(operators[i], tables[t]);
}

struct rig_options {
    const char *name;
    const struct gk_vector_ops *ops;
    uint64_t n;
    double density_max;                /* 0: 1 */
    const struct gk_select_tune *tune; /* NULL: defaults */
    enum gk_nonfinite_policy policy;
    const struct gk_range *segments; /* NULL: one over everything */
    uint32_t segments_count;
    const double *densities; /* NULL: all that of the step */
    uint64_t seed;
    uint32_t rank;
};

struct rig {
    struct gk_queue *queue;
    struct gk_selector *selector;
    const struct gk_vector_ops *ops;
    uint64_t n;
    float *g, *e; /* e is the residual of the last step */
    struct gk_selected selected;
    struct gk_words words;
};

static inline void rig_open(struct rig *rig, const struct rig_options *options)
{
    const struct gk_range whole = {0, options->n};
    *rig = (struct rig){.ops = options->ops, .n = options->n};
    GK_ASSERT(rig->ops->open(&rig->queue, &rig->words) == GK_OK);
    const struct gk_select_setup setup = {
        .ops = rig->ops,
        .queue = rig->queue,
        .params_count = options->n,
        .segments = options->segments != NULL ? options->segments : &whole,
        .segments_count = options->segments != NULL ? options->segments_count : 1,
        .densities = options->densities,
        .seed = options->seed,
        .rank = options->rank,
        .policy = options->policy,
        .tune = options->tune,
    };
    const double density_max = options->density_max > 0 ? options->density_max : 1;
    GK_ASSERT(gk_selector_new(options->name, density_max, &setup, &rig->selector, &rig->words) ==
              GK_OK);
    rig->g = rig->ops->alloc(rig->queue, RIG_MEMORY, (options->n + 1) * sizeof(float));
    rig->e = rig->ops->alloc(rig->queue, RIG_MEMORY, (options->n + 1) * sizeof(float));
    GK_ASSERT(rig->g != NULL && rig->e != NULL);
}

/* Selects from gradient + residual; on success the new residual becomes rig->e. */
static inline enum gk_err rig_step(struct rig *rig, uint64_t step, double density,
                                   const float *gradient)
{
    if (rig->n > 0)
        memcpy(rig->g, gradient, rig->n * sizeof(float));
    const struct gk_select_step args = {.step = step, .density = density, .g = rig->g, .e = rig->e};
    const enum gk_err err = gk_selector_step(rig->selector, &args, &rig->selected, &rig->words);
    const bool skipped = rig->selected.bad > 0 && rig->selector->setup.policy != GK_NONFINITE_ZERO;
    if (err == GK_OK && !skipped) {
        float *old = rig->e;
        rig->e = rig->g;
        rig->g = old;
    }
    return err;
}

static inline void rig_close(struct rig *rig)
{
    gk_selector_free(rig->selector);
    rig->ops->free(rig->queue, RIG_MEMORY, rig->g);
    rig->ops->free(rig->queue, RIG_MEMORY, rig->e);
    rig->ops->close(rig->queue);
}

static inline float *rig_floats(uint64_t n)
{
    float *x = calloc(n + 1, sizeof(*x));
    GK_ASSERT(x != NULL);
    return x;
}

#endif
