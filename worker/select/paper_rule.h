/* The threshold rule of the published Gaussian-k (Shi, Chu, Cheung, See, arXiv 1911.08772), without
 * the data: moments and counts come from outside, so that the rule can also be run on exact moments
 * and exact counts of a law.
 *
 * The first threshold is mu + z sigma with the two-sided quantile P(N > z) = density / 2; the mask
 * is |u| > threshold.  At most three evaluations: fewer than 2k/3 entries halve the threshold, more
 * than 4k/3 multiply it by 1.5, anything between ends the search; the third evaluation is the
 * answer whatever it gave. */
#ifndef GK_WORKER_SELECT_PAPER_RULE_H
#define GK_WORKER_SELECT_PAPER_RULE_H

#include <stdbool.h>
#include <stdint.h>

enum { GK_PAPER_EVALUATIONS_MAX = 3 };

struct gk_paper_rule {
    /* Of the next evaluation, or of the last one when done; may be negative or NaN. */
    double threshold;
    uint64_t k;
    uint32_t evaluations;
    bool done;
};

/* `sigma` is NaN for a single element, as in the published code: no entry is above NaN. */
void gk_paper_begin(struct gk_paper_rule *rule, double mu, double sigma, double density,
                    uint64_t k);

/* Tell how many entries have |u| > threshold. */
void gk_paper_judge(struct gk_paper_rule *rule, uint64_t count);

/* The smallest float above the threshold: |u| > threshold is |u| >= this. */
float gk_paper_at_least(const struct gk_paper_rule *rule);

#endif
