/* A timer that fires at an absolute time of gk_now_us(), never before it: what the cores' ARM_TIMER
 * asks for. */
#ifndef GK_COMMON_NET_TIMER_H
#define GK_COMMON_NET_TIMER_H

#include "common/err.h"

#include <stdint.h>

struct uv_loop_s;
struct gk_timer;

/* Loop thread only, like everything here.  `fire` is called once per arming. */
enum gk_err gk_timer_open(struct uv_loop_s *loop, void (*fire)(void *context), void *context,
                          struct gk_timer **ret_timer);

/* Fire at `at_us`, at once if that is past; an earlier arming is forgotten.  UINT64_MAX or 0:
 * never. */
void gk_timer_arm(struct gk_timer *timer, uint64_t at_us);

/* Idempotent; no callback from here on; memory goes in the loop's next turn.  Accepts NULL. */
void gk_timer_close(struct gk_timer *timer);

#endif
