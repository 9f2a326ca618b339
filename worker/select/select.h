/* Selection operators: which entries of u = gradient + residual are pushed.
 *
 * An operator is plain control code over the vector table; it blocks, runs on the compute thread
 * and keeps no residual: the caller owns gradient and residual and swaps them.  A new operator is
 * one file op_NAME.c with `const struct gk_operator gk_op_NAME` (the build makes the list from the
 * file names) and its test. */
#ifndef GK_WORKER_SELECT_SELECT_H
#define GK_WORKER_SELECT_SELECT_H

#include "common/backend.h"
#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_select_setup {
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    uint64_t params_count;
    /* Copied; they tile [0, params_count); one segment is the whole model. */
    const struct gk_range *segments;
    uint32_t segments_count;
    /* Copied; one a segment: its own density, 0: that of the step, negative: nothing of it is
     * selected.  NULL: all 0. */
    const double *densities;
    uint64_t seed;
    uint32_t rank;
    enum gk_nonfinite_policy policy;
    const struct gk_select_tune *tune; /* copied; NULL: defaults */
};

struct gk_select_step {
    uint64_t step;
    double density; /* (0, 1] */
    /* In: gradient; out: the new residual, u without the selected; undefined after an error. */
    float *g;
    /* Residual, NULL: zeros; untouched, so that a crash or a refusal loses nothing. */
    const float *e;
};

struct gk_selected {
    /* NULL: dense, val holds all d values.  Owned by the selector until its next step, like val. */
    const uint32_t *idx;
    const float *val;
    uint64_t n;
    uint64_t k; /* what the density asked for */
    /* Non-finite entries.  Some, with policy ABORT or SKIP: nothing was selected and g is
     * undefined; ABORT also returns GK_E_NONFINITE, with this struct filled in. */
    uint64_t bad;
    uint64_t bad_first; /* index of the first of them */
    uint32_t passes;    /* over memory */
};

struct gk_selector;

struct gk_operator {
    const char *name;    /* "gaussk", as the user writes it */
    const char *summary; /* one line for --help and docs */
    /* Zeroed memory in selector->state; NULL: none. */
    size_t (*state_bytes)(const struct gk_select_setup *setup);
    bool whole;     /* sends every entry: needs no index buffer */
    bool unbounded; /* may select more than k (thresholds without truncation): reserve d entries */
    /* Room that the buffers have beside the k that are selected, in units of k, up to d. */
    uint32_t candidates;
    /* Selects into the selector's buffers.  On success g holds u with the selected entries taken
     * out. */
    enum gk_err (*step)(struct gk_selector *selector, const struct gk_select_step *step,
                        struct gk_selected *ret, struct gk_words *words);
};

/* Where slots put what they report, and where non-finite entries are looked up: pinned memory of
 * the selector. */
struct gk_select_scratch {
    struct gk_select_report report;
    uint64_t count;
    uint32_t *idx; /* room entries each */
    float *val;
    uint64_t room;
};

/* For operators; others treat it as opaque. */
struct gk_selector {
    struct gk_select_setup setup;
    struct gk_select_tune tune; /* setup.tune points here, or is NULL */
    struct gk_range *segments;  /* setup.segments points here */
    double *densities;          /* setup.densities points here; NULL: all 0 */
    uint64_t *k;                /* per segment, of this step */
    double density_max;
    const struct gk_operator *op;
    uint32_t *idx; /* room entries each; NULL with op->whole */
    float *val;
    uint64_t room;
    void *state; /* pinned */
    struct gk_select_scratch *scratch;
};

/* The operators of this build, in alphabetical order; *ret_count of them. */
const struct gk_operator *const *gk_operators(uint32_t *ret_count);

/* "dense|gaussk|...": for option tables; static storage. */
const char *gk_operator_choices(void);

/* Entries that all segments together may push when the step asks for `density`. */
uint64_t gk_select_k_all(const struct gk_select_setup *setup, double density);

/* By name.  `density_max` bounds the buffers.  GK_E_NOTFOUND (words list the names), GK_E_INVALID
 * (density outside (0, 1], segments that do not tile the vector), GK_E_LIMIT (2^32 parameters or
 * more), GK_E_NOMEM. */
enum gk_err gk_selector_new(const char *name, double density_max,
                            const struct gk_select_setup *setup, struct gk_selector **ret_selector,
                            struct gk_words *words);

/* Entries asked for in a segment of n: max(1, floor(density n)), n when density >= 1, 0 of none. */
uint64_t gk_select_k(double density, uint64_t n);

/* One step: blocks until g holds the new residual.  What *ret points to lives until the next step.
 * GK_E_INVALID, GK_E_LIMIT (density above density_max), GK_E_NONFINITE (words name step and index),
 * and what the table reports. */
enum gk_err gk_selector_step(struct gk_selector *selector, const struct gk_select_step *step,
                             struct gk_selected *ret, struct gk_words *words);

/* Accepts NULL. */
void gk_selector_free(struct gk_selector *selector);

#endif
