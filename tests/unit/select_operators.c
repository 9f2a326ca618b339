/* Goal: what all operators have in common: the registry, the k rule, refusals in words,
 * conservation (P1), segments, and vectors of no or few elements.
 * Method: every registered operator on every table, over the laws of select_laws.h, with plain
 * recomputation of u. */
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

static char label[256];

Test(select_operators, registry)
{
    uint32_t count;
    const struct gk_operator *const *operators = gk_operators(&count);
    char expected[1024] = "";

    for (uint32_t i = 0; i < count; i++) {
        cr_assert(i == 0 || strcmp(operators[i - 1]->name, operators[i]->name) < 0, "not in order");
        cr_assert(operators[i]->summary != NULL && operators[i]->step != NULL);
        strcat(expected, i > 0 ? "|" : "");
        strcat(expected, operators[i]->name);
    }
    cr_assert_str_eq(gk_operator_choices(), expected);
    static const char *const present[] = {"dense",        "dgc",   "gaussk",
                                          "gaussk-paper", "randk", "topk"};
    for (unsigned i = 0; i < sizeof(present) / sizeof(present[0]); i++)
        cr_assert_not_null(strstr(expected, present[i]));
}

Test(select_operators, k_rule)
{
    cr_assert_eq(gk_select_k(0.1, 0), 0);
    cr_assert_eq(gk_select_k(0.001, 1), 1);
    cr_assert_eq(gk_select_k(0.001, 999), 1);
    cr_assert_eq(gk_select_k(0.5, 3), 1);
    cr_assert_eq(gk_select_k(1, 3), 3);
    cr_assert_eq(gk_select_k(0.9999999999999999, 1), 1);
    /* The warm-up of ResNet-20 and VGG-16; a density below 0.001 is honoured. */
    cr_assert_eq(gk_select_k(0.015625, 269722), 4214);
    cr_assert_eq(gk_select_k(0.004, 269722), 1078);
    cr_assert_eq(gk_select_k(0.001, 269722), 269);
    cr_assert_eq(gk_select_k(0.015625, 14728266), 230129);
    cr_assert_eq(gk_select_k(0.004, 14728266), 58913);
    cr_assert_eq(gk_select_k(0.001, 14728266), 14728);
    cr_assert_eq(gk_select_k(0.0001, 269722), 26);
}

static enum gk_err try_new(const char *name, double density, uint64_t params_count,
                           const struct gk_range *segments, uint32_t segments_count,
                           struct gk_words *words)
{
    struct gk_queue *queue;
    struct gk_selector *selector = NULL;
    const struct gk_vector_ops *ops = gk_vector_reference();
    cr_assert_eq(ops->open(&queue, words), GK_OK);
    const struct gk_select_setup setup = {.ops = ops,
                                          .queue = queue,
                                          .params_count = params_count,
                                          .segments = segments,
                                          .segments_count = segments_count};
    const enum gk_err err = gk_selector_new(name, density, &setup, &selector, words);
    cr_assert_eq(selector != NULL, err == GK_OK);
    gk_selector_free(selector);
    ops->close(queue);
    return err;
}

Test(select_operators, bad_set_ups_are_refused)
{
    const struct gk_range whole = {0, 10};
    const struct gk_range gap[] = {{0, 4}, {5, 10}};
    const struct gk_range overlap[] = {{0, 6}, {5, 10}};
    const struct gk_range empty[] = {{0, 4}, {4, 4}, {4, 10}};
    const struct gk_range large = {0, UINT64_C(1) << 32};
    struct gk_words words = {""};

    cr_assert_eq(try_new("topk", 0.5, 10, &whole, 1, &words), GK_OK);
    cr_assert_eq(try_new("topk", 0.5, 10, empty, 3, &words), GK_OK);
    cr_assert_eq(try_new("nosuch", 0.5, 10, &whole, 1, &words), GK_E_NOTFOUND);
    cr_assert_not_null(strstr(words.text, "gaussk"), "%s", words.text);
    cr_assert_not_null(strstr(words.text, "nosuch"), "%s", words.text);
    cr_assert_eq(try_new("topk", 0, 10, &whole, 1, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", 1.5, 10, &whole, 1, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", (double)NAN, 10, &whole, 1, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", 0.5, 11, &whole, 1, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", 0.5, 10, gap, 2, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", 0.5, 10, overlap, 2, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", 0.5, 10, NULL, 0, &words), GK_E_INVALID);
    cr_assert_eq(try_new("topk", 0.5, large.hi, &large, 1, &words), GK_E_LIMIT);
    gk_selector_free(NULL);
}

