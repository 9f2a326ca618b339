#include "worker/data/dealer.h"

#include "common/assert.h"
#include "common/rng.h"

#include <stdlib.h>
#include <string.h>

/* How far an image is moved at most, in each direction. */
enum { SHIFT_MAX = 4, DRAWS = 3 };

struct gk_dealer {
    struct gk_dealer_setup setup;
    struct gk_batcher batcher;
    uint32_t test_streams; /* of text */
    uint32_t *samples;     /* batch */
    float *x;              /* NULL: text */
    uint32_t *tokens;      /* NULL: images */
    uint32_t *labels;
    float values[GK_DATA_CHANNELS_MAX][256]; /* of pixels, by channel */
};

static void fill_values(struct gk_dealer *dealer)
{
    const struct gk_dataset *dataset = dealer->setup.dataset;

    for (uint32_t c = 0; c < dataset->channels; c++) {
        for (uint32_t i = 0; i < 256; i++) {
            dealer->values[c][i] = ((float)i / 255.0f - dataset->mean[c]) / dataset->deviation[c];
        }
    }
}

static enum gk_err allocate(struct gk_dealer *dealer)
{
    const struct gk_dealer_setup *setup = &dealer->setup;
    const struct gk_dataset *dataset = setup->dataset;
    size_t most = setup->batch > setup->test_batch ? setup->batch : setup->test_batch;

    if (dataset->sequence) {
        dealer->tokens = calloc(most * dataset->sequence, sizeof(*dealer->tokens));
        dealer->labels = calloc(most * dataset->sequence, sizeof(*dealer->labels));
        return dealer->tokens && dealer->labels ? GK_OK : GK_E_NOMEM;
    }
    if (dataset->train_pixels) {
        fill_values(dealer);
    }
    dealer->samples = calloc(setup->batch, sizeof(*dealer->samples));
    dealer->labels = calloc(most, sizeof(*dealer->labels));
    dealer->x = calloc(most * dataset->features, sizeof(*dealer->x));
    if (!dealer->samples || !dealer->labels || !dealer->x) {
        return GK_E_NOMEM;
    }
    return gk_batcher_init(&dealer->batcher, dataset, setup->seed, setup->rank, setup->workers,
                           setup->batch);
}

enum gk_err gk_dealer_new(const struct gk_dealer_setup *setup, struct gk_dealer **ret_feed)
{
    struct gk_dealer *dealer = calloc(1, sizeof(*dealer));
    enum gk_err err;

    GK_ASSERT(setup->batch > 0 && setup->test_batch > 0 && setup->rank < setup->workers);
    if (!dealer) {
        return GK_E_NOMEM;
    }
    dealer->setup = *setup;
    dealer->test_streams = setup->test_batch < setup->dataset->test_count
                               ? setup->test_batch
                               : setup->dataset->test_count;
    err = allocate(dealer);
    if (err) {
        gk_dealer_free(dealer);
        return err;
    }
    *ret_feed = dealer;
    return GK_OK;
}

void gk_dealer_free(struct gk_dealer *dealer)
{
    if (!dealer) {
        return;
    }
    gk_batcher_fini(&dealer->batcher);
    free(dealer->samples);
    free(dealer->x);
    free(dealer->tokens);
    free(dealer->labels);
    free(dealer);
}

/* How an image is shown: pixel (r, c) of the result is pixel (r + down, c + right) of the image, or
 * of its mirror image. */
struct view {
    int32_t down, right;
    bool mirrored;
};

static struct view draw_view(const struct gk_dealer *dealer, uint64_t step, uint32_t sample)
{
    const struct gk_rng rng = {.seed = dealer->setup.seed,
                               .purpose = GK_RNG_AUGMENT,
                               .a = step & UINT32_MAX,
                               .b = dealer->setup.rank};
    uint64_t draw = (uint64_t)sample * DRAWS;
    const uint64_t places = 2 * SHIFT_MAX + 1;

    return (struct view){.down = (int32_t)gk_rng_below(&rng, draw, places) - SHIFT_MAX,
                         .right = (int32_t)gk_rng_below(&rng, draw + 1, places) - SHIFT_MAX,
                         .mirrored = gk_rng_below(&rng, draw + 2, 2) == 1};
}

static void show(const struct gk_dealer *dealer, const uint8_t *pixels, const struct view *view,
                 float *x)
{
    const struct gk_dataset *dataset = dealer->setup.dataset;
    const int32_t rows = (int32_t)dataset->rows;
    const int32_t columns = (int32_t)dataset->columns;
    const uint32_t channels = dataset->channels;

    for (int32_t i = 0; i < rows * columns; i++) {
        int32_t row = i / columns + view->down;
        int32_t column = i % columns + view->right;
        bool inside = row >= 0 && row < rows && column >= 0 && column < columns;
        const uint8_t *pixel = pixels;

        if (inside) {
            column = view->mirrored ? columns - 1 - column : column;
            pixel += (uint32_t)(row * columns + column) * channels;
        }
        for (uint32_t c = 0; c < channels; c++) {
            *x++ = dealer->values[c][inside ? pixel[c] : 0];
        }
    }
}

