/* Goal: the batches of a dealer are what dealer.h promises, for each kind of data set.  Method:
 * tiny data sets made in memory whose values say where they come from; every batch from a dealer
 * that is asked in another order, too. */
#include "worker/data/dealer.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static struct gk_dealer *new_feed(const struct gk_dataset *dataset, uint64_t seed, uint32_t rank,
                                  uint32_t workers, uint32_t batch)
{
    const struct gk_dealer_setup setup = {.dataset = dataset,
                                          .seed = seed,
                                          .rank = rank,
                                          .workers = workers,
                                          .batch = batch,
                                          .test_batch = 3};
    struct gk_dealer *dealer = NULL;

    cr_assert_eq(gk_dealer_new(&setup, &dealer), GK_OK);
    return dealer;
}

/* Sets of floats: exactly what the batcher and gather give, and the test part in slices. */
Test(data_dealer, floats)
{
    enum { TRAIN = 11, TEST = 7, BATCH = 2 };
    float train[TRAIN * 2], test[TEST * 2], x[BATCH * 2];
    uint32_t train_labels[TRAIN], test_labels[TEST], samples[BATCH], labels[BATCH];
    const struct gk_dataset dataset = {.features = 2,
                                       .rows = 1,
                                       .columns = 2,
                                       .channels = 1,
                                       .classes = 10,
                                       .train_count = TRAIN,
                                       .test_count = TEST,
                                       .train = train,
                                       .train_labels = train_labels,
                                       .test = test,
                                       .test_labels = test_labels};
    struct gk_dealer *dealer = new_feed(&dataset, 4, 1, 3, BATCH);
    struct gk_batcher batcher;
    struct gk_samples got;

    for (int i = 0; i < TRAIN * 2; i++) {
        train[i] = (float)i;
        train_labels[i / 2] = (uint32_t)i / 2 % 10;
    }
    for (int i = 0; i < TEST * 2; i++) {
        test[i] = (float)-i;
        test_labels[i / 2] = (uint32_t)i / 2;
    }
    cr_assert_eq(gk_batcher_init(&batcher, &dataset, 4, 1, 3, BATCH), GK_OK);
    for (uint64_t step = 0; step < 7; step++) {
        gk_dealer_train(dealer, step, &got);
        gk_batcher_at(&batcher, step, samples);
        gk_dataset_gather(&dataset, samples, BATCH, x, labels);
        cr_assert(got.count == BATCH && !got.tokens && !got.fresh);
        cr_assert(!memcmp(got.x, x, sizeof(x)) && !memcmp(got.labels, labels, sizeof(labels)));
    }
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(gk_dealer_test(dealer, i, &got));
        cr_assert(got.count == (i < 2 ? 3 : 1) && got.x == test + 6 * i &&
                  got.labels == test_labels + 3 * i);
    }
    cr_assert(!gk_dealer_test(dealer, 3, &got));
    gk_batcher_fini(&batcher);
    gk_dealer_free(dealer);
    gk_dealer_free(NULL);
}

enum { SIDE = 12, CHANNELS = 3, SIZE = SIDE * SIDE * CHANNELS, IMAGES = 40 };

static struct gk_dataset pixels_set(uint8_t *pixels, uint32_t *labels)
{
    struct gk_dataset dataset = {.features = SIZE,
                                 .rows = SIDE,
                                 .columns = SIDE,
                                 .channels = CHANNELS,
                                 .classes = 10,
                                 .train_count = IMAGES,
                                 .test_count = IMAGES,
                                 .train_labels = labels,
                                 .test_labels = labels,
                                 .train_pixels = pixels,
                                 .test_pixels = pixels};

    for (uint32_t i = 0; i < IMAGES; i++) {
        labels[i] = i;
        for (uint32_t p = 0; p < SIDE * SIDE; p++) {
            pixels[i * SIZE + p * CHANNELS] = (uint8_t)(1 + p / SIDE);     /* row */
            pixels[i * SIZE + p * CHANNELS + 1] = (uint8_t)(1 + p % SIDE); /* column */
            pixels[i * SIZE + p * CHANNELS + 2] = (uint8_t)(100 + i);
        }
    }
    for (int c = 0; c < CHANNELS; c++) {
        dataset.mean[c] = 0.0f;
        dataset.deviation[c] = 1.0f / 255.0f; /* so that values are pixels */
    }
    return dataset;
}

