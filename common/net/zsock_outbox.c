/* Outboxes: messages on their way to ZeroMQ, two queues per peer.
 *
 * Two queues, because a heartbeat that waits behind megabytes, or is dropped for want of room, is
 * late however fast its sender was; in each of them messages keep their order.  For each peer,
 * because "writable" of a ROUTER means that some peer has room, not the one we wait for: a slow
 * peer blocks its own queue alone.  Outboxes exist only while they hold something; a hash finds
 * them by route and a ring gives every peer its turn.  A message is sent whole: the first frame is
 * the only one that ZeroMQ refuses for lack of room.  When a later one fails (the peer died in
 * between), the rest is still sent, because ZeroMQ would take the next message for the end of this
 * one, and the whole message stays queued. */
#include "common/net/zsock_internal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/net/zsock_route.h"

#include <zmq.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct gk_zsock_outbox **bucket_of(struct gk_zsock *zsock, uint64_t route)
{
    return &zsock->buckets[gk_mix64(route) & (GK_ZSOCK_BUCKETS - 1)];
}

static struct gk_zsock_outbox *find(struct gk_zsock *zsock, uint64_t route)
{
    struct gk_zsock_outbox *box = *bucket_of(zsock, route);

    while (box && box->route != route) {
        box = box->bucket_next;
    }
    return box;
}

static struct gk_zsock_outbox *find_or_add(struct gk_zsock *zsock, uint64_t route)
{
    struct gk_zsock_outbox **bucket = bucket_of(zsock, route);
    struct gk_zsock_outbox *box = find(zsock, route);

    if (box || zsock->outboxes_count == GK_ZSOCK_OUTBOXES_MAX) {
        return box;
    }
    box = calloc(1, sizeof(*box));
    if (!box) {
        return NULL;
    }
    box->route = route;
    box->bucket_next = *bucket;
    *bucket = box;
    if (zsock->ring) { /* last in the ring: just before where the next flush starts */
        box->next = zsock->ring;
        box->prev = zsock->ring->prev;
        box->prev->next = box;
        box->next->prev = box;
    } else {
        box->next = box;
        box->prev = box;
        zsock->ring = box;
    }
    zsock->outboxes_count++;
    return box;
}

static void message_free(struct gk_zsock_message *message)
{
    for (uint32_t i = 0; i < message->parts_count; i++) {
        gk_buf_unref(message->parts[i]);
    }
    free(message);
}

static struct gk_zsock_queue *first_queue(struct gk_zsock_outbox *box)
{
    return box->small.first ? &box->small : &box->bulk;
}

static void drop_first(struct gk_zsock *zsock, struct gk_zsock_queue *queue)
{
    struct gk_zsock_message *message = queue->first;

    queue->first = message->next;
    queue->count--;
    queue->bytes -= message->bytes;
    zsock->pending--;
    message_free(message);
}

/* Unlink and free, with what is still in it. */
static void remove_box(struct gk_zsock *zsock, struct gk_zsock_outbox *box)
{
    struct gk_zsock_outbox **link = bucket_of(zsock, box->route);

    while (first_queue(box)->first) {
        drop_first(zsock, first_queue(box));
    }
    while (*link != box) {
        link = &(*link)->bucket_next;
    }
    *link = box->bucket_next;
    if (zsock->ring == box) {
        zsock->ring = box->next == box ? NULL : box->next;
    }
    box->prev->next = box->next;
    box->next->prev = box->prev;
    zsock->outboxes_count--;
    free(box);
}

/* The queue for so many bytes; NULL: it is full. */
static struct gk_zsock_queue *queue_for(struct gk_zsock_outbox *box, uint64_t bytes)
{
    bool bulk = bytes >= GK_OUTBOX_BULK_BYTES;
    struct gk_zsock_queue *queue = bulk ? &box->bulk : &box->small;
    uint64_t bytes_max = bulk ? GK_OUTBOX_BYTES_MAX : GK_OUTBOX_SMALL_BYTES_MAX;

