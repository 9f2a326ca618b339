/* Goal: `dgc` pushes between min(0.8 k, non-zeros) and k entries, the largest ones, whatever the
 * vector; its threshold is the right quantile of a sample, so that one compaction is enough most of
 * the time; and what it pushes is a function of (u, seed, step, rank).
 * Method: every law and vectors made to mislead a sample, against the definition by plain loops;
 * counts over many steps against the law of the sample's quantile.  Draws are counter-based: what
 * passes once passes always. */
#include "common/bits.h"
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

enum {
    ADD_AND_ONE = 2,     /* passes: the residual, one compaction */
    PASSES_MOST = 1 + 5, /* and four more; an exact selection besides, of at most three */
};

static char label[256];

static uint32_t key_of(float x)
{
    return gk_float_bits(x) & GK_KEY_MASK;
}

/* What was pushed of a segment, from entry *at on: its largest, ties to the lower index, and as
 * many as promised. */
static void check_segment(const struct rig *rig, const float *u, struct gk_range segment,
                          uint64_t k, uint64_t *at)
{
    const struct gk_selected *selected = &rig->selected;
    const uint64_t first = *at;
    uint32_t least = UINT32_MAX;
    uint64_t nonzeros = 0, wrong = 0, last_tie = segment.lo;

    for (; *at < selected->n && selected->idx[*at] < segment.hi; ++*at)
        least = key_of(u[selected->idx[*at]]) < least ? key_of(u[selected->idx[*at]]) : least;
    const uint64_t n = *at - first;
    for (uint64_t j = first; j < *at; j++)
        if (key_of(u[selected->idx[j]]) == least)
            last_tie = selected->idx[j];
    uint64_t next = first;
    for (uint64_t i = segment.lo; i < segment.hi; i++) {
        const bool in = next < *at && selected->idx[next] == i;
        nonzeros += u[i] != 0;
        if (in) {
            wrong += selected->val[next++] != u[i] || rig->e[i] != 0 || u[i] == 0;
            continue;
        }
        wrong +=
            rig->e[i] != u[i] || key_of(u[i]) > least || (key_of(u[i]) == least && i < last_tie);
    }
    cr_assert_eq(next, *at, "%s: indices do not rise", label);
    cr_assert_eq(wrong, 0, "%s: %" PRIu64 " entries are not the largest", label, wrong);
    cr_assert_leq(n, k, "%s: %" PRIu64 " of %" PRIu64, label, n, k);
    const uint64_t promised = gk_min_u64((4 * k + 4) / 5, nonzeros);
    cr_assert_geq(n, promised, "%s: %" PRIu64 " of %" PRIu64 ", %" PRIu64 " non-zeros", label, n, k,
                  nonzeros);
}

static void check_whole(const struct rig *rig, const float *u)
{
    uint64_t at = 0;

    check_segment(rig, u, (struct gk_range){0, rig->n}, rig->selected.k, &at);
    cr_assert_eq(at, rig->selected.n, "%s", label);
}

Test(select_dgc, promise_on_every_law)
{
    enum { SIZE = 150000 };
    static const double densities[] = {0.2, 0.01, 0.001, 0.0001};
    static const uint64_t sizes[] = {SIZE, 20000, 300};
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const struct gk_vector_ops *ops = tables[rig_tables(tables) - 1];
    float *u = rig_floats(SIZE);

    for (unsigned law = 0; law < LAWS_COUNT; law++) {
        for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            const struct rig_options options = {
                .name = "dgc", .ops = ops, .n = sizes[i], .seed = law, .density_max = 0.2};
            struct rig rig;
            law_fill(law, i, u, sizes[i]);
            rig_open(&rig, &options);
            for (unsigned step = 0; step < sizeof(densities) / sizeof(densities[0]); step++) {
                snprintf(label, sizeof(label), "%s, n %" PRIu64 " at %g", laws[law].name, sizes[i],
                         densities[step]);
                memset(rig.e, 0, sizes[i] * sizeof(float));
                cr_assert_eq(rig_step(&rig, step, densities[step], u), GK_OK, "%s: %s", label,
                             rig.words.text);
                check_whole(&rig, u);
                cr_assert_leq(rig.selected.passes, PASSES_MOST + 3, "%s: %u passes", label,
                              rig.selected.passes);
            }
            rig_close(&rig);
        }
    }
    free(u);
}

/* The count above the quantile of a sample has the mean k, and with ranks of 16 to 22 in the sample
 * a deviation of about a quarter: half of the steps have more than k, one in five fewer than 0.8 k,
 * and then the second threshold has the same chances.  A sample's k-th largest, in place of its
 * quantile, would have too many in all steps. */
