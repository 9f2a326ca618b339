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
    /* ACCEPT_FAILED is not among them: while descriptors are missing ZeroMQ tries again without a
     * pause, and its events would fill the memory.  The guard and the watchdog tell instead. */
    return type == GK_ZSOCK_DEALER
               ? ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED
               : HANDSHAKE_FAILED | ZMQ_EVENT_ACCEPTED;
}

void gk_zsock_tell(struct gk_zsock *zsock, enum gk_zsock_event event)
{
    if (zsock->callbacks.event && gk_zsock_usable(zsock)) {
        zsock->callbacks.event(zsock->context, event);
    }
}

static void go_down(struct gk_zsock *zsock)
{
    if (zsock->up) {
        zsock->up = false;
        gk_zsock_tell(zsock, GK_ZSOCK_DOWN);
    }
}

static void handle_event(struct gk_zsock *zsock, uint16_t event, uint32_t value)
{
    if (zsock->type == GK_ZSOCK_ROUTER) {
        if (event == ZMQ_EVENT_ACCEPTED) {
            gk_zsock_guard_accept(zsock, (int)value);
        } else if (event & HANDSHAKE_FAILED) {
            zsock->stats.rejected++;
            gk_zsock_tell(zsock, GK_ZSOCK_REJECTED);
        }
    } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        go_down(zsock); /* a second connection means that the first one ended */
        zsock->up = true;
        gk_zsock_peer_up(zsock);
        gk_zsock_tell(zsock, GK_ZSOCK_UP);
    } else if (event == ZMQ_EVENT_CONNECT_RETRIED) {
        gk_zsock_peer_retried(zsock);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
        gk_zsock_peer_ended(zsock, zsock->up);
        go_down(zsock);
    }
}

/* One event is two frames: number and value, then the address.  0: none is there. */
static uint16_t read_event(void *monitor, uint32_t *ret_value)
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
        if (rc >= 0 && first && zmq_msg_size(&frame) >= sizeof(event) + sizeof(*ret_value)) {
            const uint8_t *bytes = zmq_msg_data(&frame);

            memcpy(&event, bytes, sizeof(event));
            memcpy(ret_value, bytes + sizeof(event), sizeof(*ret_value));
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
        uint32_t value = 0;
        uint16_t event = gk_zsock_usable(zsock) ? read_event(zsock->monitor, &value) : 0;

        if (event == 0) {
            return false;
        }
        handle_event(zsock, event, value);
    }
    return true;
}
