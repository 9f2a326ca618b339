/* What the tests of selection share: data in patterns, the oracle that sorts all keys, one checked
 * call. */
#ifndef GK_TESTS_UNIT_CPU_CALLS_H
#define GK_TESTS_UNIT_CPU_CALLS_H

#include "tests/unit/cpu_rig.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 70000, PAD = 16, SEGMENTS_MAX = 8 };

static const uint32_t canary = 0xc0ffee11;

/* ---- Data ---- */

enum pattern {
    NORMAL,
    TIES,
    SIGNS,
    CONSTANT,
    ZEROS,
    DENORMALS,
    BURSTS,
    OUTLIER,
    ASCENDING,
    DESCENDING,
    CANCELLING,
    NEIGHBOURS,
    WIDE,
    PATTERNS,
};

static inline float value(enum pattern pattern, uint64_t i, uint64_t n)
{
    switch (pattern) {
    case TIES:
        return (float)((int)below(7) - 3);
    case SIGNS:
        return below(2) ? 1.0f : -1.0f;
    case CONSTANT:
        return -0.75f;
    case ZEROS:
        return below(8) ? (below(2) ? 0.0f : -0.0f) : normalish();
    case DENORMALS:
        return gk_bits_float((uint32_t)(below(2) << 31 | below(40)));
    case BURSTS:
        return i / 23 % 5 == 2 ? 10.0f * normalish() : 1e-3f * normalish();
    case OUTLIER:
        return i == n / 3 ? 1e30f : 1e-6f * normalish();
    case ASCENDING:
        return (float)(i + 1) * 1e-3f;
    case DESCENDING:
        return (float)(n - i) * -1e-3f;
    case WIDE:
        return gk_bits_float((uint32_t)draw() & 0xfeffffff);
    case NEIGHBOURS: /* keys that differ by one */
        return gk_bits_float((uint32_t)(below(2) << 31 | (0x3f800000 + below(2 + n / 16))));
    case NORMAL:
    case CANCELLING:
    case PATTERNS:
        break;
    }
    return normalish();
}

static float g0[N_MAX + PAD], g[N_MAX + PAD], e[N_MAX + PAD], e0[N_MAX + PAD], u[N_MAX + PAD],
    dst[N_MAX + PAD];
static uint32_t idx[N_MAX + PAD], want_idx[N_MAX + PAD];
static float val[N_MAX + PAD], want_val[N_MAX + PAD];

static inline void fill(enum pattern pattern, uint64_t n, bool with_e)
{
    for (uint64_t i = 0; i < n; i++) {
        g0[i] = value(pattern, i, n);
        e0[i] = 0.0f;
        if (pattern == CANCELLING)
            e0[i] = below(4) ? -g0[i] : normalish();
        else if (pattern != CONSTANT && pattern != ASCENDING && pattern != DESCENDING &&
                 pattern != NEIGHBOURS && pattern != WIDE)
            e0[i] = value(pattern, i, n);
        u[i] = g0[i] + (with_e ? e0[i] : 0.0f);
    }
}

/* ---- Oracle ---- */

struct entry {
    uint32_t key, index;
};

static struct entry entries[N_MAX];
static uint8_t chosen[N_MAX];

static inline int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a;
    const struct entry *y = b;

    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Appends the choice from u over a segment to want_idx and want_val behind `at`; returns the new
 * end. */
static inline uint64_t oracle(struct gk_range segment, uint64_t k, uint64_t at)
{
    uint64_t n = segment.hi - segment.lo;

    for (uint64_t i = 0; i < n; i++) {
        entries[i] = (struct entry){gk_float_bits(u[segment.lo + i]) & GK_KEY_MASK,
                                    (uint32_t)(segment.lo + i)};
        chosen[i] = 0;
    }
    qsort(entries, n, sizeof(entries[0]), compare_entries);
    for (uint64_t i = 0; i < n && i < k && entries[i].key > 0; i++)
        chosen[entries[i].index - segment.lo] = 1;
    for (uint64_t i = 0; i < n; i++) {
        if (!chosen[i])
            continue;
        want_idx[at] = (uint32_t)(segment.lo + i);
        want_val[at] = u[segment.lo + i];
        at++;
    }
    return at;
}

/* ---- One call ---- */

struct call {
    struct gk_range segments[SEGMENTS_MAX];
    uint64_t k[SEGMENTS_MAX];
    uint32_t segments_count;
    uint64_t n; /* length of the vectors */
    bool with_e, in_place;
    enum gk_nonfinite_policy policy;
    struct gk_select_tune tune;
    bool default_tune;
};

