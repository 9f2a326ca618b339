/* The job spec: what all processes of one job must agree on.  Rank 0 sends it with INIT; its
 * hash is in HELLO, WELCOME and in files.  Canonical little-endian encoding, 64 KiB at most
 * (proto/README.md). */
#ifndef GK_PROTO_SPEC_H
#define GK_PROTO_SPEC_H

#include "common/backend.h"
#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tensor flags; wire numbers, frozen. */
enum {
    GK_TENSOR_NO_DECAY = 1 << 0, /* biases and norms: no weight decay */
    GK_TENSOR_FROZEN = 1 << 1,   /* no worker pushes anything for it, and it does not decay */
    GK_TENSOR_DENSE = 1 << 2,    /* every worker pushes all of it */
    GK_TENSOR_FLAGS_ALL = 7,
};

enum { GK_TENSOR_DIMS_MAX = 4 };

struct gk_tensor {
    char name[GK_TENSOR_NAME_BYTES]; /* terminated, unique */
    uint64_t offset;                 /* in the parameter vector; tensors tile it in order */
    uint64_t count;
    uint32_t dims[GK_TENSOR_DIMS_MAX]; /* product = count */
    uint32_t dims_count;
    uint32_t flags;
};

enum gk_schedule_kind {
    GK_SCHEDULE_CONSTANT = 1,
    GK_SCHEDULE_MILESTONES = 2,
    GK_SCHEDULE_COSINE = 3
};
enum gk_mode { GK_MODE_BSP = 1, GK_MODE_SSP = 2, GK_MODE_ASP = 3 }; /* SSP, ASP reserved */
enum gk_lost_policy { GK_LOST_WAIT = 1, GK_LOST_DROP = 2 };         /* DROP reserved */

struct gk_spec {
    uint32_t workers, servers;
    uint32_t mode, lost_policy, nonfinite_policy;
    uint64_t seed;
    uint64_t steps;     /* every worker pushes steps 0 .. steps-1, then leaves */
    uint64_t push_max;  /* largest number of entries a worker pushes in a step */
    uint32_t optimizer; /* enum gk_optimizer */
    float lr, weight_decay;
    float momentum;        /* ADAMW: beta1 */
    float beta2, epsilon;  /* ADAMW */
    uint32_t schedule;     /* enum gk_schedule_kind */
    uint64_t warmup_steps; /* linear from lr / warmup to lr */
    float lr_gamma;        /* MILESTONES: factor at each */
    uint64_t milestones[GK_MILESTONES_MAX];
    uint32_t milestones_count;
    float lr_min; /* COSINE: at step `steps` */
    char model[GK_TENSOR_NAME_BYTES];
    uint64_t params_count;           /* d */
    const struct gk_tensor *tensors; /* borrowed by encode; owned after decode */
    uint32_t tensors_count;
};

/* Every rule a spec must satisfy by itself: ranges, tensors that tile [0, d), unique names,
 * d >= 16 S, shards below 2^32 elements, supported mode, policy and optimizer.  GK_E_CONFIG and
 * words. */
enum gk_err gk_spec_check(const struct gk_spec *spec, struct gk_words *words);

/* Canonical bytes into `ret` (GK_SPEC_BYTES_MAX large).  GK_E_LIMIT: the table is too large;
 * words say by how much. */
enum gk_err gk_spec_encode(const struct gk_spec *spec, uint8_t *ret, size_t *ret_bytes,
                           struct gk_words *words);

/* Parse and check.  Allocates the tensors; free with gk_spec_clear().  GK_E_CORRUPT,
 * GK_E_CONFIG, GK_E_NOMEM. */
enum gk_err gk_spec_decode(const uint8_t *bytes, size_t bytes_count, struct gk_spec *ret_spec,
                           struct gk_words *words);

void gk_spec_clear(struct gk_spec *spec);

/* XXH3-64 of the canonical bytes. */
uint64_t gk_spec_hash(const uint8_t *bytes, size_t bytes_count);

/* Hash of the model table alone (names, shapes, flags, d). */
uint64_t gk_spec_model_signature(const struct gk_spec *spec);

/* lo of shard `shard` of `servers`: floor(d s / S / 16) * 16, and d for s = S. */
uint64_t gk_partition_lo(uint64_t params_count, uint32_t servers, uint32_t shard);

/* What a learning rate may be, of a spec and of a push: finite, from 0 to 1e30, not -0. */
bool gk_rate_good(float lr);

/* Learning rate of optimizer step `t` (0-based; skipped versions do not count). */
float gk_spec_lr(const struct gk_spec *spec, uint64_t t);

/* What optimizer step `t` is made with, all of it: the rate, and AdamW's bias corrections of its
 * step t + 1. */
struct gk_hyper gk_spec_hyper(const struct gk_spec *spec, uint64_t t);

/* The relative ranges of [lo, hi) that weight decay covers, merged, into `ret` (room for
 * tensors_count); count. */
uint32_t gk_spec_decay_ranges(const struct gk_spec *spec, uint64_t lo, uint64_t hi,
                              struct gk_range *ret);

#endif
