/* What of a worker outlives its process: who it is, how far it came, and the pushes that may be
 * needed again.
 *
 * The core says what must be written down (actions REMEMBER and PERSIST) and takes it up again in
 * gk_worker_resume(); where it lies is the shell's business: in the file of worker/state, or in the
 * memory of the simulator. */
#ifndef GK_WORKER_CORE_SLOT_H
#define GK_WORKER_CORE_SLOT_H

#include "proto/msg.h"
#include "worker/core/push.h"

/* Pushes that are not decided for good, in memory and in the file. */
enum { GK_RING_ENTRIES = 4 };

#define GK_LEFT_AT_START UINT64_MAX

/* Of an identity that has left: the step. */
static inline uint64_t gk_left_step(uint64_t left_at)
{
    return left_at == GK_LEFT_AT_START ? 0 : left_at;
}

/* Written before the first message that relies on it. */
struct gk_worker_identity {
    uint32_t rank;               /* GK_RANK_ANY: none yet */
    uint32_t incarnation;        /* the last one that a life here has used */
    uint32_t joined_incarnation; /* of the last life that joined; 0: none did */
    uint32_t epoch;
    struct gk_uid job_uid; /* zero: no life has joined */
    uint64_t init_id;
    /* It leaves: the version that was installed everywhere, no push of this step or a later one
     * will come.  0: not yet; GK_LEFT_AT_START: 0. */
    uint64_t left_at;
};

/* Of the residual and the pushes that belong to it. */
struct gk_worker_memory {
    uint64_t step;        /* of the newest push; the residual is the one behind it */
    uint64_t first_step;  /* of the first push of this memory */
    uint32_t incarnation; /* of the life in which this memory began */
    uint32_t epoch;
};

struct gk_worker_slot {
    /* NONE: no memory; LOST: there was one, it is damaged; STEP; LEFT: identity.left_at says when.
     */
    enum gk_slot_state state;
    struct gk_worker_identity identity;
    bool remembers; /* STEP, LEFT: memory and pushes hold */
    struct gk_worker_memory memory;
    /* Of the last steps up to memory.step, in any order. */
    struct gk_push *pushes[GK_RING_ENTRIES];
    uint32_t pushes_count;
};

#endif
