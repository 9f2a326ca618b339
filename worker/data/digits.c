#include "worker/data/digits.h"

#include "worker/data/source.h"

#include <stdio.h>

enum { DIGITS_TEST_EVERY = 5 };

/* The images come writer by writer: a test set cut from the tail would be that of other people and
 * several points harder.  Every fifth image gives both parts the same writers. */
static void deal(struct gk_dataset *dataset, const struct gk_source *source)
{
    const float white = 16.0f;
    uint32_t train_count = 0;
    uint32_t test_count = 0;

    for (uint32_t i = 0; i < source->images.dims[0]; i++) {
        if (i % DIGITS_TEST_EVERY == DIGITS_TEST_EVERY - 1) {
            gk_dataset_put_test(dataset, test_count++, source, i, white);
        } else {
            gk_dataset_put_train(dataset, train_count++, source, i, white);
        }
    }
}

enum gk_err gk_dataset_open_digits(struct gk_dataset **ret_dataset, struct gk_words *words)
{
    const struct gk_bytes images = {gk_digits_images, gk_digits_images_count,
                                    "digits-images (built in)"};
    const struct gk_bytes labels = {gk_digits_labels, gk_digits_labels_count,
                                    "digits-labels (built in)"};
    struct gk_source source;
    struct gk_dataset *dataset;
    uint32_t test_count;
    enum gk_err err = gk_source_parse(&images, &labels, &source, words);

    if (err) {
        return err;
    }
    test_count = source.images.dims[0] / DIGITS_TEST_EVERY;
    err = gk_dataset_new(&source, source.images.dims[0] - test_count, test_count, &dataset, words);
    if (err) {
        return err;
    }
    deal(dataset, &source);
    (void)snprintf(dataset->note, sizeof(dataset->note), "every fifth image is for testing");
    *ret_dataset = dataset;
    return GK_OK;
}
