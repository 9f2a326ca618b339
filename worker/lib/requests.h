/* Messages of the core on their way out.  What cannot be sent now is not sent: the core sends it
 * again.  Loop thread. */
#ifndef GK_WORKER_LIB_REQUESTS_H
#define GK_WORKER_LIB_REQUESTS_H

#include "common/net/zsock.h"
#include "worker/lib/flat.h"
#include "worker/lib/report.h"

void gk_requests_send(struct gk_worker_report *report, struct gk_zsock *zsock,
                      const struct gk_msg *msg);

/* INIT: the frames are added here, the spec to chunk 0 and the values [h.lo, h.hi) of the initial
 * vector, which is kept for it. */
void gk_requests_send_init(struct gk_worker_report *report, struct gk_zsock *zsock,
                           const struct gk_flat *flat, struct gk_msg *msg);

#endif
