/* Goal: events are stepped one after the other, in the order in which they came, and a step is
 * never entered from within a step. Method: a step function that queues more events by a script,
 * and one that overfills the queue. */
#include "common/net/feed.h"

#include <criterion/criterion.h>
#include <signal.h>

enum { ROOM = 5 };

struct recorder {
    struct gk_feed feed;
    int events[ROOM];
    int seen[64], seen_count;
    int inside; /* steps that are under way */
};

/* Event n > 0 brings n - 1 twice. */
static void step(void *context, void *item)
{
    struct recorder *recorder = context;
    int event = *(int *)item;

    cr_assert_eq(recorder->inside++, 0);
    recorder->seen[recorder->seen_count++] = event;
    for (int i = 0; event > 0 && i < 2; i++) {
        int next = event - 1;

        gk_feed_put(&recorder->feed, &next);
        next = 99; /* a copy was taken */
    }
    cr_assert_eq(*(int *)item, event, "the event stays while it is stepped");
    recorder->inside--;
}

static struct recorder recorder;

static void start(uint32_t room)
{
    recorder = (struct recorder){.seen_count = 0};
    recorder.feed = (struct gk_feed){.events = recorder.events,
                                     .event_bytes = sizeof(recorder.events[0]),
                                     .room = room,
                                     .step = step,
                                     .context = &recorder};
}

Test(net_feed, order)
{
    static const int expected[] = {2, 1, 1, 0, 0, 0, 0};

    start(ROOM);
    for (int round = 0; round < 5; round++) { /* the ring goes around */
        int first = 2;

        recorder.seen_count = 0;
        gk_feed_put(&recorder.feed, &first);
        cr_assert_eq(recorder.seen_count, 7);
        for (int i = 0; i < 7; i++) {
            cr_assert_eq(recorder.seen[i], expected[i], "round %d, event %d", round, i);
        }
        cr_assert(recorder.feed.count == 0 && !recorder.feed.stepping);
    }
}

Test(net_feed, overflow_is_our_bug, .signal = SIGABRT)
{
    int first = 2;

    start(2);
    gk_feed_put(&recorder.feed, &first);
}
