/* Chunks of parameters that were just sent: all ranks pull the same ones, so that one copy serves
 * them all, and is summed once. */
#ifndef GK_SERVER_COPIES_H
#define GK_SERVER_COPIES_H

#include "common/buf.h"
#include "common/limits.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    GK_COPIES_MAX = 2 * GK_PULL_WINDOW
}; /* what a rank has outstanding, and one that is behind it */

struct gk_copy {
    const float *values;
    uint64_t count;
    struct gk_buf *buf;
    uint32_t crc; /* CRC-32C of buf */
};

struct gk_copies {
    struct gk_copy list[GK_COPIES_MAX];
    uint32_t next;
    bool diverged; /* a value was not finite: no peer would take it */
};

/* A reference to a copy of `count` values as they are now, and its CRC-32C; NULL: no memory.  Loop
 * thread only, like everything here. */
struct gk_buf *gk_copies_get(struct gk_copies *copies, const float *values, uint64_t count,
                             uint32_t *ret_crc);

/* The values are about to change, or to go.  What was sent stays with those who hold a reference.
 */
void gk_copies_forget(struct gk_copies *copies);

#endif
