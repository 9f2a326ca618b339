#include "common/cpu/select.h"

#include "common/assert.h"

#include <math.h>
#include <string.h>

static const struct gk_select_tune default_tune = {
    .tile = 4096, .small_segment = 4096, .partitions = 1};

float gk_cpu_select_settle(const struct gk_select_args *args, uint64_t i, float x)
{
    struct gk_select_report *report = args->report;

    if (report->bad++ == 0) {
        report->bad_first = i;
    }
    if (args->policy != GK_NONFINITE_ZERO) {
        return x;
    }
    x = args->e ? args->e[i] : 0.0f;
    if (!isfinite(x)) { /* a residual that was damaged elsewhere: going on with it would push it */
        x = 0.0f;
    }
    args->dst[i] = x;
    return x;
}

/* Thousands of small segments, or a k near the length, gain nothing from a guess. */
static bool wants_full(const struct gk_cpu_segment *segment)
{
    uint64_t n = segment->range.hi - segment->range.lo;

    return !segment->state || n <= segment->tune->small_segment || 4 * segment->k >= n;
}

static bool select_segment(struct gk_queue *queue, const struct gk_select_args *args, uint32_t s,
                           struct gk_select_state *state)
{
    struct gk_select_report *report = args->report;
    bool ok;
    struct gk_cpu_segment segment = {
        .args = args,
        .tune = args->tune ? args->tune : &default_tune,
        .range = args->segments[s],
        .state = state,
    };

    GK_ASSERT(segment.range.lo <= segment.range.hi && segment.range.hi <= UINT32_MAX);
    GK_ASSERT(segment.tune->tile > 0 && segment.tune->tile % 32 == 0 &&
              segment.tune->partitions > 0);
    segment.k = gk_min_u64(args->k[s], segment.range.hi - segment.range.lo);
    if (!gk_cpu_select_refuses(args)) {
        GK_ASSERT(args->room - report->n >= segment.k);
    }
    segment.out = (struct gk_cpu_list){.idx = args->idx + report->n, .val = args->val + report->n};
    if (segment.range.lo == segment.range.hi) {
        return true;
    }
    ok = wants_full(&segment) ? gk_cpu_select_full(queue, &segment)
                              : gk_cpu_select_guess(queue, &segment);
    report->n += segment.out.n;
    return ok;
}

struct gk_ticket gk_cpu_select(struct gk_queue *queue, const struct gk_select_args *args)
{
    const struct gk_ticket done = {0};
    size_t states_bytes = args->segments_count * sizeof(*args->state);
    struct gk_select_state *states = NULL;

    if (queue->err) {
        return done;
    }
    *args->report = (struct gk_select_report){.passes = 1};
    if (args->state) {
        /* The states are committed at the end: a later segment may still refuse the whole step. */
        states = gk_cpu_scratch(queue, GK_CPU_SCRATCH_STATES, states_bytes);
        if (!states) {
            return done;
        }
        memcpy(states, args->state, states_bytes);
    }
    for (uint32_t s = 0; s < args->segments_count; s++) {
        if (!select_segment(queue, args, s, states ? &states[s] : NULL)) {
            return done;
        }
    }
    if (gk_cpu_select_refuses(args)) {
        args->report->n = 0;
    } else if (states) {
        memcpy(args->state, states, states_bytes);
    }
    return done;
}
