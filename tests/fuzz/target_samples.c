/* CIFAR-10 records and texts, from memory.  The first byte says which: 0: records, each made of its
 * label and one byte for all of its pixels (whole records would be too long to mutate) with the
 * last one cut by the second byte; else a text, repeated until it is long enough for the second
 * byte's part of the limit. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"
#include "worker/data/source.h"

#include <stdlib.h>
#include <string.h>

enum { RECORDS_MAX = 8, TEXT_MAX = 2048 };

static void check_error(enum gk_err err, const struct gk_words *words)
{
    FUZZ_CHECK(err == GK_E_CORRUPT);
    fuzz_check_words(words->text);
}

static void try_records(struct fuzz_bytes *in)
{
    uint8_t *records = calloc(RECORDS_MAX, GK_CIFAR_RECORD);
    struct gk_bytes bytes = {.at = records, .name = "x"};
    struct gk_words words = {.text = ""};
    size_t cut = fuzz_take_u8(in);
    uint32_t count = 0;
    enum gk_err err;

    FUZZ_CHECK(records);
    while (in->left >= 2 && bytes.count < (size_t)RECORDS_MAX * GK_CIFAR_RECORD) {
        records[bytes.count] = fuzz_take_u8(in);
        memset(records + bytes.count + 1, fuzz_take_u8(in), GK_CIFAR_RECORD - 1);
        bytes.count += GK_CIFAR_RECORD;
    }
    bytes.count -= cut < bytes.count ? cut : bytes.count;
    err = gk_cifar_check(&bytes, &count, &words);
    if (err) {
        check_error(err, &words);
    } else {
        FUZZ_CHECK((size_t)count * GK_CIFAR_RECORD == bytes.count && count > 0);
        for (uint32_t i = 0; i < count; i++) {
            FUZZ_CHECK(records[(size_t)i * GK_CIFAR_RECORD] < GK_DATA_CLASSES);
        }
    }
    free(records);
}

static void check_text(const struct gk_dataset *dataset, const struct gk_bytes *bytes)
{
    FUZZ_CHECK(dataset->train_characters + dataset->test_characters == bytes->count);
    FUZZ_CHECK(dataset->train_count > 0 && dataset->test_count > 0);
    FUZZ_CHECK((uint64_t)dataset->test_count * dataset->sequence < dataset->test_characters);
    FUZZ_CHECK(dataset->classes >= 2 && dataset->classes <= 256);
    for (size_t i = 0; i < bytes->count; i++) {
        FUZZ_CHECK(dataset->text[i] < dataset->classes);
        FUZZ_CHECK(dataset->alphabet[dataset->text[i]] == bytes->at[i]);
    }
}

static void try_text(struct fuzz_bytes *in)
{
    size_t count = (size_t)TEXT_MAX * fuzz_take_u8(in) / 255;
    uint8_t *text = malloc(TEXT_MAX);
    const struct gk_bytes bytes = {.at = text, .count = count, .name = "x"};
    struct gk_words words = {.text = ""};
    struct gk_dataset *dataset = NULL;
    enum gk_err err;

    FUZZ_CHECK(text);
    for (size_t i = 0; i < count; i++) {
        text[i] = in->left > 0 ? in->at[i % in->left] : 0;
    }
    err = gk_text_parse(&bytes, &dataset, &words);
    if (err) {
        check_error(err, &words);
    } else {
        check_text(dataset, &bytes);
    }
    gk_dataset_free(dataset);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes in = {.at = data, .left = size};

    if (fuzz_take_u8(&in) == 0) {
        try_records(&in);
    } else {
        try_text(&in);
    }
    return 0;
}
