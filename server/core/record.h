/* What the server writes down before anybody may see it: one record per change of the durable
 * state.
 *
 * The order of the records is the order of the shard's history; replaying them from the first gives
 * the same state, bit for bit.  A record borrows its arrays from the core; they stay untouched
 * until WRITE_DONE.  Floats are written as bits: nobody recomputes a learning rate. */
#ifndef GK_SERVER_CORE_RECORD_H
#define GK_SERVER_CORE_RECORD_H

#include "common/backend.h"
#include "proto/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gk_record_type {                       /* numbers on disk, frozen */
                      GK_RECORD_ROUND = 1,  /* one commit: version `version` from version - 1 */
                      GK_RECORD_MEMBER = 2, /* rows of ranks whose incarnation or leaving changed */
                      GK_RECORD_FINISHED = 3, /* all ranks have left; `version` is the last one */
                      GK_RECORD_INIT = 4,     /* version 0: spec and initial parameters */
                      GK_RECORD_LIFE = 5,     /* the shard begins a new life: its incarnation */
};

/* One rank's contribution to a round. */
struct gk_contribution {
    uint32_t rank;
    uint32_t incarnation; /* of the life that pushed */
    uint64_t step;
    uint64_t base_version;
    uint64_t samples;
    uint64_t push_id;
    uint32_t verdict; /* enum gk_verdict */
};

/* What is durable about one rank. */
struct gk_rank_row {
    uint32_t incarnation; /* highest that was welcomed; 0: never seen */
    uint64_t life_nonce;  /* of that life */
    uint32_t verdict;     /* enum gk_verdict: the last one, of the push of verdict_step */
    uint64_t verdict_step;
    uint32_t verdict_incarnation;
    bool left;
    uint64_t left_at; /* no push from this step on */
};

struct gk_member_entry {
    uint32_t rank;
    struct gk_rank_row row;
};

struct gk_record {
    uint32_t type; /* enum gk_record_type */
    uint32_t epoch;
    struct gk_uid job_uid;
    uint64_t version; /* that the record makes, or stands at */

    /* ROUND of version v + 1: hash of all planes at version v, when v % GK_HASH_EVERY is 0. */
    bool hashed;
    uint64_t state_hash;

    uint32_t incarnation; /* LIFE: of the shard */

    /* ROUND: step = version - 1 */
    uint64_t step;
    uint64_t optimizer_step; /* that this commit takes (0-based); not taken when samples is 0 */
    uint32_t optimizer;      /* enum gk_optimizer; also INIT */
    struct gk_hyper hyper;
    uint64_t samples;                            /* sum over the contributors */
    const struct gk_contribution *contributions; /* in rank order */
    uint32_t contributions_count;
    const uint32_t
        *idx; /* union of the indices, relative to the shard; NULL: dense, all of [lo, hi) */
    const float *val; /* sums before division */
    uint64_t count;

    /* MEMBER */
    const struct gk_member_entry *members;
    uint32_t members_count;

    /* INIT */
    uint64_t init_id;
    uint64_t lo, hi;
    const uint8_t *spec;
    size_t spec_bytes;
    const float *params; /* hi - lo */
};

#endif
