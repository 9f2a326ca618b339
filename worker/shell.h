/* The worker daemon around the pure core: sockets, timer, signals, the compute thread and the line
 * to the launcher. */
#ifndef GK_WORKER_SHELL_H
#define GK_WORKER_SHELL_H

#include "worker/options.h"
#include "worker/trainer.h"

/* Run to the end.  Returns the exit code; on a failure one ERROR line was logged and told to the
 * launcher. */
int gk_worker_run(const struct gk_worker_options *options, uint32_t rank,
                  const struct gk_addresses *addresses, struct gk_trainer *trainer);

#endif