Test(select_dgc, the_quantile_of_the_sample)
{
    enum { SIZE = 100000, STEPS = 120 };
    const struct rig_options options = {
        .name = "dgc", .ops = gk_vector_reference(), .n = SIZE, .seed = 3, .density_max = 0.01};
    float *u = rig_floats(SIZE);
    unsigned full = 0, at_once = 0, at_twice = 0;
    double share = 0;
    struct rig rig;

    rig_open(&rig, &options);
    law_fill(LAW_LAPLACE, 1, u, SIZE);
    for (uint64_t step = 0; step < STEPS; step++) {
        memset(rig.e, 0, SIZE * sizeof(float));
        cr_assert_eq(rig_step(&rig, step, 0.01, u), GK_OK);
        full += rig.selected.n == rig.selected.k;
        at_once += rig.selected.passes == ADD_AND_ONE;
        at_twice += rig.selected.passes == ADD_AND_ONE + 1;
        share += (double)rig.selected.n / (double)rig.selected.k / STEPS;
        cr_assert_leq(rig.selected.passes, PASSES_MOST);
    }
    rig_close(&rig);
    free(u);
    cr_assert(full > STEPS / 3 && full < STEPS * 3 / 4, "%u of %u steps are full", full, STEPS);
    cr_assert(at_once > STEPS * 7 / 10, "%u of %u steps need one compaction", at_once, STEPS);
    cr_assert(at_twice > (STEPS - at_once) / 2, "%u of %u need two", at_twice, STEPS - at_once);
    cr_assert(share > 0.92 && share < 0.99, "%g of k", share);
}

/* Ties beyond the room for candidates, and a few large entries that no sample meets. */
Test(select_dgc, vectors_that_mislead_a_sample)
{
    enum { SIZE = 200000 };
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const struct gk_vector_ops *ops = tables[rig_tables(tables) - 1];
    const struct rig_options options = {.name = "dgc", .ops = ops, .n = SIZE, .seed = 2};
    float *u = rig_floats(SIZE);
    struct rig rig;

    rig_open(&rig, &options);
    for (unsigned kind = 0; kind < 4; kind++) {
        snprintf(label, sizeof(label), "kind %u", kind);
        for (uint64_t i = 0; i < SIZE; i++) {
            const float small = 1e-3f * (float)(i % 7 + 1);
            u[i] = kind == 0   ? -2                               /* constant */
                   : kind == 1 ? (i < 150 ? 5 : 1)                /* ties at the k-th */
                   : kind == 2 ? (i % 20000 == 7 ? 3 : small)     /* ten that are large */
                               : (i % 1000 == 0 ? 1 + small : 0); /* as many non-zeros as k */
        }
        memset(rig.e, 0, SIZE * sizeof(float));
        cr_assert_eq(rig_step(&rig, kind, 0.001, u), GK_OK, "%s", rig.words.text);
        check_whole(&rig, u);
        cr_assert(kind == 3 || rig.selected.n == 200, "%s: %" PRIu64, label, rig.selected.n);
        cr_assert_leq(rig.selected.passes, PASSES_MOST + 3, "%s", label);
    }
    rig_close(&rig);
    free(u);
}

/* Segments of every kind side by side: one that no threshold fits between such as one does, empty
 * ones, short ones, one of which nothing may be pushed. */
Test(select_dgc, segments_of_every_kind)
{
    enum { SIZE = 60000, PARTS = 8 };
    static const struct gk_range parts[PARTS] = {{0, 20000},     {20000, 30000}, {30000, 30000},
                                                 {30000, 30003}, {30003, 45000}, {45000, 50000},
                                                 {50000, 59000}, {59000, SIZE}};
    static const double densities[PARTS] = {0, 0, 0, 0, 0.05, 0, -1, 1};
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const unsigned tables_count = rig_tables(tables);
    float *u = rig_floats(SIZE);

    law_fill(LAW_LAPLACE, 5, u, SIZE);
    law_fill(LAW_CONSTANT, 5, u + parts[1].lo, 10000); /* lost: ties */
    law_fill(LAW_CONSTANT, 6, u + parts[5].lo, 5000);
    for (unsigned t = 0; t < tables_count; t++) {
        const struct rig_options options = {.name = "dgc",
                                            .ops = tables[t],
                                            .n = SIZE,
                                            .segments = parts,
                                            .segments_count = PARTS,
                                            .densities = densities};
        struct rig rig;
        rig_open(&rig, &options);
        for (uint64_t step = 0; step < 5; step++) {
            uint64_t at = 0, k_all = 0;
            memset(rig.e, 0, SIZE * sizeof(float));
            cr_assert_eq(rig_step(&rig, step, 0.01, u), GK_OK, "%s", rig.words.text);
            for (unsigned p = 0; p < PARTS; p++) {
                const double own = densities[p] != 0 ? densities[p] : 0.01;
                const uint64_t k = own < 0 ? 0 : gk_select_k(own, parts[p].hi - parts[p].lo);
                snprintf(label, sizeof(label), "table %u, step %" PRIu64 ", part %u", t, step, p);
                check_segment(&rig, u, parts[p], k, &at);
                k_all += k;
            }
            cr_assert_eq(at, rig.selected.n);
            cr_assert_eq(k_all, rig.selected.k);
        }
        rig_close(&rig);
    }
    free(u);
}

