/* The durable state of a worker: one mapped file with two residual slots, a ring of encoded pushes
 * and the worker's identity (docs/worker-state.md has the format).
 *
 * A step reads the residual of one slot and makes the next one in the other; gk_slot_put() writes
 * its push into the ring; gk_slot_persist() sums both and flips: one store that makes the new
 * residual and the new push count, together.  A process that is killed at any instant leaves the
 * state before the flip or the one behind it.  What the machine itself loses shows as a wrong CRC,
 * and counts as lost.
 *
 * Threads: opening and closing on any one; in between gk_slot_begin(), gk_slot_put() and
 * gk_slot_persist() on the compute thread, gk_slot_remember() and gk_slot_void() on the loop thread
 * while none of those runs. */
#ifndef GK_WORKER_STATE_SLOT_H
#define GK_WORKER_STATE_SLOT_H

#include "common/err.h"
#include "common/words.h"
#include "worker/core/slot.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_slot;

struct gk_slot_setup { /* borrowed during gk_slot_open() only */
    const char *directory;
    const char *job;
    uint32_t workers, servers;
    uint32_t rank;         /* GK_RANK_ANY: whatever rank the slot has */
    uint64_t params_count; /* d */
    uint64_t push_max;     /* entries of a push; what the job spec says */
    uint64_t spec_hash, model_signature;
    uint32_t chunk_floats; /* GK_CHUNK_FLOATS outside tests */
    uint64_t aux_bytes;    /* that must match the residual */
    bool sync;             /* msync before a flip and after it */
    /* Tests only: called between two stores that a kill may fall between. */
    void (*hook)(void *context, const char *where);
    void *hook_context;
};

struct gk_slot_found {
    bool created;               /* the file was not there */
    struct gk_worker_slot slot; /* its pushes are the caller's */
    struct gk_words damage;     /* what is lost and why, or repaired; "": nothing */
};

/* Lock the directory, made if it is not there; open its slot or create one, all of its room
 * reserved on the disk; read and check it.
 *
 * GK_E_BUSY: another process has it.  GK_E_LIMIT: no room for the file.  GK_E_CONFIG: it belongs to
 * another job, rank, model, spec or shape, or to another version of gkps.  GK_E_CORRUPT: damaged
 * where no repair is possible.  GK_E_IO, GK_E_NOMEM.  Words are one line for the operator; *ret_*
 * are untouched on failure. */
enum gk_err gk_slot_open(const struct gk_slot_setup *setup, struct gk_slot **ret_slot,
                         struct gk_slot_found *ret_found, struct gk_words *words);

/* Unmap, unlock.  Accepts NULL. */
void gk_slot_close(struct gk_slot *slot);

/* In the child of a fork: does not hold the lock any longer, which stays with the parent.  Nothing
 * else may follow there. */
void gk_slot_forget(struct gk_slot *slot);

/* Bytes of the file of such a worker. */
uint64_t gk_slot_bytes(const struct gk_slot_setup *setup);

/* d floats each, aligned to pages; they change places at the flip.  The residual that the next step
 * reads; zeros when there is no memory. */
float *gk_slot_residual(struct gk_slot *slot);
/* Where the next step puts the one after it. */
float *gk_slot_target(struct gk_slot *slot);

/* The `aux_bytes` behind each of the two; NULL when there are none.  What is written to the second
 * before gk_slot_persist() is what the first holds after it. */
void *gk_slot_aux(struct gk_slot *slot);
void *gk_slot_aux_target(struct gk_slot *slot);

/* Before the first store to the target: what lay there is void.  `step` follows the slot's own. */
void gk_slot_begin(struct gk_slot *slot, uint64_t step);

/* Write the push of that step into the ring.  GK_E_LIMIT: it is larger than the spec allows. */
enum gk_err gk_slot_put(struct gk_slot *slot, const struct gk_push *push, struct gk_words *words);

/* Target and push become the state.  GK_E_IO: msync failed, the process must end. */
enum gk_err gk_slot_persist(struct gk_slot *slot, const struct gk_worker_memory *memory,
                            struct gk_words *words);

/* Who this life is.  GK_E_IO as above. */
enum gk_err gk_slot_remember(struct gk_slot *slot, const struct gk_worker_identity *identity,
                             struct gk_words *words);

/* Residual and pushes are void, the residual is zero.  GK_E_IO as above. */
enum gk_err gk_slot_void(struct gk_slot *slot, struct gk_words *words);

#endif
