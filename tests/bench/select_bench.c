/* Goal: what a selection costs beside the addition of the residual, which every operator has to
 * make.  Method: ratios alone, because the speed of memory drifts from one run to the next.  Each
 * selection is paired with an addition right before it, on the same vectors and with the same
 * caches: 1 M elements lie in the last of them, 25 M do not.  The answer is the median of the
 * ratios of the pairs.  Times are those of the thread, so that a busy machine disturbs less.
 *
 * Both write u over g, as training does.  The residual is all zeros, so that u is g again once the
 * entries that were taken out have been put back, outside the times; three gradients take turns, so
 * that a warm guess meets another k-th magnitude each time.
 *
 * What is measured: gaussk warm (after steps of its own), cold (its state forgotten), after a miss
 * (a guess 5 % too high), dgc (a threshold from a sample), topk (full selection), and quickselect
 * over the keys with a walk that collects, which is what a program without any of this would do. */
#include "common/assert.h"
#include "common/bits.h"
#include "common/cpu/queue.h"
#include "common/rng.h"
#include "worker/select/select.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GRADIENTS = 3, PAIRS_MAX = 101, WARM_UP = 6, SETTLE = 3 };

enum contender { WARM, COLD, MISS, DGC, TOPK, QUICK, CONTENDERS };

struct bench {
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    uint64_t n;
    float *g[GRADIENTS];
    float *e;
    uint32_t *keys; /* of quickselect */
    uint32_t *idx;
    float *val;
    struct gk_selector *gaussk;
    struct gk_selector *dgc;
    struct gk_selector *topk;
    uint64_t step;
    uint32_t missed; /* warm steps that took more than one pass */
};

