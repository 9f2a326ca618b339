#include "tests/sim/sim.h"

#include "common/assert.h"

#include <stdlib.h>

static bool before(const struct gk_sim_event *a, const struct gk_sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

static void swap(struct gk_sim_event *a, struct gk_sim_event *b)
{
    struct gk_sim_event c = *a;

    *a = *b;
    *b = c;
}

static void rise(struct gk_sim_queue *queue, uint32_t i)
{
    while (i > 0 && before(&queue->events[i], &queue->events[(i - 1) / 2])) {
        swap(&queue->events[i], &queue->events[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
}

static void sink(struct gk_sim_queue *queue, uint32_t i)
{
    for (;;) {
        uint32_t least = i;

        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < queue->count; child++) {
            if (before(&queue->events[child], &queue->events[least])) {
                least = child;
            }
        }
        if (least == i) {
            return;
        }
        swap(&queue->events[i], &queue->events[least]);
        i = least;
    }
}

void gk_sim_queue_push(struct gk_sim_queue *queue, const struct gk_sim_event *event)
{
    if (queue->count == queue->room) {
        queue->room = queue->room ? 2 * queue->room : 256;
        queue->events = realloc(queue->events, queue->room * sizeof(*queue->events));
        GK_ASSERT(queue->events); /* a test program: no memory is the end of the test */
    }
    queue->events[queue->count] = *event;
    queue->events[queue->count].seq = queue->seq++;
    rise(queue, queue->count++);
}

void gk_sim_queue_take(struct gk_sim_queue *queue, uint32_t index, struct gk_sim_event *ret_event)
{
    GK_ASSERT(index < queue->count);
    *ret_event = queue->events[index];
    queue->count--;
    if (index < queue->count) {
        queue->events[index] = queue->events[queue->count];
        sink(queue, index);
        rise(queue, index);
    }
}

bool gk_sim_queue_pop(struct gk_sim_queue *queue, struct gk_sim_event *ret_event)
{
    if (queue->count == 0) {
        return false;
    }
    gk_sim_queue_take(queue, 0, ret_event);
    return true;
}

void gk_sim_queue_free(struct gk_sim_queue *queue)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        gk_sim_packet_free(queue->events[i].packet);
    }
    free(queue->events);
    queue->events = NULL;
    queue->count = queue->room = 0;
}