/* Which of all 9 x 9 x 2 views shows the image like this; -1: none. */
static int view_of(const float *x, uint32_t image)
{
    for (int view = 0; view < 162; view++) {
        bool same = true;

        for (int p = 0; p < SIDE * SIDE && same; p++) {
            int row = p / SIDE + view / 18 - 4, column = p % SIDE + view / 2 % 9 - 4;
            bool inside = row >= 0 && column >= 0 && row < SIDE && column < SIDE;
            int from = view % 2 ? SIDE - 1 - column : column;
            const float *pixel = x + p * CHANNELS;

            same = abs((int)(pixel[0] * 8) - (inside ? 8 * (row + 1) : 0)) <= 1 &&
                   abs((int)(pixel[1] * 8) - (inside ? 8 * (from + 1) : 0)) <= 1 &&
                   abs((int)(pixel[2] * 8) - (inside ? 8 * (100 + (int)image) : 0)) <= 1;
        }
        if (same) {
            return view;
        }
    }
    return -1;
}

/* Every shown image is a view of the right one, all shifts and both mirrors occur, another seed,
 * step or rank shows another view, and the test part is shown as it is. */
Test(data_dealer, pixels)
{
    static uint8_t pixels[IMAGES * SIZE];
    uint32_t labels[IMAGES], seen[18] = {0};
    const struct gk_dataset dataset = pixels_set(pixels, labels);
    struct gk_dealer *dealer = new_feed(&dataset, 4, 0, 2, 10);
    struct gk_dealer *others[2] = {new_feed(&dataset, 5, 0, 2, 10),
                                   new_feed(&dataset, 4, 1, 2, 10)};
    struct gk_samples got;
    int views[30];

    for (uint32_t i = 0; i < 30; i++) {
        gk_dealer_train(dealer, i / 10, &got);
        views[i] = view_of(got.x + i % 10 * SIZE, got.labels[i % 10]);
        cr_assert_geq(views[i], 0, "step %u, image %u", i / 10, i % 10);
        seen[views[i] / 18]++;
        seen[9 + views[i] / 2 % 9]++;
        cr_assert(!got.fresh && !got.tokens && got.count == 10);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t same = 0;

        for (uint32_t j = 0; j < 30; j++) {
            gk_dealer_train(others[i], j / 10, &got);
            same += view_of(got.x + j % 10 * SIZE, got.labels[j % 10]) == views[j];
        }
        cr_assert_lt(same, 6, "%u of 30 views are the same", same);
    }
    for (uint32_t step = 3; step < 40; step++) {
        gk_dealer_train(dealer, step, &got);
        for (uint32_t j = 0; j < 10; j++) {
            int view = view_of(got.x + j * SIZE, got.labels[j]);

            seen[view / 18]++;
            seen[9 + view / 2 % 9]++;
        }
    }
    for (int i = 0; i < 18; i++) {
        cr_assert(seen[i] > 20 && seen[i] < 70, "shift %d: %u of 400", i % 9 - 4, seen[i]);
    }
    gk_dealer_train(dealer, 1, &got); /* in another order: the same */
    cr_assert_eq(view_of(got.x, got.labels[0]), views[10]);
    for (uint32_t i = 0; i < 14; i++) {
        cr_assert(gk_dealer_test(dealer, i, &got) && got.count == (i < 13 ? 3 : 1));
        cr_assert_eq(view_of(got.x, got.labels[0]), 4 * 18 + 4 * 2);
    }
    cr_assert(!gk_dealer_test(dealer, 14, &got));
    gk_dealer_free(dealer);
    gk_dealer_free(others[0]);
    gk_dealer_free(others[1]);
}

/* A text whose characters are their places; positions beyond 256 wrap. */
enum { TRAIN_CHARACTERS = 250, TEST_CHARACTERS = 90, SEQUENCE = 5 };

static struct gk_dataset text_set(uint8_t *text)
{
    for (int i = 0; i < TRAIN_CHARACTERS + TEST_CHARACTERS; i++) {
        text[i] = (uint8_t)(i < TRAIN_CHARACTERS ? i : i - TRAIN_CHARACTERS);
    }
    return (struct gk_dataset){.classes = 256,
                               .sequence = SEQUENCE,
                               .text = text,
                               .train_characters = TRAIN_CHARACTERS,
                               .test_characters = TEST_CHARACTERS,
                               .train_count = (TRAIN_CHARACTERS - 1) / SEQUENCE,
                               .test_count = (TEST_CHARACTERS - 1) / SEQUENCE};
}

/* In an epoch the streams of all ranks read the ring once, each without a gap; then they begin
 * elsewhere. */
