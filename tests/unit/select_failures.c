/* Goal: what goes wrong in a step loses nothing: non-finite entries under each policy, memory that
 * runs out, slots that fail.
 * Method: every operator on every table.  A refused step must leave the residual and all later
 * steps as if it had never been; a zeroed one must equal the step with those gradients at 0; and
 * each allocation and each wait is made to fail in turn. */
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"

#include <criterion/criterion.h>
#include <float.h>
#include <inttypes.h>

enum { BAD_SIZE = 70000 }; /* more than one piece of the search for non-finite entries */

/* Places, in rising order, and what makes u non-finite there; the last is a sum that overflows. */
static const uint32_t bad_at[] = {7, 8, 9, 4096, 65535, 65536, 69999};

static void spoil(float *gradient, float *residual)
{
    const float values[] = {NAN, INFINITY, -INFINITY, -NAN, NAN, INFINITY, FLT_MAX};
    for (unsigned i = 0; i < sizeof(bad_at) / sizeof(bad_at[0]); i++)
        gradient[bad_at[i]] = values[i];
    residual[bad_at[6]] = FLT_MAX;
}

static void refusal(const struct gk_operator *op, const struct gk_vector_ops *ops,
                    enum gk_nonfinite_policy policy)
{
    const struct rig_options options = {
        .name = op->name, .ops = ops, .n = BAD_SIZE, .policy = policy, .seed = 1};
    float *gradient = rig_floats(BAD_SIZE);
    float *residual = rig_floats(BAD_SIZE);
    struct rig rig, clean;

    rig_open(&rig, &options);
    rig_open(&clean, &options);
    law_fill(LAW_LAPLACE, 1, gradient, BAD_SIZE);
    law_fill(LAW_GAUSSIAN, 2, residual, BAD_SIZE);
    spoil(gradient, residual);
    memcpy(rig.e, residual, BAD_SIZE * sizeof(float));
    memcpy(clean.e, residual, BAD_SIZE * sizeof(float));
    const enum gk_err err = rig_step(&rig, 17, 0.01, gradient);
    cr_assert_eq(err, policy == GK_NONFINITE_ABORT ? GK_E_NONFINITE : GK_OK, "%s", op->name);
    cr_assert_eq(rig.selected.bad, 7, "%s: %" PRIu64, op->name, rig.selected.bad);
    cr_assert_eq(rig.selected.bad_first, 7);
    cr_assert_eq(rig.selected.n, 0);
    cr_assert_eq(memcmp(rig.e, residual, BAD_SIZE * sizeof(float)), 0, "%s: e was touched",
                 op->name);
    if (policy == GK_NONFINITE_ABORT) {
        cr_assert_not_null(strstr(rig.words.text, "step 17"), "%s", rig.words.text);
        cr_assert_not_null(strstr(rig.words.text, "parameter 7 "), "%s", rig.words.text);
    }

    /* The refused step left no trace: the next one is that of a selector that never saw it. */
    law_fill(LAW_LAPLACE, 3, gradient, BAD_SIZE);
    cr_assert_eq(rig_step(&rig, 18, 0.01, gradient), GK_OK);
    cr_assert_eq(rig_step(&clean, 18, 0.01, gradient), GK_OK);
    cr_assert_eq(rig.selected.n, clean.selected.n);
    cr_assert_eq(memcmp(rig.selected.val, clean.selected.val, rig.selected.n * sizeof(float)), 0);
    cr_assert_eq(memcmp(rig.e, clean.e, BAD_SIZE * sizeof(float)), 0);
    rig_close(&rig);
    rig_close(&clean);
    free(residual);
    free(gradient);
}

static void abort_policy(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    refusal(op, ops, GK_NONFINITE_ABORT);
}

static void skip_policy(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    refusal(op, ops, GK_NONFINITE_SKIP);
}

Test(select_failures, policy_abort)
{
    rig_for_all(abort_policy);
}

Test(select_failures, policy_skip)
{
    rig_for_all(skip_policy);
}

/* ZERO: as if the gradient were 0 at those places. */
static void zero_policy(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    const struct rig_options options = {
        .name = op->name, .ops = ops, .n = BAD_SIZE, .policy = GK_NONFINITE_ZERO, .seed = 1};
    float *gradient = rig_floats(BAD_SIZE);
    float *residual = rig_floats(BAD_SIZE);
    struct rig rig, clean;

    rig_open(&rig, &options);
    rig_open(&clean, &options);
    law_fill(LAW_LAPLACE, 1, gradient, BAD_SIZE);
    law_fill(LAW_GAUSSIAN, 2, residual, BAD_SIZE);
    for (unsigned i = 0; i < sizeof(bad_at) / sizeof(bad_at[0]); i++)
        gradient[bad_at[i]] = 0;
    residual[bad_at[6]] = FLT_MAX;
    memcpy(rig.e, residual, BAD_SIZE * sizeof(float));
    memcpy(clean.e, residual, BAD_SIZE * sizeof(float));
    cr_assert_eq(rig_step(&clean, 17, 0.01, gradient), GK_OK);
    spoil(gradient, residual);
    cr_assert_eq(rig_step(&rig, 17, 0.01, gradient), GK_OK);
    cr_assert_eq(rig.selected.bad, 7);
    cr_assert_eq(rig.selected.bad_first, 7);
    cr_assert_eq(rig.selected.n, clean.selected.n, "%s: %" PRIu64 " %" PRIu64, op->name,
                 rig.selected.n, clean.selected.n);
    cr_assert(rig.selected.idx == NULL ||
              memcmp(rig.selected.idx, clean.selected.idx, rig.selected.n * sizeof(uint32_t)) == 0);
    cr_assert_eq(memcmp(rig.selected.val, clean.selected.val, rig.selected.n * sizeof(float)), 0);
    cr_assert_eq(memcmp(rig.e, clean.e, BAD_SIZE * sizeof(float)), 0);
    rig_close(&rig);
    rig_close(&clean);
    free(residual);
    free(gradient);
}

