/* Goal: cifar10:DIR and text:FILE read what they should, and refuse each kind of wrong file in one
 * line that names it, what is wrong and what was expected.  Method: small files made here; one
 * thing broken at a time. */
#include "worker/data/data.h"
#include "data_folder.h"

#include <criterion/criterion.h>
#include <zlib.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 32, PIXELS = SIDE * SIDE, RECORD = 1 + 3 * PIXELS };

TestSuite(data_files, .init = make_folder, .fini = remove_folder);

static void put(const char *file, const void *bytes, size_t count, bool gzip)
{
    char path[512];
    gzFile stream;

    path_of(path, sizeof(path), file);
    stream = gzopen(path, gzip ? "wb" : "wbT"); /* T: as it is */
    cr_assert(stream && (count == 0 || gzwrite(stream, bytes, (unsigned)count) == (int)count));
    cr_assert_eq(gzclose(stream), Z_OK);
}

static uint8_t pixel_of(uint32_t image, uint32_t channel, uint32_t pixel)
{
    return (uint8_t)(image * 7 + channel * 50 + pixel % 61);
}

/* Images first, first + 1, ...: image i has label i mod 10. */
static void put_images(const char *file, uint32_t first, uint32_t count, bool gzip)
{
    uint8_t *bytes = malloc((size_t)count * RECORD);

    for (uint32_t i = 0; i < count; i++) {
        bytes[i * RECORD] = (uint8_t)((first + i) % 10);
        for (uint32_t p = 0; p < 3 * PIXELS; p++) {
            bytes[i * RECORD + 1 + p] = pixel_of(first + i, p / PIXELS, p % PIXELS);
        }
    }
    put(file, bytes, (size_t)count * RECORD, gzip);
    free(bytes);
}

static struct gk_dataset *open_set(const char *prefix, const char *file)
{
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {""};
    char name[512];

    (void)snprintf(name, sizeof(name), "%s%s%s%s", prefix, folder, file ? "/" : "",
                   file ? file : "");
    cr_assert_eq(gk_dataset_open(name, &dataset, &words), GK_OK, "%s", words.text);
    cr_assert(!strcmp(dataset->name, name) || strlen(name) >= sizeof(dataset->name));
    return dataset;
}

static void check_error(const char *name, enum gk_err expected, const char *part)
{
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {""};
    char whole[512];
    enum gk_err err;

    (void)snprintf(whole, sizeof(whole), name, folder);
    err = gk_dataset_open(whole, &dataset, &words);
    cr_assert_eq(err, expected, "expected \"%s\", got %s: %s", part, gk_err_name(err), words.text);
    cr_assert(strstr(words.text, part), "expected \"%s\" in: %s", part, words.text);
    cr_assert_null(dataset);
    cr_assert_eq(gk_dataset_open(whole, &dataset, NULL), expected);
}

Test(data_files, cifar)
{
    struct gk_dataset *dataset;

    put_images("data_batch_1.bin", 0, 4, false);
    put_images("data_batch_2.bin.gz", 4, 3, true);
    put_images("data_batch_5.bin", 7, 1, false);
    put_images("test_batch.bin", 100, 5, false);
    dataset = open_set("cifar10:", NULL);
    cr_assert(dataset->train_count == 8 && dataset->test_count == 5 && dataset->classes == 10);
    cr_assert(dataset->rows == SIDE && dataset->columns == SIDE && dataset->channels == 3 &&
              dataset->features == 3 * PIXELS && dataset->sequence == 0 && !dataset->train);
    cr_assert(strstr(dataset->note, "3 of the 5"), "%s", dataset->note);
    for (uint32_t i = 0; i < 13; i++) {
        bool test = i >= 8;
        uint32_t image = test ? 100 + i - 8 : i, at = test ? i - 8 : i;
        const uint8_t *pixels =
            (test ? dataset->test_pixels : dataset->train_pixels) + (size_t)at * 3 * PIXELS;

        cr_assert_eq((test ? dataset->test_labels : dataset->train_labels)[at], image % 10);
        for (uint32_t p = 0; p < 3 * PIXELS; p++) {
            cr_assert_eq(pixels[p], pixel_of(image, p % 3, p / 3), "image %u, %u", image, p);
        }
    }
    gk_dataset_free(dataset);
}

