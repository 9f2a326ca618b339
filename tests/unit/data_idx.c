/* Goal: gk_idx_parse takes every well-formed array of 1 to 3 dimensions and nothing else, and says
 * what is wrong. Method: small arrays made here; one byte changed or the length changed, with the
 * expected error and words; all lengths of a file, each in a block of its own so that a sanitizer
 * sees any read beyond it. */
#include "worker/data/data.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { HEAD_MAX = 16 };

static const uint8_t images[HEAD_MAX + 12] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3,
                                              0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7};

static enum gk_err parse_copy(const uint8_t *bytes, size_t count, struct gk_idx *ret_idx,
                              struct gk_words *words)
{
    uint8_t *copy = malloc(count ? count : 1);
    enum gk_err err;

    memcpy(copy, bytes, count);
    err = gk_idx_parse(copy, count, ret_idx, words);
    free(copy);
    return err;
}

Test(data_idx, well_formed)
{
    static const uint8_t vector[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9};
    static const uint8_t matrix[] = {0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 2, 5, 6};
    struct gk_words words;
    struct gk_idx idx;

    cr_assert_eq(gk_idx_parse(vector, sizeof(vector), &idx, &words), GK_OK);
    cr_assert(idx.dims_count == 1 && idx.dims[0] == 3 && idx.count == 3 && idx.data == vector + 8);
    cr_assert_eq(gk_idx_parse(matrix, sizeof(matrix), &idx, NULL), GK_OK);
    cr_assert(idx.dims_count == 2 && idx.dims[0] == 1 && idx.dims[1] == 2 && idx.count == 2);
    cr_assert_eq(idx.data, matrix + 12);
    cr_assert_eq(gk_idx_parse(images, sizeof(images), &idx, &words), GK_OK);
    cr_assert(idx.dims_count == 3 && idx.dims[0] == 2 && idx.dims[1] == 3 && idx.dims[2] == 2);
    cr_assert(idx.count == 12 && idx.data == images + HEAD_MAX);
}

Test(data_idx, one_byte_changed)
{
    static const struct {
        size_t at;
        uint8_t value;
        enum gk_err err;
        const char *words;
    } cases[] = {
        {0, 0x1f, GK_E_CORRUPT, "1f000803"},
        {1, 1, GK_E_CORRUPT, "not an IDX file"},
        {2, 9, GK_E_CORRUPT, "type 09"},
        {2, 0, GK_E_CORRUPT, "type 00"},
        {3, 0, GK_E_CORRUPT, "0 dimensions"},
        {3, 4, GK_E_CORRUPT, "4 dimensions"},
        {3, 255, GK_E_CORRUPT, "255 dimensions"},
        {3, 2, GK_E_CORRUPT, "10 bytes too many"},
        {7, 0, GK_E_CORRUPT, "dimension 1 of 3 is 0"},
        {15, 0, GK_E_CORRUPT, "dimension 3 of 3 is 0"},
        {7, 3, GK_E_CORRUPT, "truncated: 12 bytes of data, its IDX header promises 18"},
        {7, 1, GK_E_CORRUPT, "6 bytes too many"},
        {4, 255, GK_E_LIMIT, "dimension 1 is 4278190082"},
        {8, 127, GK_E_LIMIT, "dimension 2 is 2130706435"},
        {12, 16, GK_E_LIMIT, "dimension 3 is 268435458"},
    };
    struct gk_idx untouched;

    memset(&untouched, 0x5a, sizeof(untouched));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[sizeof(images)];
        struct gk_idx idx = untouched;
        struct gk_words words = {""};
        enum gk_err err;

        memcpy(bytes, images, sizeof(bytes));
        bytes[cases[i].at] = cases[i].value;
        err = gk_idx_parse(bytes, sizeof(bytes), &idx, &words);
        cr_assert_eq(err, cases[i].err, "case %zu: %s: %s", i, gk_err_name(err), words.text);
        cr_assert(strstr(words.text, cases[i].words), "case %zu: %s", i, words.text);
        cr_assert_eq(memcmp(&idx, &untouched, sizeof(idx)), 0, "case %zu", i);
        cr_assert_eq(gk_idx_parse(bytes, sizeof(bytes), &idx, NULL), cases[i].err);
    }
}

/* Three dimensions whose product is 2^66, which is 4 mod 2^32 and 0 mod 2^64. */
Test(data_idx, product_wraps)
{
    static const uint8_t bytes[] = {0, 0, 8, 3, 0, 64, 0, 0, 0, 64, 0, 0, 0, 64, 0, 0, 1, 2, 3, 4};
    struct gk_words words;
    struct gk_idx idx;

    cr_assert_eq(gk_idx_parse(bytes, sizeof(bytes), &idx, &words), GK_E_LIMIT);
}

Test(data_idx, every_length)
{
    uint8_t longer[sizeof(images) + 1] = {0};
    struct gk_words words;
    struct gk_idx idx;

    memcpy(longer, images, sizeof(images));
    for (size_t count = 0; count < sizeof(images); count++) {
        cr_assert_eq(parse_copy(images, count, &idx, &words), GK_E_CORRUPT, "%zu bytes", count);
        cr_assert(strstr(words.text, "truncated"), "%zu bytes: %s", count, words.text);
    }
    cr_assert_eq(parse_copy(images, sizeof(images), &idx, &words), GK_OK);
    cr_assert_eq(parse_copy(longer, sizeof(longer), &idx, &words), GK_E_CORRUPT);
    cr_assert(strstr(words.text, "1 bytes too many"), "%s", words.text);
}
