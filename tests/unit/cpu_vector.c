/* Goal: the service slots and the short slots of the CPU tables keep their contracts, with the same
 * bits on every table.  Method: each slot against its definition written out here, on random data
 * of all exponents, at odd lengths and from misaligned starts. */
#include "tests/unit/cpu_rig.h"

#include <math.h>
#include <stdlib.h>

enum { N_MAX = 12000, PAD = 16 };

static const uint32_t canary = 0xc0ffee11;

static float a[N_MAX + PAD], b[N_MAX + PAD], c[N_MAX + PAD], out[N_MAX + PAD], out2[N_MAX + PAD];
static uint32_t idx[N_MAX + PAD], want_idx[N_MAX];

/* One test asks for more memory than there is, and means it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void random_vector(float *x, uint64_t n, bool nonfinite)
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] = below(4) ? normalish() : wide();
        if (nonfinite && below(50) == 0)
            x[i] = (float[]){NAN, -NAN, INFINITY, -INFINITY}[below(4)];
    }
}

static uint64_t random_length(void)
{
    return below(3) ? below(200) : below(N_MAX - 8);
}

/* ---- Service ---- */

Test(cpu_vector, memory_is_zeroed_and_aligned)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        for (size_t bytes = 0; bytes < 1000; bytes += 37) {
            for (int kind = GK_MEMORY_DEVICE; kind <= GK_MEMORY_PINNED; kind++) {
                uint8_t *memory = tables[table]->alloc(queues[table], (enum gk_memory)kind, bytes);

                cr_assert_not_null(memory);
                cr_assert_eq((uintptr_t)memory % 64, 0);
                memset(out, 0xff, sizeof(out));
                finish_call(table, tables[table]->copy(queues[table], out, memory, bytes));
                for (size_t i = 0; i < bytes; i++)
                    cr_assert_eq(((uint8_t *)out)[i], 0);
                tables[table]->free(queues[table], (enum gk_memory)kind, memory);
            }
        }
        tables[table]->free(queues[table], GK_MEMORY_DEVICE, NULL);
        tables[table]->close(NULL);
        cr_assert_null(tables[table]->alloc(queues[table], GK_MEMORY_DEVICE, SIZE_MAX - 10));
    }
    close_tables();
}

Test(cpu_vector, copies)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        random_vector(a, 100, false);
        memset(out, 0, sizeof(out));
        finish_call(table, tables[table]->copy(queues[table], out, a, 99 * sizeof(float)));
        cr_assert(same_bits(out, a, 99));
        cr_assert_eq(gk_float_bits(out[99]), 0);
        finish_call(table, tables[table]->copy(queues[table], NULL, NULL, 0));
    }
    cr_assert(rig_cuda || strcmp(table_name(0), "cpu reference") == 0);
    close_tables();
}

/* The next buffers cannot be had; false: there is no way to have it so. */
static bool no_memory(void)
{
#ifdef RIG_EMULATED
    gk_simt_fail_allocation(0);
    return true;
#else
    return !rig_cuda; /* which asks for so many entries that there is none */
#endif
}

/* Buffers that cannot be had: the call does nothing, so do later ones, and wait() tells once. */
Test(cpu_vector, an_error_sticks_until_wait)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        const struct gk_range segment = {0, 1000};
        const uint64_t k = 10;
        const struct gk_select_tune greedy = {
            .tile = 32, .partitions = 1, .cap = UINT64_C(1) << 50};
        struct gk_select_state state = {.t = 1.0f, .kp = 10};
        struct gk_select_report report;
        struct gk_select_args args = {.dst = out,
                                      .g = a,
                                      .segments = &segment,
                                      .k = &k,
                                      .segments_count = 1,
                                      .state = &state,
                                      .tune = &greedy,
                                      .idx = idx,
                                      .val = b,
                                      .room = 10,
                                      .report = &report};
        uint64_t hash = 77;
        struct gk_hash_args hash_args = {.x = a, .n = 10, .hash = &hash};

        random_state = 1;
        random_vector(a, 1000, false);
        if (!no_memory())
            continue;
        tables[table]->select(queues[table], &args);
        tables[table]->hash(queues[table], &hash_args);
        cr_assert_eq(hash, 77);
        cr_assert_eq(tables[table]->wait(queues[table], (struct gk_ticket){0}), GK_E_NOMEM);
        args.tune = NULL;
        finish_call(table, tables[table]->select(queues[table], &args));
        cr_assert_eq(report.n, 10);
        finish_call(table, tables[table]->hash(queues[table], &hash_args));
        cr_assert_neq(hash, 77);
    }
    close_tables();
}

