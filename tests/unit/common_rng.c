/* Goal: random numbers never change, as every trained model depends on them.  Method: the published
 * answers of Philox4x32-10 through the library itself, golden values of our layout (computed by an
 * independent program), and rough checks of uniformity that a wrong shift or word order would fail.
 */
#include "common/rng.h"

#include <Random123/philox.h>

#include <criterion/criterion.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 uint128;

Test(rng, library_gives_published_answers)
{
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        philox4x32_ctr_t counter, block;
        philox4x32_key_t key;

        memcpy(counter.v, cases[i].counter, sizeof(counter.v));
        memcpy(key.v, cases[i].key, sizeof(key.v));
        block = philox4x32_R(10, counter, key);
        cr_assert_arr_eq(block.v, cases[i].expected, sizeof(block.v), "case %zu", i);
    }
}

Test(rng, layout_is_frozen)
{
    static const struct {
        struct gk_rng rng;
        uint64_t index;
        uint32_t expected;
    } cases[] = {
        {{0, GK_RNG_INIT, 0, 0}, 0, 0x6ad0c5ec},
        {{1, GK_RNG_BATCH, 3, 0}, 0, 0x8cc74651},
        {{1, GK_RNG_BATCH, 3, 0}, 1, 0x1e5f498c},
        {{1, GK_RNG_BATCH, 3, 0}, 7, 0x908a7e18},
        {{UINT64_C(0x0123456789abcdef), GK_RNG_RANDK, 1000, 17}, 123456789, 0x284096f5},
        {{UINT64_MAX, GK_RNG_IDENTITY, UINT32_MAX, UINT32_MAX},
         (UINT64_C(1) << 34) - 1,
         0x15c99dcc},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_eq(gk_rng_u32(&cases[i].rng, cases[i].index), cases[i].expected, "case %zu", i);
    }
}

Test(rng, every_part_of_the_stream_matters)
{
    const struct gk_rng base = {5, GK_RNG_INIT, 2, 3};
    struct gk_rng others[] = {base, base, base, base, base};

    others[0].seed = 6;
    others[1].seed = 5 | UINT64_C(1) << 32;
    others[2].purpose = GK_RNG_BATCH;
    others[3].a = 3;
    others[4].b = 2;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        unsigned same = 0;

        for (uint64_t index = 0; index < 64; index++) {
            same += gk_rng_u32(&base, index) == gk_rng_u32(&others[i], index);
        }
        cr_assert_eq(same, 0, "stream %zu", i);
    }
}

Test(rng, floats_are_uniform_and_below_one)
{
    enum { DRAWS = 1 << 16, BINS = 16 };
    const struct gk_rng rng = {42, GK_RNG_INIT, 0, 0};
    unsigned bins[BINS] = {0};
    double sum = 0, squares = 0, chi = 0;

    for (uint64_t i = 0; i < DRAWS; i++) {
        float x = gk_rng_float(&rng, i);

        cr_assert(x >= 0 && x < 1);
        cr_assert_eq((double)x * 0x1p24, (double)(gk_rng_u32(&rng, i) >> 8));
        sum += x;
        squares += (double)x * x;
        bins[(unsigned)(x * BINS)]++;
    }
    for (unsigned i = 0; i < BINS; i++) {
        double off = bins[i] - (double)DRAWS / BINS;

        chi += off * off * BINS / DRAWS;
    }
    cr_assert(fabs(sum / DRAWS - 0.5) < 0.005, "mean %g", sum / DRAWS);
    cr_assert(fabs(squares / DRAWS - 1.0 / 3) < 0.005, "square mean %g", squares / DRAWS);
    cr_assert(chi < 45, "chi square %g, 15 degrees of freedom", chi); /* p = 0.00008 */
}

