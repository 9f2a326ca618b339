#include "server/pins.h"

#include "common/assert.h"

#include <stdlib.h>

enum gk_err gk_pins_take(struct gk_pins *pins, struct gk_pin_args *args)
{
    GK_ASSERT(args->slot < GK_PINS_MAX && !pins->values[args->slot]);
    args->values = malloc((size_t)args->n * sizeof(float));
    pins->values[args->slot] = args->values;
    return args->values ? GK_OK : GK_E_NOMEM;
}

enum gk_err gk_pins_copy(const struct gk_vector_ops *ops, struct gk_queue *queue,
                         struct gk_pin_args *args)
{
    struct gk_hash_args hash = {
        .x = args->x, .n = args->n, .index0 = args->index0, .hash = &args->hash};
    enum gk_err err =
        ops->wait(queue, ops->copy(queue, args->values, args->x, (size_t)args->n * sizeof(float)));

    return err ? err : ops->wait(queue, ops->hash(queue, &hash));
}

void gk_pins_drop(struct gk_pins *pins, uint32_t slot)
{
    GK_ASSERT(slot < GK_PINS_MAX);
    free(pins->values[slot]);
    pins->values[slot] = NULL;
}

void gk_pins_fini(struct gk_pins *pins)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        gk_pins_drop(pins, i);
    }
}
