#include "common/buf.h"

#include "common/assert.h"

#include <stdlib.h>
#include <string.h>

enum { BUF_HEAD_BYTES = (sizeof(struct gk_buf) + 15) / 16 * 16 };

static void release_malloc(struct gk_buf *buf)
{
    free(buf);
}

struct gk_buf *gk_buf_new(size_t size)
{
    struct gk_buf *buf;

    if (size > SIZE_MAX - BUF_HEAD_BYTES) {
        return NULL;
    }
    buf = calloc(1, BUF_HEAD_BYTES + size);
    if (!buf) {
        return NULL;
    }
    buf->data = (uint8_t *)buf + BUF_HEAD_BYTES;
    buf->size = size;
    atomic_init(&buf->refs, 1);
    buf->release = release_malloc;
    return buf;
}

struct gk_buf *gk_buf_copy(const void *data, size_t size)
{
    struct gk_buf *buf = gk_buf_new(size);

    if (buf && size > 0) {
        memcpy(buf->data, data, size);
    }
    return buf;
}

struct gk_buf *gk_buf_ref(struct gk_buf *buf)
{
    unsigned before = atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);

    GK_ASSERT(before > 0 && before < 1u << 30);
    return buf;
}

void gk_buf_unref(struct gk_buf *buf)
{
    unsigned before;

    if (!buf) {
        return;
    }
    before = atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel);
    GK_ASSERT(before > 0);
    if (before == 1) {
        buf->release(buf);
    }
}