Test(rng, below_is_a_product_of_128_bits)
{
    static const struct {
        struct gk_rng rng;
        uint64_t index, bound, expected;
    } cases[] = {
        {{7, GK_RNG_BATCH, 0, 0}, 0, 10, 0},
        {{7, GK_RNG_BATCH, 0, 0}, 1, 10, 7},
        {{7, GK_RNG_BATCH, 0, 0}, 5, UINT64_MAX, UINT64_C(14810029880789930998)},
        {{7, GK_RNG_BATCH, 9, 4},
         (UINT64_C(1) << 33) - 1,
         UINT64_C(1000000000000000),
         UINT64_C(91757746637076)},
        {{7, GK_RNG_BATCH, 9, 4}, 3, (UINT64_C(1) << 32) + 1, 597717461},
    };
    const struct gk_rng rng = {11, GK_RNG_RANDK, 1, 1};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_eq(gk_rng_below(&cases[i].rng, cases[i].index, cases[i].bound), cases[i].expected,
                     "case %zu", i);
    }
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bound =
            1 + gk_rng_u32(&rng, i) % 100 + ((uint64_t)gk_rng_u32(&rng, i + 1) << (i % 33));
        uint128 draw = gk_rng_u32(&rng, 2 * i) | (uint64_t)gk_rng_u32(&rng, 2 * i + 1) << 32;

        cr_assert_eq(gk_rng_below(&rng, i, bound), (uint64_t)(draw * bound >> 64), "index %lu", i);
        cr_assert_eq(gk_rng_below(&rng, i, 1), 0);
    }
}

static void check_permutation(const uint32_t *order, uint32_t count)
{
    bool *seen = calloc(count + 1, sizeof(*seen));

    for (uint32_t i = 0; i < count; i++) {
        cr_assert(order[i] < count && !seen[order[i]], "position %u of %u", i, count);
        seen[order[i]] = true;
    }
    free(seen);
}

Test(rng, permute_is_a_permutation)
{
    static const uint32_t golden[2][10] = {{7, 1, 0, 2, 5, 6, 9, 3, 4, 8},
                                           {9, 7, 0, 5, 1, 4, 8, 6, 3, 2}};
    static const uint32_t counts[] = {0, 1, 2, 3, 10, 1797, 60000};
    static uint32_t order[60000 + 1], other[60000 + 1];

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct gk_rng rng = {7, GK_RNG_BATCH, 0, 0};

        order[counts[i]] = other[counts[i]] = 0xdeadbeef;
        gk_rng_permute(&rng, order, counts[i]);
        check_permutation(order, counts[i]);
        rng.a = 1;
        gk_rng_permute(&rng, other, counts[i]);
        check_permutation(other, counts[i]);
        cr_assert(order[counts[i]] == 0xdeadbeef && other[counts[i]] == 0xdeadbeef);
        if (counts[i] == 10) {
            cr_assert_arr_eq(order, golden[0], sizeof(golden[0]));
            cr_assert_arr_eq(other, golden[1], sizeof(golden[1]));
        }
        if (counts[i] > 100) {
            uint32_t same = 0;

            for (uint32_t j = 0; j < counts[i]; j++) {
                same += order[j] == other[j];
            }
            cr_assert(same < 12, "%u fixed points of %u: expected about one", same, counts[i]);
        }
    }
}

Test(rng, permute_reaches_every_order_evenly)
{
    enum { EPOCHS = 6000 };
    unsigned hits[27] = {0};
    unsigned orders = 0;

    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        const struct gk_rng rng = {3, GK_RNG_BATCH, epoch, 0};
        uint32_t order[3];

        gk_rng_permute(&rng, order, 3);
        hits[order[0] * 9 + order[1] * 3 + order[2]]++;
    }
    for (unsigned i = 0; i < 27; i++) {
        orders += hits[i] > 0;
        cr_assert(hits[i] == 0 || (hits[i] > 850 && hits[i] < 1150), "order %u: %u of %d", i,
                  hits[i], EPOCHS);
    }
    cr_assert_eq(orders, 6);
}

Test(rng, index_beyond_the_stream_is_our_bug, .signal = SIGABRT)
{
    const struct gk_rng rng = {1, GK_RNG_INIT, 0, 0};

    (void)gk_rng_u32(&rng, UINT64_C(1) << 34);
}

Test(rng, a_beyond_32_bits_is_our_bug, .signal = SIGABRT)
{
    const struct gk_rng rng = {1, GK_RNG_INIT, UINT64_C(1) << 32, 0};

    (void)gk_rng_u32(&rng, 0);
}

Test(rng, b_beyond_32_bits_is_our_bug, .signal = SIGABRT)
{
    const struct gk_rng rng = {1, GK_RNG_INIT, 0, UINT64_C(1) << 32};

    (void)gk_rng_u32(&rng, 0);
}

Test(rng, bound_zero_is_our_bug, .signal = SIGABRT)
{
    const struct gk_rng rng = {1, GK_RNG_INIT, 0, 0};

    (void)gk_rng_below(&rng, 0, 0);
}