    if (queue->count == GK_OUTBOX_MESSAGES_MAX ||
        (queue->count > 0 && queue->bytes + bytes > bytes_max)) {
        return NULL;
    }
    return queue;
}

static void append(struct gk_zsock_queue *queue, struct gk_zsock_message *message)
{
    if (queue->first) {
        queue->last->next = message;
    } else {
        queue->first = message;
    }
    queue->last = message;
    queue->count++;
    queue->bytes += message->bytes;
}

enum gk_err gk_zsock_outbox_put(struct gk_zsock *zsock, uint64_t route, struct gk_buf *const *parts,
                                uint32_t parts_count)
{
    struct gk_zsock_message *message = calloc(1, sizeof(*message));
    struct gk_zsock_outbox *box = message ? find_or_add(zsock, route) : NULL;
    struct gk_zsock_queue *queue;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < parts_count; i++) {
        bytes += parts[i]->size;
    }
    queue = box ? queue_for(box, bytes) : NULL;
    if (!queue) {
        zsock->stats.dropped_out++;
        free(message);
        return message ? GK_E_LIMIT : GK_E_NOMEM;
    }
    message->parts_count = parts_count;
    message->bytes = bytes;
    for (uint32_t i = 0; i < parts_count; i++) {
        message->parts[i] = gk_buf_ref(parts[i]);
    }
    append(queue, message);
    zsock->pending++;
    zsock->fresh = true;
    return GK_OK;
}

/* ZeroMQ is done with a part, on whatever thread. */
static void unref_part(void *data, void *hint)
{
    (void)data;
    gk_buf_unref(hint);
}

static int frame_init(zmq_msg_t *frame, struct gk_buf *part)
{
    int rc;

    if (part->size > GK_ZSOCK_COPY_OUT_BYTES) {
        rc = zmq_msg_init_data(frame, part->data, part->size, unref_part, gk_buf_ref(part));
        if (rc != 0) {
            gk_buf_unref(part);
        }
        return rc;
    }
    rc = zmq_msg_init_size(frame, part->size);
    if (rc == 0 && part->size > 0) {
        memcpy(zmq_msg_data(frame), part->data, part->size);
    }
    return rc;
}

/* 0, or the errno of ZeroMQ; then the frame is not taken. */
static int frame_send(void *socket, zmq_msg_t *frame, int flags)
{
    int rc;

    do {
        rc = zmq_msg_send(frame, socket, flags | ZMQ_DONTWAIT);
    } while (rc < 0 && zmq_errno() == EINTR);
    return rc < 0 ? zmq_errno() : 0;
}

/* Frames that were sent are empty by now; the others give their references back. */
static void frames_close(zmq_msg_t *frames, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        (void)zmq_msg_close(&frames[i]); /* cannot fail on a valid frame */
    }
}

/* Frame 0 of a ROUTER's message tells whom it is for.  All frames or none. */
static int frames_init(zmq_msg_t *frames, const struct gk_zsock *zsock, uint64_t route,
                       const struct gk_zsock_message *message)
{
    uint32_t count = 0;

    if (zsock->type == GK_ZSOCK_ROUTER) {
        if (zmq_msg_init_size(&frames[0], GK_ZSOCK_ROUTE_BYTES) != 0) {
            return -1;
        }
        gk_zsock_route_unpack(route, zmq_msg_data(&frames[0]));
        count = 1;
    }
    for (uint32_t i = 0; i < message->parts_count; i++) {
        if (frame_init(&frames[count], message->parts[i]) != 0) {
            frames_close(frames, count);
            return -1;
        }
        count++;
    }
    return (int)count;
}

/* The whole message.  0, or the errno of the first frame that failed; then the message does not
 * count as sent. */
