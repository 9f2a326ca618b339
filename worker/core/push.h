/* One step's push, encoded: a slice per shard, cut into chunks that tile the shard's range.
 *
 * Made by the compute action, owned by the core's ring until every shard's verdict is durable;
 * chunk frames are referenced by messages in flight, so that a push may be freed while ZeroMQ still
 * holds the last copy. */
#ifndef GK_WORKER_CORE_PUSH_H
#define GK_WORKER_CORE_PUSH_H

#include "common/buf.h"
#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_push_chunk {
    uint64_t lo, hi;         /* global; chunks of a slice tile the shard */
    uint32_t index_encoding; /* enum gk_index_encoding: NONE (empty), RAW32, DENSE */
    uint64_t count;
    struct gk_buf *frame[2]; /* RAW32: indices, values; DENSE: values; NONE: nothing */
    uint32_t frames_count;
};

struct gk_push_slice {
    uint64_t id;    /* push id */
    uint64_t bytes; /* of all frames */
    struct gk_push_chunk *chunks;
    uint32_t chunks_count; /* at least 1 */
};

struct gk_push {
    uint64_t step;
    uint64_t samples;
    bool has_rate; /* the learning rate of the step is lr_bits, not the schedule's */
    uint32_t lr_bits;
    struct gk_push_slice *slices; /* one per shard */
    uint32_t slices_count;
};

struct gk_push_source {
    uint64_t step, samples;
    bool has_rate; /* the servers use `lr`, which all ranks must push alike, not the job's schedule
                    */
    float lr;      /* gk_rate_good() */
    uint32_t rank;
    uint32_t servers;
    uint64_t params_count;
    const uint32_t *idx; /* rising, global; NULL: dense, val holds all parameters */
    const float *val;
    uint64_t n;
    uint32_t chunk_floats; /* entries per chunk; GK_CHUNK_FLOATS outside tests */
};

/* Encode.  A slice whose indices would cost more than its values (8 n >= 4 (hi - lo)) is sent
 * DENSE, zeros where nothing was selected.  The push id is the XXH3-64 of step, rank, samples,
 * rate and all chunks, and never 0.  GK_E_NOMEM.  Any thread. */
enum gk_err gk_push_encode(const struct gk_push_source *source, struct gk_push **ret_push,
                           struct gk_words *words);

/* The id of slice `shard`, from what the slice holds.  Any thread. */
uint64_t gk_push_slice_id(const struct gk_push *push, uint32_t shard, uint32_t rank);

/* Accepts NULL.  Any thread. */
void gk_push_free(struct gk_push *push);

#endif
