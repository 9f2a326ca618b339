/* Goal: a sum adds each coordinate in the order of the lists, from +0; it reports the union, the
 * form and whether all is finite.  Method: every table against a scalar walk over the lists, with
 * random chunked lists around the sizes of tiles and around the border between sparse and dense;
 * and cases where the order shows in the bits. */
#include "tests/unit/cpu_rig.h"

#include <float.h>
#include <math.h>

enum { LEN_MAX = 200000, LISTS_MAX = 24, POOL_MAX = 3 * LEN_MAX, PAD = 16 };

static const uint32_t canary = 0xc0ffee11;

static uint32_t pool_idx[POOL_MAX];
static float pool_val[POOL_MAX];
static uint64_t pool_used;

static uint32_t idx[LEN_MAX + PAD], want_idx[LEN_MAX];
static float val[LEN_MAX + PAD], want_val[LEN_MAX];
static uint8_t touched[LEN_MAX];

struct want {
    uint64_t n;
    bool dense, finite;
};

/* Straight from the definition. */
static struct want oracle(const struct gk_list *lists, uint32_t count, uint64_t len)
{
    static float sums[LEN_MAX];
    struct want want = {.finite = true};
    uint64_t n = 0;

    memset(sums, 0, sizeof(sums));
    memset(touched, 0, sizeof(touched));
    for (uint32_t l = 0; l < count; l++) {
        want.dense = want.dense || !lists[l].idx;
        for (uint64_t j = 0; j < lists[l].n; j++) {
            uint64_t at = lists[l].base + (lists[l].idx ? lists[l].idx[j] : j);

            sums[at] = sums[at] + lists[l].val[j];
            touched[at] = 1;
        }
    }
    for (uint64_t i = 0; i < len; i++)
        n += touched[i];
    want.dense = want.dense || 2 * n >= len;
    for (uint64_t i = 0; i < len; i++) {
        want.finite = want.finite && isfinite(sums[i]);
        if (!want.dense && !touched[i])
            continue;
        want_idx[want.n] = (uint32_t)i;
        want_val[want.n++] = sums[i];
    }
    return want;
}

static void expect(const struct gk_list *lists, uint32_t count, uint64_t len)
{
    struct want want = oracle(lists, count, len);

    for (unsigned table = 0; table < tables_count; table++) {
        struct gk_sum_report report = {0};
        struct gk_sum_args args = {.lists = lists,
                                   .lists_count = count,
                                   .len = len,
                                   .idx = idx,
                                   .val = val,
                                   .report = &report};

        for (unsigned i = 0; i < PAD; i++) {
            idx[len + i] = canary;
            memcpy(&val[len + i], &canary, sizeof(canary));
        }
        finish_call(table, tables[table]->sum(queues[table], &args));
        cr_assert(report.dense == want.dense && report.n == want.n && report.finite == want.finite,
                  "%s: len %llu: dense %d %d n %llu %llu finite %d %d", table_name(table),
                  (unsigned long long)len, report.dense, want.dense, (unsigned long long)report.n,
                  (unsigned long long)want.n, report.finite, want.finite);
        cr_assert(same_bits(val, want_val, want.n), "%s: values", table_name(table));
        cr_assert(want.dense || same_bits(idx, want_idx, want.n), "%s: indices", table_name(table));
        for (unsigned i = 0; i < PAD; i++)
            cr_assert(idx[len + i] == canary && gk_float_bits(val[len + i]) == canary);
    }
}

/* A sparse list over [lo, hi) with about one entry in `gap`, indices relative to lo. */
static struct gk_list random_list(uint64_t lo, uint64_t hi, uint64_t gap)
{
    struct gk_list list = {.idx = pool_idx + pool_used, .val = pool_val + pool_used, .base = lo};

    for (uint64_t at = below(gap); at < hi - lo; at += 1 + below(2 * gap - 1)) {
        pool_idx[pool_used] = (uint32_t)at;
        pool_val[pool_used++] = below(5) ? normalish() : wide();
        list.n++;
    }
    return list;
}

static struct gk_list dense_list(uint64_t lo, uint64_t hi)
{
    struct gk_list list = {.val = pool_val + pool_used, .n = hi - lo, .base = lo};

    for (uint64_t i = lo; i < hi; i++)
        pool_val[pool_used++] = normalish();
    return list;
}

/* One rank's push, in one to three chunks. */
static uint32_t random_push(struct gk_list *lists, uint64_t len, uint64_t gap, bool dense)
{
    uint32_t chunks = (uint32_t)(1 + below(3));
    uint64_t lo = 0;

    for (uint32_t c = 0; c < chunks; c++) {
        uint64_t hi = c + 1 == chunks ? len : lo + below(len - lo + 1);

        lists[c] = dense ? dense_list(lo, hi) : random_list(lo, hi, gap);
        lo = hi;
    }
    return chunks;
}

