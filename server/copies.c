#include "server/copies.h"

#include "common/backend.h"
#include "common/bits.h"
#include "common/hash.h"

enum { LANES = 8 };

/* In lanes, because it runs over every parameter of every version. */
static bool is_finite(const float *values, uint64_t count)
{
    uint32_t worst[LANES] = {0};
    uint32_t key = 0;
    uint64_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            key = gk_float_bits(values[i + lane]) & GK_KEY_MASK;
            worst[lane] = key > worst[lane] ? key : worst[lane];
        }
    }
    for (; i < count; i++) {
        key = gk_float_bits(values[i]) & GK_KEY_MASK;
        worst[0] = key > worst[0] ? key : worst[0];
    }
    key = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        key = worst[lane] > key ? worst[lane] : key;
    }
    return key < GK_KEY_NONFINITE;
}

struct gk_buf *gk_copies_get(struct gk_copies *copies, const float *values, uint64_t count,
                             uint32_t *ret_crc)
{
    struct gk_copy *copy = &copies->list[copies->next];

    for (uint32_t i = 0; i < GK_COPIES_MAX; i++) {
        const struct gk_copy *old = &copies->list[i];

        if (old->buf && old->values == values && old->count == count) {
            *ret_crc = old->crc;
            return gk_buf_ref(old->buf);
        }
    }
    gk_buf_unref(copy->buf);
    *copy = (struct gk_copy){
        .values = values, .count = count, .buf = gk_buf_copy(values, count * sizeof(float))};
    copies->next = (copies->next + 1) % GK_COPIES_MAX;
    if (!copy->buf) {
        return NULL;
    }
    copy->crc = gk_crc32c(copy->buf->data, copy->buf->size);
    copies->diverged = copies->diverged || !is_finite(values, count);
    *ret_crc = copy->crc;
    return gk_buf_ref(copy->buf);
}

void gk_copies_forget(struct gk_copies *copies)
{
    for (uint32_t i = 0; i < GK_COPIES_MAX; i++) {
        gk_buf_unref(copies->list[i].buf);
        copies->list[i] = (struct gk_copy){0};
    }
    copies->diverged = false;
}
