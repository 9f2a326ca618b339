/* Goal: mnist:DIR reads the four files in every accepted spelling and packing, splits a folder that
 * holds the t10k pair alone, and refuses each kind of wrong folder with words that name the file.
 * Method: folders of tiny IDX files made here; one thing broken at a time. */
#include "worker/data/data.h"
#include "data_folder.h"

#include <criterion/criterion.h>
#include <zlib.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    COUNT = 10,
    ROWS = 3,
    COLUMNS = 2,
    PIXELS = ROWS * COLUMNS,
    BYTES_MAX = 16 + 2 * COUNT * PIXELS
};

struct content {
    uint8_t bytes[BYTES_MAX];
    size_t count;
};

static char name[sizeof(folder) + 8];

static void set_up(void)
{
    make_folder();
    (void)snprintf(name, sizeof(name), "mnist:%s", folder);
}

TestSuite(data_mnist, .init = set_up, .fini = remove_folder);

static struct content make_images(uint32_t count, uint32_t rows, uint32_t columns, uint8_t salt)
{
    struct content content = {
        {0, 0, 8, 3, 0, 0, 0, (uint8_t)count, 0, 0, 0, (uint8_t)rows, 0, 0, 0, (uint8_t)columns},
        16};

    for (uint32_t i = 0; i < count * rows * columns; i++) {
        content.bytes[content.count++] = (uint8_t)(i * 5 + salt);
    }
    return content;
}

static struct content make_labels(uint32_t count, uint8_t salt)
{
    struct content content = {{0, 0, 8, 1, 0, 0, 0, (uint8_t)count}, 8};

    for (uint32_t i = 0; i < count; i++) {
        content.bytes[content.count++] = (uint8_t)((i + salt) % 10);
    }
    return content;
}

static void put(const char *file, const struct content *content, bool gzip)
{
    char path[512];
    gzFile stream;

    path_of(path, sizeof(path), file);
    stream = gzopen(path, gzip ? "wb" : "wbT"); /* T: as it is */
    cr_assert(stream &&
              gzwrite(stream, content->bytes, (unsigned)content->count) == (int)content->count);
    cr_assert_eq(gzclose(stream), Z_OK);
}

static void put_half(void)
{
    struct content images = make_images(COUNT, ROWS, COLUMNS, 0);
    struct content labels = make_labels(COUNT, 0);

    put("t10k-images-idx3-ubyte", &images, false);
    put("t10k-labels-idx1-ubyte.gz", &labels, true);
}

static void put_whole(void)
{
    struct content images = make_images(COUNT - 1, ROWS, COLUMNS, 77);
    struct content labels = make_labels(COUNT - 1, 3);

    put_half();
    put("train-images-idx3-ubyte", &images, false);
    put("train-labels-idx1-ubyte", &labels, false);
}

static void check_part(const float *x, const uint32_t *labels, uint32_t from, uint32_t count,
                       uint8_t salt)
{
    for (uint32_t i = 0; i < count * PIXELS; i++) {
        cr_assert_eq(x[i], (float)(uint8_t)((from * PIXELS + i) * 5 + salt) / 255.0f, "value %u",
                     i);
    }
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_eq(labels[i], (from + i + (salt ? 3 : 0)) % 10, "label %u", i);
    }
}

static void check_whole(void)
{
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {""};

    cr_assert_eq(gk_dataset_open(name, &dataset, &words), GK_OK, "%s", words.text);
    cr_assert_str_eq(dataset->name, name);
    cr_assert_str_eq(dataset->note, "");
    cr_assert(dataset->features == PIXELS && dataset->rows == ROWS && dataset->columns == COLUMNS);
    cr_assert(dataset->classes == 10 && dataset->train_count == COUNT - 1 &&
              dataset->test_count == COUNT);
    check_part(dataset->train, dataset->train_labels, 0, COUNT - 1, 77);
    check_part(dataset->test, dataset->test_labels, 0, COUNT, 0);
    gk_dataset_free(dataset);
}

static void check_error(const char *opened, enum gk_err expected, const char *part)
{
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {""};
    enum gk_err err = gk_dataset_open(opened, &dataset, &words);

    cr_assert_eq(err, expected, "expected \"%s\", got %s: %s", part, gk_err_name(err), words.text);
    cr_assert(strstr(words.text, part), "expected \"%s\" in: %s", part, words.text);
    cr_assert_null(dataset);
    cr_assert_eq(gk_dataset_open(opened, &dataset, NULL), expected);
}

Test(data_mnist, spellings)
{
    struct content train_images = make_images(COUNT - 1, ROWS, COLUMNS, 77);
    struct content train_labels = make_labels(COUNT - 1, 3);
    struct content test_images = make_images(COUNT, ROWS, COLUMNS, 0);
    struct content test_labels = make_labels(COUNT, 0);

    put_whole();
    check_whole();
    empty_folder();
    put("train-images-idx3-ubyte.gz", &train_images, true);
    put("train-labels-idx1-ubyte.gz", &train_labels, true);
    put("t10k-images-idx3-ubyte.gz", &test_images, true);
    put("t10k-labels-idx1-ubyte.gz", &test_labels, true);
    check_whole();
    /* What a file is, its content says: .gz that is not, no .gz that is. */
    empty_folder();
    put("train-images.idx3-ubyte", &train_images, false);
    put("train-labels.idx1-ubyte", &train_labels, true);
    put("t10k-images.idx3-ubyte.gz", &test_images, true);
    put("t10k-labels-idx1-ubyte.gz", &test_labels, false);
    check_whole();
}

