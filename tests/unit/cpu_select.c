/* Goal: the exact top-k of the CPU tables is the set that a full sort gives, whatever the guess,
 * the tile, the number of partitions, the buffer sizes and the state are; u is g + e; what a
 * refused step must leave alone is left alone. Method: every table runs the same calls; an oracle
 * sorts all keys with qsort.  All (n, k) up to n = 300 with small tiles, patterns and tunings
 * rotated; then larger random calls, several segments, non-finite entries under every policy, and
 * cases built to prune and to miss. */
#include "tests/unit/cpu_rig.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
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

static float value(enum pattern pattern, uint64_t i, uint64_t n)
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

static void fill(enum pattern pattern, uint64_t n, bool with_e)
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

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a;
    const struct entry *y = b;

    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Appends the choice from u over a segment to want_idx and want_val behind `at`; returns the new
 * end. */
static uint64_t oracle(struct gk_range segment, uint64_t k, uint64_t at)
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
static void run_call(unsigned table, const struct call *call, struct gk_select_state *state,
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
static const char *check_result(const struct call *call, const struct gk_select_report *report,
                                uint64_t want_n)
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

static void expect(unsigned table, const struct call *call, struct gk_select_state *state,
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

/* A state is a hint: any must give the same set. */
static void disturb(struct gk_select_state *state)
{
    static const float factors[] = {0.0f, 0.3f,  0.9f,     1.1f, 1.5f,  3.0f,
                                    1e4f, 1e30f, INFINITY, NAN,  -1.0f, 1e-38f};

    switch (below(6)) {
    case 0:
        state->t *= factors[below(sizeof(factors) / sizeof(factors[0]))];
        break;
    case 1:
        state->kp = below(400);
        break;
    case 2:
        state->margin = factors[below(sizeof(factors) / sizeof(factors[0]))];
        break;
    default:
        break;
    }
}

/* ---- The tests ---- */

static void exhaustive(unsigned n_from, unsigned n_step)
{
    struct gk_select_state states[RIG_TABLES_MAX] = {0};
    struct gk_select_report report;
    unsigned rotate = n_from;

    open_tables();
    random_state = n_from;
    for (uint64_t n = n_from; n <= 300; n += n_step) {
        for (uint64_t k3 = 0; k3 < 3 * (n + 3); k3++) {
            uint64_t k = k3 / 3;
            struct call call = {.segments = {{0, n}}, .k = {k}, .segments_count = 1, .n = n};

            rotate++;
            call.with_e = rotate % 5 != 0;
            call.in_place = rotate % 3 == 0;
            call.tune = tunes[rotate % TUNES];
            fill((enum pattern)(rotate % PATTERNS), n, call.with_e);
            for (unsigned table = 0; table < tables_count; table++) {
                expect(table, &call, &states[table], &report);
                if (rotate % 4 == 0)
                    expect(table, &call, NULL, &report);
                disturb(&states[table]);
                if (rotate % 5 < 2)
                    states[table] = (struct gk_select_state){0};
            }
        }
    }
    close_tables();
}

/* Split in four, so that they run side by side. */
Test(cpu_select, every_n_and_k_0)
{
    exhaustive(0, 4);
}

Test(cpu_select, every_n_and_k_1)
{
    exhaustive(1, 4);
}

Test(cpu_select, every_n_and_k_2)
{
    exhaustive(2, 4);
}

Test(cpu_select, every_n_and_k_3)
{
    exhaustive(3, 4);
}

/* Disjoint ascending segments with gaps and empty ones. */
static void random_segments(struct call *call)
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

Test(cpu_select, random_calls)
{
    struct gk_select_state states[RIG_TABLES_MAX][SEGMENTS_MAX] = {0};
    struct gk_select_report report;

    open_tables();
    random_state = 11;
    for (unsigned round = 0; round < 1500; round++) {
        struct call call = {.n = 1 + below(below(10) ? 1500 : 12000)};

        random_segments(&call);
        call.with_e = below(4) != 0;
        call.in_place = below(2) != 0;
        call.default_tune = below(8) == 0;
        call.tune = (struct gk_select_tune){.tile = (uint32_t)(32 * (1 + below(6))),
                                            .small_segment = (uint32_t)(below(3) ? 0 : below(500)),
                                            .partitions = (uint32_t)(1 + below(8)),
                                            .cap = below(2) ? below(1000) : 0};
        fill((enum pattern)below(PATTERNS), call.n, call.with_e);
        for (unsigned table = 0; table < tables_count; table++) {
            expect(table, &call, states[table], &report);
            disturb(&states[table][below(SEGMENTS_MAX)]);
        }
    }
    close_tables();
}

/* From k = 1024 on a cold start samples; the default tile and buffer sizes. */
Test(cpu_select, cold_and_warm_with_default_sizes)
{
    static const enum pattern kinds[] = {NORMAL,     TIES,  BURSTS,  ASCENDING,
                                         DESCENDING, ZEROS, OUTLIER, CANCELLING};
    struct gk_select_report report;

    open_tables();
    random_state = 12;
    for (unsigned table = 0; table < tables_count; table++) {
        for (unsigned kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
            struct gk_select_state state = {0};
            struct call call = {.segments = {{0, N_MAX - 3}},
                                .segments_count = 1,
                                .n = N_MAX - 3,
                                .with_e = true,
                                .default_tune = true};

            for (unsigned step = 0; step < 5; step++) {
                call.k[0] = step < 3 ? 2000 : 1100 + 5000 * (step - 3);
                fill(kinds[kind], call.n, true);
                expect(table, &call, &state, &report);
                if (kinds[kind] == NORMAL && step < 3) /* the guess works */
                    cr_assert(report.appended < call.n / 8 && report.passes == 1,
                              "step %u: appended %llu passes %u", step,
                              (unsigned long long)report.appended, report.passes);
                if (kinds[kind] != ZEROS)
                    cr_assert_gt(state.t, 0.0f);
                cr_assert_eq(state.kp, call.k[0]);
            }
        }
    }
    close_tables();
}

/* Ascending magnitudes and the smallest buffer: every tile overflows. */
Test(cpu_select, worst_case_of_pruning)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        for (unsigned partitions = 1; partitions <= 4; partitions++) {
            struct gk_select_state state = {0};
            struct gk_select_report report;
            struct call call = {.segments = {{0, 20000}},
                                .k = {100},
                                .segments_count = 1,
                                .n = 20000,
                                .with_e = true,
                                .tune = {.tile = 32, .partitions = partitions, .cap = 1}};

            fill(ASCENDING, call.n, true);
            expect(table, &call, &state, &report);
            cr_assert_eq(report.passes, 1);
            cr_assert_geq(report.prunes, 20000 / 132);
            cr_assert_geq(report.appended, 19000);
        }
    }
    close_tables();
}

