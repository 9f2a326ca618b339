/* The queue in front of a step function.  While the actions of one step are performed some are
 * answered at once; those answers wait here until the step is over, so that the step function is
 * never entered twice. */
#ifndef GK_COMMON_NET_FEED_H
#define GK_COMMON_NET_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gk_feed {
    /* Given by the owner. */
    void *events; /* array of `room` */
    size_t event_bytes;
    uint32_t room;
    void (*step)(void *context, void *event); /* one step with all its actions */
    void *context;
    /* Zero at first. */
    uint32_t first, count;
    bool stepping;
};

/* Queue a copy of the event; unless a step is under way, step until the queue is empty.  What the
 * event points to must live until it was stepped.  Asserts that there is room: an event that is
 * under way still takes its place.  One thread. */
void gk_feed_put(struct gk_feed *feed, const void *event);

#endif
