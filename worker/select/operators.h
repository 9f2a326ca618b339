/* What the operators of this folder share: the list of them, and the steps that most of them are
 * made of.
 *
 * All functions block until the table is done, and on failure say in `words` what failed. */
#ifndef GK_WORKER_SELECT_OPERATORS_H
#define GK_WORKER_SELECT_OPERATORS_H

#include "worker/select/select.h"

#define GK_OPERATOR(stem, name) extern const struct gk_operator gk_op_##stem;
#include "select_operators.inc"
#undef GK_OPERATOR

/* Wait for the table; words "step 7: <what>: <error>". */
enum gk_err gk_operator_wait(const struct gk_selector *selector, const struct gk_select_step *step,
                             const char *what, struct gk_ticket ticket, struct gk_words *words);

/* u over g. */
enum gk_err gk_operator_add(struct gk_selector *selector, const struct gk_select_step *step,
                            struct gk_selected *ret, struct gk_words *words);

/* Look for non-finite entries of u (in g) and do what the policy says: ABORT gives GK_E_NONFINITE;
 * SKIP leaves ret->bad > 0 and *ret_go false; ZERO puts the old residual there and goes on.
 * ret->bad counts them. */
enum gk_err gk_operator_screen(struct gk_selector *selector, const struct gk_select_step *step,
                               struct gk_selected *ret, bool *ret_go, struct gk_words *words);

/* The verdict of ABORT and SKIP on a step whose ret->bad and ret->bad_first are set. */
enum gk_err gk_operator_refuse(const struct gk_selector *selector,
                               const struct gk_select_step *step, const struct gk_selected *ret,
                               struct gk_words *words);

/* Take the first n entries of selector->idx out of u (in g), so that g is the new residual;
 * fills ret. */
enum gk_err gk_operator_take(struct gk_selector *selector, const struct gk_select_step *step,
                             uint64_t n, struct gk_selected *ret, struct gk_words *words);

/* g := 0, with the sign of what was there. */
enum gk_err gk_operator_clear(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_words *words);

/* Exact top-k by the select slot: one pass with a state per segment, a full selection with NULL. */
enum gk_err gk_operator_exact(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_select_state *state, struct gk_selected *ret,
                              struct gk_words *words);

#endif
