/* The binary version of CIFAR-10: data_batch_1.bin and, where they are, data_batch_2.bin to
 * data_batch_5.bin for training, test_batch.bin for testing; each plain or gzip.  A file is a row
 * of records of any number.  Pixels stay bytes: as floats the whole set would be four times as
 * large in every worker. */
#include "worker/data/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TRAIN_FILES_MAX = 5, CHANNELS = 3 };

struct file {
    char path[GK_FOLDER_PATH_BYTES];
    uint8_t *bytes;
    uint32_t count; /* records */
};

/* Training files in their order, and the test file behind them. */
struct folder {
    struct file files[TRAIN_FILES_MAX + 1];
    uint32_t train_files, files_count;
};

enum gk_err gk_cifar_check(const struct gk_bytes *bytes, uint32_t *ret_count,
                           struct gk_words *words)
{
    size_t count = bytes->count / GK_CIFAR_RECORD;

    if (count == 0 || bytes->count % GK_CIFAR_RECORD) {
        gk_words_set(words,
                     "%s: %zu bytes are no whole number of records of %d bytes: truncated, or not "
                     "the binary version of CIFAR-10",
                     bytes->name, bytes->count, GK_CIFAR_RECORD);
        return GK_E_CORRUPT;
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t label = bytes->at[i * GK_CIFAR_RECORD];

        if (label >= GK_DATA_CLASSES) {
            gk_words_set(words,
                         "%s: label %u of image %zu is out of range, expected 0 to %d: damaged, or "
                         "not the binary version of CIFAR-10",
                         bytes->name, (unsigned)label, i, GK_DATA_CLASSES - 1);
            return GK_E_CORRUPT;
        }
    }
    *ret_count = (uint32_t)count;
    return GK_OK;
}

static bool find_file(const char *folder, const char *name, char *ret_path)
{
    static const char *const packings[] = {"", ".gz"};
    struct stat status;

    for (int i = 0; i < 2; i++) {
        (void)snprintf(ret_path, GK_FOLDER_PATH_BYTES, "%s/%s%s", folder, name, packings[i]);
        if (!stat(ret_path, &status) || (errno != ENOENT && errno != ENOTDIR)) {
            return true;
        }
    }
    return false;
}

static enum gk_err find_files(const char *name, struct folder *folder, struct gk_words *words)
{
    enum gk_err err = gk_folder_check("cifar10", name, words);
    char file[32];

    if (err) {
        return err;
    }
    for (uint32_t i = 1; i <= TRAIN_FILES_MAX; i++) {
        (void)snprintf(file, sizeof(file), "data_batch_%u.bin", (unsigned)i);
        folder->train_files += find_file(name, file, folder->files[folder->train_files].path);
    }
    folder->files_count = folder->train_files + 1;
    if (folder->train_files == 0 ||
        !find_file(name, "test_batch.bin", folder->files[folder->train_files].path)) {
        gk_words_set(words,
                     "%s: no %s; expected data_batch_1.bin to data_batch_5.bin and "
                     "test_batch.bin, each plain or .gz",
                     name, folder->train_files == 0 ? "data_batch_1.bin" : "test_batch.bin");
        return GK_E_NOTFOUND;
    }
    return GK_OK;
}

static enum gk_err read_file(struct file *file, struct gk_words *words)
{
    struct gk_bytes bytes = {.name = file->path};
    enum gk_err err =
        gk_file_read(file->path, GK_DATA_BYTES_MAX, &file->bytes, &bytes.count, words);

    if (err) {
        return err;
    }
    bytes.at = file->bytes;
    return gk_cifar_check(&bytes, &file->count, words);
}

/* Planes become pixels with their channels together. */
static void put_image(const uint8_t *record, uint8_t *pixels, uint32_t *label)
{
    *label = record[0];
    for (uint32_t p = 0; p < GK_CIFAR_PIXELS; p++) {
        for (uint32_t c = 0; c < CHANNELS; c++) {
            pixels[p * CHANNELS + c] = record[1 + c * GK_CIFAR_PIXELS + p];
        }
    }
}

static struct gk_dataset *new_dataset(uint32_t train_count, uint32_t test_count)
{
    static const float mean[CHANNELS] = {0.491f, 0.482f, 0.447f};
    static const float deviation[CHANNELS] = {0.247f, 0.243f, 0.262f};
    struct gk_dataset *dataset = calloc(1, sizeof(*dataset));

    if (!dataset) {
        return NULL;
    }
    dataset->rows = GK_CIFAR_SIDE;
    dataset->columns = GK_CIFAR_SIDE;
    dataset->channels = CHANNELS;
    dataset->features = CHANNELS * GK_CIFAR_PIXELS;
    dataset->classes = GK_DATA_CLASSES;
    dataset->train_count = train_count;
    dataset->test_count = test_count;
    memcpy(dataset->mean, mean, sizeof(mean));
    memcpy(dataset->deviation, deviation, sizeof(deviation));
    dataset->train_pixels = calloc(train_count, dataset->features);
    dataset->train_labels = calloc(train_count, sizeof(*dataset->train_labels));
    dataset->test_pixels = calloc(test_count, dataset->features);
    dataset->test_labels = calloc(test_count, sizeof(*dataset->test_labels));
    if (!dataset->train_pixels || !dataset->train_labels || !dataset->test_pixels ||
        !dataset->test_labels) {
        gk_dataset_free(dataset);
        return NULL;
    }
    return dataset;
}

static void put_file(const struct file *file, uint8_t *pixels, uint32_t *labels)
{
    for (uint32_t i = 0; i < file->count; i++) {
        put_image(file->bytes + (size_t)i * GK_CIFAR_RECORD,
                  pixels + (size_t)i * (GK_CIFAR_RECORD - 1), labels + i);
    }
}

static enum gk_err build(const struct folder *folder, struct gk_dataset **ret_dataset,
                         struct gk_words *words)
{
    uint32_t train_count = 0, at = 0;
    struct gk_dataset *dataset;

    for (uint32_t i = 0; i < folder->train_files; i++) {
        train_count += folder->files[i].count;
    }
    dataset = new_dataset(train_count, folder->files[folder->train_files].count);
    if (!dataset) {
        gk_words_set(words, "out of memory for %u images", (unsigned)train_count);
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < folder->train_files; i++) {
        put_file(&folder->files[i], dataset->train_pixels + (size_t)at * dataset->features,
                 dataset->train_labels + at);
        at += folder->files[i].count;
    }
    put_file(&folder->files[folder->train_files], dataset->test_pixels, dataset->test_labels);
    if (folder->train_files < TRAIN_FILES_MAX) {
        (void)snprintf(dataset->note, sizeof(dataset->note),
                       "%u of the %d training files are there", (unsigned)folder->train_files,
                       TRAIN_FILES_MAX);
    }
    *ret_dataset = dataset;
    return GK_OK;
}

enum gk_err gk_dataset_open_cifar10(const char *name, struct gk_dataset **ret_dataset,
                                    struct gk_words *words)
{
    struct folder *folder = calloc(1, sizeof(*folder));
    enum gk_err err;

    if (!folder) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    err = find_files(name, folder, words);
    for (uint32_t i = 0; i < folder->files_count && !err; i++) {
        err = read_file(&folder->files[i], words);
    }
    if (!err) {
        err = build(folder, ret_dataset, words);
    }
    for (uint32_t i = 0; i < folder->files_count; i++) {
        free(folder->files[i].bytes);
    }
    free(folder);
    return err;
}
