/* Messages of the core on their way out.  What cannot be sent now is not sent: the peer asks again.
 * Loop thread. */
#ifndef GK_SERVER_REPLIES_H
#define GK_SERVER_REPLIES_H

#include "common/net/zsock.h"
#include "server/core/server.h"

void gk_replies_send(struct gk_zsock *zsock, uint64_t route, const struct gk_msg *msg);

/* The action's message with one frame, which is taken; NULL: there was no memory for it.  `crc` 0:
 * not known. */
void gk_replies_send_frame(struct gk_zsock *zsock, struct gk_server_action *action,
                           struct gk_buf *frame, uint32_t crc);

#endif
