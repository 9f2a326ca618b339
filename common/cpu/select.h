/* One segment's selection, in two ways that give the same set. */
#ifndef GK_COMMON_CPU_SELECT_H
#define GK_COMMON_CPU_SELECT_H

#include "common/cpu/queue.h"

struct gk_cpu_segment {
    const struct gk_select_args *args;
    const struct gk_select_tune *tune; /* never NULL */
    struct gk_range range;
    uint64_t k;                    /* at most the segment's length */
    struct gk_select_state *state; /* a copy that the caller keeps or drops; NULL: none */
    struct gk_cpu_list out;        /* room for k entries; n = 0 */
};

/* A non-finite entry at index i: count it, and by the policy ZERO put the residual back.
 * Returns what u holds there from now on. */
float gk_cpu_select_settle(const struct gk_select_args *args, uint64_t i, float x);

/* Both write u over the segment, append the selection to segment->out, add to args->report, and
 * leave segment->out alone when the report counts a non-finite entry that the policy does not mend.
 * False: out of memory. */

/* One pass with a guessed threshold (needs a state). */
bool gk_cpu_select_guess(struct gk_queue *queue, struct gk_cpu_segment *segment);

/* Counting the keys of all entries. */
bool gk_cpu_select_full(struct gk_queue *queue, struct gk_cpu_segment *segment);

/* True: the report counts non-finite entries and the policy is to select nothing then. */
static inline bool gk_cpu_select_refuses(const struct gk_select_args *args)
{
    return args->report->bad > 0 && args->policy != GK_NONFINITE_ZERO;
}

#endif