static int send_message(struct gk_zsock *zsock, uint64_t route,
                        const struct gk_zsock_message *message)
{
    zmq_msg_t frames[GK_PARTS_MAX + 1];
    int count = frames_init(frames, zsock, route, message);
    int first_error = 0;

    if (count < 0) {
        return ENOMEM;
    }
    for (int i = 0; i < count; i++) {
        int error = frame_send(zsock->socket, &frames[i], i + 1 < count ? ZMQ_SNDMORE : 0);

        if (first_error == 0) {
            first_error = error;
        }
        if (error != 0 && i == 0) {
            break; /* nothing of it was taken */
        }
    }
    frames_close(frames, (uint32_t)count);
    return first_error;
}

static void count_sent(struct gk_zsock *zsock, const struct gk_zsock_message *message)
{
    zsock->stats.messages_out++;
    for (uint32_t i = 0; i < message->parts_count; i++) {
        zsock->stats.bytes_out += message->parts[i]->size;
    }
}

/* The peer of this outbox is gone: drop what waits for it and tell the owner. */
static void lose_peer(struct gk_zsock *zsock, struct gk_zsock_outbox *box)
{
    uint64_t route = box->route;

    zsock->stats.dropped_out += box->small.count + box->bulk.count;
    remove_box(zsock, box);
    if (zsock->callbacks.gone) {
        zsock->callbacks.gone(zsock->context, route);
    }
}

/* Send what one peer takes.  The outbox is freed when it is empty or its peer is gone. */
static enum gk_zsock_flush flush_box(struct gk_zsock *zsock, struct gk_zsock_outbox *box,
                                     uint64_t deadline_ns)
{
    for (struct gk_zsock_queue *queue = first_queue(box); queue->first; queue = first_queue(box)) {
        int error = send_message(zsock, box->route, queue->first);

        switch (error) {
        case 0:
            count_sent(zsock, queue->first);
            drop_first(zsock, queue);
            break;
        case EAGAIN:
        case ENOMEM: /* as if there were no room: it is tried again */
            zsock->stats.blocked += queue->first->counted ? 0 : 1;
            queue->first->counted = true;
            return GK_ZSOCK_FLUSH_BLOCKED;
        case EHOSTUNREACH:
            lose_peer(zsock, box);
            return GK_ZSOCK_FLUSH_DONE;
        default:
            gk_zsock_fail(zsock, "sending", error);
            return GK_ZSOCK_FLUSH_DONE;
        }
        if (first_queue(box)->first && uv_hrtime() > deadline_ns) {
            return GK_ZSOCK_FLUSH_MORE;
        }
    }
    remove_box(zsock, box);
    return GK_ZSOCK_FLUSH_DONE;
}

enum gk_zsock_flush gk_zsock_outbox_flush(struct gk_zsock *zsock)
{
    uint64_t deadline_ns = uv_hrtime() + GK_TURN_US_MAX * UINT64_C(1000);
    uint32_t count = zsock->outboxes_count;
    enum gk_zsock_flush result = GK_ZSOCK_FLUSH_DONE;

    zsock->fresh = false;
    /* Each outbox that exists now has its turn; those that `gone` adds wait for the next flush. */
    for (uint32_t i = 0; i < count && zsock->ring && gk_zsock_usable(zsock); i++) {
        struct gk_zsock_outbox *box = zsock->ring;
        enum gk_zsock_flush left;

        zsock->ring = box->next;
        left = flush_box(zsock, box, deadline_ns);
        if (left > result) {
            result = left;
        }
        if (left == GK_ZSOCK_FLUSH_MORE) {
            break;
        }
    }
    return zsock->fresh ? GK_ZSOCK_FLUSH_MORE : result;
}

void gk_zsock_outbox_clear(struct gk_zsock *zsock)
{
    while (zsock->ring) {
        remove_box(zsock, zsock->ring);
    }
    GK_ASSERT(zsock->pending == 0 && zsock->outboxes_count == 0);
}
