/* The side of the launcher under a fault script: what it tells the process that judges it, as JSON
 * lines through a pipe, so that it is known also when the launcher is killed. */
#ifndef GK_TOOL_FAULTS_STAGE_H
#define GK_TOOL_FAULTS_STAGE_H

#include "tool/faults.h"
#include "tool/tally.h"

struct gk_faults_stage {
    const struct gk_faults *faults; /* NULL: the undisturbed run */
    const char *state_dir;          /* of the daemons of this run; NULL: they keep none */
    int report_fd;
};

/* Fault number `fault` was done once more. */
void gk_faults_stage_done(const struct gk_faults_stage *stage, uint32_t fault);

/* We stop ourselves now: wake us after so long. */
void gk_faults_stage_freeze(const struct gk_faults_stage *stage, uint64_t length_us);

/* What the run came to. */
void gk_faults_stage_result(const struct gk_faults_stage *stage, const struct gk_tally *tally);

#endif
