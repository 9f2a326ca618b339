/* gkps-worker as a user of the library: a built-in model between gkps_open() and gkps_leave(). */
#ifndef GK_WORKER_TRAIN_H
#define GK_WORKER_TRAIN_H

#include "worker/trainer.h"

/* Train to the end, or until something ends it; blocks.  `rank` as the options say, or GK_RANK_ANY.
 * The exit code of the process. */
int gk_train(const struct gk_worker_options *options, uint32_t rank, struct gk_trainer *trainer);

#endif