/* Entries that are not finite are seen wherever they are: beside the sample, where nothing is
 * selected, and where the whole is. */
Test(select_dgc, not_finite_anywhere)
{
    enum { SIZE = 30000 };
    static const struct gk_range parts[] = {{0, 20000}, {20000, 25000}, {25000, SIZE}};
    static const double densities[] = {0, -1, 0};
    static const uint32_t places[] = {0, 1, 777, 19999, 20000, 24999, 25000, 29998};
    const struct rig_options options = {.name = "dgc",
                                        .ops = gk_vector_reference(),
                                        .n = SIZE,
                                        .policy = GK_NONFINITE_ZERO,
                                        .segments = parts,
                                        .segments_count = 3,
                                        .density_max = 0.01,
                                        .densities = densities};
    float *u = rig_floats(SIZE);
    struct rig rig;

    rig_open(&rig, &options);
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        law_fill(LAW_LAPLACE, i, u, SIZE);
        law_fill(LAW_CONSTANT, i, u + parts[2].lo, 5000);
        u[places[i]] = i % 2 == 0 ? (float)NAN : -INFINITY;
        memset(rig.e, 0, SIZE * sizeof(float));
        cr_assert_eq(rig_step(&rig, i, 0.01, u), GK_OK);
        cr_assert_eq(rig.selected.bad, 1, "place %u: %" PRIu64, places[i], rig.selected.bad);
        cr_assert_eq(rig.selected.bad_first, places[i]);
        cr_assert_eq(rig.e[places[i]], 0);
        for (uint64_t j = 0; j < SIZE; j++)
            cr_assert(isfinite(rig.e[j]));
    }
    /* More of them than there is room for candidates. */
    law_fill(LAW_LAPLACE, 9, u, SIZE);
    for (uint64_t i = parts[1].lo; i < parts[1].hi; i++)
        u[i] = NAN;
    memset(rig.e, 0, SIZE * sizeof(float));
    cr_assert_eq(rig_step(&rig, 99, 0.01, u), GK_OK);
    cr_assert_eq(rig.selected.bad, 5000);
    rig_close(&rig);
    free(u);
}

static bool same_set(const struct rig *a, const struct rig *b)
{
    return a->selected.n == b->selected.n &&
           memcmp(a->selected.idx, b->selected.idx, a->selected.n * sizeof(uint32_t)) == 0;
}

Test(select_dgc, a_function_of_seed_step_and_rank)
{
    enum { SIZE = 50000, RIGS = 5 + RIG_TABLES_MAX };
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const unsigned tables_count = rig_tables(tables);
    static const uint64_t seeds[] = {5, 5, 6, 5, 5};
    static const uint32_t ranks[] = {2, 2, 2, 3, 2};
    static const uint64_t steps[] = {9, 9, 9, 9, 10};
    unsigned same[5] = {0};
    float *u = rig_floats(SIZE);
    struct rig rigs[RIGS];

    for (unsigned i = 0; i < 5 + tables_count; i++) {
        const struct rig_options options = {.name = "dgc",
                                            .ops = i < 5 ? tables[0] : tables[i - 5],
                                            .n = SIZE,
                                            .seed = i < 5 ? seeds[i] : 5,
                                            .rank = i < 5 ? ranks[i] : 2};
        rig_open(&rigs[i], &options);
    }
    law_fill(LAW_GENERAL, 1, u, SIZE);
    cr_assert_eq(rig_step(&rigs[1], 8, 0.3, u), GK_OK); /* an earlier step leaves no trace */
    for (uint64_t round = 0; round < 8; round++) {
        law_fill(LAW_GENERAL, round, u, SIZE);
        for (unsigned i = 0; i < 5 + tables_count; i++) {
            memset(rigs[i].e, 0, SIZE * sizeof(float));
            cr_assert_eq(rig_step(&rigs[i], round * 2 + (i < 5 ? steps[i] : 9), 0.01, u), GK_OK);
            if (i < 5)
                same[i] += same_set(&rigs[0], &rigs[i]);
            else
                cr_assert(same_set(&rigs[0], &rigs[i]), "table %u", i - 5);
        }
    }
    cr_assert(same[0] == 8 && same[1] == 8);
    /* Two full sets are the same whatever was drawn. */
    cr_assert(same[2] < 7 && same[3] < 7 && same[4] < 7, "%u %u %u", same[2], same[3], same[4]);
    for (unsigned i = 0; i < 5 + tables_count; i++)
        rig_close(&rigs[i]);
    free(u);
}
