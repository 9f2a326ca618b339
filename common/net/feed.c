#include "common/net/feed.h"

#include "common/assert.h"

#include <string.h>

static void *place(const struct gk_feed *feed, uint32_t i)
{
    return (unsigned char *)feed->events + ((feed->first + i) % feed->room) * feed->event_bytes;
}

void gk_feed_put(struct gk_feed *feed, const void *event)
{
    GK_ASSERT(feed->count < feed->room);
    memcpy(place(feed, feed->count), event, feed->event_bytes);
    feed->count++;
    if (feed->stepping) {
        return;
    }
    feed->stepping = true;
    while (feed->count > 0) {
        feed->step(feed->context, place(feed, 0));
        feed->first = (feed->first + 1) % feed->room;
        feed->count--;
    }
    feed->stepping = false;
}