Test(data_mnist, half)
{
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {""};
    struct content images = make_images(1, ROWS, COLUMNS, 0);
    struct content labels = make_labels(1, 0);

    put_half();
    cr_assert_eq(gk_dataset_open(name, &dataset, &words), GK_OK, "%s", words.text);
    cr_assert(dataset->train_count == 8 && dataset->test_count == 2);
    check_part(dataset->train, dataset->train_labels, 0, 8, 0);
    check_part(dataset->test, dataset->test_labels, 8, 2, 0);
    cr_assert(strstr(dataset->note, "0 to 7 train, 8 to 9 test"), "%s", dataset->note);
    gk_dataset_free(dataset);
    empty_folder();
    put("t10k-images-idx3-ubyte", &images, false);
    put("t10k-labels-idx1-ubyte", &labels, false);
    check_error(name, GK_E_CORRUPT, "too few to split");
}

Test(data_mnist, missing)
{
    static const char *const files[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                        "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
    char path[8192];

    check_error("mnist:", GK_E_CONFIG, "mnist:DIR");
    check_error(name, GK_E_NOTFOUND,
                "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte");
    for (size_t i = 0; i < 4; i++) {
        put_whole();
        path_of(path, sizeof(path), files[i]);
        if (i == 3) {
            (void)strcat(path, ".gz");
        }
        cr_assert_eq(unlink(path), 0);
        check_error(name, GK_E_NOTFOUND, files[i]);
    }
    path_of(path, sizeof(path), files[0]);
    (void)memmove(path + 6, path, strlen(path) + 1);
    (void)memcpy(path, "mnist:", 6);
    check_error(path, GK_E_NOTFOUND, "is not a folder");
    (void)strcat(path, "/x");
    check_error(path, GK_E_NOTFOUND, "Not a directory");
    (void)snprintf(path, sizeof(path), "%s/nowhere", name);
    check_error(path, GK_E_NOTFOUND, "No such file");
    (void)memset(path, 'x', sizeof(path) - 1);
    (void)memcpy(path, "mnist:", 6);
    path[sizeof(path) - 1] = '\0';
    check_error(path, GK_E_LIMIT, "longer than");
}

Test(data_mnist, broken)
{
    static const struct {
        bool labels;
        uint8_t value;
        int grow;
        size_t at;
        enum gk_err err;
        const char *words;
    } cases[] = {
        {false, 0x42, 0, 0, GK_E_CORRUPT, "t10k-images-idx3-ubyte: not an IDX file"},
        {false, 1, 0, 3, GK_E_CORRUPT, "t10k-images-idx3-ubyte: "},
        {false, 13, 0, 2, GK_E_CORRUPT, "t10k-images-idx3-ubyte: IDX elements of type 0d"},
        {false, 0, 0, 7, GK_E_CORRUPT, "t10k-images-idx3-ubyte: empty"},
        {false, 255, 0, 4, GK_E_LIMIT, "t10k-images-idx3-ubyte: IDX dimension 1"},
        {false, 0, -1, 1, GK_E_CORRUPT, "t10k-images-idx3-ubyte: truncated"},
        {false, 0, 1, 1, GK_E_CORRUPT, "t10k-images-idx3-ubyte: 1 bytes too many"},
        {true, 0, -1, 1, GK_E_CORRUPT, "t10k-labels-idx1-ubyte.gz: truncated"},
        {true, 0, 2, 1, GK_E_CORRUPT, "t10k-labels-idx1-ubyte.gz: 2 bytes too many"},
        {true, 9, -1, 7, GK_E_CORRUPT, "holds 9 labels"},
        {true, 11, 1, 7, GK_E_CORRUPT, "holds 10 images"},
        {true, 10, 0, 12, GK_E_CORRUPT, "t10k-labels-idx1-ubyte.gz: label 10 of image 4"},
        {true, 255, 0, 8, GK_E_CORRUPT, "t10k-labels-idx1-ubyte.gz: label 255 of image 0"},
    };
    struct content matrix = {{0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0}, 13};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct content content =
            cases[i].labels ? make_labels(COUNT, 0) : make_images(COUNT, ROWS, COLUMNS, 0);

        put_whole();
        content.bytes[cases[i].at] = cases[i].value;
        content.count += (size_t)cases[i].grow;
        put(cases[i].labels ? "t10k-labels-idx1-ubyte.gz" : "t10k-images-idx3-ubyte", &content,
            cases[i].labels);
        check_error(name, cases[i].err, cases[i].words);
    }
    put_whole();
    put("train-images-idx3-ubyte", &matrix, false);
    check_error(name, GK_E_CORRUPT,
                "train-images-idx3-ubyte: IDX magic 00000802, expected 00000803 (images)");
    put_whole();
    put("train-labels-idx1-ubyte", &matrix, false);
    check_error(name, GK_E_CORRUPT,
                "train-labels-idx1-ubyte: IDX magic 00000802, expected 00000801 (labels)");
    put_whole();
    matrix = make_images(COUNT, ROWS + 1, COLUMNS, 0);
    put("t10k-images-idx3-ubyte", &matrix, false);
    check_error(name, GK_E_CORRUPT, "images of 4 x 2, the training images have 3 x 2");
    matrix = make_images(COUNT, ROWS, COLUMNS - 1, 0);
    put("t10k-images-idx3-ubyte", &matrix, false);
    check_error(name, GK_E_CORRUPT, "images of 3 x 1, the training images have 3 x 2");
}

Test(data_mnist, gzip_cut)
{
    char path[512];

    put_whole();
    path_of(path, sizeof(path), "t10k-labels-idx1-ubyte.gz");
    cr_assert_eq(truncate(path, 20), 0);
    check_error(name, GK_E_CORRUPT,
                "t10k-labels-idx1-ubyte.gz: truncated: the gzip data ends early");
}
