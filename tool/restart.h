/* When a child that died is started again: `--restart always`.  Pure: every function is told the
 * time. */
#ifndef GK_TOOL_RESTART_H
#define GK_TOOL_RESTART_H

#include <stdbool.h>
#include <stdint.h>

enum {
    GK_RESTARTS_MAX = 10,                 /* in a row, of one child */
    GK_RESTART_US_MIN = 100 * 1000,       /* wait before the first of a row; doubles ... */
    GK_RESTART_US_MAX = 5 * 1000 * 1000,  /* ... up to this */
    GK_RESTART_ROW_US = 60 * 1000 * 1000, /* a life as long as this ends the row */
};

struct gk_restart { /* of one child, over all its lives; zeroed at first */
    uint64_t started_us;
    uint64_t due_us; /* of the next life; 0: none is planned */
    uint32_t row;    /* restarts since the last life that was long enough */
    uint32_t count;  /* restarts in all */
};

/* Another life would end the same way: wrong flags, data or configuration, refused, or a peer is
 * lost.  Not one that was fenced: by the word of a former life of its own that was long under way,
 * for the launcher starts no two processes of a rank; the next life is above both. */
bool gk_restart_is_futile(int64_t exit_status, int term_signal);

/* A life begins.  What was planned is done. */
void gk_restart_begin(struct gk_restart *restart, uint64_t now_us);

/* A life has ended: plan the next one.  False: too many have ended so. */
bool gk_restart_plan(struct gk_restart *restart, uint64_t now_us);

/* Nothing is planned any more. */
void gk_restart_cancel(struct gk_restart *restart);

bool gk_restart_is_due(const struct gk_restart *restart, uint64_t now_us);

#endif
