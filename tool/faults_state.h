/* What `lose-state` does: a daemon's state directory goes, as with a disk that is replaced. */
#ifndef GK_TOOL_FAULTS_STATE_H
#define GK_TOOL_FAULTS_STATE_H

#include "common/err.h"
#include "common/words.h"
#include "tool/tally.h"

/* Remove DIR/server-I or DIR/worker-R with the files in it; a folder within it is an error.  None
 * is there: fine.  GK_E_IO and words. */
enum gk_err gk_faults_state_remove(const char *dir, enum gk_role role, uint32_t index,
                                   struct gk_words *words);

#endif
