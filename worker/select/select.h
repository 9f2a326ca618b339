/* Selection operators: which entries of u = gradient + residual are pushed.
 *
 * An operator is plain control code over the vector table; it blocks, runs on the compute thread and keeps no residual:
 * the caller owns gradient and residual and swaps them.  A new operator is one file op_NAME.c with
 * `const struct gk_operator gk_op_NAME` (the build makes the list from the file names) and its test. */
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
    const struct gk_range *segments; /* copied; one segment is the whole model */
    uint32_t segments_count;
    uint64_t seed;
    uint32_t rank;
    enum gk_nonfinite_policy policy;
    const struct gk_select_tune *tune; /* NULL: defaults */
};

struct gk_select_step {
    uint64_t step;
    double density;  /* (0, 1] */
    float *g;        /* in: gradient; out: the new residual (u without what was selected) */
    const float *e;  /* residual; untouched, so that a crash or a refusal loses nothing */
};

struct gk_selected {
    const uint32_t *idx; /* NULL: dense, val holds all d values; owned by the selector until its next step */
    const float *val;
    uint64_t n;
    uint64_t k;   /* what the density asked for */
    uint64_t bad; /* non-finite entries; > 0 with policy ABORT: nothing was selected, GK_E_NONFINITE */
    uint64_t bad_first;
    uint32_t passes; /* over memory */
};

struct gk_selector;

struct gk_operator {
    const char *name;    /* "gaussk", as the user writes it */
    const char *summary; /* one line for --help and docs */
    size_t state_bytes;  /* zeroed memory in selector->state */
    bool unbounded;      /* may select more than k (thresholds without truncation): reserve d entries */
    bool residual;       /* false: what was not selected is dropped */
    /* Selects into the selector's buffers.  On success g holds u with the selected entries taken out. */
    enum gk_err (*step)(struct gk_selector *selector, const struct gk_select_step *step, struct gk_selected *ret,
                        struct gk_words *words);
};

struct gk_selector { /* for operators; others treat it as opaque */
    struct gk_select_setup setup;
    struct gk_range *segments;
    uint64_t *k; /* per segment, of this step */
    const struct gk_operator *op;
    uint32_t *idx; /* room entries each */
    float *val;
    uint64_t room;
    void *state;
};

/* The operators of this build, in alphabetical order; *ret_count of them. */
const struct gk_operator *const *gk_operators(uint32_t *ret_count);

/* "dense|gaussk|...": for option tables; static storage. */
const char *gk_operator_choices(void);

/* By name.  `density_max` bounds the buffers.  GK_E_NOTFOUND (words list the names), GK_E_NOMEM. */
enum gk_err gk_selector_new(const char *name, double density_max, const struct gk_select_setup *setup,
                            struct gk_selector **ret_selector, struct gk_words *words);

/* Entries asked for in a segment of n: max(1, floor(density n)), n when density >= 1, 0 when n = 0. */
uint64_t gk_select_k(double density, uint64_t n);

enum gk_err gk_selector_step(struct gk_selector *selector, const struct gk_select_step *step, struct gk_selected *ret,
                             struct gk_words *words);

void gk_selector_free(struct gk_selector *selector);

#endif