Test(select_operators, bad_densities_are_refused)
{
    float gradient[10] = {1};
    const struct rig_options options = {
        .name = "topk", .ops = gk_vector_reference(), .n = 10, .density_max = 0.5};
    struct rig rig;

    rig_open(&rig, &options);
    cr_assert_eq(rig_step(&rig, 3, 0, gradient), GK_E_INVALID);
    cr_assert_eq(rig_step(&rig, 3, -1, gradient), GK_E_INVALID);
    cr_assert_eq(rig_step(&rig, 3, (double)NAN, gradient), GK_E_INVALID);
    cr_assert_eq(rig_step(&rig, 3, 2, gradient), GK_E_INVALID);
    cr_assert_eq(rig_step(&rig, 3, 0.6, gradient), GK_E_LIMIT);
    cr_assert_not_null(strstr(rig.words.text, "step 3"), "%s", rig.words.text);
    cr_assert_eq(rig_step(&rig, 3, 0.5, gradient), GK_OK);
    rig_close(&rig);
}

/* Per coordinate: sent + new residual = fl(g + old residual).  One of the two is zero, so that the
 * sum is exact and the equality is of bits, but for the sign of zero. */
static void check_conserved(const struct rig *rig, const float *gradient, const float *old)
{
    const struct gk_selected *selected = &rig->selected;
    uint64_t at = 0, wrong = 0;

    for (uint64_t i = 0; i < rig->n; i++) {
        const bool in =
            selected->idx == NULL ? i < selected->n : at < selected->n && selected->idx[at] == i;
        const float sent = in ? selected->val[at++] : 0;
        wrong += sent + rig->e[i] != gradient[i] + old[i] || (in && rig->e[i] != 0);
    }
    cr_assert_eq(at, selected->n, "%s: indices do not rise", label);
    cr_assert_eq(wrong, 0, "%s: %" PRIu64 " coordinates are not conserved", label, wrong);
}

static void conservation(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    enum { SIZE = 20000 };
    static const double densities[] = {0.01, 0.3, 0.001, 1};
    float *gradient = rig_floats(SIZE);
    float *old = rig_floats(SIZE);

    for (unsigned law = 0; law < LAWS_COUNT; law++) {
        const struct rig_options options = {.name = op->name, .ops = ops, .n = SIZE, .seed = law};
        struct rig rig;
        rig_open(&rig, &options);
        for (uint64_t step = 0; step < 4; step++) {
            snprintf(label, sizeof(label), "%s, %s, step %" PRIu64, op->name, laws[law].name, step);
            law_fill(law, step, gradient, SIZE);
            memcpy(old, rig.e, SIZE * sizeof(float));
            cr_assert_eq(rig_step(&rig, step, densities[step], gradient), GK_OK, "%s: %s", label,
                         rig.words.text);
            cr_assert_eq(rig.selected.bad, 0);
            check_conserved(&rig, gradient, old);
            cr_assert_eq(memcmp(rig.g, old, SIZE * sizeof(float)), 0, "%s: e was touched", label);
        }
        rig_close(&rig);
    }
    free(old);
    free(gradient);
}

Test(select_operators, conservation)
{
    rig_for_all(conservation);
}

