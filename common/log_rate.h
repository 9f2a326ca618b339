/* How often lines of one id are written: at most GK_LOG_RATE in a window of GK_LOG_RATE_US, which
 * starts with the first of them.  No clock and no lock of its own: the log brings both. */
#ifndef GK_COMMON_LOG_RATE_H
#define GK_COMMON_LOG_RATE_H

#include "common/log.h"

#include <stdbool.h>
#include <stdint.h>

enum { GK_LOG_IDS_MAX = 256 }; /* a power of two; further ids share one place */

struct gk_log_rate_id {
    uint64_t hash; /* of the id; 0: free */
    uint64_t since_us;
    uint32_t written;    /* in this window */
    uint64_t suppressed; /* since the last line that was written */
};

struct gk_log_rate {
    struct gk_log_rate_id ids[GK_LOG_IDS_MAX + 1]; /* all zero at first; the last one is shared */
};

/* May a line of this id be written now?  True: *ret_suppressed is the number of lines left out
 * before it.  A `forced` line may always, and is not counted. */
bool gk_log_rate_admit(struct gk_log_rate *rate, const char *id, uint64_t now_us, bool forced,
                       uint64_t *ret_suppressed);

#endif