Test(data_files, cifar_broken)
{
    uint8_t record[RECORD + 1] = {10};

    check_error("cifar10:", GK_E_CONFIG, "cifar10:DIR");
    check_error("cifar10:%s/none", GK_E_NOTFOUND, "No such file");
    check_error("cifar10:%s", GK_E_NOTFOUND, "no data_batch_1.bin; expected data_batch_1.bin to");
    put_images("data_batch_1.bin", 0, 1, false);
    check_error("cifar10:%s", GK_E_NOTFOUND, "no test_batch.bin");
    check_error("cifar10:%s/data_batch_1.bin", GK_E_NOTFOUND, "is not a folder");
    put("test_batch.bin", record, RECORD, false);
    check_error("cifar10:%s", GK_E_CORRUPT, "test_batch.bin: label 10 of image 0 is out of range");
    record[0] = 9;
    put("test_batch.bin", record, RECORD - 1, false);
    check_error("cifar10:%s", GK_E_CORRUPT,
                "test_batch.bin: 3072 bytes are no whole number of records");
    put("test_batch.bin", record, RECORD + 1, false);
    check_error("cifar10:%s", GK_E_CORRUPT,
                "test_batch.bin: 3074 bytes are no whole number of records");
    put("test_batch.bin", record, 0, false);
    check_error("cifar10:%s", GK_E_CORRUPT,
                "test_batch.bin: 0 bytes are no whole number of records");
    put("test_batch.bin", record, RECORD, false);
    gk_dataset_free(open_set("cifar10:", NULL));
}

Test(data_files, text)
{
    char text[1000];
    struct gk_dataset *dataset;

    for (int i = 0; i < 1000; i++) {
        text[i] = "yes\n\xff"[i * i % 5];
    }
    for (int gzip = 0; gzip < 2; gzip++) {
        put("x.txt", text, sizeof(text), gzip);
        dataset = open_set("text:", "x.txt");
        cr_assert(dataset->sequence == 64 && dataset->features == 0 && !dataset->train);
        cr_assert(dataset->train_characters == 900 && dataset->test_characters == 100);
        cr_assert(dataset->train_count == 14 && dataset->test_count == 1);
        cr_assert(dataset->classes == 3);
        for (int i = 0; i < 1000; i++) {
            cr_assert_lt(dataset->text[i], dataset->classes);
            cr_assert_eq(dataset->alphabet[dataset->text[i]], (uint8_t)text[i]);
        }
        cr_assert(strstr(dataset->note, "1000 characters, 3 different"), "%s", dataset->note);
        gk_dataset_free(dataset);
    }
}

Test(data_files, text_of_all_bytes)
{
    uint8_t text[65 * 10];
    struct gk_dataset *dataset;

    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (uint8_t)(255 - i);
    }
    put("x", text, sizeof(text), false);
    dataset = open_set("text:", "x");
    cr_assert(dataset->classes == 256 && dataset->test_count == 1);
    for (int i = 0; i < 256; i++) {
        cr_assert_eq(dataset->alphabet[i], i);
    }
    gk_dataset_free(dataset);
}

Test(data_files, text_broken)
{
    static char same[2000];

    check_error("text:", GK_E_CONFIG, "text:FILE");
    check_error("text:%s/x", GK_E_NOTFOUND, "No such file");
    check_error("text:%s", GK_E_IO, "not a regular file");
    put("x", "abc", 3, false);
    check_error("text:%s/x", GK_E_CORRUPT, "x: 3 bytes are too short a text: at least 650");
    put("x", same, 649, false);
    check_error("text:%s/x", GK_E_CORRUPT, "x: 649 bytes are too short");
    put("x", same, 2000, false);
    check_error("text:%s/x", GK_E_CORRUPT, "x: all bytes are the same");
}