static void train_images(struct gk_dealer *dealer, uint64_t step)
{
    const struct gk_dataset *dataset = dealer->setup.dataset;
    const size_t features = dataset->features;

    gk_batcher_at(&dealer->batcher, step, dealer->samples);
    if (!dataset->train_pixels) {
        gk_dataset_gather(dataset, dealer->samples, dealer->setup.batch, dealer->x, dealer->labels);
        return;
    }
    for (uint32_t i = 0; i < dealer->setup.batch; i++) {
        const struct view view = draw_view(dealer, step, i);

        show(dealer, dataset->train_pixels + dealer->samples[i] * features, &view,
             dealer->x + i * features);
        dealer->labels[i] = dataset->train_labels[dealer->samples[i]];
    }
}

/* Where the streams of a text stand: `first` of stream 0, the others behind by equal parts of
 * `length`; positions are counted on a ring of `ring` characters. */
struct reading {
    const uint8_t *text;
    uint64_t ring, first, length;
    uint64_t streams, stream; /* of the whole job, and of the first sample here */
};

static void read_text(struct gk_dealer *dealer, const struct reading *reading, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = reading->first + (reading->stream + i) * reading->length / reading->streams;

        for (uint32_t t = 0; t < dealer->setup.dataset->sequence; t++) {
            dealer->tokens[(uint64_t)t * count + i] = reading->text[(at + t) % reading->ring];
            dealer->labels[(uint64_t)t * count + i] = reading->text[(at + t + 1) % reading->ring];
        }
    }
}

static bool train_text(struct gk_dealer *dealer, uint64_t step)
{
    const struct gk_dealer_setup *setup = &dealer->setup;
    const struct gk_dataset *dataset = setup->dataset;
    const uint64_t streams = (uint64_t)setup->workers * setup->batch;
    uint64_t steps = dataset->train_characters / streams / dataset->sequence;
    struct gk_rng rng = {.seed = setup->seed, .purpose = GK_RNG_BATCH};
    struct reading reading = {.text = dataset->text,
                              .ring = dataset->train_characters,
                              .length = dataset->train_characters,
                              .streams = streams,
                              .stream = (uint64_t)setup->rank * setup->batch};

    steps = steps > 0 ? steps : 1;
    rng.a = step / steps & UINT32_MAX;
    rng.b = step / steps >> 32;
    reading.first =
        gk_rng_below(&rng, 0, dataset->train_characters) + step % steps * dataset->sequence;
    read_text(dealer, &reading, setup->batch);
    return step % steps == 0;
}

void gk_dealer_train(struct gk_dealer *dealer, uint64_t step, struct gk_samples *ret_samples)
{
    bool fresh = false;

    if (dealer->tokens) {
        fresh = train_text(dealer, step);
    } else {
        train_images(dealer, step);
    }
    *ret_samples = (struct gk_samples){.x = dealer->x,
                                       .tokens = dealer->tokens,
                                       .labels = dealer->labels,
                                       .count = dealer->setup.batch,
                                       .fresh = fresh};
}

static bool test_text(struct gk_dealer *dealer, uint32_t index, struct gk_samples *ret_samples)
{
    const struct gk_dataset *dataset = dealer->setup.dataset;
    uint64_t windows = dataset->test_count / dealer->test_streams;
    const struct reading reading = {.text = dataset->text + dataset->train_characters,
                                    .ring = dataset->test_characters,
                                    .first = (uint64_t)index * dataset->sequence,
                                    .length = windows * dealer->test_streams * dataset->sequence,
                                    .streams = dealer->test_streams};

    if (index >= windows) {
        return false;
    }
    read_text(dealer, &reading, dealer->test_streams);
    *ret_samples = (struct gk_samples){.tokens = dealer->tokens,
                                       .labels = dealer->labels,
                                       .count = dealer->test_streams,
                                       .fresh = index == 0};
    return true;
}

bool gk_dealer_test(struct gk_dealer *dealer, uint32_t index, struct gk_samples *ret_samples)
{
    const struct gk_dataset *dataset = dealer->setup.dataset;
    const uint64_t first = (uint64_t)index * dealer->setup.test_batch;
    const struct view whole = {.mirrored = false};
    uint64_t left;

    if (dealer->tokens) {
        return test_text(dealer, index, ret_samples);
    }
    if (first >= dataset->test_count) {
        return false;
    }
    left = dataset->test_count - first;
    *ret_samples = (struct gk_samples){
        .x = dealer->x,
        .labels = dataset->test_labels + first,
        .count = left < dealer->setup.test_batch ? (uint32_t)left : dealer->setup.test_batch};
    if (!dataset->test_pixels) {
        ret_samples->x = dataset->test + first * dataset->features;
        return true;
    }
    for (uint32_t i = 0; i < ret_samples->count; i++) {
        show(dealer, dataset->test_pixels + (first + i) * dataset->features, &whole,
             dealer->x + (size_t)i * dataset->features);
    }
    return true;
}
