/* A DEALER under a loop, in two versions that gap.c is linked with one at a time: as gkps does it,
 * and as everybody does it first. */
#ifndef GK_TESTS_NET_DEALER_H
#define GK_TESTS_NET_DEALER_H

#include <stdint.h>
#include <uv.h>

struct dealer;

/* Exits the program when it cannot start. */
struct dealer *dealer_open(uv_loop_t *loop, const char *address);

/* One small request. */
void dealer_send(struct dealer *dealer);

/* Replies read so far. */
uint64_t dealer_replies(const struct dealer *dealer);

/* Runs the loop until everything is closed. */
void dealer_close(struct dealer *dealer);

#endif