Test(select_operators, dense_sends_an_old_residual)
{
    float gradient[] = {1, -2, 0, 0.5f, 3};
    const float residual[] = {0.25f, 2, 0, 1, -4};
    const struct rig_options options = {.name = "dense", .ops = gk_vector_reference(), .n = 5};
    struct rig rig;

    rig_open(&rig, &options);
    memcpy(rig.e, residual, sizeof(residual));
    cr_assert_eq(rig_step(&rig, 0, 0.2, gradient), GK_OK);
    cr_assert_null(rig.selected.idx);
    cr_assert_eq(rig.selected.n, 5);
    for (unsigned i = 0; i < 5; i++) {
        cr_assert_eq(rig.selected.val[i], gradient[i] + residual[i]);
        cr_assert_eq(rig.e[i], 0);
    }
    rig_close(&rig);
}

static void no_residual_given(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    enum { SIZE = 100 };
    const struct rig_options options = {.name = op->name, .ops = ops, .n = SIZE};
    struct rig given, null;
    float gradient[SIZE];
    struct gk_selected selected;

    law_fill(LAW_LAPLACE, 1, gradient, SIZE);
    rig_open(&given, &options);
    rig_open(&null, &options);
    cr_assert_eq(rig_step(&given, 1, 0.1, gradient), GK_OK);
    memcpy(null.g, gradient, sizeof(gradient));
    const struct gk_select_step step = {.step = 1, .density = 0.1, .g = null.g};
    cr_assert_eq(gk_selector_step(null.selector, &step, &selected, &null.words), GK_OK);
    cr_assert_eq(selected.n, given.selected.n);
    cr_assert_eq(memcmp(selected.val, given.selected.val, selected.n * sizeof(float)), 0);
    cr_assert_eq(memcmp(null.g, given.e, sizeof(gradient)), 0);
    rig_close(&given);
    rig_close(&null);
}

Test(select_operators, a_null_residual_is_zeros)
{
    rig_for_all(no_residual_given);
}

/* A model in segments is what the segments alone give, one behind the other. */
static void segments(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    static const struct gk_range parts[] = {{0, 1}, {1, 1}, {1, 6000}, {6000, 6010}, {6010, 20000}};
    enum { SIZE = 20000, PARTS = sizeof(parts) / sizeof(parts[0]) };
    const struct rig_options options = {
        .name = op->name, .ops = ops, .n = SIZE, .segments = parts, .segments_count = PARTS};
    float *gradient = rig_floats(SIZE);
    struct rig all, alone[PARTS];

    rig_open(&all, &options);
    for (unsigned p = 0; p < PARTS; p++) {
        const struct rig_options one = {
            .name = op->name, .ops = ops, .n = parts[p].hi - parts[p].lo};
        rig_open(&alone[p], &one);
    }
    for (uint64_t step = 0; step < 3; step++) {
        uint64_t at = 0, k = 0;
        law_fill(LAW_LAPLACE, step, gradient, SIZE);
        cr_assert_eq(rig_step(&all, step, 0.05, gradient), GK_OK, "%s", all.words.text);
        for (unsigned p = 0; p < PARTS; p++) {
            struct rig *part = &alone[p];
            cr_assert_eq(rig_step(part, step, 0.05, gradient + parts[p].lo), GK_OK);
            k += part->selected.k;
            for (uint64_t i = 0; i < part->selected.n; i++, at++) {
                cr_assert_lt(at, all.selected.n);
                cr_assert(all.selected.idx == NULL ||
                              all.selected.idx[at] == part->selected.idx[i] + parts[p].lo,
                          "%s: part %u, entry %" PRIu64, op->name, p, i);
                cr_assert_eq(all.selected.val[at], part->selected.val[i]);
            }
        }
        cr_assert_eq(at, all.selected.n);
        cr_assert_eq(k, all.selected.k);
    }
    for (unsigned p = 0; p < PARTS; p++)
        rig_close(&alone[p]);
    rig_close(&all);
    free(gradient);
}

static void segments_of_all_but_randk(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    if (strcmp(op->name, "randk") != 0) /* whose draws are numbered through the model */
        segments(op, ops);
}

Test(select_operators, segments)
{
    rig_for_all(segments_of_all_but_randk);
}

