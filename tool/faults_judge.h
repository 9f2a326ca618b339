/* A run under a fault script: this process starts the launcher as a child, first undisturbed when
 * the models are to be compared, reads what it and its daemons log and tell, takes in whoever it
 * leaves behind, and compares in the end.  So the launcher itself can be frozen and killed. */
#ifndef GK_TOOL_FAULTS_JUDGE_H
#define GK_TOOL_FAULTS_JUDGE_H

#include "tool/faults.h"
#include "tool/faults_stage.h"

#include <stdio.h>

/* One run, in a process of its own; its exit code. */
typedef int gk_faults_launch(void *context, const struct gk_faults_stage *stage);

struct gk_faults_trial {
    const struct gk_faults *faults;
    gk_faults_launch *launch;
    void *context;
    const char *state_dir; /* of the run with faults; the undisturbed one keeps nothing */
    FILE *out;             /* for what is said when all went as expected; NULL: nothing */
};

/* 0: every expectation holds; 70 and a line of the log for each that does not; the launcher's code
 * when a signal stopped it, or when the undisturbed run failed. */
int gk_faults_judge(const struct gk_faults_trial *trial);

#endif
