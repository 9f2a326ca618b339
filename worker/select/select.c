/* The selector: what one operator needs over one vector.  All memory is taken at once, for the
 * largest density, so that a step allocates nothing; it is pinned, because slots of the table
 * report into it while the step waits.  What is selected is decided in op_NAME.c alone; here a step
 * is checked, its k worked out per segment, and the outcome handed on. */
#include "worker/select/select.h"

#include "common/assert.h"
#include "common/bits.h"
#include "worker/select/operators.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ENTRIES = 65536 };

static const struct gk_operator *const operators[] = {
#define GK_OPERATOR(stem, name) &gk_op_##stem,
#include "select_operators.inc"
#undef GK_OPERATOR
};

static const char choices[] =
#define GK_OPERATOR(stem, name) "|" name
#include "select_operators.inc"
#undef GK_OPERATOR
    ;

const struct gk_operator *const *gk_operators(uint32_t *ret_count)
{
    *ret_count = sizeof(operators) / sizeof(operators[0]);
    return operators;
}

const char *gk_operator_choices(void)
{
    return choices + 1; /* behind the first bar */
}

uint64_t gk_select_k(double density, uint64_t n)
{
    uint64_t k;

    if (n == 0) {
        return 0;
    }
    if (density >= 1) {
        return n;
    }
    k = density > 0 ? (uint64_t)(density * (double)n) : 0;
    return gk_min_u64(gk_max_u64(k, 1), n);
}

/* Of segment s. */
static uint64_t segment_k(const struct gk_select_setup *setup, uint32_t s, double density)
{
    double own = setup->densities ? setup->densities[s] : 0;

    if (own < 0) {
        return 0;
    }
    return gk_select_k(own > 0 ? own : density, setup->segments[s].hi - setup->segments[s].lo);
}

uint64_t gk_select_k_all(const struct gk_select_setup *setup, double density)
{
    uint64_t k = 0;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        k += segment_k(setup, s, density);
    }
    return k;
}

static const struct gk_operator *find_operator(const char *name)
{
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (strcmp(operators[i]->name, name) == 0) {
            return operators[i];
        }
    }
    return NULL;
}

static bool tiles(const struct gk_select_setup *setup)
{
    uint64_t next = 0;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        if (setup->segments[s].lo != next || setup->segments[s].hi < next) {
            return false;
        }
        next = setup->segments[s].hi;
    }
    return setup->segments_count > 0 && next == setup->params_count;
}

static enum gk_err check_setup(double density_max, const struct gk_select_setup *setup,
                               struct gk_words *words)
{
    if (!(density_max > 0 && density_max <= 1)) {
        gk_words_set(words, "density %g is not in (0, 1]", density_max);
        return GK_E_INVALID;
    }
    if (setup->params_count > UINT32_MAX) {
        gk_words_set(words, "%" PRIu64 " parameters: a selection holds fewer than 2^32",
                     setup->params_count);
        return GK_E_LIMIT;
    }
    if (!tiles(setup)) {
        gk_words_set(words, "the segments of the selection do not tile the %" PRIu64 " parameters",
                     setup->params_count);
        return GK_E_INVALID;
    }
    return GK_OK;
}

/* Never asks for 0 bytes, so that NULL always means that there is no memory. */
static void *pinned(const struct gk_selector *selector, uint64_t bytes)
{
    return selector->setup.ops->alloc(selector->setup.queue, GK_MEMORY_PINNED,
                                      gk_max_u64(bytes, 1));
}

static uint64_t room_for(const struct gk_selector *selector)
{
    const uint64_t d = selector->setup.params_count;
    const uint64_t k = gk_select_k_all(&selector->setup, selector->density_max);

    return selector->op->unbounded ? d : k + gk_min_u64(selector->op->candidates * k, d);
}

static enum gk_err alloc_buffers(struct gk_selector *selector)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct gk_operator *op = selector->op;
    struct gk_select_scratch *scratch;

    selector->room = room_for(selector);
    if (!op->whole) {
        selector->idx = pinned(selector, selector->room * sizeof(uint32_t));
    }
    selector->val = pinned(selector, selector->room * sizeof(float));
    selector->state = pinned(selector, op->state_bytes ? op->state_bytes(setup) : 0);
    scratch = pinned(selector, sizeof(*scratch));
    selector->scratch = scratch;
    if ((!op->whole && !selector->idx) || !selector->val || !selector->state || !scratch) {
        return GK_E_NOMEM;
    }
    scratch->room = gk_max_u64(gk_min_u64(setup->params_count, SCRATCH_ENTRIES), 1);
    scratch->idx = pinned(selector, scratch->room * sizeof(uint32_t));
    scratch->val = pinned(selector, scratch->room * sizeof(float));
    return scratch->idx && scratch->val ? GK_OK : GK_E_NOMEM;
}

