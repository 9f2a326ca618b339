/* Goal: ranks that pull the same chunk share one copy with its CRC, and what was sent does not
 * change when the values do. Method: the cache is asked for more chunks than it holds, in turn. */
#include "common/hash.h"
#include "server/copies.h"

#include <criterion/criterion.h>
#include <string.h>

enum { CHUNKS = GK_COPIES_MAX + 3, FLOATS = 33 };

static float values[CHUNKS][FLOATS];

Test(daemon_copies, share)
{
    struct gk_copies copies = {.next = 0};
    struct gk_buf *first[CHUNKS];

    for (uint32_t i = 0; i < CHUNKS; i++) {
        uint32_t crc = 0, again_crc = 0;
        struct gk_buf *again;

        for (uint32_t j = 0; j < FLOATS; j++) {
            values[i][j] = (float)(i * FLOATS + j);
        }
        first[i] = gk_copies_get(&copies, values[i], FLOATS, &crc);
        again = gk_copies_get(&copies, values[i], FLOATS, &again_crc);
        cr_assert(first[i] && again == first[i]);
        cr_assert(crc == gk_crc32c(values[i], sizeof(values[i])) && again_crc == crc);
        cr_assert(memcmp(again->data, values[i], sizeof(values[i])) == 0);
        gk_buf_unref(again);
        again = gk_copies_get(&copies, values[i], FLOATS - 1, &again_crc);
        cr_assert(again != first[i], "another length is another chunk");
        cr_assert_eq(again_crc, gk_crc32c(values[i], (FLOATS - 1) * sizeof(float)));
        gk_buf_unref(again);
    }
    for (uint32_t i = 0; i < CHUNKS; i++) {
        gk_buf_unref(first[i]);
    }
    gk_copies_forget(&copies);
}

Test(daemon_copies, forget)
{
    struct gk_copies copies = {.next = 0};
    uint32_t crc = 0, new_crc = 0;
    struct gk_buf *old = gk_copies_get(&copies, values[0], FLOATS, &crc);
    struct gk_buf *new;

    gk_copies_forget(&copies);
    values[0][0] += 1;
    new = gk_copies_get(&copies, values[0], FLOATS, &new_crc);
    cr_assert(new != old &&new_crc != crc);
    cr_assert_eq(gk_crc32c(old->data, old->size), crc, "what was sent stays as it was");
    cr_assert(memcmp(new->data, values[0], sizeof(values[0])) == 0);
    gk_buf_unref(old);
    gk_buf_unref(new);
    gk_copies_forget(&copies);
    gk_copies_forget(&copies);
}

/* Wherever the one bad value lies. */
Test(daemon_copies, diverged)
{
    static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff};
    struct gk_copies copies = {.next = 0};
    uint32_t crc;

    for (uint32_t i = 0; i < FLOATS; i++) {
        float held = values[0][i];

        gk_buf_unref(gk_copies_get(&copies, values[0], FLOATS, &crc));
        cr_assert_not(copies.diverged);
        gk_copies_forget(&copies);
        memcpy(&values[0][i], &bits[i % 4], sizeof(bits[0]));
        gk_buf_unref(gk_copies_get(&copies, values[0], FLOATS, &crc));
        cr_assert(copies.diverged, "value %u", i);
        gk_copies_forget(&copies);
        values[0][i] = held;
    }
}
