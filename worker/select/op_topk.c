/* Exact top-k by a full selection over all keys: the reference for all others. */
#include "worker/select/operators.h"

static enum gk_err topk_step(struct gk_selector *selector, const struct gk_select_step *step,
                             struct gk_selected *ret, struct gk_words *words)
{
    return gk_operator_exact(selector, step, NULL, ret, words);
}

const struct gk_operator gk_op_topk = {
    .name = "topk",
    .summary = "exact top-k by full selection: the reference",
    .step = topk_step,
};
