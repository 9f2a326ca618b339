/* Optimizer steps: several updates over one tile while it is in the cache.
 *
 * An index that was not pushed has a sum of +0 and still decays and coasts, so a sparse update is
 * spread over the tile first.  Plain SGD without decay leaves such an element as it is (p + -0),
 * and touches only what was pushed; that needs a learning rate that is neither negative nor
 * non-finite. */
#include "common/assert.h"
#include "common/cpu/queue.h"

#include <math.h>
#include <string.h>

enum { APPLY_TILE = 16 * 1024 };

struct apply {
    const struct gk_cpu_loops *loops;
    const struct gk_apply_args *args;
    uint64_t *cursors; /* per update: entries done */
    float *spread;     /* one tile of sums, all +0 between uses */
    void (*with_moment)(float *restrict p, float *restrict m, const float *restrict sums,
                        uint64_t n, const struct gk_cpu_step *step); /* NULL: SGD, AdamW */
    uint32_t decay_at; /* the first decay range that ends behind the tile's start */
};

/* One update within one tile. */
struct part {
    const struct gk_update *update;
    const float *sums;    /* of the tile; NULL: sparse */
    uint64_t first, last; /* its entries, when sparse */
    struct gk_range tile;
};

static void run_dense(const struct apply *apply, const struct part *part, struct gk_range run,
                      const struct gk_cpu_step *step)
{
    const struct gk_apply_args *args = apply->args;
    const float *sums = part->sums + (run.lo - part->tile.lo);
    uint64_t n = run.hi - run.lo;

    if (args->optimizer == GK_OPTIMIZER_ADAMW) {
        apply->loops->adamw(args->p + run.lo, args->m + run.lo, args->v + run.lo, sums, n, step);
    } else if (apply->with_moment) {
        apply->with_moment(args->p + run.lo, args->m + run.lo, sums, n, step);
    } else {
        apply->loops->sgd(args->p + run.lo, sums, n, step);
    }
}

/* The entries of a run, whose elements are otherwise untouched by the step. */
static void run_sparse(const struct apply *apply, struct part *part, struct gk_range run,
                       const struct gk_cpu_step *step)
{
    const uint32_t *idx = part->update->idx;
    uint64_t end = part->first;

    while (end < part->last && idx[end] < run.hi) {
        end++;
    }
    apply->loops->sgd_sparse(apply->args->p, idx + part->first, part->update->val + part->first,
                             end - part->first, step);
    part->first = end;
}

static bool untouched_stay(const struct apply *apply, const struct gk_update *update, bool decays)
{
    const struct gk_hyper *hyper = &update->hyper;

    return apply->args->optimizer == GK_OPTIMIZER_SGD && !signbit(hyper->lr) &&
           isfinite(hyper->lr) && (!decays || hyper->weight_decay == 0);
}

static void run_one(const struct apply *apply, struct part *part, struct gk_range run, bool decays)
{
    const struct gk_hyper *hyper = &part->update->hyper;
    struct gk_cpu_step step = {
        .samples = (float)part->update->samples,
        .minus_lr = -hyper->lr,
        .momentum = hyper->momentum,
        .weight_decay = hyper->weight_decay,
        .decays = decays,
        .fresh1 = 1.0f - hyper->momentum,
        .beta2 = hyper->beta2,
        .fresh2 = 1.0f - hyper->beta2,
        .bias2 = hyper->bias2,
        .epsilon = hyper->epsilon,
        .minus_decay = -(hyper->lr * hyper->weight_decay),
    };

    if (apply->args->optimizer == GK_OPTIMIZER_ADAMW) { /* the others have no bias */
        step.minus_rate = -(hyper->lr / hyper->bias1);
    }
    if (part->sums) {
        run_dense(apply, part, run, &step);
    } else {
        run_sparse(apply, part, run, &step);
    }
}

/* The tile cut at the borders of the decay ranges. */
static void run_all(const struct apply *apply, struct part *part)
{
    const struct gk_apply_args *args = apply->args;
    uint64_t at = part->tile.lo;

    for (uint32_t d = apply->decay_at; d < args->decay_count && args->decay[d].lo < part->tile.hi;
         d++) {
        struct gk_range decay = {gk_max_u64(args->decay[d].lo, part->tile.lo),
                                 gk_min_u64(args->decay[d].hi, part->tile.hi)};

        if (at < decay.lo) {
            run_one(apply, part, (struct gk_range){at, decay.lo}, false);
        }
        if (decay.lo < decay.hi) {
            run_one(apply, part, decay, true);
        }
        at = gk_max_u64(at, decay.hi);
    }
    if (at < part->tile.hi) {
        run_one(apply, part, (struct gk_range){at, part->tile.hi}, false);
    }
}

/* How many of the update's entries from `first` fall into the tile; an index that does not rise
 * stops it. */