/* Run it; the result lands in idx, val, dst (or g), *report. */
static inline void run_call(unsigned table, const struct call *call, struct gk_select_state *state,
                            struct gk_select_report *report)
{
    uint64_t room = 0;
    struct gk_select_args args = {
        .dst = call->in_place ? g : dst,
        .g = g,
        .e = call->with_e ? e : NULL,
        .segments = call->segments,
        .k = call->k,
        .segments_count = call->segments_count,
        .state = state,
        .policy = call->policy,
        .tune = call->default_tune ? NULL : &call->tune,
        .idx = idx,
        .val = val,
        .report = report,
    };

    for (uint32_t s = 0; s < call->segments_count; s++)
        room += gk_min_u64(call->k[s], call->segments[s].hi - call->segments[s].lo);
    args.room = room;
    memcpy(g, g0, call->n * sizeof(float));
    memcpy(e, e0, call->n * sizeof(float));
    for (uint64_t i = 0; i < call->n + PAD; i++)
        memcpy(&dst[i], &canary, sizeof(canary));
    for (unsigned i = 0; i < PAD; i++) {
        idx[room + i] = canary;
        memcpy(&val[room + i], &canary, sizeof(canary));
    }
    finish_call(table, tables[table]->select(queues[table], &args));
    for (unsigned i = 0; i < PAD; i++)
        cr_assert(idx[room + i] == canary && gk_float_bits(val[room + i]) == canary,
                  "wrote beyond the room");
}

/* NULL, or what is wrong with the result. */
static inline const char *check_result(const struct call *call,
                                       const struct gk_select_report *report, uint64_t want_n)
{
    const float *out = call->in_place ? g : dst;
    uint64_t at = 0;

    if (report->passes < 1 || report->passes > 3)
        return "number of passes";
    if (report->n != want_n)
        return "number of entries";
    if (!same_bits(idx, want_idx, want_n))
        return "indices";
    if (!same_bits(val, want_val, want_n))
        return "values";
    if (!same_bits(e, e0, call->n))
        return "the residual was written";
    if (!call->in_place && !same_bits(g, g0, call->n))
        return "the gradient was written";
    for (uint32_t s = 0; s < call->segments_count; s++) {
        struct gk_range segment = call->segments[s];

        for (; at < segment.lo; at++)
            if (gk_float_bits(out[at]) != (call->in_place ? gk_float_bits(g0[at]) : canary))
                return "wrote between the segments";
        if (!same_bits(out + at, u + at, segment.hi - at))
            return "u";
        at = segment.hi;
    }
    for (; at < call->n + (call->in_place ? 0 : PAD); at++)
        if (gk_float_bits(out[at]) != (call->in_place ? gk_float_bits(g0[at]) : canary))
            return "wrote behind the segments";
    return NULL;
}

static inline void expect(unsigned table, const struct call *call, struct gk_select_state *state,
                          struct gk_select_report *report)
{
    uint64_t want_n = 0;
    const char *wrong;

    for (uint32_t s = 0; s < call->segments_count; s++)
        want_n = oracle(call->segments[s], call->k[s], want_n);
    run_call(table, call, state, report);
    wrong = check_result(call, report, want_n);
    cr_assert_null(wrong,
                   "%s: %s: n %llu k %llu segments %u e %d in place %d tile %u partitions %u cap "
                   "%llu state %d: "
                   "got %llu want %llu",
                   table_name(table), wrong, (unsigned long long)call->n,
                   (unsigned long long)call->k[0], call->segments_count, call->with_e,
                   call->in_place, call->tune.tile, call->tune.partitions,
                   (unsigned long long)call->tune.cap, state != NULL, (unsigned long long)report->n,
                   (unsigned long long)want_n);
}

static const struct gk_select_tune tunes[] = {
    {.tile = 32, .partitions = 1, .cap = 1},
    {.tile = 32, .partitions = 3, .cap = 1},
    {.tile = 64, .partitions = 1, .cap = 0},
    {.tile = 64, .partitions = 2, .cap = 70},
    {.tile = 32, .partitions = 7, .cap = 100},
    {.tile = 32, .partitions = 1, .cap = 80, .small_segment = 64},
    {.tile = 96, .partitions = 2, .cap = 400},
};

enum { TUNES = sizeof(tunes) / sizeof(tunes[0]) };

/* Disjoint ascending segments with gaps and empty ones. */
static inline void random_segments(struct call *call)
{
    uint64_t at = 0;

    call->segments_count = (uint32_t)(1 + below(SEGMENTS_MAX));
    for (uint32_t s = 0; s < call->segments_count; s++) {
        uint64_t left = call->n - at;
        struct gk_range segment = {at + (below(2) ? below(left / 8 + 1) : 0), 0};

        segment.hi = segment.lo + below(call->n - segment.lo + 1) / (1 + below(3));
        call->segments[s] = segment;
        call->k[s] = below(6) ? below((segment.hi - segment.lo) / 4 + 2)
                              : below(segment.hi - segment.lo + 3);
        at = segment.hi;
    }
}

#endif