Test(cpu_sum, random_lists)
{
    static const uint64_t gaps[] = {1, 2, 3, 8, 30, 300};

    open_tables();
    random_state = 1;
    for (unsigned round = 0; round < ROUNDS(400); round++) {
        struct gk_list lists[LISTS_MAX + 3];
        uint64_t len = below(4) ? 1 + below(400) : below(LEN_MAX);
        uint64_t gap = gaps[below(6)];
        uint64_t ranks = below(len > 1000 ? 4 : 9);
        bool mixed = below(4) == 0;
        uint32_t count = 0;

        pool_used = 0;
        for (uint64_t r = 0; r < ranks && count + 3 <= LISTS_MAX; r++)
            if (POOL_MAX - pool_used >= len)
                count += random_push(lists + count, len, gap, mixed && below(3) == 0);
        expect(lists, count, len);
    }
    close_tables();
}

/* Around the union that makes it dense, and around the end of a tile of 64 K. */
Test(cpu_sum, border_between_sparse_and_dense)
{
    static const uint64_t lens[] = {1, 2, 3, 31, 64, 1000, 65535, 65536, 65537, 131072, 140001};

    open_tables();
    for (unsigned which = 0; which < sizeof(lens) / sizeof(lens[0]); which++) {
        for (unsigned place = 0; place < 3; place++) {
            uint64_t len = lens[which];
            uint64_t half = (len + 1) / 2;

            if (RIG_SHARE > 1 && len > 70000)
                continue;

            for (uint64_t n = half > 1 ? half - 2 : 0; n <= gk_min_u64(len, half + 1); n++) {
                struct gk_list list = {.idx = pool_idx, .val = pool_val, .n = n};

                for (uint64_t j = 0; j < n; j++) { /* at the start, at the end, spread */
                    uint64_t at = place == 0 ? j : place == 1 ? len - n + j : j * len / n;

                    pool_idx[j] = (uint32_t)at;
                    pool_val[j] = (float)(j % 97) - 48.0f;
                }
                expect(&list, 1, len);
            }
        }
    }
    close_tables();
}

/* In floats (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1: each order of the ranks must give its
 * own bits. */
Test(cpu_sum, adds_in_the_order_of_the_ranks)
{
    static const float terms[3] = {1e8f, 1.0f, -1e8f};
    static const uint8_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const float sums[6] = {0.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0.0f};
    const uint32_t at[1] = {5};

    open_tables();
    for (unsigned dense = 0; dense < 2; dense++) {
        for (unsigned order = 0; order < 6; order++) {
            struct gk_list lists[4] = {0};

            for (unsigned l = 0; l < 3; l++)
                lists[l] = (struct gk_list){.idx = at, .val = &terms[orders[order][l]], .n = 1};
            lists[3] = (struct gk_list){.idx = dense ? NULL : at, .n = 0};
            expect(lists, 4, 40);
            cr_assert_eq(val[dense ? 5 : 0], sums[order], "order %u", order);
        }
    }
    close_tables();
}

/* A touched coordinate is in the union whatever its sum is, and a sum is never -0. */
Test(cpu_sum, zeros_and_negative_zeros_are_kept)
{
    const uint32_t at[4] = {0, 3, 40, 99};
    const float a[4] = {-0.0f, 1.0f, 0.0f, -0.0f};
    const float b[4] = {-0.0f, -1.0f, -0.0f, 0.0f};
    const struct gk_list lists[2] = {{.idx = at, .val = a, .n = 4}, {.idx = at, .val = b, .n = 4}};

    open_tables();
    for (uint32_t count = 1; count <= 2; count++) {
        expect(lists, count, 100);
        cr_assert_eq(gk_float_bits(val[0]), 0);
        cr_assert_eq(gk_float_bits(val[3]), 0);
    }
    close_tables();
}

Test(cpu_sum, reports_what_is_not_finite)
{
    static const float spoilt[] = {INFINITY, -INFINITY, NAN, FLT_MAX};
    const float max = FLT_MAX;

    open_tables();
    for (unsigned s = 0; s < sizeof(spoilt) / sizeof(spoilt[0]); s++) {
        for (uint32_t at = 0; at < 70; at += 3) {
            for (unsigned dense = 0; dense < 2; dense++) {
                struct gk_list lists[3] = {{.idx = &at, .val = &max, .n = 1},
                                           {.idx = &at, .val = &spoilt[s], .n = 1},
                                           {.idx = dense ? NULL : &at, .n = 0}};

                expect(lists, 3, 70);
            }
        }
    }
    close_tables();
}

/* The first of several tiles spoils the whole. */
Test(cpu_sum, remembers_what_is_not_finite)
{
    open_tables();
    random_state = 2;
    for (unsigned dense = 0; dense < 2; dense++) {
        struct gk_list list;

        pool_used = 0;
        list = dense ? dense_list(0, 150000) : random_list(0, 150000, 40);
        pool_val[3] = INFINITY;
        expect(&list, 1, 150000);
    }
    close_tables();
}

Test(cpu_sum, nothing_came)
{
    const struct gk_list empty = {.idx = pool_idx, .val = pool_val, .n = 0};

    open_tables();
    expect(NULL, 0, 100000);
    expect(&empty, 1, 7);
    expect(&empty, 1, 0);
    close_tables();
}
