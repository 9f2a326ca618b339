/* Goal: `gaussk` selects exactly what `topk` selects - indices, values and residuals bit for bit -
 * on every table, and both select the right set.
 * Method: every law of select_laws.h at densities 0.1 to 0.0001 over several steps of changing
 * gradients with residual, so that the warm state is exercised; and every k of every n up to 300
 * with tiny tiles, with tables, laws and numbers of partitions in rotation.  The answer is
 * judged by two oracles that share nothing with the tables: a qsort of (magnitude, index) pairs,
 * and the condition that the least of the selected ranks above the greatest of the others. */
#include "common/assert.h"
#include "common/bits.h"
#include "common/backend.h"
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

static const double densities[] = {0.1, 0.01, 0.001, 0.0001};

enum {
    DENSITIES = 4,
    STEPS = 5,
    LARGE_N = RIG_SANITIZED ? 30000 : 1000000,
    SMALL_N = RIG_SANITIZED ? 100 : 300,
    RIGS_MAX = 2 * RIG_TABLES_MAX,
};

static char label[256]; /* of the case at hand, for messages */

static struct { /* of all gaussk steps: the tests must have been where it is hard */
    unsigned steps, missed, pruned;
} seen;

/* Whatever the guess was, three passes are the end. */
static void note_passes(const struct rig *rig)
{
    const struct gk_select_report *report = &rig->selector->scratch->report;

    if (strcmp(rig->selector->op->name, "gaussk") != 0)
        return;
    cr_assert_leq(rig->selected.passes, 3, "%s: %u passes", label, rig->selected.passes);
    seen.steps++;
    seen.missed += rig->selected.passes > 1;
    seen.pruned += report->prunes > 0;
}

