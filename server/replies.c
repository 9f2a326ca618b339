#include "server/replies.h"

#include "common/log.h"

void gk_replies_send(struct gk_zsock *zsock, uint64_t route, const struct gk_msg *msg)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;
    enum gk_err err = gk_msg_to_wire(msg, parts, &parts_count);

    if (err) {
        gk_log(GK_LOG_WARN, "SERVER-SEND", "%s: %s; the peer will ask again",
               gk_kind_name(msg->h.kind), gk_err_text(err));
        return;
    }
    /* A full outbox drops the message and counts it. */
    (void)gk_zsock_send(zsock, route, parts, parts_count);
    for (uint32_t i = 0; i < parts_count; i++) {
        gk_buf_unref(parts[i]);
    }
}

void gk_replies_send_frame(struct gk_zsock *zsock, struct gk_server_action *action,
                           struct gk_buf *frame, uint32_t crc)
{
    if (!frame) {
        gk_log(GK_LOG_WARN, "SERVER-SEND", "%s: no memory; the peer will ask again",
               gk_kind_name(action->msg.h.kind));
        return;
    }
    action->msg.frame[0] = frame;
    action->msg.known_crc[0] = crc;
    action->msg.frames_count = 1;
    gk_replies_send(zsock, action->route, &action->msg);
    gk_msg_clear(&action->msg);
}
