/* Routes: the routing id that a ROUTER gives to a connection is five bytes, a zero and a counter.
 * Ids of a peer's own choosing are not ours. */
#ifndef GK_COMMON_NET_ZSOCK_ROUTE_H
#define GK_COMMON_NET_ZSOCK_ROUTE_H

#include "common/bits.h"

#include <stddef.h>
#include <stdint.h>

enum { GK_ZSOCK_ROUTE_BYTES = 5 };

#define GK_ZSOCK_ROUTE_MARK (UINT64_C(1) << 32) /* so that no route is 0 */

/* 0: not an id that ZeroMQ made. */
static inline uint64_t gk_zsock_route_pack(const uint8_t *id, size_t size)
{
    if (size != GK_ZSOCK_ROUTE_BYTES || id[0] != 0) {
        return 0;
    }
    return GK_ZSOCK_ROUTE_MARK | gk_get_u32(id + 1);
}

static inline void gk_zsock_route_unpack(uint64_t route, uint8_t *ret_id)
{
    ret_id[0] = 0;
    gk_put_u32(ret_id + 1, (uint32_t)route);
}

#endif
