/* Data sets in memory, split into training and test: images, or one text.  `digits` is built in
 * (the UCI optical handwritten digits, 1797 images of 8 x 8; docs/data.md has source and licence);
 * `mnist:DIR` reads IDX files, `cifar10:DIR` the binary version of CIFAR-10, `text:FILE` any file
 * as a text whose characters are its bytes; all of them gzip or not.  worker/data/dealer.h deals
 * batches of them. */
#ifndef GK_WORKER_DATA_DATA_H
#define GK_WORKER_DATA_DATA_H

#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GK_DATA_CLASSES = 10, /* of all sets of images */
    GK_DATA_CHANNELS_MAX = 3,
    GK_DATA_SEQUENCE = 64,       /* characters of a sample of text */
    GK_DATA_BYTES_MAX = 1 << 30, /* of one file, decompressed */
};

struct gk_dataset {
    char name[256];    /* as it was opened; a longer one is cut here */
    char note[256];    /* how it was split, for the log; "" when there is nothing to say */
    uint32_t features; /* per sample: 64, 784, 3072; of text 0 */
    uint32_t rows, columns, channels; /* of an image, the channels innermost */
    uint32_t classes;                 /* of text: characters there are */
    uint32_t train_count, test_count; /* samples, at least 1 each */
    float *train;                     /* train_count x features, scaled to [0, 1] */
    uint32_t *train_labels;
    float *test;
    uint32_t *test_labels;
    /* cifar10, in place of train and test: a value is (pixel / 255 - mean) / deviation of its
     * channel, and training images are moved and mirrored. */
    uint8_t *train_pixels, *test_pixels;
    float mean[GK_DATA_CHANNELS_MAX], deviation[GK_DATA_CHANNELS_MAX];
    /* Text, as numbers below `classes`: train_characters, and behind them test_characters. */
    uint8_t *text;
    uint64_t train_characters, test_characters;
    uint32_t sequence;     /* characters of a sample; 0: images */
    uint8_t alphabet[256]; /* the byte that each number stands for */
};

/* GK_E_CONFIG (no such data set), GK_E_NOTFOUND (missing folder or file), GK_E_CORRUPT (wrong
 * magic, truncated, trailing bytes, label out of range, too little text), GK_E_LIMIT, GK_E_IO,
 * GK_E_NOMEM; words name the file, what is wrong and what was expected. */
enum gk_err gk_dataset_open(const char *name, struct gk_dataset **ret_dataset,
                            struct gk_words *words);

void gk_dataset_free(struct gk_dataset *dataset); /* accepts NULL */

/* The samples of a batch into x (count x features) and labels (count); of a set with floats. */
void gk_dataset_gather(const struct gk_dataset *dataset, const uint32_t *samples, uint32_t count,
                       float *x, uint32_t *labels);

/* The sample numbers of each batch, a function of (seed, step, rank) alone: each epoch is one
 * Philox permutation of the training set, dealt in global batches of workers * batch; rank r takes
 * slice r.  The samples that do not fill a global batch at an epoch's end are left out of that
 * epoch.  When workers * batch is larger than the set, each step is an epoch, and its permutation
 * is dealt cyclically.
 *
 * Steps may be asked for in any order.  The permutation of the last epoch is kept, since drawing
 * 60 000 numbers a step would cost as much as a small model.  One thread at a time. */
struct gk_batcher {
    const struct gk_dataset *dataset; /* borrowed */
    uint64_t seed;
    uint32_t rank, workers, batch;
    bool drawn; /* `permutation` is that of `epoch` */
    uint64_t epoch;
    uint32_t *permutation;
};

/* GK_E_NOMEM.  Afterwards nothing is allocated. */
enum gk_err gk_batcher_init(struct gk_batcher *batcher, const struct gk_dataset *dataset,
                            uint64_t seed, uint32_t rank, uint32_t workers, uint32_t batch);
void gk_batcher_fini(struct gk_batcher *batcher); /* accepts a zeroed one */

/* The sample numbers of this step's batch; `ret` has room for `batch`. */
void gk_batcher_at(struct gk_batcher *batcher, uint64_t step, uint32_t *ret);

/* IDX as one array (described in docs/data.md), from memory: dimensions and bytes.
 * Only unsigned bytes (type 8), 1 to 3 dimensions, none of them 0.  `data` is inside `bytes`.
 * GK_E_CORRUPT, GK_E_LIMIT (more than GK_DATA_BYTES_MAX). */
struct gk_idx {
    uint32_t dims[3];
    uint32_t dims_count;
    const uint8_t *data;
    size_t count;
};
enum gk_err gk_idx_parse(const uint8_t *bytes, size_t bytes_count, struct gk_idx *ret_idx,
                         struct gk_words *words);

#endif
