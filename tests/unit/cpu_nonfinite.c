/* Goal: entries of u that are not finite never enter the selection or the residual: ABORT and SKIP
 * select nothing and leave residual and state alone, ZERO puts the residual back and goes on.
 * Method: finite calls are spoilt at random places, from a few to all, and by finite values whose
 * sum is not; every table against the oracle of cpu_calls.h. */
#include "tests/unit/cpu_calls.h"

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

Test(cpu_nonfinite, nonfinite_entries_under_every_policy)
{
    static const unsigned rates[] = {1, 2, 20, 400};

    open_tables();
    random_state = 14;
    for (unsigned round = 0; round < ROUNDS(1200); round++) {
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
Test(cpu_nonfinite, cold_start_among_nonfinite_entries)
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

Test(cpu_nonfinite, damaged_residual_is_not_pushed)
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