Test(cpu_vector, the_wish_chooses_the_table)
{
    const struct gk_vector_ops *ops = NULL;
    struct gk_words words = {0};

    cr_assert_eq(gk_vector_cpu(GK_CPU_AUTO, &ops, &words), GK_OK);
    cr_assert_eq(ops, gk_vector_avx2() ? gk_vector_avx2() : gk_vector_reference());
    cr_assert_eq(gk_vector_cpu(GK_CPU_REFERENCE, &ops, &words), GK_OK);
    cr_assert_eq(ops, gk_vector_reference());
    if (gk_vector_avx2()) {
        cr_assert_eq(gk_vector_cpu(GK_CPU_AVX2, &ops, &words), GK_OK);
        cr_assert_eq(ops, gk_vector_avx2());
    } else {
        ops = NULL;
        cr_assert_eq(gk_vector_cpu(GK_CPU_AVX2, &ops, &words), GK_E_UNSUPPORTED);
        cr_assert_null(ops);
        cr_assert_not_null(strstr(words.text, "AVX2"));
    }
}

/* ---- Residual ---- */

Test(cpu_vector, accumulate)
{
    open_tables();
    random_state = 2;
    for (unsigned round = 0; round < ROUNDS(200); round++) {
        const uint64_t n = random_length();
        const uint64_t shift = below(8);
        const bool with_e = below(3) != 0;
        const bool with_m = below(2) != 0;
        const float scale = below(2) ? 1.0f : 0.37f;

        random_vector(a, n + shift, false);
        random_vector(b, n + shift, false);
        random_vector(c, n + shift, false);
        for (unsigned table = 0; table < tables_count; table++) {
            struct gk_accumulate_args args = {.dst = out,
                                              .g = a + shift,
                                              .e = with_e ? b + shift : NULL,
                                              .m = with_m ? c + shift : NULL,
                                              .m_out = out2,
                                              .beta = 0.9f,
                                              .scale = scale,
                                              .n = n};

            memcpy(&out[n], &canary, sizeof(canary));
            memcpy(&out2[n], &canary, sizeof(canary));
            if (below(2)) { /* over g */
                memcpy(out, a + shift, n * sizeof(float));
                args.g = out;
            }
            finish_call(table, tables[table]->accumulate(queues[table], &args));
            for (uint64_t i = 0; i < n; i++) {
                float moment = fmaf(0.9f, c[shift + i], a[shift + i] * scale);
                float u = (with_m ? moment : a[shift + i] * scale) + (with_e ? b[shift + i] : 0.0f);

                cr_assert(same_bits(&out[i], &u, 1), "%s at %llu", table_name(table),
                          (unsigned long long)i);
                cr_assert(!with_m || same_bits(&out2[i], &moment, 1));
            }
            cr_assert(gk_float_bits(out[n]) == canary && gk_float_bits(out2[n]) == canary);
        }
    }
    close_tables();
}

Test(cpu_vector, take_and_give_are_exact)
{
    open_tables();
    random_state = 3;
    for (unsigned table = 0; table < tables_count; table++) {
        const uint64_t n = 500;
        struct gk_take_args take = {
            .u = out, .m = out2, .idx = idx, .n = 100, .encoding = GK_VALUE_F32, .val = b};
        struct gk_give_args give = {.u = out, .idx = idx, .base = 2, .val = b, .n = 100};

        random_vector(a, n, false);
        memcpy(out, a, sizeof(out));
        memcpy(out2, a, sizeof(out2));
        for (uint32_t j = 0; j < 100; j++)
            idx[j] = 5 * j + 2;
        finish_call(table, tables[table]->take(queues[table], &take));
        for (uint32_t i = 0; i < n; i++) {
            bool taken = i % 5 == 2;

            cr_assert_eq(gk_float_bits(out[i]), taken ? 0 : gk_float_bits(a[i]));
            cr_assert_eq(gk_float_bits(out2[i]), taken ? 0 : gk_float_bits(a[i]));
            cr_assert(!taken || same_bits(&b[i / 5], &a[i], 1));
        }
        for (uint32_t j = 0; j < 100; j++)
            idx[j] = 5 * j;
        finish_call(table, tables[table]->give(queues[table], &give));
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], a[i]); /* a -0 that was taken comes back as +0 */
        give = (struct gk_give_args){.u = out, .base = 7, .val = a, .n = 50};
        finish_call(table, tables[table]->give(queues[table], &give));
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], i >= 7 && i < 57 ? a[i] + a[i - 7] : a[i]);
        take.encoding = GK_VALUE_F16;
        tables[table]->take(queues[table], &take);
        cr_assert_eq(tables[table]->wait(queues[table], (struct gk_ticket){0}), GK_E_UNSUPPORTED);
    }
    close_tables();
}