/* A guess just above the k-th magnitude costs one more pass, one far above it two. */
Test(cpu_select, worst_case_of_rescue)
{
    static const float lies[] = {0.5f, 1.0f, 1.5f, 1.9f, 3.0f, 1e6f};
    static const uint32_t passes[] = {1, 1, 2, 2, 3, 3};

    open_tables();
    random_state = 13;
    for (unsigned table = 0; table < tables_count; table++) {
        for (unsigned lie = 0; lie < sizeof(lies) / sizeof(lies[0]); lie++) {
            for (unsigned tight = 0; tight < 2; tight++) {
                struct gk_select_report report;
                struct call call = {.segments = {{0, 9000}},
                                    .k = {500},
                                    .segments_count = 1,
                                    .n = 9000,
                                    .with_e = true,
                                    .tune = {.tile = 32, .partitions = 2, .cap = tight}};
                struct gk_select_state state = {.kp = 500, .margin = 0x1p-20f};

                for (uint64_t i = 0; i < call.n; i++) {
                    g0[i] = (below(2) ? 1.0f : -1.0f) * (1.0f + (float)(i * 4099 % 9000) / 9000);
                    e0[i] = 0.0f;
                    u[i] = g0[i] + e0[i];
                }
                state.t = (2.0f - 500.0f / 9000) * lies[lie];
                expect(table, &call, &state, &report);
                cr_assert_eq(report.passes, passes[lie], "lie %g: %u passes", (double)lies[lie],
                             report.passes);
                if (passes[lie] == 3 && tight)
                    cr_assert_gt(report.prunes, 2);
                if (passes[lie] > 1)
                    cr_assert_gt(state.margin, 0.019f);
            }
        }
    }
    close_tables();
}

/* Entries whose keys lie around the borders of the bands, 0.5 and 0.25. */
Test(cpu_select, borders_of_the_bands)
{
    static const float borders[] = {0.125f, 0.25f, 0.5f};

    open_tables();
    random_state = 16;
    for (unsigned round = 0; round < 3000; round++) {
        struct gk_select_report report;
        struct call call = {.segments = {{0, 200}},
                            .k = {1 + round % 49},
                            .segments_count = 1,
                            .n = 200,
                            .in_place = true,
                            .tune = tunes[round % 5]};
        uint64_t at = round % 7;

        for (uint64_t i = 0; i < call.n; i++)
            g0[i] = u[i] = 0.0f;
        for (unsigned j = 0; j < 12; j++, at += 1 + below(16))
            g0[at] = u[at] =
                gk_bits_float(gk_float_bits(borders[below(3)]) - 2 + (uint32_t)below(5));
        for (unsigned table = 0; table < tables_count; table++) {
            struct gk_select_state state = {.t = 1.0f, .kp = call.k[0], .margin = 0.5f};

            expect(table, &call, &state, &report);
        }
    }
    close_tables();
}

/* ---- Non-finite entries ---- */

static float nonfinite_value(void)
{
    static const uint32_t bits[] = {0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000, 0x7fffffff};

    return gk_bits_float(bits[below(sizeof(bits) / sizeof(bits[0]))]);
}

/* Spoil some entries of g0 within the segments; u becomes what the policy ZERO leaves.  Returns how
 * many. */