enum gk_err gk_selector_new(const char *name, double density_max,
                            const struct gk_select_setup *setup, struct gk_selector **ret_selector,
                            struct gk_words *words)
{
    const struct gk_operator *op = find_operator(name);
    struct gk_selector *selector = NULL;
    enum gk_err err = GK_OK;

    if (!op) {
        gk_words_set(words, "no selection operator '%s'; choose one of %s", name,
                     gk_operator_choices());
        return GK_E_NOTFOUND;
    }
    err = check_setup(density_max, setup, words);
    if (err) {
        return err;
    }
    err = GK_E_NOMEM;
    selector = calloc(1, sizeof(*selector));
    if (!selector) {
        goto out;
    }
    selector->setup = *setup;
    selector->density_max = density_max;
    selector->op = op;
    if (setup->tune) {
        selector->tune = *setup->tune;
        selector->setup.tune = &selector->tune;
    }
    selector->segments = calloc(setup->segments_count, sizeof(*selector->segments));
    selector->k = calloc(setup->segments_count, sizeof(*selector->k));
    if (!selector->segments || !selector->k) {
        goto out;
    }
    memcpy(selector->segments, setup->segments,
           setup->segments_count * sizeof(*selector->segments));
    selector->setup.segments = selector->segments;
    if (setup->densities) {
        selector->densities = calloc(setup->segments_count, sizeof(*selector->densities));
        if (!selector->densities) {
            goto out;
        }
        memcpy(selector->densities, setup->densities,
               setup->segments_count * sizeof(*selector->densities));
        selector->setup.densities = selector->densities;
    }
    err = alloc_buffers(selector);
    if (err) {
        goto out;
    }
    *ret_selector = selector;
    selector = NULL;
out:
    if (err) {
        gk_words_set(words, "no memory for selection operator '%s' over %" PRIu64 " parameters",
                     name, setup->params_count);
    }
    gk_selector_free(selector);
    return err;
}

static enum gk_err check_step(const struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_words *words)
{
    if (!(step->density > 0 && step->density <= 1)) {
        gk_words_set(words, "step %" PRIu64 ": density %g is not in (0, 1]", step->step,
                     step->density);
        return GK_E_INVALID;
    }
    if (step->density > selector->density_max) {
        gk_words_set(words,
                     "step %" PRIu64 ": density %g is above %g, for which the buffers were made",
                     step->step, step->density, selector->density_max);
        return GK_E_LIMIT;
    }
    return GK_OK;
}

enum gk_err gk_selector_step(struct gk_selector *selector, const struct gk_select_step *step,
                             struct gk_selected *ret, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    struct gk_selected selected = {.idx = selector->idx, .val = selector->val};
    enum gk_err err = check_step(selector, step, words);

    if (err) {
        return err;
    }
    GK_ASSERT(!step->e || step->e != step->g);
    for (uint32_t s = 0; s < setup->segments_count; s++) {
        selector->k[s] = segment_k(setup, s, step->density);
        selected.k += selector->k[s];
    }
    if (setup->params_count > 0) {
        err = selector->op->step(selector, step, &selected, words);
    }
    if (!err || err == GK_E_NONFINITE) {
        *ret = selected;
    }
    return err;
}

static void free_scratch(const struct gk_selector *selector)
{
    struct gk_select_scratch *scratch = selector->scratch;
    const struct gk_select_setup *setup = &selector->setup;

    if (!scratch) {
        return;
    }
    setup->ops->free(setup->queue, GK_MEMORY_PINNED, scratch->idx);
    setup->ops->free(setup->queue, GK_MEMORY_PINNED, scratch->val);
    setup->ops->free(setup->queue, GK_MEMORY_PINNED, scratch);
}

void gk_selector_free(struct gk_selector *selector)
{
    const struct gk_select_setup *setup;

    if (!selector) {
        return;
    }
    setup = &selector->setup;
    setup->ops->free(setup->queue, GK_MEMORY_PINNED, selector->idx);
    setup->ops->free(setup->queue, GK_MEMORY_PINNED, selector->val);
    setup->ops->free(setup->queue, GK_MEMORY_PINNED, selector->state);
    free_scratch(selector);
    free(selector->k);
    free(selector->densities);
    free(selector->segments);
    free(selector);
}
