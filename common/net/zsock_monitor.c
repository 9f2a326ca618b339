/* Connections coming and going.  Only the monitor of ZeroMQ tells: a DEALER's send or receive never
 * fails because its peer went away, and noise on a ROUTER's port does not become a message.  Nobody
 * sends on the pair, so that reading it to the end whenever its descriptor is readable misses
 * nothing. */
#include "common/net/zsock_internal.h"

#include <zmq.h>

#include <errno.h>
#include <string.h>

enum {
    HANDSHAKE_FAILED = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    EVENTS_MAX = 64, /* read in one turn */
};

int gk_zsock_monitor_mask(enum gk_zsock_type type)
{
    return type == GK_ZSOCK_DEALER ? ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED
                                   : HANDSHAKE_FAILED;
}

static void tell(struct gk_zsock *zsock, enum gk_zsock_event event)
{
    if (zsock->callbacks.event && gk_zsock_usable(zsock)) {
        zsock->callbacks.event(zsock->context, event);
    }
}

static void go_down(struct gk_zsock *zsock)
{
    if (zsock->up) {
        zsock->up = false;
        tell(zsock, GK_ZSOCK_DOWN);
    }
}

static void handle_event(struct gk_zsock *zsock, uint16_t event)
{
    if (zsock->type == GK_ZSOCK_ROUTER) {
        if (event & HANDSHAKE_FAILED) {
            zsock->stats.rejected++;
            tell(zsock, GK_ZSOCK_REJECTED);
        }
    } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        go_down(zsock); /* a second connection means that the first one ended */
        zsock->up = true;
        tell(zsock, GK_ZSOCK_UP);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
        go_down(zsock);
    }
}

/* One event is two frames: number and value, then the address.  0: none is there. */
static uint16_t read_event(void *monitor)
{
    uint16_t event = 0;
    bool first = true;
    bool more = true;

    while (more) {
        zmq_msg_t frame;
        int rc;

        (void)zmq_msg_init(&frame);
        do {
            rc = zmq_msg_recv(&frame, monitor, ZMQ_DONTWAIT);
        } while (rc < 0 && zmq_errno() == EINTR);
        if (rc >= 0 && first && zmq_msg_size(&frame) >= sizeof(event)) {
            memcpy(&event, zmq_msg_data(&frame), sizeof(event));
        }
        more = rc >= 0 && zmq_msg_more(&frame);
        first = false;
        (void)zmq_msg_close(&frame);
    }
    return event;
}

bool gk_zsock_monitor_read(struct gk_zsock *zsock)
{
    for (uint32_t i = 0; i < EVENTS_MAX; i++) {
        uint16_t event = gk_zsock_usable(zsock) ? read_event(zsock->monitor) : 0;

        if (event == 0) {
            return false;
        }
        handle_event(zsock, event);
    }
    return true;
}
