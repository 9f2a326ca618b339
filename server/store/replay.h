/* Replaying the log: the records behind a snapshot in order, and what they do to the planes.
 *
 * The restart and the fold are the same two pieces: a walk over the records, and a batch of rounds
 * that is applied to a range of the planes at once.  The restart's range is the whole shard, the
 * fold's one block after the other. */
#ifndef GK_SERVER_STORE_REPLAY_H
#define GK_SERVER_STORE_REPLAY_H

#include "common/backend.h"
#include "server/core/image.h"
#include "server/store/segment.h"

enum { GK_REPLAY_ROUNDS_MAX = 512 };

#define GK_REPLAY_BATCH_BYTES (UINT64_C(128) << 20) /* of records that are applied at once */

/* Records from a number on, across segments. */
struct gk_walk {
    const struct gk_place *place;
    struct gk_known_list *segments; /* what is learnt of them is put here */
    uint32_t at;                    /* the one that is read */
    uint64_t number;                /* of the next record that is given */
    bool last_may_end;              /* the newest segment may end anywhere: restart */
    struct gk_reader reader;
    struct gk_wal_rows *rows;
    struct gk_words torn; /* why the newest segment ends where it does; empty: zeros follow */
    uint64_t torn_bytes;
    uint64_t record_at; /* offset of the last given record */
};

/* The segments must hold record `number` or end with it.  GK_E_AGAIN (a file that was listed went
 * away; gk_walk_next(), too), GK_E_CORRUPT, GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_walk_open(struct gk_walk *walk, uint64_t number, struct gk_words *words);
void gk_walk_close(struct gk_walk *walk);

/* The next record and its memory (of the table's kind PINNED, the caller's now).  GK_E_NOTFOUND:
 * that was the last; the reader stands behind it. */
enum gk_err gk_walk_next(struct gk_walk *walk, const struct gk_vector_ops *ops,
                         struct gk_queue *queue, struct gk_record *ret_record, uint8_t **ret_memory,
                         struct gk_words *words);

/* Number of the last round ahead that carries a state hash; UINT64_MAX: none.  Reads headers only,
 * and ends at the first that is not good: whoever walks on will say so. */
uint64_t gk_walk_last_hashed(const struct gk_walk *walk);

/* Rounds that wait to be applied. */
struct gk_batch {
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_range *decay; /* room for all tensors */
    struct gk_spec *spec;
    uint32_t optimizer;
    uint64_t lo, hi; /* of the shard */
    uint32_t count;
    uint64_t bytes;
    uint8_t *memory[GK_REPLAY_ROUNDS_MAX];
    uint32_t *idx[GK_REPLAY_ROUNDS_MAX]; /* into memory; NULL: dense */
    const float *val[GK_REPLAY_ROUNDS_MAX];
    uint64_t n[GK_REPLAY_ROUNDS_MAX];
    uint64_t done[GK_REPLAY_ROUNDS_MAX]; /* entries of earlier blocks */
    struct gk_update updates[GK_REPLAY_ROUNDS_MAX];
};

/* For the shard of an initialised image.  GK_E_NOMEM, GK_E_CORRUPT. */
enum gk_err gk_batch_new(const struct gk_vector_ops *ops, struct gk_queue *queue,
                         const struct gk_image *image, struct gk_batch **ret,
                         struct gk_words *words);
void gk_batch_free(struct gk_batch *batch); /* accepts NULL */

/* Takes the memory. */
void gk_batch_add(struct gk_batch *batch, const struct gk_record *record, uint8_t *memory,
                  uint64_t bytes);

/* Apply all rounds, in order, to the planes of [first, first + length), relative to the shard.
 * Ranges must rise, and each be given once: the indices are moved in place.  The queue's error. */
enum gk_err gk_batch_apply(struct gk_batch *batch, float *const planes[3], uint64_t first,
                           uint64_t length, struct gk_words *words);

/* Forget the rounds. */
void gk_batch_clear(struct gk_batch *batch);

/* Hash of the first `planes_count` planes, whose elements are those of the range `global`.  The
 * queue's error. */
enum gk_err gk_replay_hash(const struct gk_vector_ops *ops, struct gk_queue *queue,
                           float *const planes[3], uint32_t planes_count,
                           const struct gk_range *global, uint64_t *ret_hash);

#endif
