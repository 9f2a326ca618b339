#include "worker/data/data.h"

#include "common/assert.h"
#include "common/rng.h"

#include <stdlib.h>

/* Where a rank's batch lies. */
struct place {
    uint64_t epoch;
    uint64_t from; /* in the permutation, before wrapping */
};

static struct place find_place(const struct gk_batcher *batcher, uint64_t step)
{
    uint64_t dealt = (uint64_t)batcher->workers * batcher->batch;
    uint64_t steps_per_epoch = batcher->dataset->train_count / dealt;
    struct place place;

    if (steps_per_epoch == 0) {
        steps_per_epoch = 1;
    }
    place.epoch = step / steps_per_epoch;
    place.from = step % steps_per_epoch * dealt + (uint64_t)batcher->rank * batcher->batch;
    return place;
}

static void draw(uint64_t seed, uint64_t epoch, uint32_t *ret, uint32_t count)
{
    const struct gk_rng rng = {
        .seed = seed, .purpose = GK_RNG_BATCH, .a = epoch & UINT32_MAX, .b = epoch >> 32};

    gk_rng_permute(&rng, ret, count);
}

enum gk_err gk_batcher_init(struct gk_batcher *batcher, const struct gk_dataset *dataset,
                            uint64_t seed, uint32_t rank, uint32_t workers, uint32_t batch)
{
    uint32_t *permutation;

    GK_ASSERT(rank < workers && batch > 0);
    permutation = calloc(dataset->train_count, sizeof(*permutation));
    if (!permutation) {
        return GK_E_NOMEM;
    }
    *batcher = (struct gk_batcher){.dataset = dataset,
                                   .seed = seed,
                                   .rank = rank,
                                   .workers = workers,
                                   .batch = batch,
                                   .permutation = permutation};
    return GK_OK;
}

void gk_batcher_fini(struct gk_batcher *batcher)
{
    free(batcher->permutation);
    *batcher = (struct gk_batcher){0};
}

void gk_batcher_at(struct gk_batcher *batcher, uint64_t step, uint32_t *ret)
{
    const struct place place = find_place(batcher, step);
    uint32_t count = batcher->dataset->train_count;

    if (!batcher->drawn || batcher->epoch != place.epoch) {
        draw(batcher->seed, place.epoch, batcher->permutation, count);
        batcher->epoch = place.epoch;
        batcher->drawn = true;
    }
    for (uint32_t i = 0; i < batcher->batch; i++) {
        ret[i] = batcher->permutation[(place.from + i) % count];
    }
}