static uint64_t spoil(const struct call *call, unsigned one_in, uint64_t *ret_first)
{
    uint64_t bad = 0;

    for (uint32_t s = 0; s < call->segments_count; s++) {
        for (uint64_t i = call->segments[s].lo; i < call->segments[s].hi; i++) {
            if (below(one_in) != 0)
                continue;
            if (below(3) == 0) {
                g0[i] = FLT_MAX; /* finite, and their sum is not */
                e0[i] = call->with_e ? FLT_MAX : e0[i];
            }
            if (!call->with_e || g0[i] != FLT_MAX)
                g0[i] = nonfinite_value();
            u[i] = call->with_e ? e0[i] : 0.0f;
            if (bad++ == 0)
                *ret_first = i;
        }
    }
    return bad;
}

Test(cpu_select, nonfinite_entries_under_every_policy)
{
    static const unsigned rates[] = {1, 2, 20, 400};

    open_tables();
    random_state = 14;
    for (unsigned round = 0; round < 1200; round++) {
        struct gk_select_state before[SEGMENTS_MAX], after[SEGMENTS_MAX];
        struct gk_select_report report;
        struct call call = {.n = 1 + below(2500)};
        uint64_t first = 0;
        uint64_t bad;

        random_segments(&call);
        call.with_e = below(4) != 0;
        call.in_place = below(2) != 0;
        call.policy = (enum gk_nonfinite_policy)(round % 3);
        call.tune = tunes[below(TUNES)];
        fill((enum pattern)below(PATTERNS - 1), call.n, call.with_e);
        bad = spoil(&call, rates[below(4)], &first);
        for (uint32_t s = 0; s < SEGMENTS_MAX; s++)
            before[s] =
                (struct gk_select_state){.t = below(3) ? 0.5f : 0.0f, .kp = 10, .margin = 0.2f};
        for (unsigned table = 0; table < tables_count; table++) {
            struct gk_select_state *state = round % 5 ? after : NULL;

            memcpy(after, before, sizeof(after));
            if (bad == 0 || call.policy == GK_NONFINITE_ZERO) {
                expect(table, &call, state, &report);
            } else {
                run_call(table, &call, state, &report);
                cr_assert_eq(report.n, 0);
                cr_assert(same_bits(e, e0, call.n));
                cr_assert(same_bits(after, before, sizeof(after) / 4));
            }
            cr_assert_eq(report.bad, bad);
            if (bad > 0)
                cr_assert_eq(report.bad_first, first);
        }
    }
    close_tables();
}

/* More of them than the sample of a cold start looks for. */
Test(cpu_select, cold_start_among_nonfinite_entries)
{
    open_tables();
    random_state = 17;
    for (unsigned one_in = 1; one_in <= 32; one_in *= 2) {
        struct call call = {.segments = {{0, N_MAX - 5}},
                            .k = {1500},
                            .segments_count = 1,
                            .n = N_MAX - 5,
                            .with_e = true,
                            .policy = GK_NONFINITE_ZERO,
                            .default_tune = true};
        uint64_t first = 0;
        uint64_t bad;

        fill(NORMAL, call.n, true);
        bad = spoil(&call, one_in, &first);
        for (unsigned table = 0; table < tables_count; table++) {
            struct gk_select_state state = {0};
            struct gk_select_report report;

            expect(table, &call, &state, &report);
            cr_assert(report.bad == bad && report.bad_first == first);
        }
    }
    close_tables();
}

Test(cpu_select, damaged_residual_is_not_pushed)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        for (unsigned with_state = 0; with_state < 2; with_state++) {
            struct gk_select_state state = {0};
            struct gk_select_report report;
            struct call call = {.segments = {{0, 200}},
                                .k = {20},
                                .segments_count = 1,
                                .n = 200,
                                .with_e = true,
                                .policy = GK_NONFINITE_ZERO,
                                .tune = tunes[0]};

            random_state = 15;
            fill(NORMAL, call.n, true);
            e0[7] = NAN;
            e0[150] = INFINITY;
            u[7] = u[150] = 0.0f;
            expect(table, &call, with_state ? &state : NULL, &report);
            cr_assert_eq(report.bad, 2);
            cr_assert_eq(report.bad_first, 7);
        }
    }
    close_tables();
}

Test(cpu_select, fewer_nonzeros_than_k_is_cold_again)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        struct gk_select_state state = {.t = 1.0f, .kp = 40};
        struct gk_select_report report;
        struct call call = {.segments = {{0, 300}},
                            .k = {40},
                            .segments_count = 1,
                            .n = 300,
                            .with_e = true,
                            .tune = tunes[1]};

        fill(ZEROS, call.n, true);
        for (uint64_t i = 0; i < call.n; i++)
            u[i] = g0[i] = e0[i] = i % 60 == 3 ? 1e-3f : 0.0f;
        for (uint64_t i = 0; i < call.n; i++)
            u[i] += u[i];
        expect(table, &call, &state, &report);
        cr_assert_eq(report.n, 5);
        cr_assert_eq(report.passes, 3);
        cr_assert_eq(state.t, 0.0f);
        expect(table, &call, &state, &report);
        cr_assert_eq(report.passes, 1);
    }
    close_tables();
}
