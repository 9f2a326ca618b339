/* What the core wants kept goes through here: into the slot of --state-dir, or, without one, no
 * further than the memory of the process.  Part of the shell: it logs.  Loop thread. */
#ifndef GK_WORKER_LIB_KEEPER_H
#define GK_WORKER_LIB_KEEPER_H

#include "common/net/compute.h"
#include "worker/core/worker.h"
#include "worker/lib/flat.h"
#include "worker/lib/settings.h"

struct gk_keeper {
    /* Given by the owner. */
    struct gk_flat *flat;
    const struct gk_settings *settings;
    size_t aux_bytes;
    void (*kept)(void *context); /* answers gk_keeper_persist() */
    /* It cannot be kept, so nothing that relies on it may be sent: the process must end. */
    void (*failed)(void *context, int exit_code, const char *words);
    void *context;
    /* Zero at first. */
    struct gk_slot *slot;           /* NULL: no state directory */
    bool remembers;                 /* the slot had something to go on with */
    struct gk_worker_memory memory; /* of the step that is being persisted */
    enum gk_err err;
    struct gk_words words;
};

/* Open the slot, give its room to the vector and what it holds to the core, and say so.  `rank`
 * becomes that of the slot, if it knows one and any was asked for.  The errors of gk_slot_open().
 */
enum gk_err gk_keeper_open(struct gk_keeper *keeper, const struct gk_worker_config *config,
                           struct gk_worker *core, uint32_t *rank, struct gk_words *words);

/* When no computation runs any more. */
void gk_keeper_close(struct gk_keeper *keeper);

/* In the child of a fork: the lock is the parent's alone. */
void gk_keeper_forget(struct gk_keeper *keeper);

/* The actions of the core.  Persisting goes to the compute thread: the sum over the residual takes
 * a pass over it. */
void gk_keeper_persist(struct gk_keeper *keeper, struct gk_compute *compute,
                       const struct gk_worker_memory *memory);
void gk_keeper_remember(struct gk_keeper *keeper, const struct gk_worker_identity *identity);
void gk_keeper_reset(struct gk_keeper *keeper);

#endif
