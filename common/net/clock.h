/* Time and randomness for shells.  Cores never ask: they get both in their events. */
#ifndef GK_COMMON_NET_CLOCK_H
#define GK_COMMON_NET_CLOCK_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

/* Monotonic time in microseconds from an arbitrary start.  Any thread. */
uint64_t gk_now_us(void);

/* Fill `ret` with unpredictable bytes of the operating system: nonces and identifiers.  GK_E_IO:
 * there are none, and what `ret` holds is undefined.  Blocks for microseconds.  Any thread. */
enum gk_err gk_random_bytes(void *ret, size_t n);

#endif
