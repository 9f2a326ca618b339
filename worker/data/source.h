/* What data sets are made of: files, and pairs of IDX arrays (images and labels).  Internal to this
 * folder. */
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

/* The built-in set, and the IDX files of a folder. */
enum gk_err gk_dataset_open_digits(struct gk_dataset **ret_dataset, struct gk_words *words);
enum gk_err gk_dataset_open_mnist(const char *folder, struct gk_dataset **ret_dataset,
                                  struct gk_words *words);

#endif
