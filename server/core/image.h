/* What one shard keeps across its lives, but for the planes: who it is, which version it has, and
 * the row of every rank.
 *
 * Every change of it is a record (record.h), and gk_image_apply() is the only way that a record
 * takes: the running core, the restart, the fold of the log into a snapshot and the tools all call
 * it.  So what is served and what a replay gives cannot differ. */
#ifndef GK_SERVER_CORE_IMAGE_H
#define GK_SERVER_CORE_IMAGE_H

#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"
#include "server/core/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gk_image {
    uint32_t shard, servers, workers;
    uint32_t incarnation; /* of the shard's last life; 0: it never lived */
    uint32_t epoch;
    bool initialised; /* a version exists */
    bool finished;
    struct gk_uid job_uid; /* zero before INIT */
    uint64_t init_id;
    uint8_t spec[GK_SPEC_BYTES_MAX]; /* canonical bytes (proto/spec.h) */
    size_t spec_bytes;
    uint32_t optimizer; /* enum gk_optimizer: of the spec */
    uint64_t lo, hi;    /* of the parameter vector */
    uint64_t version;
    uint64_t samples;        /* of the round that made it; 0: version 0, or nobody had any */
    uint64_t optimizer_step; /* that the next commit takes */
    uint64_t applied, returned, skipped, lost; /* pushes that were decided, by verdict */
    struct gk_rank_row *rows;                  /* [workers], owned */
};

/* An image of a shard that never lived.  GK_E_NOMEM. */
enum gk_err gk_image_new(uint32_t shard, uint32_t servers, uint32_t workers,
                         struct gk_image **ret_image);
void gk_image_free(struct gk_image *image); /* accepts NULL */

/* `target` becomes equal to `source`; both have the same number of workers. */
void gk_image_copy(struct gk_image *target, const struct gk_image *source);

/* How many planes a shard with this enum gk_optimizer has: parameters, then moments; with NONE the
 * newest round's sum, divided by its samples. */
uint32_t gk_optimizer_planes(uint32_t optimizer);
uint32_t gk_image_planes(const struct gk_image *image);

struct gk_image_shape { /* what a record or a snapshot says that version 0 looks like */
    const uint8_t *spec;
    size_t spec_bytes;
    uint64_t lo, hi;
};

/* The spec is valid, and of a job in which this shard has just that range.  GK_E_CORRUPT,
 * GK_E_NOMEM. */
enum gk_err gk_image_check_spec(const struct gk_image *image, const struct gk_image_shape *shape,
                                uint32_t *ret_optimizer, struct gk_words *words);

/* Whether the record follows from this image: what gk_image_apply() would say. */
enum gk_err gk_image_check(const struct gk_image *image, const struct gk_record *record,
                           struct gk_words *words);

/* Take one record; the planes are the caller's.  GK_E_CORRUPT: the record does not follow from this
 * image (version, job, epoch, rank, spec); words say what was expected, the image is untouched.
 * GK_E_NOMEM: INIT only. */
enum gk_err gk_image_apply(struct gk_image *image, const struct gk_record *record,
                           struct gk_words *words);

/* The same for a record that follows for certain, because the caller made it of this image. */
void gk_image_take(struct gk_image *image, const struct gk_record *record);

#endif
