#include "worker/data/source.h"

#include "common/assert.h"

#include <stdio.h>
#include <stdlib.h>

static enum gk_err parse_one(const struct gk_bytes *bytes, uint32_t dims_count,
                             struct gk_idx *ret_idx, struct gk_words *words)
{
    struct gk_idx idx;
    enum gk_err err = gk_idx_parse(bytes->at, bytes->count, &idx, words);

    if (err) {
        gk_words_prefix(words, "%s: ", bytes->name);
        return err;
    }
    if (idx.dims_count != dims_count) {
        gk_words_set(words, "%s: IDX magic %08x, expected %08x (%s)", bytes->name,
                     0x800u + (unsigned)idx.dims_count, 0x800u + (unsigned)dims_count,
                     dims_count == 3 ? "images" : "labels");
        return GK_E_CORRUPT;
    }
    *ret_idx = idx;
    return GK_OK;
}

enum gk_err gk_source_parse(const struct gk_bytes *images, const struct gk_bytes *labels,
                            struct gk_source *ret_source, struct gk_words *words)
{
    struct gk_source source;
    enum gk_err err = parse_one(images, 3, &source.images, words);

    if (!err) {
        err = parse_one(labels, 1, &source.labels, words);
    }
    if (err) {
        return err;
    }
    if (source.images.dims[0] != source.labels.dims[0]) {
        gk_words_set(words, "%s holds %u labels, but %s holds %u images", labels->name,
                     (unsigned)source.labels.dims[0], images->name,
                     (unsigned)source.images.dims[0]);
        return GK_E_CORRUPT;
    }
    for (uint32_t i = 0; i < source.labels.dims[0]; i++) {
        if (source.labels.data[i] >= GK_DATA_CLASSES) {
            gk_words_set(words, "%s: label %u of image %u is out of range, expected 0 to %d",
                         labels->name, (unsigned)source.labels.data[i], (unsigned)i,
                         GK_DATA_CLASSES - 1);
            return GK_E_CORRUPT;
        }
    }
    *ret_source = source;
    return GK_OK;
}

enum gk_err gk_dataset_new(const struct gk_source *source, uint32_t train_count,
                           uint32_t test_count, struct gk_dataset **ret_dataset,
                           struct gk_words *words)
{
    struct gk_dataset *dataset = calloc(1, sizeof(*dataset));
    /* At most GK_DATA_BYTES_MAX, as is count * features: gk_idx_parse saw to that. */
    size_t features = (size_t)source->images.dims[1] * source->images.dims[2];

    GK_ASSERT(train_count > 0 && test_count > 0);
    if (!dataset) {
        goto out;
    }
    dataset->rows = source->images.dims[1];
    dataset->columns = source->images.dims[2];
    dataset->features = (uint32_t)features;
    dataset->channels = 1;
    dataset->classes = GK_DATA_CLASSES;
    dataset->train_count = train_count;
    dataset->test_count = test_count;
    dataset->train = calloc(train_count * features, sizeof(*dataset->train));
    dataset->train_labels = calloc(train_count, sizeof(*dataset->train_labels));
    dataset->test = calloc(test_count * features, sizeof(*dataset->test));
    dataset->test_labels = calloc(test_count, sizeof(*dataset->test_labels));
    if (!dataset->train || !dataset->train_labels || !dataset->test || !dataset->test_labels) {
        goto out;
    }
    *ret_dataset = dataset;
    return GK_OK;
out:
    gk_dataset_free(dataset);
    gk_words_set(words, "out of memory for %u images of %zu values",
                 (unsigned)(train_count + test_count), features);
    return GK_E_NOMEM;
}

static void put_image(float *target, const uint8_t *pixels, size_t count, float white)
{
    for (size_t i = 0; i < count; i++) {
        target[i] = (float)pixels[i] / white;
    }
}

void gk_dataset_put_train(struct gk_dataset *dataset, uint32_t target,
                          const struct gk_source *source, uint32_t index, float white)
{
    size_t features = dataset->features;

    GK_ASSERT(target < dataset->train_count && index < source->images.dims[0]);
    put_image(dataset->train + target * features, source->images.data + index * features, features,
              white);
    dataset->train_labels[target] = source->labels.data[index];
}

void gk_dataset_put_test(struct gk_dataset *dataset, uint32_t target,
                         const struct gk_source *source, uint32_t index, float white)
{
    size_t features = dataset->features;

    GK_ASSERT(target < dataset->test_count && index < source->images.dims[0]);
    put_image(dataset->test + target * features, source->images.data + index * features, features,
              white);
    dataset->test_labels[target] = source->labels.data[index];
}
