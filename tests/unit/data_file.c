/* Goal: gk_file_read returns exactly the content, gzip or not, and refuses what is missing,
 * special, too long, cut or damaged.  Method: files in a folder made here; every length of a gzip
 * file; every byte of it inverted. */
#include "worker/data/source.h"

#include <criterion/criterion.h>
#include <zlib.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONTENT_COUNT = 300, LONG_COUNT = 200 * 1024 };

static char folder[] = P_tmpdir "/gkps-data-file-XXXXXX";
static char path[128];

static void set_up(void)
{
    cr_assert(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/f", folder);
}

static void tear_down(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

TestSuite(data_file, .init = set_up, .fini = tear_down);

static void put_plain(const uint8_t *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    cr_assert(file && fwrite(bytes, 1, count, file) == count);
    cr_assert_eq(fclose(file), 0);
}

static void put_gzip(const uint8_t *bytes, size_t count)
{
    gzFile file = gzopen(path, "wb");

    cr_assert(file && gzwrite(file, bytes, (unsigned)count) == (int)count);
    cr_assert_eq(gzclose(file), Z_OK);
}

static void fill(uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(i * i >> 3);
    }
}

static void check_same(const uint8_t *bytes, size_t count, size_t count_max)
{
    struct gk_words words = {""};
    uint8_t *got = NULL;
    size_t got_count = 0;
    enum gk_err err = gk_file_read(path, count_max, &got, &got_count, &words);

    cr_assert_eq(err, GK_OK, "%s", words.text);
    cr_assert_eq(got_count, count);
    cr_assert_eq(memcmp(got, bytes, count), 0);
    free(got);
}

static void check_error(size_t count_max, enum gk_err expected, const char *part)
{
    struct gk_words words = {""};
    uint8_t *got = NULL;
    size_t got_count = 7;
    enum gk_err err = gk_file_read(path, count_max, &got, &got_count, &words);

    cr_assert_eq(err, expected, "%s: %s", gk_err_name(err), words.text);
    cr_assert(strstr(words.text, part) && strstr(words.text, path), "%s", words.text);
    cr_assert(got == NULL && got_count == 7);
}

Test(data_file, content)
{
    static uint8_t bytes[LONG_COUNT];

    fill(bytes, sizeof(bytes));
    for (size_t count = 1; count <= sizeof(bytes); count = count * 3 + 1) {
        put_plain(bytes, count);
        check_same(bytes, count, sizeof(bytes));
        put_gzip(bytes, count);
        check_same(bytes, count, sizeof(bytes));
    }
    put_gzip(bytes, sizeof(bytes));
    check_same(bytes, sizeof(bytes), sizeof(bytes));
    put_plain(bytes, 0);
    check_same(bytes, 0, 10);
}

Test(data_file, limit)
{
    uint8_t bytes[CONTENT_COUNT];

    fill(bytes, sizeof(bytes));
    put_plain(bytes, sizeof(bytes));
    check_same(bytes, sizeof(bytes), sizeof(bytes));
    check_error(sizeof(bytes) - 1, GK_E_LIMIT, "more than 299 bytes");
    put_gzip(bytes, sizeof(bytes));
    check_same(bytes, sizeof(bytes), sizeof(bytes));
    check_error(sizeof(bytes) - 1, GK_E_LIMIT, "more than 299 bytes");
}

Test(data_file, not_files)
{
    check_error(10, GK_E_NOTFOUND, "No such file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    check_error(10, GK_E_IO, "not a regular file");
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    check_error(10, GK_E_IO, "not a regular file");
    cr_assert_eq(rmdir(path), 0);
}

/* Shorter than the two bytes of magic it is no gzip file, and is given back as it is. */
Test(data_file, gzip_cut)
{
    uint8_t bytes[CONTENT_COUNT];
    struct stat status;

    fill(bytes, sizeof(bytes));
    put_gzip(bytes, sizeof(bytes));
    cr_assert_eq(stat(path, &status), 0);
    cr_assert_gt(status.st_size, 100);
    for (off_t size = status.st_size - 1; size >= 2; size--) {
        cr_assert_eq(truncate(path, size), 0);
        check_error(1000, GK_E_CORRUPT, "truncated");
    }
}

/* A changed byte of the gzip header may do no harm; it never changes what is read. */
Test(data_file, gzip_damaged)
{
    uint8_t bytes[CONTENT_COUNT], packed[2 * CONTENT_COUNT];
    size_t packed_count;
    unsigned refused = 0;
    FILE *file;

    fill(bytes, sizeof(bytes));
    put_gzip(bytes, sizeof(bytes));
    file = fopen(path, "rb");
    cr_assert(file);
    packed_count = fread(packed, 1, sizeof(packed), file);
    cr_assert_eq(fclose(file), 0);
    for (size_t i = 2; i < packed_count; i++) {
        struct gk_words words = {""};
        uint8_t *got = NULL;
        size_t got_count = 0;
        enum gk_err err;

        packed[i] ^= 0xff;
        put_plain(packed, packed_count);
        packed[i] ^= 0xff;
        err = gk_file_read(path, 100000, &got, &got_count, &words);
        if (err == GK_OK) {
            cr_assert_lt(i, 10, "byte %zu", i);
            cr_assert(got_count == sizeof(bytes) && !memcmp(got, bytes, sizeof(bytes)), "byte %zu",
                      i);
            free(got);
        } else {
            cr_assert_eq(err, GK_E_CORRUPT, "byte %zu: %s", i, words.text);
            refused++;
        }
    }
    cr_assert_geq(refused, packed_count - 10);
}