Test(select_failures, policy_zero)
{
    rig_for_all(zero_policy);
}

/* Everything is bad, and so is a residual that was damaged elsewhere: none is pushed. */
static void all_bad(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    const struct rig_options options = {
        .name = op->name, .ops = ops, .n = BAD_SIZE, .policy = GK_NONFINITE_ZERO};
    float *gradient = rig_floats(BAD_SIZE);
    struct rig rig;

    rig_open(&rig, &options);
    for (unsigned i = 0; i < BAD_SIZE; i++)
        gradient[i] = NAN;
    for (unsigned i = 0; i < BAD_SIZE; i++)
        rig.e[i] = i % 2 == 0 ? INFINITY : 1;
    cr_assert_eq(rig_step(&rig, 1, 1, gradient), GK_OK);
    cr_assert_eq(rig.selected.bad, BAD_SIZE);
    for (uint64_t i = 0; i < rig.selected.n; i++)
        cr_assert(rig.selected.val[i] == 0 || rig.selected.val[i] == 1, "%s", op->name);
    for (unsigned i = 0; i < BAD_SIZE; i++)
        cr_assert(rig.e[i] == 0 || rig.e[i] == 1, "%s", op->name);
    rig_close(&rig);
    free(gradient);
}

Test(select_failures, policy_zero_with_nothing_finite)
{
    rig_for_all(all_bad);
}

/* Tables that fail: one that works with a countdown in front of one slot. */
static const struct gk_vector_ops *failing_base;
static int failing_in; /* calls from now; the one that gets there fails */

static void *failing_alloc(struct gk_queue *queue, enum gk_memory kind, size_t bytes)
{
    return failing_in-- == 0 ? NULL : failing_base->alloc(queue, kind, bytes);
}

static enum gk_err failing_wait(struct gk_queue *queue, struct gk_ticket ticket)
{
    const enum gk_err err = failing_base->wait(queue, ticket);
    return failing_in-- == 0 ? GK_E_IO : err;
}

static void allocation_failures(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    const struct gk_range whole = {0, 100};
    struct gk_vector_ops failing = *ops;
    enum gk_err err = GK_E_NOMEM;

    failing_base = ops;
    failing.alloc = failing_alloc;
    for (int i = 0; err != GK_OK; i++) {
        struct gk_select_setup setup = {
            .ops = &failing, .params_count = 100, .segments = &whole, .segments_count = 1};
        struct gk_selector *selector = NULL;
        struct gk_words words = {""};
        cr_assert_eq(failing.open(&setup.queue, &words), GK_OK);
        failing_in = i;
        err = gk_selector_new(op->name, 0.1, &setup, &selector, &words);
        cr_assert(err == GK_OK || err == GK_E_NOMEM);
        cr_assert_eq(selector == NULL, err != GK_OK);
        cr_assert(err == GK_OK || strstr(words.text, op->name) != NULL, "%s", words.text);
        cr_assert(i >= 5 || err != GK_OK, "%s: allocation %d does not matter", op->name, i);
        gk_selector_free(selector);
        failing.close(setup.queue);
    }
}

static void slot_failures(const struct gk_operator *op, const struct gk_vector_ops *ops)
{
    enum { SIZE = 100 };
    struct gk_vector_ops failing = *ops;
    float gradient[SIZE], old[SIZE];
    const struct rig_options options = {
        .name = op->name, .ops = &failing, .n = SIZE, .policy = GK_NONFINITE_ZERO};
    enum gk_err err = GK_E_IO;

    failing_base = ops;
    failing.wait = failing_wait;
    law_fill(LAW_LAPLACE, 1, gradient, SIZE);
    gradient[3] = NAN;
    for (int i = 0; err != GK_OK; i++) {
        struct rig rig;
        failing_in = -1;
        rig_open(&rig, &options);
        law_fill(LAW_LAPLACE, 2, rig.e, SIZE);
        memcpy(old, rig.e, sizeof(old));
        rig.selected.n = 12345;
        failing_in = i;
        err = rig_step(&rig, 21, 0.1, gradient);
        if (err != GK_OK) {
            cr_assert_eq(err, GK_E_IO, "%s: wait %d", op->name, i);
            cr_assert_not_null(strstr(rig.words.text, "step 21: "), "%s", rig.words.text);
            cr_assert_eq(rig.selected.n, 12345, "%s: the result was written", op->name);
            cr_assert_eq(memcmp(rig.e, old, sizeof(old)), 0);
        }
        cr_assert(i >= 2 || err != GK_OK, "%s: wait %d does not matter", op->name, i);
        rig_close(&rig);
    }
}

Test(select_failures, every_allocation_may_fail)
{
    rig_for_all(allocation_failures);
}

Test(select_failures, every_slot_may_fail)
{
    rig_for_all(slot_failures);
}