Test(data_dealer, streams)
{
    static const struct {
        uint32_t workers, batch, steps; /* of an epoch */
    } cases[] = {{1, 1, 50}, {2, 5, 5}, {5, 2, 5}, {3, 1, 16}, {7, 10, 1}, {1, 400, 1}};
    uint8_t text[TRAIN_CHARACTERS + TEST_CHARACTERS];
    const struct gk_dataset dataset = text_set(text);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t batch = cases[i].batch, seen[TRAIN_CHARACTERS] = {0};
        uint32_t dealt = cases[i].workers * batch * cases[i].steps * SEQUENCE;

        for (uint32_t rank = 0; rank < cases[i].workers; rank++) {
            struct gk_dealer *dealer = new_feed(&dataset, 9, rank, cases[i].workers, batch);
            uint32_t last[400] = {0}, first[2] = {0};
            struct gk_samples got;

            for (uint64_t step = 0; step < 2 * cases[i].steps; step++) {
                bool fresh = step % cases[i].steps == 0;

                gk_dealer_train(dealer, step, &got);
                cr_assert(got.count == batch && !got.x && got.fresh == fresh);
                first[step / cases[i].steps] = fresh ? got.tokens[0] : first[step / cases[i].steps];
                for (uint32_t b = 0; b < batch; b++) {
                    cr_assert(fresh || got.tokens[b] == last[b], "case %zu, step %u", i,
                              (unsigned)step);
                    for (uint32_t t = 0; t < SEQUENCE; t++) {
                        uint32_t at = got.tokens[t * batch + b];

                        cr_assert_eq(got.labels[t * batch + b], (at + 1) % TRAIN_CHARACTERS);
                        cr_assert(t == 0 || at == got.labels[(t - 1) * batch + b]);
                        seen[at] += step < cases[i].steps;
                    }
                    last[b] = got.labels[(SEQUENCE - 1) * batch + b];
                }
            }
            cr_assert_neq(first[0], first[1], "case %zu", i);
            gk_dealer_free(dealer);
        }
        for (int j = 0; j < TRAIN_CHARACTERS; j++) {
            cr_assert(dealt > TRAIN_CHARACTERS || seen[j] <= 1, "case %zu, character %d", i, j);
            cr_assert(dealt != TRAIN_CHARACTERS || seen[j] == 1, "case %zu, character %d", i, j);
        }
    }
}

Test(data_dealer, streams_in_any_order)
{
    static const uint64_t steps[] = {0, 7, 7, 3, UINT64_C(1) << 40, 12, 0, UINT64_MAX, 7};
    uint8_t text[TRAIN_CHARACTERS + TEST_CHARACTERS];
    const struct gk_dataset dataset = text_set(text);
    struct gk_dealer *one = new_feed(&dataset, 2, 1, 2, 4);
    struct gk_samples a, b;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct gk_dealer *other = new_feed(&dataset, 2, 1, 2, 4);

        gk_dealer_train(one, steps[i], &a);
        gk_dealer_train(other, steps[i], &b);
        cr_assert(!memcmp(a.tokens, b.tokens, 4 * SEQUENCE * sizeof(*a.tokens)) &&
                  !memcmp(a.labels, b.labels, 4 * SEQUENCE * sizeof(*a.labels)) &&
                  a.fresh == b.fresh);
        gk_dealer_free(other);
    }
    gk_dealer_free(one);
}

/* 17 sequences in 3 streams: 5 batches that continue each other, none of the training part in it.
 */
Test(data_dealer, test_text)
{
    uint8_t text[TRAIN_CHARACTERS + TEST_CHARACTERS];
    const struct gk_dataset dataset = text_set(text);
    struct gk_dealer *dealer = new_feed(&dataset, 2, 0, 1, 1);
    uint32_t seen[TEST_CHARACTERS] = {0};
    struct gk_samples got;

    for (uint32_t i = 0; i < 5; i++) {
        cr_assert(gk_dealer_test(dealer, i, &got));
        cr_assert(got.count == 3 && got.fresh == (i == 0));
        for (uint32_t b = 0; b < 3; b++) {
            for (uint32_t t = 0; t < SEQUENCE; t++) {
                cr_assert_eq(got.tokens[t * 3 + b], b * 25 + i * SEQUENCE + t);
                cr_assert_eq(got.labels[t * 3 + b], b * 25 + i * SEQUENCE + t + 1);
                seen[got.tokens[t * 3 + b]]++;
            }
        }
    }
    cr_assert(!gk_dealer_test(dealer, 5, &got));
    for (int i = 0; i < 75; i++) {
        cr_assert_eq(seen[i], 1);
    }
    gk_dealer_free(dealer);
}
