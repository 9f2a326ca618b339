#include "tool/restart.h"

#include "common/exit.h"

bool gk_restart_is_futile(int64_t exit_status, int term_signal)
{
    if (term_signal != 0) {
        return false;
    }
    switch (exit_status) {
    case GK_EXIT_USAGE:
    case GK_EXIT_DATA:
    case GK_EXIT_PEER:
    case GK_EXIT_REFUSED:
    case GK_EXIT_CONFIG:
        return true;
    default:
        return false;
    }
}

void gk_restart_begin(struct gk_restart *restart, uint64_t now_us)
{
    restart->count += restart->due_us > 0 && restart->started_us > 0;
    restart->due_us = 0;
    restart->started_us = now_us;
}

bool gk_restart_plan(struct gk_restart *restart, uint64_t now_us)
{
    uint64_t wait_us = GK_RESTART_US_MIN;

    if (now_us - restart->started_us >= GK_RESTART_ROW_US) {
        restart->row = 0;
    }
    if (restart->row == GK_RESTARTS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < restart->row && wait_us < GK_RESTART_US_MAX; i++) {
        wait_us *= 2;
    }
    restart->row++;
    restart->due_us = now_us + (wait_us < GK_RESTART_US_MAX ? wait_us : GK_RESTART_US_MAX);
    return true;
}

void gk_restart_cancel(struct gk_restart *restart)
{
    restart->due_us = 0;
}

bool gk_restart_is_due(const struct gk_restart *restart, uint64_t now_us)
{
    return restart->due_us > 0 && now_us >= restart->due_us;
}