/* Ascending order of these is descending magnitude, ties by rising index. */
static uint64_t order_of(float x, uint64_t index)
{
    const uint64_t key = gk_float_bits(x) & GK_KEY_MASK;
    return (GK_KEY_MASK - key) << 32 | index;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort_orders(const float *u, uint64_t n, uint64_t *ret_orders)
{
    for (uint64_t i = 0; i < n; i++)
        ret_orders[i] = order_of(u[i], i);
    qsort(ret_orders, n, sizeof(*ret_orders), compare_u64);
}

/* The first k of the sorted orders, without zeros, are what was selected. */
static void check_sorted(const uint64_t *orders, uint64_t n, uint64_t k,
                         const struct gk_selected *selected)
{
    static unsigned char member[LARGE_N];
    uint64_t count = 0;

    memset(member, 0, n);
    for (uint64_t i = 0; i < k && i < n && orders[i] >> 32 != GK_KEY_MASK; i++) {
        member[orders[i] & UINT32_MAX] = 1;
        count++;
    }
    cr_assert_eq(selected->n, count, "%s: %" PRIu64 " selected, %" PRIu64 " expected", label,
                 selected->n, count);
    for (uint64_t i = 0; i < count; i++)
        cr_assert(member[selected->idx[i]], "%s: %u does not belong", label, selected->idx[i]);
}

/* Whatever the method: rising indices, the values and residuals of u, the right count, and nobody
 * outside who should be inside. */
static void check_optimal(const float *u, uint64_t n, uint64_t k, const struct rig *rig)
{
    const struct gk_selected *selected = &rig->selected;
    uint64_t nonzeros = 0, at = 0, wrong = 0, worst_in = 0, best_out = UINT64_MAX;

    for (uint64_t i = 0; i < n; i++) {
        const bool in = at < selected->n && selected->idx[at] == i;
        const uint64_t order = order_of(u[i], i);
        const bool zero = u[i] == 0;
        nonzeros += !zero;
        if (in) {
            wrong += zero || gk_float_bits(selected->val[at]) != gk_float_bits(u[i]) ||
                     gk_float_bits(rig->e[i]) != 0;
            worst_in = order > worst_in ? order : worst_in;
            at++;
        } else {
            wrong += gk_float_bits(rig->e[i]) != gk_float_bits(u[i]);
            best_out = order < best_out ? order : best_out;
        }
    }
    cr_assert_eq(at, selected->n, "%s: indices do not rise", label);
    cr_assert_eq(wrong, 0, "%s: %" PRIu64 " values or residuals are wrong", label, wrong);
    cr_assert_eq(at, nonzeros < k ? nonzeros : k, "%s: %" PRIu64 " selected", label, at);
    cr_assert(at == 0 || worst_in < best_out, "%s: not the largest", label);
}

static void check_same(const struct rig *a, const struct rig *b)
{
    const struct gk_selected *x = &a->selected;
    const struct gk_selected *y = &b->selected;

    cr_assert_eq(x->n, y->n, "%s: counts differ", label);
    cr_assert_eq(x->k, y->k, "%s: k differs", label);
    cr_assert(x->n == 0 || memcmp(x->idx, y->idx, x->n * sizeof(*x->idx)) == 0, "%s: sets differ",
              label);
    cr_assert(x->n == 0 || memcmp(x->val, y->val, x->n * sizeof(*x->val)) == 0, "%s: values differ",
              label);
    cr_assert(a->n == 0 || memcmp(a->e, b->e, a->n * sizeof(*a->e)) == 0, "%s: residuals differ",
              label);
}

/* `topk` of the reference table first. */
static unsigned open_rigs(struct rig *rigs, uint64_t n, double density_max,
                          const struct gk_select_tune *tune)
{
    static const char *const names[] = {"topk", "gaussk"};
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const unsigned tables_count = rig_tables(tables);
    unsigned count = 0;

    for (unsigned t = 0; t < tables_count; t++) {
        for (unsigned i = 0; i < 2; i++) {
            const struct rig_options options = {.name = names[i],
                                                .ops = tables[t],
                                                .n = n,
                                                .density_max = density_max,
                                                .tune = tune};
            rig_open(&rigs[count++], &options);
        }
    }
    return count;
}

static void close_rigs(struct rig *rigs, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        rig_close(&rigs[i]);
}

/* The step's gradient: the law's sample, turned and rescaled, so that the k-th magnitude drifts
 * both ways. */
static void turn(const float *sample, uint64_t n, unsigned step, float *gradient)
{
    static const float scales[STEPS] = {1, 0.8f, 1.3f, 0.01f, 1};
    const uint64_t shift = (uint64_t)step * (n / 3);

    for (uint64_t i = 0; i < n; i++)
        gradient[i] = scales[step % STEPS] * sample[(i + shift) % n];
}

static void run_large(unsigned law, const float *sample, const uint64_t *orders, double density,
                      float *gradient, float *u)
{
    struct rig rigs[RIGS_MAX];
    const uint64_t k = gk_select_k(density, LARGE_N);
    const struct gk_select_tune parted = {.tile = 4096, .small_segment = 4096, .partitions = 4};
    const unsigned rigs_count = open_rigs(rigs, LARGE_N, density, law % 2 == 1 ? &parted : NULL);

    for (unsigned step = 0; step < STEPS; step++) {
        turn(sample, LARGE_N, step, gradient);
        for (uint64_t i = 0; i < LARGE_N; i++)
            u[i] = gradient[i] + rigs[0].e[i];
        for (unsigned r = 0; r < rigs_count; r++) {
            snprintf(label, sizeof(label), "%s, density %g, step %u, rig %u", laws[law].name,
                     density, step, r);
            cr_assert_eq(rig_step(&rigs[r], step, density, gradient), GK_OK, "%s: %s", label,
                         rigs[r].words.text);
            note_passes(&rigs[r]);
            if (r == 0)
                check_optimal(u, LARGE_N, k, &rigs[0]);
            else
                check_same(&rigs[0], &rigs[r]);
        }
        if (step == 0)
            check_sorted(orders, LARGE_N, k, &rigs[0].selected);
    }
    close_rigs(rigs, rigs_count);
}

Test(select_exact, gaussk_is_topk_on_every_law)
{
    float *sample = rig_floats(LARGE_N);
    float *gradient = rig_floats(LARGE_N);
    float *u = rig_floats(LARGE_N);
    uint64_t *orders = calloc(LARGE_N, sizeof(*orders));
    GK_ASSERT(orders != NULL);

    for (unsigned law = 0; law < LAWS_COUNT; law++) {
        law_fill(law, 1, sample, LARGE_N);
        sort_orders(sample, LARGE_N, orders); /* also of u at step 0: there is no residual yet */
        for (unsigned i = 0; i < DENSITIES; i++)
            run_large(law, sample, orders, densities[i], gradient, u);
    }
    cr_log_info("%u steps, %u missed, %u pruned", seen.steps, seen.missed, seen.pruned);
    free(orders);
    free(u);
    free(gradient);
    free(sample);
}

/* Every k of one n, with the residual and the warm state of the k before. */
static void run_small(uint64_t n, const struct gk_select_tune *tune)
{
    struct rig rigs[RIGS_MAX];
    float gradient[SMALL_N + 1], u[SMALL_N + 1];
    uint64_t orders[SMALL_N + 1];
    const unsigned rigs_count = open_rigs(rigs, n, 1, tune);

    for (uint64_t k = n > 0 ? 1 : 0; k <= n; k++) {
        const unsigned law = (unsigned)((n + k) % LAWS_COUNT);
        const double density = k == n ? 1 : ((double)k + 0.5) / (double)n;
        law_fill(law, n * 1000 + k, gradient, n);
        for (uint64_t i = 0; i < n; i++) {
            gradient[i] *= k % 7 == 3 ? 1e-3f : 1; /* a guess that is far too high */
            u[i] = gradient[i] + rigs[0].e[i];
        }
        sort_orders(u, n, orders);
        for (unsigned r = 0; r < rigs_count; r++) {
            snprintf(label, sizeof(label), "n %" PRIu64 ", k %" PRIu64 ", %s, rig %u", n, k,
                     laws[law].name, r);
            cr_assert_eq(rig_step(&rigs[r], k, density, gradient), GK_OK, "%s: %s", label,
                         rigs[r].words.text);
            cr_assert_eq(rigs[r].selected.k, k, "%s: asked for %" PRIu64, label,
                         rigs[r].selected.k);
            check_sorted(orders, n, k, &rigs[r].selected);
            check_optimal(u, n, k, &rigs[r]);
            note_passes(&rigs[r]);
        }
        /* A fresh start now and then: otherwise the residual of one wide law would be there to the
         * end. */
        for (unsigned r = 0; r < rigs_count && k % 5 == 0; r++)
            memset(rigs[r].e, 0, n * sizeof(float));
    }
    close_rigs(rigs, rigs_count);
}

Test(select_exact, every_k_of_every_small_n)
{
    /* A cap below k and a tile is raised to that: the lists are pruned as often as they can be. */
    static const struct gk_select_tune tunes[] = {
        {.tile = 32, .small_segment = 0, .partitions = 1, .cap = 0},
        {.tile = 32, .small_segment = 16, .partitions = 2, .cap = 1},
        {.tile = 64, .small_segment = 0, .partitions = 3, .cap = 1},
    };

    for (uint64_t n = 0; n <= SMALL_N; n++)
        for (unsigned i = 0; i < sizeof(tunes) / sizeof(tunes[0]); i++)
            run_small(n, &tunes[i]);
    cr_log_info("%u steps, %u missed, %u pruned", seen.steps, seen.missed, seen.pruned);
    cr_assert(seen.missed > seen.steps / 100 && seen.pruned > seen.steps / 100,
              "%u steps, %u missed, %u pruned: the hard paths were not taken", seen.steps,
              seen.missed, seen.pruned);
}
