/* The files of MNIST and of sets published in its form (Fashion-MNIST, KMNIST, EMNIST digits): four
 * IDX files, each plain or gzip, in the spelling of the original page ("t10k-images-idx3-ubyte") or
 * of the archives made since ("t10k-images.idx3-ubyte").  A folder with the t10k pair alone is
 * split. */
#include "worker/data/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, FILES_COUNT };

static const char *const stems[FILES_COUNT] = {"train-images", "train-labels", "t10k-images",
                                               "t10k-labels"};
static const char *const endings[FILES_COUNT] = {"idx3-ubyte", "idx1-ubyte", "idx3-ubyte",
                                                 "idx1-ubyte"};

struct folder {
    const char *name;
    char paths[FILES_COUNT][GK_FOLDER_PATH_BYTES]; /* "" when the file is not there */
};

/* Owns what its source points into. */
struct pair {
    struct gk_source source;
    uint8_t *images, *labels;
};

/* A file that exists and cannot be opened counts as found, so that reading it says why. */
static void find_file(struct folder *folder, int file)
{
    static const char *const joints[] = {"-", "."};
    static const char *const packings[] = {"", ".gz"};
    char *path = folder->paths[file];
    struct stat status;

    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(path, GK_FOLDER_PATH_BYTES, "%s/%s%s%s%s", folder->name, stems[file],
                       joints[i / 2], endings[file], packings[i % 2]);
        if (!stat(path, &status) || (errno != ENOENT && errno != ENOTDIR)) {
            return;
        }
    }
    path[0] = '\0';
}

static enum gk_err check_files(const struct folder *folder, bool *ret_whole, struct gk_words *words)
{
    bool whole = folder->paths[TRAIN_IMAGES][0] || folder->paths[TRAIN_LABELS][0];

    for (int i = whole ? TRAIN_IMAGES : TEST_IMAGES; i < FILES_COUNT; i++) {
        if (!folder->paths[i][0] && !whole && !folder->paths[TEST_IMAGES][0] &&
            !folder->paths[TEST_LABELS][0]) {
            gk_words_set(
                words,
                "no MNIST files there; expected train-images-idx3-ubyte, train-labels-idx1-ubyte, "
                "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or .gz: %s",
                folder->name);
            return GK_E_NOTFOUND;
        }
        if (!folder->paths[i][0]) {
            gk_words_set(words, "%s-%s (plain or .gz) is missing in %s", stems[i], endings[i],
                         folder->name);
            return GK_E_NOTFOUND;
        }
    }
    *ret_whole = whole;
    return GK_OK;
}

static void clear_pair(struct pair *pair)
{
    free(pair->images);
    free(pair->labels);
    *pair = (struct pair){0};
}

/* Afterwards `pair` is to be cleared, also after an error. */
static enum gk_err read_pair(const char *images_path, const char *labels_path, struct pair *pair,
                             struct gk_words *words)
{
    struct gk_bytes images = {.name = images_path};
    struct gk_bytes labels = {.name = labels_path};
    enum gk_err err;

    err = gk_file_read(images_path, (size_t)GK_DATA_BYTES_MAX + 16, &pair->images, &images.count,
                       words);
    if (!err) {
        err = gk_file_read(labels_path, (size_t)GK_DATA_BYTES_MAX + 16, &pair->labels,
                           &labels.count, words);
    }
    if (err) {
        return err;
    }
    images.at = pair->images;
    labels.at = pair->labels;
    return gk_source_parse(&images, &labels, &pair->source, words);
}

static void copy_pairs(struct gk_dataset *dataset, const struct gk_source *train,
                       const struct gk_source *test, uint32_t test_from)
{
    const float white = 255.0f;

    for (uint32_t i = 0; i < dataset->train_count; i++) {
        gk_dataset_put_train(dataset, i, train, i, white);
    }
    for (uint32_t i = 0; i < dataset->test_count; i++) {
        gk_dataset_put_test(dataset, i, test, test_from + i, white);
    }
}

static enum gk_err open_whole(const struct folder *folder, struct gk_dataset **ret_dataset,
                              struct gk_words *words)
{
    struct pair train = {0};
    struct pair test = {0};
    const uint32_t *train_dims = train.source.images.dims;
    const uint32_t *test_dims = test.source.images.dims;
    enum gk_err err;

    err = read_pair(folder->paths[TRAIN_IMAGES], folder->paths[TRAIN_LABELS], &train, words);
    if (err) {
        goto out;
    }
    err = read_pair(folder->paths[TEST_IMAGES], folder->paths[TEST_LABELS], &test, words);
    if (err) {
        goto out;
    }
    if (train_dims[1] != test_dims[1] || train_dims[2] != test_dims[2]) {
        gk_words_set(words, "%s holds images of %u x %u, the training images have %u x %u",
                     folder->paths[TEST_IMAGES], (unsigned)test_dims[1], (unsigned)test_dims[2],
                     (unsigned)train_dims[1], (unsigned)train_dims[2]);
        err = GK_E_CORRUPT;
        goto out;
    }
    err = gk_dataset_new(&train.source, train_dims[0], test_dims[0], ret_dataset, words);
    if (err) {
        goto out;
    }
    copy_pairs(*ret_dataset, &train.source, &test.source, 0);
out:
    clear_pair(&train);
    clear_pair(&test);
    return err;
}

static enum gk_err open_half(const struct folder *folder, struct gk_dataset **ret_dataset,
                             struct gk_words *words)
{
    struct pair pair = {0};
    uint32_t count;
    uint32_t train_count;
    enum gk_err err;

    err = read_pair(folder->paths[TEST_IMAGES], folder->paths[TEST_LABELS], &pair, words);
    if (err) {
        goto out;
    }
    count = pair.source.images.dims[0];
    train_count = (uint32_t)((uint64_t)count * 4 / 5);
    if (train_count == 0) {
        gk_words_set(words, "%s holds one image: too few to split", folder->paths[TEST_IMAGES]);
        err = GK_E_CORRUPT;
        goto out;
    }
    err = gk_dataset_new(&pair.source, train_count, count - train_count, ret_dataset, words);
    if (err) {
        goto out;
    }
    copy_pairs(*ret_dataset, &pair.source, &pair.source, train_count);
    (void)snprintf((*ret_dataset)->note, sizeof((*ret_dataset)->note),
                   "only the t10k files are there: images 0 to %u train, %u to %u test",
                   (unsigned)train_count - 1, (unsigned)train_count, (unsigned)count - 1);
out:
    clear_pair(&pair);
    return err;
}

enum gk_err gk_dataset_open_mnist(const char *name, struct gk_dataset **ret_dataset,
                                  struct gk_words *words)
{
    struct folder *folder;
    bool whole;
    enum gk_err err = gk_folder_check("mnist", name, words);

    if (err) {
        return err;
    }
    folder = calloc(1, sizeof(*folder));
    if (!folder) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    folder->name = name;
    for (int i = 0; i < FILES_COUNT; i++) {
        find_file(folder, i);
    }
    err = check_files(folder, &whole, words);
    if (!err) {
        err =
            whole ? open_whole(folder, ret_dataset, words) : open_half(folder, ret_dataset, words);
    }
    free(folder);
    return err;
}