static double now_s(void)
{
    struct timespec now = {0};

    GK_ASSERT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *alloc(struct bench *bench, uint64_t bytes)
{
    void *memory = bench->ops->alloc(bench->queue, GK_MEMORY_DEVICE, bytes);

    GK_ASSERT(memory);
    return memory;
}

/* Laplace: gradients have heavier tails than a normal law. */
static void fill(float *g, uint64_t n, uint64_t seed)
{
    const struct gk_rng rng = {.seed = seed, .purpose = GK_RNG_INIT};

    for (uint64_t i = 0; i < n; i++) {
        uint32_t draw = gk_rng_u32(&rng, i);
        float magnitude = -logf((float)((draw >> 8) + 1) * 0x1p-24f);

        g[i] = draw & 1 ? magnitude : -magnitude;
    }
}

/* The floor: the table's own loop that adds and does nothing else. */
static double time_add(const struct bench *bench, float *g)
{
    double start = now_s();

    bench->queue->loops->add(g, g, bench->e, (struct gk_range){0, bench->n});
    return now_s() - start;
}

static double time_selector(struct bench *bench, struct gk_selector *selector, float *g,
                            double density, uint32_t *ret_passes)
{
    const struct gk_select_step step = {
        .step = bench->step++, .density = density, .g = g, .e = bench->e};
    struct gk_selected selected;
    struct gk_words words;
    double start = now_s();
    enum gk_err err = gk_selector_step(selector, &step, &selected, &words);
    double took = now_s() - start;

    GK_ASSERT(!err && (selected.n == selected.k || selector == bench->dgc));
    for (uint64_t j = 0; j < selected.n; j++) {
        g[selected.idx[j]] = selected.val[j];
    }
    *ret_passes = selected.passes;
    return took;
}

/* The key that is rank-th (from 0) in falling order; reorders the keys. */
static uint32_t quickselect(uint32_t *keys, uint64_t n, uint64_t rank)
{
    uint64_t lo = 0;
    uint64_t hi = n - 1;

    while (lo < hi) {
        uint32_t pivot = keys[lo + (hi - lo) / 2];
        uint64_t i = lo;
        uint64_t j = hi;

        while (i <= j) {
            while (keys[i] > pivot) {
                i++;
            }
            while (keys[j] < pivot) {
                j--;
            }
            if (i <= j) {
                uint32_t kept = keys[i];

                keys[i++] = keys[j];
                keys[j] = kept;
                if (j == 0) {
                    break;
                }
                j--;
            }
        }
        if (rank <= j) {
            hi = j;
        } else if (rank >= i) {
            lo = i;
        } else {
            break;
        }
    }
    return keys[rank];
}

static double time_quick(struct bench *bench, float *g, uint64_t k)
{
    double start = now_s();
    uint32_t threshold;
    uint64_t found = 0;
    double took;

    for (uint64_t i = 0; i < bench->n; i++) {
        g[i] += bench->e[i];
        bench->keys[i] = gk_float_bits(g[i]) & 0x7fffffff;
    }
    threshold = quickselect(bench->keys, bench->n, k - 1);
    for (uint64_t i = 0; i < bench->n && found < k; i++) {
        if ((gk_float_bits(g[i]) & 0x7fffffff) >= threshold) {
            bench->idx[found] = (uint32_t)i;
            bench->val[found++] = g[i];
            g[i] = 0;
        }
    }
    took = now_s() - start;
    GK_ASSERT(found == k);
    for (uint64_t j = 0; j < k; j++) {
        g[bench->idx[j]] = bench->val[j];
    }
    return took;
}

static double time_one(struct bench *bench, enum contender contender, float *g, double density)
{
    struct gk_select_state *state = bench->gaussk->state;
    const struct gk_select_state kept = *state;
    uint32_t passes = 0;
    double took = 0;

    switch (contender) {
    case WARM:
        took = time_selector(bench, bench->gaussk, g, density, &passes);
        bench->missed += passes > 1;
        return took;
    case COLD:
        *state = (struct gk_select_state){0};
        took = time_selector(bench, bench->gaussk, g, density, &passes);
        break;
    case MISS: /* the margin is taken off again */
        state->t *= 1.05f / (1.0f - state->margin);
        took = time_selector(bench, bench->gaussk, g, density, &passes);
        GK_ASSERT(passes > 1);
        break;
    case DGC:
        return time_selector(bench, bench->dgc, g, density, &passes);
    case TOPK:
        return time_selector(bench, bench->topk, g, density, &passes);
    case QUICK:
    case CONTENDERS:
        return time_quick(bench, g, gk_select_k(density, bench->n));
    }
    *state = kept; /* as the warm steps left it */
    return took;
}

static int compare(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

static void open_selectors(struct bench *bench, double density)
{
    const struct gk_range whole = {0, bench->n};
    const struct gk_select_setup setup = {.ops = bench->ops,
                                          .queue = bench->queue,
                                          .params_count = bench->n,
                                          .segments = &whole,
                                          .segments_count = 1,
                                          .policy = GK_NONFINITE_ABORT};
    struct gk_words words;

    GK_ASSERT(gk_selector_new("gaussk", density, &setup, &bench->gaussk, &words) == GK_OK);
    GK_ASSERT(gk_selector_new("dgc", density, &setup, &bench->dgc, &words) == GK_OK);
    GK_ASSERT(gk_selector_new("topk", density, &setup, &bench->topk, &words) == GK_OK);
}

static void measure(struct bench *bench, double density, uint32_t pairs)
{
    static double ratios[CONTENDERS][PAIRS_MAX];
    uint32_t passes;

    open_selectors(bench, density);
    for (uint32_t i = 0; i < WARM_UP; i++) {
        (void)time_selector(bench, bench->gaussk, bench->g[i % GRADIENTS], density, &passes);
    }
    bench->missed = 0;
    for (uint32_t pair = 0; pair < pairs; pair++) {
        float *g = bench->g[pair % GRADIENTS];

        for (int c = 0; c < CONTENDERS; c++) {
            double floor;

            for (int i = 0; i < SETTLE; i++) { /* what the last one left in the caches */
                (void)time_add(bench, g);
            }
            floor = time_add(bench, g);
            ratios[c][pair] = time_one(bench, (enum contender)c, g, density) / floor;
        }
    }
    (void)printf("%8g", density);
    for (int c = 0; c < CONTENDERS; c++) {
        (void)printf(" %7.2f", median(ratios[c], pairs));
    }
    (void)printf(" %4" PRIu32 " of %" PRIu32 "\n", bench->missed, pairs);
    (void)fflush(stdout);
    gk_selector_free(bench->gaussk);
    gk_selector_free(bench->dgc);
    gk_selector_free(bench->topk);
}

static void measure_size(struct bench *bench, uint64_t n, uint32_t pairs)
{
    static const double densities[] = {0.0001, 0.001, 0.0156, 0.1};

    bench->n = n;
    for (uint32_t i = 0; i < GRADIENTS; i++) {
        bench->g[i] = alloc(bench, n * sizeof(float));
        fill(bench->g[i], n, i + 1);
    }
    bench->e = alloc(bench, n * sizeof(float));
    bench->keys = alloc(bench, n * sizeof(uint32_t));
    bench->idx = alloc(bench, n * sizeof(uint32_t));
    bench->val = alloc(bench, n * sizeof(float));
    (void)printf("\n%s, d = %" PRIu64 ", one thread, medians of %" PRIu32 " pairs\n",
                 bench->ops->caps(bench->queue)->name, n, pairs);
    (void)printf("%8s %7s %7s %7s %7s %7s %7s %s\n", "density", "warm", "cold", "miss", "dgc",
                 "topk", "quick", "missed");
    for (size_t i = 0; i < sizeof(densities) / sizeof(densities[0]); i++) {
        measure(bench, densities[i], pairs);
    }
    for (uint32_t i = 0; i < GRADIENTS; i++) {
        bench->ops->free(bench->queue, GK_MEMORY_DEVICE, bench->g[i]);
    }
    bench->ops->free(bench->queue, GK_MEMORY_DEVICE, bench->e);
    bench->ops->free(bench->queue, GK_MEMORY_DEVICE, bench->keys);
    bench->ops->free(bench->queue, GK_MEMORY_DEVICE, bench->idx);
    bench->ops->free(bench->queue, GK_MEMORY_DEVICE, bench->val);
}

int main(void)
{
    struct bench bench = {.n = 0};
    struct gk_words words;

    if (gk_vector_cpu(GK_CPU_AUTO, &bench.ops, &words) || bench.ops->open(&bench.queue, &words)) {
        (void)fprintf(stderr, "gk_bench_select: %s\n", words.text);
        return 1;
    }
    (void)printf("Times as multiples of adding the residual (u = g + e over g).\n");
    measure_size(&bench, 1000000, 61);
    measure_size(&bench, 25000000, 9);
    bench.ops->close(bench.queue);
    return 0;
}
