/* Goal: the built-in set is the published one, and is split and scaled as documented.  Method:
 * counts, class counts and the sum of all pixels that the published set is known for; every image
 * of both parts against the embedded files. */
#include "worker/data/data.h"
#include "worker/data/digits.h"

#include <criterion/criterion.h>

#include <string.h>

enum { IMAGES_COUNT = 1797, PIXELS_COUNT = 64 };

static struct gk_dataset *open_digits(void)
{
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {""};

    cr_assert_eq(gk_dataset_open("digits", &dataset, &words), GK_OK, "%s", words.text);
    return dataset;
}

Test(data_digits, shape)
{
    struct gk_dataset *dataset = open_digits();

    cr_assert_str_eq(dataset->name, "digits");
    cr_assert(strstr(dataset->note, "fifth"));
    cr_assert(dataset->rows == 8 && dataset->columns == 8 && dataset->features == 64 &&
              dataset->classes == 10);
    cr_assert(dataset->train_count == 1438 && dataset->test_count == 359);
    gk_dataset_free(dataset);
}

Test(data_digits, content)
{
    static const uint32_t class_counts[10] = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
    struct gk_dataset *dataset = open_digits();
    uint32_t counts[10] = {0};
    uint32_t train = 0, test = 0;
    double sum = 0.0;

    cr_assert_eq(gk_digits_images_count, 16 + IMAGES_COUNT * PIXELS_COUNT);
    cr_assert_eq(gk_digits_labels_count, 8 + IMAGES_COUNT);
    for (uint32_t i = 0; i < IMAGES_COUNT; i++) {
        uint32_t is_test = i % 5 == 4;
        const float *x =
            is_test ? dataset->test + test * PIXELS_COUNT : dataset->train + train * PIXELS_COUNT;
        uint32_t label = is_test ? dataset->test_labels[test++] : dataset->train_labels[train++];

        cr_assert_eq(label, gk_digits_labels[8 + i], "image %u", i);
        counts[label]++;
        for (uint32_t j = 0; j < PIXELS_COUNT; j++) {
            cr_assert_eq(x[j] * 16.0f, (float)gk_digits_images[16 + i * PIXELS_COUNT + j],
                         "image %u", i);
            cr_assert(x[j] >= 0.0f && x[j] <= 1.0f, "image %u", i);
            sum += x[j];
        }
    }
    cr_assert(train == dataset->train_count && test == dataset->test_count);
    cr_assert_eq(memcmp(counts, class_counts, sizeof(counts)), 0);
    cr_assert_eq(sum * 16.0, 561718.0);
    gk_dataset_free(dataset);
}

Test(data_digits, names)
{
    static const char *const unknown[] = {"",        "digit",   "digits ", "mnist",
                                          "MNIST:x", "cifar:x", "digits:x"};

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        struct gk_dataset *dataset = NULL;
        struct gk_words words = {""};

        cr_assert_eq(gk_dataset_open(unknown[i], &dataset, &words), GK_E_CONFIG, "%s", unknown[i]);
        cr_assert(strstr(words.text, unknown[i]) &&
                      strstr(words.text, "mnist:DIR, cifar10:DIR or "),
                  "%s", words.text);
        cr_assert_null(dataset);
    }
    gk_dataset_free(NULL);
}
