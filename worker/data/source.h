/* What data sets are made of: files, pairs of IDX arrays (images and labels), records, text.
 * Internal to this folder. */
#ifndef GK_WORKER_DATA_SOURCE_H
#define GK_WORKER_DATA_SOURCE_H

#include "worker/data/data.h"

struct gk_source {
    struct gk_idx images; /* count x rows x columns */
    struct gk_idx labels; /* count */
};

/* Borrowed. */
struct gk_bytes {
    const uint8_t *at;
    size_t count;
    const char *name; /* for words */
};

/* What a data set of files is given: the name of a folder, which with that of a file in
 * it fits GK_FOLDER_PATH_BYTES.  GK_E_CONFIG (empty; `kind` is for words), GK_E_LIMIT,
 * GK_E_NOTFOUND, GK_E_IO. */
enum { GK_FOLDER_PATH_BYTES = 4096 };
enum gk_err gk_folder_check(const char *kind, const char *name, struct gk_words *words);

/* The whole file, decompressed if it is gzip (whatever its name), with at most bytes_max bytes.
 * The caller frees.  GK_E_NOTFOUND, GK_E_IO, GK_E_CORRUPT (gzip), GK_E_LIMIT, GK_E_NOMEM; words
 * name the file. */
enum gk_err gk_file_read(const char *path, size_t bytes_max, uint8_t **ret_bytes, size_t *ret_count,
                         struct gk_words *words);

/* Parse both arrays and check that they belong together.  `ret_source` points into the bytes. */
enum gk_err gk_source_parse(const struct gk_bytes *images, const struct gk_bytes *labels,
                            struct gk_source *ret_source, struct gk_words *words);

/* A data set with room for so many images of this source's size.  GK_E_NOMEM, GK_E_LIMIT. */
enum gk_err gk_dataset_new(const struct gk_source *source, uint32_t train_count,
                           uint32_t test_count, struct gk_dataset **ret_dataset,
                           struct gk_words *words);

/* Image `index` of the source, divided by `white`, as training or test image `target`. */
void gk_dataset_put_train(struct gk_dataset *dataset, uint32_t target,
                          const struct gk_source *source, uint32_t index, float white);
void gk_dataset_put_test(struct gk_dataset *dataset, uint32_t target,
                         const struct gk_source *source, uint32_t index, float white);

/* Bytes of one CIFAR-10 record: a label, and three planes of 32 x 32 pixels. */
enum { GK_CIFAR_SIDE = 32, GK_CIFAR_PIXELS = 32 * 32, GK_CIFAR_RECORD = 1 + 3 * 32 * 32 };

/* Whether the bytes are records with good labels; their number.  GK_E_CORRUPT; words name the file.
 */
enum gk_err gk_cifar_check(const struct gk_bytes *bytes, uint32_t *ret_count,
                           struct gk_words *words);

/* A text's data set.  GK_E_CORRUPT (too short, one character only), GK_E_NOMEM. */
enum gk_err gk_text_parse(const struct gk_bytes *bytes, struct gk_dataset **ret_dataset,
                          struct gk_words *words);

/* The built-in set, the files of a folder, one file. */
enum gk_err gk_dataset_open_digits(struct gk_dataset **ret_dataset, struct gk_words *words);
enum gk_err gk_dataset_open_mnist(const char *folder, struct gk_dataset **ret_dataset,
                                  struct gk_words *words);
enum gk_err gk_dataset_open_cifar10(const char *folder, struct gk_dataset **ret_dataset,
                                    struct gk_words *words);
enum gk_err gk_dataset_open_text(const char *path, struct gk_dataset **ret_dataset,
                                 struct gk_words *words);

#endif