/* ---- Thresholds and samples ---- */

static uint64_t reaches(float x, float t)
{
    if (t <= 0.0f)
        return x != 0.0f;
    return isnan(x) ? !isnan(t) : fabsf(x) >= t;
}

Test(cpu_vector, select_ge)
{
    static const float thresholds[] = {0.0f, -1.0f, 0.5f, 1.5f, 1e-44f, 1e30f, INFINITY, NAN};

    open_tables();
    random_state = 4;
    for (unsigned round = 0; round < ROUNDS(200); round++) {
        const uint64_t n = 1 + random_length();
        const uint64_t cut = below(n + 1);
        const struct gk_range segments[3] = {{0, cut / 2}, {cut / 2, cut / 2}, {cut, n}};
        const float t[3] = {thresholds[below(8)], 1.0f, thresholds[below(8)]};
        uint64_t want[3] = {0};
        uint64_t at = 0;
        uint64_t room;

        random_vector(a, n, below(2));
        for (unsigned s = 0; s < 3; s++) {
            for (uint64_t i = segments[s].lo; i < segments[s].hi; i++) {
                if (!reaches(a[i], t[s]))
                    continue;
                want_idx[at++] = (uint32_t)i;
                want[s]++;
            }
        }
        room = below(2) ? at : below(at + 1);
        for (unsigned table = 0; table < tables_count; table++) {
            uint64_t count[3];
            struct gk_select_ge_args args = {.u = a,
                                             .segments = segments,
                                             .t = t,
                                             .segments_count = 3,
                                             .idx = idx,
                                             .val = out,
                                             .room = room,
                                             .n = count};

            idx[room] = canary;
            finish_call(table, tables[table]->select_ge(queues[table], &args));
            cr_assert(memcmp(count, want, sizeof(want)) == 0, "%s: counts", table_name(table));
            cr_assert(same_bits(idx, want_idx, room) && idx[room] == canary);
            for (uint64_t j = 0; j < room; j++)
                cr_assert(same_bits(&out[j], &a[idx[j]], 1));
        }
    }
    close_tables();
}

static bool same_key(uint32_t key, float u)
{
    const uint32_t want = gk_float_bits(u) & GK_KEY_MASK;

    return same_value(&key, &want);
}

Test(cpu_vector, sample)
{
    open_tables();
    random_state = 5;
    random_vector(a, 1000, true);
    random_vector(b, 1000, false);
    for (unsigned table = 0; table < tables_count; table++) {
        for (unsigned with_e = 0; with_e < 2; with_e++) {
            for (uint64_t stride = 1; stride < 40; stride += 7) {
                for (uint64_t phase = 0; phase < 1010; phase += 101) {
                    uint64_t count = 99;
                    struct gk_sample_args args = {.g = a,
                                                  .e = with_e ? b : NULL,
                                                  .n = 1000,
                                                  .stride = stride,
                                                  .phase = phase,
                                                  .keys = idx,
                                                  .room = 700,
                                                  .count = &count};
                    uint64_t want = phase < 1000 ? (1000 - phase + stride - 1) / stride : 0;

                    finish_call(table, tables[table]->sample(queues[table], &args));
                    cr_assert_eq(count, gk_min_u64(want, 700));
                    for (uint64_t j = 0; j < count; j++) {
                        float u = a[phase + j * stride] + (with_e ? b[phase + j * stride] : 0.0f);

                        cr_assert((idx[j] & GK_KEY_MASK) == idx[j] && same_key(idx[j], u));
                    }
                }
            }
        }
    }
    close_tables();
}

/* ---- Moments ---- */

/* Joins the lanes in place: l += l + 16, then 8, 4, 2, 1. */
static double tree(double *lanes)
{
    for (unsigned half = 16; half > 0; half /= 2)
        for (unsigned lane = 0; lane < half; lane++)
            lanes[lane] = lanes[lane] + lanes[lane + half];
    return lanes[0];
}

