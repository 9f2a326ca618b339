#include "worker/select/paper_rule.h"

#include "worker/select/normal.h"

#include <float.h>
#include <math.h>

void gk_paper_begin(struct gk_paper_rule *rule, double mu, double sigma, double density, uint64_t k)
{
    *rule = (struct gk_paper_rule){.threshold = mu + gk_normal_upper(density / 2) * sigma, .k = k};
}

void gk_paper_judge(struct gk_paper_rule *rule, uint64_t count)
{
    const bool few = 3 * count < 2 * rule->k;
    const bool many = 3 * count > 4 * rule->k;

    if (rule->done) {
        return;
    }
    rule->evaluations++;
    rule->done = (!few && !many) || rule->evaluations == GK_PAPER_EVALUATIONS_MAX;
    if (!rule->done) {
        rule->threshold *= few ? 0.5 : 1.5;
    }
}

float gk_paper_at_least(const struct gk_paper_rule *rule)
{
    float nearest;

    if (!(rule->threshold < (double)FLT_MAX)) { /* also NaN */
        return INFINITY;
    }
    if (rule->threshold < -(double)FLT_MAX) {
        return -FLT_MAX;
    }
    nearest = (float)rule->threshold;
    return (double)nearest > rule->threshold ? nearest : nextafterf(nearest, INFINITY);
}
