/* Copies of whole versions, for exports: memory of their own beside that of the job.  Loop thread
 * only, but for gk_pins_copy(). */
#ifndef GK_SERVER_PINS_H
#define GK_SERVER_PINS_H

#include "common/backend.h"
#include "common/limits.h"
#include "server/core/server.h"

struct gk_pins {
    float *values[GK_PINS_MAX]; /* by slot; NULL: none */
};

/* Memory for the copy of args->slot, which holds none; sets args->values.  GK_E_NOMEM. */
enum gk_err gk_pins_take(struct gk_pins *pins, struct gk_pin_args *args);

/* Copy and hash.  On the thread of the queue. */
enum gk_err gk_pins_copy(const struct gk_vector_ops *ops, struct gk_queue *queue,
                         struct gk_pin_args *args);

/* Free the copy of a slot; accepts one that holds none. */
void gk_pins_drop(struct gk_pins *pins, uint32_t slot);

/* All of them. */
void gk_pins_fini(struct gk_pins *pins);

#endif
