/* Batches as a model takes them, of every kind of data set; each is a function of (data set, seed,
 * step, rank, workers, batch) alone.
 *
 * Images: the samples that gk_batcher deals.  Those of cifar10 are moved by up to four pixels (what
 * comes in is black) and mirrored every second time, by draws numbered by (step, rank, sample).
 *
 * Text: the training part is a ring, read by workers x batch streams at equal distances, each one
 * sequence further a step; so a sample continues the one at its place in the step before, and what
 * an LSTM carries over makes sense.  When the streams have read the ring, an epoch is over: the
 * next begins at another place, and is `fresh`. */
#ifndef GK_WORKER_DATA_DEALER_H
#define GK_WORKER_DATA_DEALER_H

#include "worker/data/data.h"

struct gk_dealer_setup {
    const struct gk_dataset *dataset; /* borrowed */
    uint64_t seed;
    uint32_t rank, workers;
    uint32_t batch;      /* samples of a training batch */
    uint32_t test_batch; /* of a test batch, at most */
};

/* Borrowed from dealer and data set, until the next call. */
struct gk_samples {
    const float *x; /* count x features; NULL: text */
    /* Text, time-major: sequence x count; else NULL. */
    const uint32_t *tokens;
    const uint32_t *labels; /* count, or sequence x count: the characters behind */
    uint32_t count;
    bool fresh; /* text: these do not continue those of the call before */
};

struct gk_dealer;

/* GK_E_NOMEM.  Afterwards nothing is allocated.  One thread at a time. */
enum gk_err gk_dealer_new(const struct gk_dealer_setup *setup, struct gk_dealer **ret_feed);
void gk_dealer_free(struct gk_dealer *dealer); /* accepts NULL */

void gk_dealer_train(struct gk_dealer *dealer, uint64_t step, struct gk_samples *ret_samples);

/* Batch `index` of the test part, in order from 0; false: there are no more.  Of a text the
 * characters that do not fill a sequence of every stream at the end are left out. */
bool gk_dealer_test(struct gk_dealer *dealer, uint32_t index, struct gk_samples *ret_samples);

#endif
