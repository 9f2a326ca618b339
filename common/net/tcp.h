/* What can be known of, and done to, a TCP connection that somebody else owns. */
#ifndef GK_COMMON_NET_TCP_H
#define GK_COMMON_NET_TCP_H

#include <stdbool.h>
#include <stdint.h>

/* A name that no other connection has, as long as the system runs.  False: `fd` is no socket, or
 * the system gives none.  Any thread, like the next one. */
bool gk_tcp_cookie(int fd, uint64_t *ret);

/* Bytes that have come in so far, whether anybody has read them or not. */
bool gk_tcp_received(int fd, uint64_t *ret);

/* End the connection at once: its owner reads the end of it and closes, which tells the other side
 * that it was cut off rather than that all is said. */
void gk_tcp_cut(int fd);

#endif
