/* Gaussian-k as published (paper_rule.h), one rule per segment: mean and unbiased deviation of the
 * signed u, up to three compactions, no truncation to k.  A baseline to compare with: it misses k
 * in both directions (docs/selection.md). */
#include "worker/select/operators.h"
#include "worker/select/paper_rule.h"

#include <math.h>

/* The operator's state, cut into arrays of one element a segment. */
struct paper {
    struct gk_stats *stats;
    struct gk_paper_rule *rules;
    uint64_t *counts;
    float *thresholds;
};

static size_t paper_state_bytes(const struct gk_select_setup *setup)
{
    return setup->segments_count * (sizeof(struct gk_stats) + sizeof(struct gk_paper_rule) +
                                    sizeof(uint64_t) + sizeof(float));
}

static struct paper paper_state(const struct gk_selector *selector)
{
    const uint32_t segments_count = selector->setup.segments_count;
    struct paper paper = {.stats = selector->state};

    paper.rules = (struct gk_paper_rule *)(paper.stats + segments_count);
    paper.counts = (uint64_t *)(paper.rules + segments_count);
    paper.thresholds = (float *)(paper.counts + segments_count);
    return paper;
}

static enum gk_err measure(struct gk_selector *selector, const struct gk_select_step *step,
                           struct gk_stats *stats, struct gk_selected *ret, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct gk_stats_args args = {.u = step->g,
                                       .segments = selector->segments,
                                       .segments_count = setup->segments_count,
                                       .stats = stats};

    ret->passes++;
    return gk_operator_wait(selector, step, "measuring moments",
                            setup->ops->stats(setup->queue, &args), words);
}

/* Moments of finite u, with what the policy says about the others. */
static enum gk_err measure_finite(struct gk_selector *selector, const struct gk_select_step *step,
                                  struct gk_selected *ret, bool *ret_go, struct gk_words *words)
{
    struct gk_stats *stats = paper_state(selector).stats;
    uint64_t bad = 0;
    enum gk_err err = measure(selector, step, stats, ret, words);

    if (err) {
        return err;
    }
    for (uint32_t s = 0; s < selector->setup.segments_count; s++) {
        bad += stats[s].bad;
    }
    *ret_go = true;
    if (bad == 0) {
        return GK_OK;
    }
    err = gk_operator_screen(selector, step, ret, ret_go, words);
    if (err || !*ret_go) {
        return err;
    }
    return measure(selector, step, stats, ret, words);
}

/* The double sums of a constant vector leave a variance of rounding errors, of either sign: no less
 * than 0. */
static void begin_rule(struct gk_paper_rule *rule, const struct gk_stats *stats, double density,
                       uint64_t k)
{
    const double n = (double)stats->count;
    const double mu = stats->sum / n;
    const double squares = fmax(0, stats->sum_squares - stats->sum * mu);
    const double sigma = stats->count > 1 ? sqrt(squares / (n - 1)) : (double)NAN;

    gk_paper_begin(rule, mu, sigma, density, k);
}

/* One compaction of all segments, each at its rule's threshold; *ret_done when no rule wants
 * another. */
static enum gk_err evaluate(struct gk_selector *selector, const struct gk_select_step *step,
                            struct gk_selected *ret, bool *ret_done, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct paper paper = paper_state(selector);
    const struct gk_select_ge_args args = {.u = step->g,
                                           .segments = selector->segments,
                                           .t = paper.thresholds,
                                           .segments_count = setup->segments_count,
                                           .idx = selector->idx,
                                           .val = selector->val,
                                           .room = selector->room,
                                           .n = paper.counts};
    enum gk_err err;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        paper.thresholds[s] = gk_paper_at_least(&paper.rules[s]);
    }
    ret->passes++;
    err = gk_operator_wait(selector, step, "compacting", setup->ops->select_ge(setup->queue, &args),
                           words);
    if (err) {
        return err;
    }
    *ret_done = true;
    ret->n = 0;
    for (uint32_t s = 0; s < setup->segments_count; s++) {
        /* Every entry is above a negative threshold, zeros too: they count, although sending them
         * says nothing. */
        const bool all = paper.rules[s].threshold < 0;
        const uint64_t length = selector->segments[s].hi - selector->segments[s].lo;

        gk_paper_judge(&paper.rules[s], all ? length : paper.counts[s]);
        *ret_done = *ret_done && paper.rules[s].done;
        ret->n += paper.counts[s];
    }
    return GK_OK;
}

static enum gk_err paper_step(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_selected *ret, struct gk_words *words)
{
    const struct paper paper = paper_state(selector);
    bool go = false;
    enum gk_err err = gk_operator_add(selector, step, ret, words);

    if (!err) {
        err = measure_finite(selector, step, ret, &go, words);
    }
    if (err || !go) {
        return err;
    }
    for (uint32_t s = 0; s < selector->setup.segments_count; s++) {
        begin_rule(&paper.rules[s], &paper.stats[s], step->density, selector->k[s]);
    }
    for (bool done = false; !done;) {
        err = evaluate(selector, step, ret, &done, words);
        if (err) {
            return err;
        }
    }
    return gk_operator_take(selector, step, ret->n, ret, words);
}

const struct gk_operator gk_op_gaussk_paper = {
    .name = "gaussk-paper",
    .summary = "the published Gaussian-k rule: normal quantile, three rounds, no truncation",
    .state_bytes = paper_state_bytes,
    .unbounded = true,
    .step = paper_step,
};
