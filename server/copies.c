#include "server/copies.h"

struct gk_buf *gk_copies_get(struct gk_copies *copies, const float *values, uint64_t count)
{
    struct gk_copy *copy = &copies->list[copies->next];

    for (uint32_t i = 0; i < GK_COPIES_MAX; i++) {
        const struct gk_copy *old = &copies->list[i];

        if (old->buf && old->values == values && old->count == count) {
            return gk_buf_ref(old->buf);
        }
    }
    gk_buf_unref(copy->buf);
    copy->values = values;
    copy->count = count;
    copy->buf = gk_buf_copy(values, count * sizeof(float));
    copies->next = (copies->next + 1) % GK_COPIES_MAX;
    return copy->buf ? gk_buf_ref(copy->buf) : NULL;
}

void gk_copies_forget(struct gk_copies *copies)
{
    for (uint32_t i = 0; i < GK_COPIES_MAX; i++) {
        gk_buf_unref(copies->list[i].buf);
        copies->list[i] = (struct gk_copy){0};
    }
}
