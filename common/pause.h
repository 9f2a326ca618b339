/* Was it the others who were silent, or this process that stood still?
 *
 * A core looks at the clock at least once every GK_PING_US.  When far more time than that lies
 * between two events, the process itself did not run: a paused virtual machine, SIGSTOP, a laptop
 * that slept.  What arrived meanwhile has not been read yet, so the gap says nothing about others;
 * every mark of when somebody was last heard, and every deadline, moves by it. */
#ifndef GK_COMMON_PAUSE_H
#define GK_COMMON_PAUSE_H

#include "common/limits.h"

#include <stdint.h>

/* By how much marks move between an event and the next.  A second of each gap counts as time, so
 * that waits stay bounded on a machine that is always late.  Any thread. */
static inline uint64_t gk_pause_us(uint64_t last_us, uint64_t now_us)
{
    uint64_t gap_us = now_us > last_us ? now_us - last_us : 0;

    return gap_us > GK_PAUSE_US ? gap_us - GK_PING_US : 0;
}

#endif
