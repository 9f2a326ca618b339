/* What the files of the parameter vector share; nobody else includes this.
 *
 * flat.c       layout, spec, memory
 * flat_step.c  a step: from the bound memory into a push, and back */
#ifndef GK_WORKER_LIB_FLAT_INTERNAL_H
#define GK_WORKER_LIB_FLAT_INTERNAL_H

#include "worker/lib/flat.h"
#include "worker/select/select.h"

struct gk_flat {
    const struct gk_settings *settings;
    struct gk_flat_tensor *tensors; /* of the program, in its order */
    uint32_t tensors_count;
    uint32_t *order;           /* of the vector: positions in `tensors` */
    struct gk_tensor *table;   /* of the spec, in the order of the vector */
    struct gk_range *segments; /* units of selection */
    double *densities;
    uint32_t segments_count;
    uint32_t rank, servers;
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    bool on_host; /* the table */
    struct gk_selector *selector;
    struct gk_slot *slot; /* NULL: there is none */
    struct gk_spec spec;
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t spec_hash;
    /* d floats each, in memory of the table; they change places.  With a slot and a table on the
     * host they lie in the slot; else the slot gets a copy of every new residual. */
    float *gradient, *residual;
    float *initial;       /* d floats; memory of the host */
    uint32_t *sparse_idx; /* push_max entries each, of a selection that was given */
    float *sparse_val;
};

/* Zeroed, d floats of the table's memory; NULL: there is none. */
float *gk_flat_vector_new(struct gk_flat *flat);
void gk_flat_vector_free(struct gk_flat *flat, float *vector); /* accepts NULL */

/* Where gradient and residual are in the slot now, if they lie there. */
void gk_flat_look_into_slot(struct gk_flat *flat);

#endif
