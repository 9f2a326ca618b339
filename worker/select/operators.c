/* The steps that operators are made of: a slot of the table, or two, and a wait.  u is written over
 * g, never over e, so that until the caller swaps the two a step can be refused and leaves nothing
 * behind.
 *
 * Non-finite entries are looked up only where a slot has counted some, piece by piece into the
 * selector's scratch memory, because nothing bounds their number. */
#include "worker/select/operators.h"

#include "common/bits.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum gk_err gk_operator_wait(const struct gk_selector *selector, const struct gk_select_step *step,
                             const char *what, struct gk_ticket ticket, struct gk_words *words)
{
    enum gk_err err = selector->setup.ops->wait(selector->setup.queue, ticket);

    if (err) {
        gk_words_set(words, "step %" PRIu64 ": %s: %s", step->step, what, gk_err_text(err));
    }
    return err;
}

enum gk_err gk_operator_add(struct gk_selector *selector, const struct gk_select_step *step,
                            struct gk_selected *ret, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct gk_accumulate_args args = {
        .dst = step->g, .g = step->g, .e = step->e, .scale = 1, .n = setup->params_count};

    ret->passes++;
    return gk_operator_wait(selector, step, "adding the residual",
                            setup->ops->accumulate(setup->queue, &args), words);
}

enum gk_err gk_operator_refuse(const struct gk_selector *selector,
                               const struct gk_select_step *step, const struct gk_selected *ret,
                               struct gk_words *words)
{
    if (selector->setup.policy == GK_NONFINITE_SKIP) {
        return GK_OK;
    }
    gk_words_set(words,
                 "step %" PRIu64 ": gradient + residual is not finite at parameter %" PRIu64
                 " (%" PRIu64 " such in all): the training has diverged, a smaller learning rate "
                 "may help; nothing was pushed and the residual is as it was",
                 step->step, ret->bad_first, ret->bad);
    return GK_E_NONFINITE;
}

/* Non-finite entries of [range): their number, and the first scratch->room of their indices.
 * Infinity as a threshold finds them all, because the slot counts NaN as the largest. */
static enum gk_err find_bad(struct gk_selector *selector, const struct gk_select_step *step,
                            struct gk_range range, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    struct gk_select_scratch *scratch = selector->scratch;
    const float threshold = INFINITY;
    const struct gk_select_ge_args args = {.u = step->g,
                                           .segments = &range,
                                           .t = &threshold,
                                           .segments_count = 1,
                                           .idx = scratch->idx,
                                           .val = scratch->val,
                                           .room = scratch->room,
                                           .n = &scratch->count};

    return gk_operator_wait(selector, step, "looking for non-finite entries",
                            setup->ops->select_ge(setup->queue, &args), words);
}

/* u := source at the non-finite entries of one range of at most scratch->room elements
 * (NULL: zeros). */
static enum gk_err restore_range(struct gk_selector *selector, const struct gk_select_step *step,
                                 struct gk_range range, const float *source, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    struct gk_select_scratch *scratch = selector->scratch;
    struct gk_ticket ticket = {0};
    enum gk_err err = find_bad(selector, step, range, words);

    if (err || scratch->count == 0) {
        return err;
    }
    memset(scratch->val, 0, scratch->count * sizeof(float)); /* the zeros */
    for (uint64_t i = 0; i < scratch->count;) {
        const uint32_t at = scratch->idx[i];
        uint64_t run = 1;

        while (i + run < scratch->count && scratch->idx[i + run] == at + run) {
            run++;
        }
        ticket = setup->ops->copy(setup->queue, step->g + at, source ? source + at : scratch->val,
                                  run * sizeof(float));
        i += run;
    }
    return gk_operator_wait(selector, step, "zeroing non-finite entries", ticket, words);
}

/* The old residual where u is not finite; zero where that residual itself was damaged. */
static enum gk_err restore(struct gk_selector *selector, const struct gk_select_step *step,
                           struct gk_words *words)
{
    const uint64_t d = selector->setup.params_count;
    const uint64_t room = selector->scratch->room;
    enum gk_err err = GK_OK;

    for (uint64_t lo = 0; lo < d && !err; lo += room) {
        const struct gk_range range = {lo, gk_min_u64(lo + room, d)};

        err = restore_range(selector, step, range, step->e, words);
        if (!err && step->e) {
            err = restore_range(selector, step, range, NULL, words);
        }
    }
    return err;
}

enum gk_err gk_operator_screen(struct gk_selector *selector, const struct gk_select_step *step,
                               struct gk_selected *ret, bool *ret_go, struct gk_words *words)
{
    struct gk_select_scratch *scratch = selector->scratch;
    const struct gk_range whole = {0, selector->setup.params_count};
    enum gk_err err = find_bad(selector, step, whole, words);

    if (err) {
        return err;
    }
    ret->passes++;
    ret->bad = scratch->count;
    ret->bad_first = scratch->count > 0 ? scratch->idx[0] : 0;
    *ret_go = true;
    if (ret->bad == 0) {
        return GK_OK;
    }
    if (selector->setup.policy != GK_NONFINITE_ZERO) {
        *ret_go = false;
        return gk_operator_refuse(selector, step, ret, words);
    }
    return restore(selector, step, words);
}

enum gk_err gk_operator_take(struct gk_selector *selector, const struct gk_select_step *step,
                             uint64_t n, struct gk_selected *ret, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct gk_take_args args = {
        .u = step->g, .idx = selector->idx, .n = n, .encoding = GK_VALUE_F32, .val = selector->val};

    ret->n = n;
    ret->idx = selector->idx;
    ret->val = selector->val;
    return gk_operator_wait(selector, step, "taking the selected entries",
                            setup->ops->take(setup->queue, &args), words);
}

enum gk_err gk_operator_clear(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct gk_accumulate_args args = {
        .dst = step->g, .g = step->g, .scale = 0, .n = setup->params_count};

    return gk_operator_wait(selector, step, "clearing the residual",
                            setup->ops->accumulate(setup->queue, &args), words);
}

enum gk_err gk_operator_exact(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_select_state *state, struct gk_selected *ret,
                              struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    struct gk_select_report *report = &selector->scratch->report;
    const struct gk_select_args args = {.dst = step->g,
                                        .g = step->g,
                                        .e = step->e,
                                        .segments = selector->segments,
                                        .k = selector->k,
                                        .segments_count = setup->segments_count,
                                        .state = state,
                                        .policy = setup->policy,
                                        .tune = setup->tune,
                                        .idx = selector->idx,
                                        .val = selector->val,
                                        .room = selector->room,
                                        .report = report};
    enum gk_err err = gk_operator_wait(selector, step, "selecting",
                                       setup->ops->select(setup->queue, &args), words);

    if (err) {
        return err;
    }
    ret->bad = report->bad;
    ret->bad_first = report->bad_first;
    ret->passes = report->passes;
    if (report->bad > 0 && setup->policy != GK_NONFINITE_ZERO) {
        return gk_operator_refuse(selector, step, ret, words);
    }
    return gk_operator_take(selector, step, report->n, ret, words);
}
