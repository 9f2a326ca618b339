/* Everything is sent and the residual becomes zero.  A residual that comes in, because an earlier
 * step was sparse, goes out with the gradient, so that a change of density loses nothing. */
#include "worker/select/operators.h"

static enum gk_err dense_step(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_selected *ret, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    struct gk_ticket ticket;
    bool go = false;
    enum gk_err err = gk_operator_add(selector, step, ret, words);

    if (!err) {
        err = gk_operator_screen(selector, step, ret, &go, words);
    }
    if (err || !go) {
        return err;
    }
    ticket =
        setup->ops->copy(setup->queue, selector->val, step->g, setup->params_count * sizeof(float));
    err = gk_operator_wait(selector, step, "copying the gradient", ticket, words);
    if (!err) {
        err = gk_operator_clear(selector, step, words);
    }
    ret->passes += 2;
    ret->n = setup->params_count;
    ret->val = selector->val;
    return err;
}

const struct gk_operator gk_op_dense = {
    .name = "dense",
    .summary = "everything; the residual becomes zero",
    .whole = true,
    .unbounded = true,
    .step = dense_step,
};
