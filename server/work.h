/* The computations of the core, one at a time on the compute thread, and the memory they work in.
 *
 * Fields belong to this module but for those said to be given.  Loop thread only. */
#ifndef GK_SERVER_WORK_H
#define GK_SERVER_WORK_H

#include "common/net/compute.h"
#include "server/core/server.h"
#include "server/pins.h"

struct gk_work {
    /* Given. */
    const struct gk_vector_ops *ops;
    struct gk_queue *queue; /* of the compute thread, while there is one */
    struct gk_compute *compute;
    void (*done)(void *context, const struct gk_server_event *event); /* how it ended */
    void *context;

    struct gk_server_memory memory; /* of the compute thread during a SETUP */
    struct gk_pins pins;
    struct gk_work_job { /* the core has at most one of each kind in flight */
        struct gk_work *work;
        enum gk_server_action_kind kind;
        uint64_t op;
        const void *args;
        struct gk_pin_args *pin;      /* PIN */
        struct gk_server_setup setup; /* SETUP */
        enum gk_err err;
        struct gk_words words; /* of a SETUP that failed */
    } jobs[GK_SERVER_ACTION_KINDS_COUNT];
};

/* Begin a SETUP, SUM, APPLY, HASH or PIN.  A PIN without memory ends at once, by `done`. */
void gk_work_submit(struct gk_work *work, const struct gk_server_action *action);

#endif