static struct gk_stats stats_oracle(const float *u, uint64_t n, float lo, const float *t,
                                    uint32_t t_count)
{
    struct gk_stats stats = {0};

    for (uint64_t tile = 0; tile < n; tile += 2048) {
        double sum[32] = {0}, squares[32] = {0}, abs[32] = {0};

        for (uint64_t i = tile; i < n && i < tile + 2048; i++) {
            uint32_t key = gk_float_bits(u[i]) & GK_KEY_MASK;

            if (!isfinite(u[i])) {
                stats.bad++;
                continue;
            }
            stats.nonzeros += key > 0;
            stats.key_max = key > stats.key_max ? key : stats.key_max;
            for (uint32_t j = 0; j < t_count; j++)
                stats.above[j] += fabsf(u[i]) > t[j];
            if (fabsf(u[i]) < lo)
                continue;
            stats.count++;
            sum[(i - tile) % 32] += (double)u[i];
            squares[(i - tile) % 32] += (double)u[i] * (double)u[i];
            abs[(i - tile) % 32] += fabs((double)u[i]);
        }
        stats.sum += tree(sum);
        stats.sum_squares += tree(squares);
        stats.sum_abs += tree(abs);
    }
    return stats;
}

Test(cpu_vector, stats_in_the_specified_order)
{
    const float t[GK_STATS_THRESHOLDS_MAX] = {0.0f, 1e-3f, 0.5f, 1.0f, 2.0f, 3.0f, 1e30f, INFINITY};

    open_tables();
    random_state = 6;
    for (unsigned round = 0; round < ROUNDS(150); round++) {
        const uint64_t n = 1 + random_length();
        const uint64_t cut = below(n + 1);
        const struct gk_range segments[2] = {{cut / 3, cut}, {cut, n}};
        const float lo[2] = {below(2) ? 0.7f : 0.0f, 1e-40f};
        const bool with_lo = below(2) != 0;

        random_vector(a, n, below(2));
        for (unsigned table = 0; table < tables_count; table++) {
            struct gk_stats stats[2];
            struct gk_stats_args args = {.u = a,
                                         .segments = segments,
                                         .lo = with_lo ? lo : NULL,
                                         .segments_count = 2,
                                         .t = t,
                                         .t_count = (uint32_t)(round % 9),
                                         .stats = stats};

            memset(stats, 0xff, sizeof(stats));
            finish_call(table, tables[table]->stats(queues[table], &args));
            for (unsigned s = 0; s < 2; s++) {
                struct gk_stats want =
                    stats_oracle(a + segments[s].lo, segments[s].hi - segments[s].lo,
                                 with_lo ? lo[s] : 0.0f, t, args.t_count);

                cr_assert(memcmp(&stats[s], &want, offsetof(struct gk_stats, key_max)) == 0,
                          "%s: sums", table_name(table));
                cr_assert(stats[s].key_max == want.key_max && stats[s].bad == want.bad &&
                              stats[s].nonzeros == want.nonzeros,
                          "%s: counts", table_name(table));
                cr_assert(memcmp(stats[s].above, want.above, sizeof(want.above)) == 0);
            }
        }
    }
    close_tables();
}

/* ---- Hash ---- */

Test(cpu_vector, hash_depends_neither_on_order_nor_on_chunks)
{
    open_tables();
    random_state = 7;
    for (unsigned round = 0; round < ROUNDS(200); round++) {
        const uint64_t n = random_length();
        const uint64_t cut = below(n + 1);
        const uint64_t index0 = below(2) ? below(1000) : UINT64_C(0xfffffff0);
        const uint32_t plane = (uint32_t)below(3);
        uint64_t want = 0;

        random_vector(a, n, true);
        for (uint64_t i = n; i > 0; i--) /* backwards */
            want += gk_hash_term(plane, index0 + i - 1, gk_float_bits(a[i - 1]));
        for (unsigned table = 0; table < tables_count; table++) {
            uint64_t whole, head, tail;
            struct gk_hash_args args = {
                .x = a, .n = n, .index0 = index0, .plane = plane, .hash = &whole};

            finish_call(table, tables[table]->hash(queues[table], &args));
            cr_assert_eq(whole, want, "%s: n %llu", table_name(table), (unsigned long long)n);
            args = (struct gk_hash_args){
                .x = a, .n = cut, .index0 = index0, .plane = plane, .hash = &head};
            finish_call(table, tables[table]->hash(queues[table], &args));
            args = (struct gk_hash_args){
                .x = a + cut, .n = n - cut, .index0 = index0 + cut, .plane = plane, .hash = &tail};
            finish_call(table, tables[table]->hash(queues[table], &args));
            cr_assert_eq(head + tail, want);
        }
    }
    close_tables();
}
