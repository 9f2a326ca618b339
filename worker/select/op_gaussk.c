/* Exact top-k in one pass: the table guesses a threshold from the last step's k-th magnitude and
 * trims the candidates.  The set is that of `topk`, whatever the guess; the state decides the speed
 * alone. */
#include "worker/select/operators.h"

static size_t gaussk_state_bytes(const struct gk_select_setup *setup)
{
    return setup->segments_count * sizeof(struct gk_select_state);
}

static enum gk_err gaussk_step(struct gk_selector *selector, const struct gk_select_step *step,
                               struct gk_selected *ret, struct gk_words *words)
{
    return gk_operator_exact(selector, step, selector->state, ret, words);
}

const struct gk_operator gk_op_gaussk = {
    .name = "gaussk",
    .summary = "exact top-k in one pass over memory (default)",
    .state_bytes = gaussk_state_bytes,
    .step = gaussk_step,
};
