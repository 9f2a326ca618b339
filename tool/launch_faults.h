/* A fault script at work in a run: what is due is done to the children, to their messages and to
 * the launcher itself.  All functions do nothing without a script.  Loop thread only. */
#ifndef GK_TOOL_LAUNCH_FAULTS_H
#define GK_TOOL_LAUNCH_FAULTS_H

#include "common/err.h"
#include "tool/child.h"

#include <stdbool.h>

struct gk_launch;
struct gk_launch_faults;

/* GK_E_NOMEM. */
enum gk_err gk_launch_faults_open(struct gk_launch *launch);
void gk_launch_faults_close(struct gk_launch *launch); /* before the loop's last turns */
void gk_launch_faults_free(struct gk_launch *launch);  /* behind them */

/* True: the script says in which order the children start, and they are planned so; servers and
 * workers alike.  The addresses of the servers are chosen here. */
bool gk_launch_faults_plan_start(struct gk_launch *launch);

/* The step may have changed. */
void gk_launch_faults_tick(struct gk_launch *launch);

/* A life begins: it learns what is wrong with its messages and its disk. */
void gk_launch_faults_born(struct gk_launch *launch, struct gk_child *child);

/* A life has ended.  True: by the script, which also says when the next one begins. */
bool gk_launch_faults_died(struct gk_launch *launch, struct gk_child *child);

/* The run ends: whoever is frozen is let go, nothing more is done. */
void gk_launch_faults_end(struct gk_launch *launch);

#endif
