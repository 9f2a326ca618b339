#include "worker/lib/requests.h"

#include "common/assert.h"
#include "common/log.h"

#include <inttypes.h>

void gk_requests_send(struct gk_worker_report *report, struct gk_zsock *zsock,
                      const struct gk_msg *msg)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;
    enum gk_err err = gk_msg_to_wire(msg, parts, &parts_count);

    if (err) {
        gk_log(GK_LOG_WARN, "WORKER-SEND", "%s to shard %" PRIu32 ": %s; will be sent again",
               gk_kind_name(msg->h.kind), msg->h.shard, gk_err_text(err));
        return;
    }
    gk_report_message(report, msg, parts, parts_count);
    (void)gk_zsock_send(zsock, 0, parts, parts_count); /* a full outbox drops and counts it */
    for (uint32_t i = 0; i < parts_count; i++) {
        gk_buf_unref(parts[i]);
    }
}

/* False: no memory. */
static bool add_frame(struct gk_msg *msg, const void *data, size_t bytes)
{
    struct gk_buf *frame = gk_buf_copy(data, bytes);

    if (!frame) {
        return false;
    }
    msg->frame[msg->frames_count++] = frame;
    return true;
}

void gk_requests_send_init(struct gk_worker_report *report, struct gk_zsock *zsock,
                           const struct gk_flat *flat, struct gk_msg *msg)
{
    const float *initial = gk_flat_initial(flat);
    size_t spec_bytes;
    uint64_t hash;
    const uint8_t *spec = gk_flat_spec_bytes(flat, &spec_bytes, &hash);

    GK_ASSERT(initial);
    if ((msg->h.chunk == 0 && !add_frame(msg, spec, spec_bytes)) ||
        !add_frame(msg, initial + msg->h.lo, (msg->h.hi - msg->h.lo) * sizeof(float))) {
        return; /* the list of actions drops what was added */
    }
    gk_requests_send(report, zsock, msg);
}
