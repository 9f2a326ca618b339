/* Receiving: by a budget, because a peer that floods us must not keep the timers from running, and
 * without copying the large parts, which stay where ZeroMQ received them until their last reference
 * goes. */
#include "common/net/zsock_internal.h"

#include "common/net/zsock_route.h"

#include <zmq.h>

#include <errno.h>
#include <stdlib.h>

struct gk_zsock_part { /* a large part, kept in the message of ZeroMQ */
    struct gk_buf buf;
    zmq_msg_t frame;
};

struct inbound { /* a message on its way to the owner */
    uint64_t route;
    uint64_t bytes;
    uint32_t count;
    struct gk_buf *parts[GK_PARTS_MAX];
};

static void release_part(struct gk_buf *buf)
{
    struct gk_zsock_part *part = buf->owner;

    (void)zmq_msg_close(&part->frame); /* cannot fail on a valid frame */
    free(part);
}

/* The frame as a buffer; the frame is empty afterwards.  NULL: out of memory. */
static struct gk_buf *keep(zmq_msg_t *frame)
{
    uint8_t *data = zmq_msg_data(frame);
    size_t size = zmq_msg_size(frame);
    struct gk_zsock_part *part;

    if (size < GK_ZSOCK_COPY_IN_BYTES || (uintptr_t)data % 8 != 0) {
        return gk_buf_copy(data, size);
    }
    part = calloc(1, sizeof(*part));
    if (!part) {
        return NULL;
    }
    (void)zmq_msg_init(&part->frame);
    (void)zmq_msg_move(&part->frame, frame); /* both are valid: cannot fail */
    part->buf.data = zmq_msg_data(&part->frame);
    part->buf.size = size;
    part->buf.release = release_part;
    part->buf.owner = part;
    atomic_init(&part->buf.refs, 1);
    return &part->buf;
}

/* The next frame.  False: there is none, or the socket failed. */
static bool receive_frame(struct gk_zsock *zsock, zmq_msg_t *frame)
{
    int rc;

    (void)zmq_msg_init(frame);
    do {
        rc = zmq_msg_recv(frame, zsock->socket, ZMQ_DONTWAIT);
    } while (rc < 0 && zmq_errno() == EINTR);
    if (rc < 0) {
        int error = zmq_errno();

        (void)zmq_msg_close(frame);
        if (error != EAGAIN) {
            gk_zsock_fail(zsock, "receiving", error);
        }
        return false;
    }
    return true;
}

static void inbound_release(struct inbound *in)
{
    for (uint32_t i = 0; i < in->count; i++) {
        gk_buf_unref(in->parts[i]);
    }
    in->count = 0;
}

/* Add one frame.  False: the message cannot be used. */
static bool inbound_add(struct inbound *in, zmq_msg_t *frame)
{
    if (in->count == GK_PARTS_MAX) {
        return false;
    }
    in->parts[in->count] = keep(frame);
    if (!in->parts[in->count]) {
        return false;
    }
    in->bytes += in->parts[in->count]->size;
    in->count++;
    return true;
}

/* One message, or one frame of a message that is being skipped.  All frames of a message are there
 * once the first is. False: nothing more to read. */
static bool receive_message(struct gk_zsock *zsock, struct inbound *in)
{
    bool addressed = zsock->type == GK_ZSOCK_DEALER;
    bool more = true;

    while (more) {
        zmq_msg_t frame;
        bool good = true;

        if (!receive_frame(zsock, &frame)) {
            return false;
        }
        more = zmq_msg_more(&frame) != 0;
        if (zsock->type == GK_ZSOCK_ROUTER && (addressed || zsock->skipping)) {
            gk_zsock_guard_count(zsock, &frame);
        }
        if (zsock->skipping) {
            good = false;
        } else if (!addressed) {
            in->route = gk_zsock_route_pack(zmq_msg_data(&frame), zmq_msg_size(&frame));
            good = in->route != 0;
            addressed = true;
        } else {
            good = inbound_add(in, &frame);
        }
        (void)zmq_msg_close(&frame);
        if (!good) {
            zsock->stats.dropped_in += zsock->skipping ? 0 : 1;
            zsock->skipping = more; /* by one frame at a time, so that the budget holds */
            inbound_release(in);
            return true;
        }
    }
    return true;
}

void gk_zsock_inbox_receive(struct gk_zsock *zsock)
{
    uint64_t deadline_ns = uv_hrtime() + GK_TURN_US_MAX * UINT64_C(1000);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < GK_TURN_MESSAGES_MAX && bytes < GK_TURN_BYTES_MAX; i++) {
        struct inbound in = {0};

        if (!gk_zsock_usable(zsock)) {
            return;
        }
        if (!receive_message(zsock, &in)) {
            inbound_release(&in);
            gk_zsock_guard_drained(zsock);
            return;
        }
        if (in.count > 0) {
            bytes += in.bytes;
            zsock->stats.messages_in++;
            zsock->stats.bytes_in += in.bytes;
            gk_zsock_deliver(zsock, in.route, in.parts, in.count);
            inbound_release(&in);
        }
        if (uv_hrtime() > deadline_ns) {
            return;
        }
    }
}
