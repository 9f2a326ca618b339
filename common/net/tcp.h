/* What the system knows about a TCP connection that somebody else owns. */
#ifndef GK_COMMON_NET_TCP_H
#define GK_COMMON_NET_TCP_H

#include <stdbool.h>
#include <stdint.h>

/* A name that no other connection has, as long as the system runs.  False: `fd` is no socket, or
 * the system gives none.  Any thread, like the next one. */
bool gk_tcp_cookie(int fd, uint64_t *ret);

/* Bytes that have come in so far, whether anybody has read them or not. */
bool gk_tcp_received(int fd, uint64_t *ret);

#endif
