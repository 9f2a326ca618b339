/* Goal: `randk` picks k distinct entries, uniformly, as a function of (seed, step, rank) alone,
 * with residual.
 * Method: shape for every k of small n; counts of all subsets of a tiny n and of single entries
 * and pairs of a larger one against their standard errors; runs that must agree or differ.  The
 * draws are counter-based, so that a test that passes once passes always. */
#include "common/bits.h"
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>

static const double half_more = 0.5; /* (k + 0.5) / n asks for exactly k */

static void open_randk(struct rig *rig, uint64_t n, uint64_t seed, uint32_t rank)
{
    const struct rig_options options = {
        .name = "randk", .ops = gk_vector_reference(), .n = n, .seed = seed, .rank = rank};
    rig_open(rig, &options);
}

static void step_k(struct rig *rig, uint64_t step, uint64_t k, const float *gradient)
{
    const double density = k == rig->n ? 1 : ((double)k + half_more) / (double)rig->n;
    cr_assert_eq(rig_step(rig, step, density, gradient), GK_OK, "%s", rig->words.text);
    cr_assert_eq(rig->selected.n, k);
    cr_assert_eq(rig->selected.k, k);
}

Test(select_randk, distinct_and_rising)
{
    float gradient[200];

    law_fill(LAW_GAUSSIAN, 1, gradient, 200);
    for (uint64_t n = 1; n <= 200; n += n < 70 ? 1 : 13) {
        struct rig rig;
        open_randk(&rig, n, 1, 0);
        for (uint64_t k = 1; k <= n; k++) {
            step_k(&rig, k, k, gradient);
            for (uint64_t i = 0; i < k; i++) {
                cr_assert(rig.selected.idx[i] < n);
                cr_assert(i == 0 || rig.selected.idx[i] > rig.selected.idx[i - 1],
                          "n %" PRIu64 ", k %" PRIu64, n, k);
            }
        }
        rig_close(&rig);
    }
}

Test(select_randk, all_subsets_are_equally_likely)
{
    enum { SIZE = 6, CHOSEN = 3, STEPS = 20000, SUBSETS = 20 };
    float gradient[SIZE] = {1, 1, 1, 1, 1, 1};
    unsigned counts[1 << SIZE] = {0};
    unsigned subsets = 0;
    double chi = 0;
    struct rig rig;

    open_randk(&rig, SIZE, 7, 3);
    for (uint64_t step = 0; step < STEPS; step++) {
        unsigned set = 0;
        step_k(&rig, step, CHOSEN, gradient);
        for (unsigned i = 0; i < CHOSEN; i++)
            set |= 1u << rig.selected.idx[i];
        counts[set]++;
    }
    rig_close(&rig);
    for (unsigned set = 0; set < 1 << SIZE; set++) {
        const double excess = (double)counts[set] - (double)STEPS / SUBSETS;
        if (counts[set] == 0)
            continue;
        subsets++;
        chi += excess * excess / ((double)STEPS / SUBSETS);
    }
    cr_assert_eq(subsets, SUBSETS);
    cr_assert_lt(chi, 43.8, "chi-square %g over 19 degrees of freedom: beyond the 0.999 quantile",
                 chi);
}

Test(select_randk, entries_and_neighbours_are_uniform)
{
    enum { SIZE = 1000, CHOSEN = 50, STEPS = 4000 };
    float *gradient = rig_floats(SIZE);
    unsigned counts[SIZE] = {0};
    double neighbours = 0, worst = 0;
    struct rig rig;

    open_randk(&rig, SIZE, 11, 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        step_k(&rig, step, CHOSEN, gradient);
        for (unsigned i = 0; i < CHOSEN; i++) {
            counts[rig.selected.idx[i]]++;
            neighbours += i > 0 && rig.selected.idx[i] == rig.selected.idx[i - 1] + 1;
        }
    }
    rig_close(&rig);
    free(gradient);
    const double p = (double)CHOSEN / SIZE;
    const double expected = STEPS * p;
    for (unsigned i = 0; i < SIZE; i++)
        worst = fmax(worst, fabs((double)counts[i] - expected) / sqrt(expected * (1 - p)));
    cr_assert_lt(worst, 4.5, "an entry is %g standard errors off", worst);
    /* A pair is inside with probability p (k - 1) / (n - 1); the count is nearly Poisson. */
    const double pairs = (double)STEPS * (SIZE - 1) * p * (CHOSEN - 1) / (SIZE - 1);
    cr_assert_lt(fabs(neighbours - pairs), 4 * sqrt(pairs), "%g neighbours, %g expected",
                 neighbours, pairs);
}

static bool same_set(const struct rig *a, const struct rig *b)
{
    return a->selected.n == b->selected.n &&
           memcmp(a->selected.idx, b->selected.idx, a->selected.n * sizeof(uint32_t)) == 0;
}

Test(select_randk, a_function_of_seed_step_and_rank)
{
    enum { SIZE = 5000, CHOSEN = 100 };
    float *gradient = rig_floats(SIZE);
    struct rig first, again, other_seed, other_rank, other_step;

    open_randk(&first, SIZE, 5, 2);
    open_randk(&again, SIZE, 5, 2);
    open_randk(&other_seed, SIZE, 6, 2);
    open_randk(&other_rank, SIZE, 5, 3);
    open_randk(&other_step, SIZE, 5, 2);
    step_k(&again, 8, CHOSEN, gradient); /* an earlier step must leave no trace */
    step_k(&first, 9, CHOSEN, gradient);
    step_k(&again, 9, CHOSEN, gradient);
    step_k(&other_seed, 9, CHOSEN, gradient);
    step_k(&other_rank, 9, CHOSEN, gradient);
    step_k(&other_step, 10, CHOSEN, gradient);
    cr_assert(same_set(&first, &again));
    cr_assert_not(same_set(&first, &other_seed));
    cr_assert_not(same_set(&first, &other_rank));
    cr_assert_not(same_set(&first, &other_step));
    rig_close(&first);
    rig_close(&again);
    rig_close(&other_seed);
    rig_close(&other_rank);
    rig_close(&other_step);
    free(gradient);
}

Test(select_randk, same_on_every_table)
{
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const unsigned tables_count = rig_tables(tables);
    enum { SIZE = 3000 };
    float *gradient = rig_floats(SIZE);
    struct rig rigs[RIG_TABLES_MAX];

    for (unsigned t = 0; t < tables_count; t++) {
        const struct rig_options options = {
            .name = "randk", .ops = tables[t], .n = SIZE, .seed = 1};
        rig_open(&rigs[t], &options);
        for (uint64_t step = 0; step < 5; step++) {
            law_fill(LAW_LAPLACE, step, gradient, SIZE);
            step_k(&rigs[t], step, 77, gradient);
        }
        cr_assert(same_set(&rigs[0], &rigs[t]));
        cr_assert_eq(memcmp(rigs[0].e, rigs[t].e, SIZE * sizeof(float)), 0);
    }
    for (unsigned t = 0; t < tables_count; t++)
        rig_close(&rigs[t]);
    free(gradient);
}