static uint64_t entries_end(const struct gk_update *update, uint64_t first, struct gk_range tile)
{
    uint64_t end = first;

    while (end < update->n && update->idx[end] - tile.lo < tile.hi - tile.lo) {
        end++;
    }
    return end;
}

static void apply_sparse(struct apply *apply, uint32_t u, struct part *part)
{
    const struct gk_update *update = part->update;
    const bool decays = apply->decay_at < apply->args->decay_count &&
                        apply->args->decay[apply->decay_at].lo < part->tile.hi;

    part->first = apply->cursors[u];
    part->last = entries_end(update, part->first, part->tile);
    apply->cursors[u] = part->last;
    if (untouched_stay(apply, update, decays)) {
        run_all(apply, part);
        return;
    }
    for (uint64_t j = part->first; j < part->last; j++) {
        apply->spread[update->idx[j] - part->tile.lo] = update->val[j];
    }
    part->sums = apply->spread;
    run_all(apply, part);
    for (uint64_t j = part->first; j < part->last; j++) {
        apply->spread[update->idx[j] - part->tile.lo] = 0.0f;
    }
}

static void apply_tile(struct apply *apply, struct gk_range tile)
{
    const struct gk_apply_args *args = apply->args;

    while (apply->decay_at < args->decay_count && args->decay[apply->decay_at].hi <= tile.lo) {
        apply->decay_at++;
    }
    for (uint32_t u = 0; u < args->updates_count; u++) {
        struct part part = {.update = &args->updates[u], .tile = tile};

        if (part.update->samples == 0) { /* a version without an optimizer step */
            continue;
        }
        if (part.update->idx) {
            apply_sparse(apply, u, &part);
        } else {
            part.sums = part.update->val + tile.lo;
            run_all(apply, &part);
        }
    }
}

static void check_updates(const struct apply *apply)
{
    const struct gk_apply_args *args = apply->args;

    /* Records were validated when they were read. */
    for (uint32_t u = 0; u < args->updates_count; u++) {
        const struct gk_update *update = &args->updates[u];

        GK_ASSERT(update->samples == 0 || !update->idx || apply->cursors[u] == update->n);
    }
}

/* What the workers' own optimizers begin with: the sums of the newest version, and of no other. */
static void put_quotients(const struct gk_cpu_loops *loops, const struct gk_apply_args *args)
{
    const struct gk_update *last = &args->updates[args->updates_count - 1];
    const float samples = (float)last->samples;

    if (last->samples > 0 && !last->idx) {
        GK_ASSERT(last->n == args->len);
        loops->divide(args->m, last->val, args->len, samples);
        return;
    }
    memset(args->m, 0, args->len * sizeof(*args->m));
    for (uint64_t j = 0; last->samples > 0 && j < last->n; j++) {
        GK_ASSERT(last->idx[j] < args->len);
        args->m[last->idx[j]] = last->val[j] / samples;
    }
}

struct gk_ticket gk_cpu_apply(struct gk_queue *queue, const struct gk_apply_args *args)
{
    const struct gk_ticket done = {0};
    struct apply apply = {.loops = queue->loops, .args = args};

    if (queue->err || args->updates_count == 0) {
        return done;
    }
    if (args->optimizer == GK_OPTIMIZER_NONE) {
        put_quotients(queue->loops, args);
        return done;
    }
    if (args->optimizer == GK_OPTIMIZER_MOMENTUM) {
        apply.with_moment = queue->loops->momentum;
    } else if (args->optimizer == GK_OPTIMIZER_NESTEROV) {
        apply.with_moment = queue->loops->nesterov;
    } else if (args->optimizer != GK_OPTIMIZER_SGD && args->optimizer != GK_OPTIMIZER_ADAMW) {
        queue->err = GK_E_UNSUPPORTED;
        return done;
    }
    GK_ASSERT(args->m || args->optimizer == GK_OPTIMIZER_SGD);
    GK_ASSERT(args->v || args->optimizer != GK_OPTIMIZER_ADAMW);
    for (uint32_t u = 0; u < args->updates_count; u++) {
        const struct gk_update *update = &args->updates[u];

        GK_ASSERT(update->idx || update->samples == 0 || update->n == args->len);
    }
    apply.cursors =
        gk_cpu_scratch(queue, GK_CPU_SCRATCH_CURSORS, args->updates_count * sizeof(*apply.cursors));
    apply.spread = gk_cpu_scratch(queue, GK_CPU_SCRATCH_TILE, APPLY_TILE * sizeof(*apply.spread));
    if (!apply.cursors || !apply.spread) {
        return done;
    }
    memset(apply.cursors, 0, args->updates_count * sizeof(*apply.cursors));
    memset(apply.spread, 0, APPLY_TILE * sizeof(*apply.spread));
    for (uint64_t lo = 0; lo < args->len; lo += APPLY_TILE) {
        apply_tile(&apply, (struct gk_range){lo, gk_min_u64(lo + APPLY_TILE, args->len)});
    }
    check_updates(&apply);
    return done;
}
