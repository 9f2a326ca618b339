/* Data sets: images in memory, split into training and test.  `digits` is built in (the UCI optical handwritten digits,
 * 1797 images of 8 x 8; docs/data.md has source and licence); `mnist:DIR` reads IDX files, gzip or not. */
#ifndef GK_WORKER_DATA_DATA_H
#define GK_WORKER_DATA_DATA_H

#include "common/err.h"
#include "common/words.h"

#include <stddef.h>
#include <stdint.h>

struct gk_dataset {
    char name[256];
    char note[256];         /* how it was split, for the log; "" when there is nothing to say */
    uint32_t features;      /* per sample: 64, 784 */
    uint32_t rows, columns; /* of an image */
    uint32_t classes;
    uint32_t train_count, test_count;
    float *train; /* train_count x features, scaled to [0, 1] */
    uint32_t *train_labels;
    float *test;
    uint32_t *test_labels;
};

/* GK_E_NOTFOUND (unknown name, missing file), GK_E_CORRUPT (wrong magic, truncated, trailing bytes, label out of range),
 * GK_E_LIMIT, GK_E_NOMEM; words name the file, what is wrong and what was expected. */
enum gk_err gk_dataset_open(const char *name, struct gk_dataset **ret_dataset, struct gk_words *words);

void gk_dataset_free(struct gk_dataset *dataset);

/* The sample numbers of one batch, a function of (seed, step, rank) alone: each epoch is one Philox permutation of the
 * training set, dealt in global batches of workers * batch; rank r takes slice r.  `ret` has room for `batch`.
 * The samples that do not fill a global batch at an epoch's end are left out of that epoch.  When workers * batch is
 * larger than the set, it is dealt cyclically.  `scratch` has room for train_count. */
void gk_dataset_batch(const struct gk_dataset *dataset, uint64_t seed, uint64_t step, uint32_t rank, uint32_t workers,
                      uint32_t batch, uint32_t *scratch, uint32_t *ret);

/* IDX as one array (described in docs/data.md), from memory: dimensions and bytes.
 * Only unsigned bytes (type 8), 1 to 3 dimensions.  `data` is inside `bytes`. */
struct gk_idx {
    uint32_t dims[3];
    uint32_t dims_count;
    const uint8_t *data;
    size_t count;
};
enum gk_err gk_idx_parse(const uint8_t *bytes, size_t bytes_count, struct gk_idx *ret_idx, struct gk_words *words);

#endif