Test(select_operators, randk_honours_segments)
{
    static const struct gk_range parts[] = {{0, 100}, {100, 1000}, {1000, 1001}};
    const struct rig_options options = {.name = "randk",
                                        .ops = gk_vector_reference(),
                                        .n = 1001,
                                        .segments = parts,
                                        .segments_count = 3};
    float *gradient = rig_floats(1001);
    unsigned counts[3] = {0};
    struct rig rig;

    rig_open(&rig, &options);
    cr_assert_eq(rig_step(&rig, 1, 0.1, gradient), GK_OK);
    for (uint64_t i = 0; i < rig.selected.n; i++)
        counts[(rig.selected.idx[i] >= 100) + (rig.selected.idx[i] >= 1000)]++;
    cr_assert(counts[0] == 10 && counts[1] == 90 && counts[2] == 1);
    rig_close(&rig);

    /* Equal segments draw different subsets. */
    static const struct gk_range halves[] = {{0, 500}, {500, 1000}};
    const struct rig_options two = {.name = "randk",
                                    .ops = gk_vector_reference(),
                                    .n = 1000,
                                    .segments = halves,
                                    .segments_count = 2};
    unsigned same = 0;
    rig_open(&rig, &two);
    cr_assert_eq(rig_step(&rig, 1, 0.1, gradient), GK_OK);
    for (unsigned i = 0; i < 50; i++)
        same += rig.selected.idx[i] + 500 == rig.selected.idx[50 + i];
    cr_assert_lt(same, 50);
    rig_close(&rig);
    free(gradient);
}

Test(select_operators, the_set_up_is_copied)
{
    struct gk_select_tune tune = {.tile = 32, .small_segment = 7, .partitions = 3};
    struct gk_range whole = {0, 1000};
    const struct rig_options options = {.name = "gaussk",
                                        .ops = gk_vector_reference(),
                                        .n = 1000,
                                        .tune = &tune,
                                        .segments = &whole,
                                        .segments_count = 1};
    float *gradient = rig_floats(1000);
    struct rig rig;

    rig_open(&rig, &options);
    tune = (struct gk_select_tune){0};
    whole.hi = 0;
    law_fill(LAW_LAPLACE, 1, gradient, 1000);
    cr_assert_eq(rig_step(&rig, 1, 0.1, gradient), GK_OK);
    cr_assert_eq(rig.selected.n, 100);
    cr_assert_eq(rig.selector->setup.tune->small_segment, 7);
    rig_close(&rig);
    free(gradient);
}

static void tiny(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    static const double densities[] = {0.001, 0.3, 1};
    float gradient[8] = {1, -2, 0, 4, 0.5f, 0, -0.25f, 3};
    float old[8];

    for (uint64_t n = 0; n <= 8; n++) {
        const struct rig_options options = {.name = op->name, .ops = ops, .n = n};
        struct rig rig;
        rig_open(&rig, &options);
        for (uint64_t step = 0; step < 3; step++) {
            snprintf(label, sizeof(label), "%s, n %" PRIu64, op->name, n);
            memcpy(old, rig.e, n * sizeof(float));
            cr_assert_eq(rig_step(&rig, step, densities[step], gradient), GK_OK);
            cr_assert_eq(rig.selected.k, gk_select_k(densities[step], n));
            check_conserved(&rig, gradient, old);
        }
        rig_close(&rig);
    }
}

Test(select_operators, tiny_vectors)
{
    rig_for_all(tiny);
}

/* No more than what was asked for, except by operators that say that they do not truncate. */
static void hard_cap(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    enum { SIZE = 5000 };
    float *gradient = rig_floats(SIZE);

    for (unsigned law = 0; law < LAWS_COUNT && !op->unbounded; law++) {
        const struct rig_options options = {
            .name = op->name, .ops = ops, .n = SIZE, .density_max = 0.02};
        struct rig rig;
        rig_open(&rig, &options);
        law_fill(law, 1, gradient, SIZE);
        cr_assert_eq(rig_step(&rig, 1, 0.02, gradient), GK_OK);
        cr_assert_leq(rig.selected.n, 100, "%s, %s", op->name, laws[law].name);
        rig_close(&rig);
    }
    free(gradient);
}

Test(select_operators, hard_cap)
{
    rig_for_all(hard_cap);
}
