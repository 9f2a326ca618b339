/* Goal: the exact top-k of the CPU tables is the set that a full sort gives, whatever the guess,
 * the tile, the number of partitions, the buffer sizes and the state are; u is g + e; nothing else
 * is written. Method: every table runs the same calls against the oracle of cpu_calls.h, which
 * sorts all keys.  All (n, k) up to n = 300 with small tiles, patterns and tunings rotated; then
 * larger random calls, several segments, and cases built to prune and to miss. */
#include "tests/unit/cpu_calls.h"

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
        for (uint64_t k3 = 0; k3 < 3 * (n + 3); k3 += RIG_SHARE) {
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

Test(cpu_select, random_calls)
{
    struct gk_select_state states[RIG_TABLES_MAX][SEGMENTS_MAX] = {0};
    struct gk_select_report report;

    open_tables();
    random_state = 11;
    for (unsigned round = 0; round < ROUNDS(1500); round++) {
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
            if (rig_cuda) /* it does not prune, and looks again with a better guess */
                continue;
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
                cr_assert(report.passes == passes[lie] || rig_cuda, "lie %g: %u passes",
                          (double)lies[lie], report.passes);
                if (passes[lie] == 3 && tight && !rig_cuda)
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
    for (unsigned round = 0; round < ROUNDS(3000); round++) {
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
