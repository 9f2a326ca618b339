/* Goal: batches are what data.h promises: within an epoch no sample twice, the union over the ranks
 * independent of how many there are, another order each epoch, and the same answer from a batcher
 * that is asked in any order. Method: all steps and ranks of a few epochs for a table of sizes,
 * counted. */
#include "worker/data/data.h"

#include "common/rng.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static const struct sizes {
    uint32_t samples, workers, batch;
} table[] = {{100, 1, 10}, {101, 4, 8}, {1438, 3, 32}, {7, 7, 1},
             {64, 2, 32},  {1, 1, 1},   {33, 2, 16},   {65, 1, 33}};

enum { TABLE_COUNT = sizeof(table) / sizeof(table[0]), SAMPLES_MAX = 1438 };

static void all_ranks(const struct sizes *sizes, uint64_t seed, uint64_t step, uint32_t *ret)
{
    const struct gk_dataset dataset = {.train_count = sizes->samples};

    for (uint32_t rank = 0; rank < sizes->workers; rank++) {
        struct gk_batcher batcher;

        cr_assert_eq(gk_batcher_init(&batcher, &dataset, seed, rank, sizes->workers, sizes->batch),
                     GK_OK);
        gk_batcher_at(&batcher, step, ret + rank * sizes->batch);
        gk_batcher_fini(&batcher);
    }
}

Test(data_batch, epoch_is_dealt_once)
{
    for (int t = 0; t < TABLE_COUNT; t++) {
        uint32_t dealt = table[t].workers * table[t].batch;
        uint32_t steps = table[t].samples / dealt;
        uint32_t samples[SAMPLES_MAX], first[SAMPLES_MAX] = {0};

        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            uint8_t seen[SAMPLES_MAX] = {0};

            for (uint32_t step = 0; step < steps; step++) {
                all_ranks(&table[t], 1, epoch * steps + step, samples);
                for (uint32_t i = 0; i < dealt; i++) {
                    cr_assert(samples[i] < table[t].samples && !seen[samples[i]]++, "case %d", t);
                }
                if (step == 0 && epoch == 0) {
                    memcpy(first, samples, dealt * sizeof(first[0]));
                } else if (step == 0 && dealt > 6) {
                    cr_assert_neq(memcmp(first, samples, dealt * sizeof(first[0])), 0, "case %d",
                                  t);
                }
            }
        }
    }
}

Test(data_batch, union_does_not_depend_on_workers)
{
    static const struct sizes one = {1438, 1, 96}, three = {1438, 3, 32}, many = {1438, 96, 1};
    uint32_t a[96], b[96], c[96];

    for (uint64_t step = 0; step < 40; step += 3) {
        all_ranks(&one, 9, step, a);
        all_ranks(&three, 9, step, b);
        all_ranks(&many, 9, step, c);
        cr_assert(!memcmp(a, b, sizeof(a)) && !memcmp(a, c, sizeof(a)), "step %u", (unsigned)step);
    }
    all_ranks(&one, 10, 0, a);
    all_ranks(&one, 9, 0, b);
    cr_assert_neq(memcmp(a, b, sizeof(a)), 0);
}

/* 3 x 7 from 10 samples: each is dealt twice, and the first of the permutation three times. */
Test(data_batch, small_set_is_dealt_cyclically)
{
    static const struct sizes sizes = {10, 3, 7};
    uint32_t samples[21], before[21] = {0};

    for (uint64_t step = 0; step < 5; step++) {
        uint32_t counts[10] = {0};

        all_ranks(&sizes, 4, step, samples);
        for (uint32_t i = 0; i < 21; i++) {
            cr_assert_lt(samples[i], 10);
            cr_assert_eq(samples[i], samples[i % 10]);
            counts[samples[i]]++;
        }
        for (uint32_t i = 0; i < 10; i++) {
            cr_assert_eq(counts[i], i == samples[0] ? 3 : 2);
        }
        cr_assert_neq(memcmp(samples, before, sizeof(samples)), 0);
        memcpy(before, samples, sizeof(samples));
    }
}

/* A batcher that has been asked before answers like a fresh one. */
Test(data_batch, steps_in_any_order)
{
    static const uint64_t steps[] = {
        0, 1, 0, 44, 45, 46, 3, 1000000, 999999, UINT64_C(1) << 40, 2, 44, UINT64_MAX};

    for (int t = 0; t < TABLE_COUNT; t++) {
        struct gk_dataset dataset = {.train_count = table[t].samples};
        struct gk_batcher batcher;
        uint32_t rank = table[t].workers - 1, batch = table[t].batch;
        uint32_t expected[SAMPLES_MAX], got[SAMPLES_MAX];

        cr_assert_eq(gk_batcher_init(&batcher, &dataset, 5, rank, table[t].workers, batch), GK_OK);
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
            all_ranks(&table[t], 5, steps[i], expected);
            gk_batcher_at(&batcher, steps[i], got);
            cr_assert_eq(memcmp(expected + rank * batch, got, batch * sizeof(got[0])), 0,
                         "case %d, step %zu", t, i);
        }
        gk_batcher_fini(&batcher);
        gk_batcher_fini(&batcher);
    }
}

/* Every trained model depends on which slice of which permutation is dealt. */
Test(data_batch, slices_of_the_permutation)
{
    static const uint64_t epochs[] = {0, 1, 77, UINT64_C(0x300000005)};
    static const struct sizes sizes = {101, 4, 8}; /* 3 steps an epoch, 5 samples left out */
    uint32_t permutation[101], samples[32];

    for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
        const struct gk_rng rng = {
            .seed = 6, .purpose = GK_RNG_BATCH, .a = epochs[i] & UINT32_MAX, .b = epochs[i] >> 32};

        gk_rng_permute(&rng, permutation, 101);
        for (uint32_t step = 0; step < 3; step++) {
            all_ranks(&sizes, 6, epochs[i] * 3 + step, samples);
            cr_assert_eq(memcmp(samples, permutation + step * 32, sizeof(samples)), 0,
                         "epoch %zu, step %u", i, step);
        }
    }
}

Test(data_batch, gather)
{
    static const uint32_t samples[] = {3, 0, 3, 1};
    float train[] = {0, 1, 10, 11, 20, 21, 30, 31}, x[8];
    uint32_t train_labels[] = {5, 6, 7, 8}, labels[4];
    struct gk_dataset dataset = {
        .features = 2, .train_count = 4, .train = train, .train_labels = train_labels};

    gk_dataset_gather(&dataset, samples, 4, x, labels);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert(x[2 * i] == train[2 * samples[i]] && x[2 * i + 1] == train[2 * samples[i] + 1]);
        cr_assert_eq(labels[i], samples[i] + 5);
    }
}
