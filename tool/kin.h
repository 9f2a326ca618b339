/* The children of this process as the system knows them: also those that others have started and
 * that it has inherited as a "subreaper". */
#ifndef GK_TOOL_KIN_H
#define GK_TOOL_KIN_H

#include "common/words.h"

#include <stdint.h>
#include <sys/types.h>

/* Each child, with "process 12 (a name)". */
typedef void gk_kin_fn(void *context, pid_t pid, const char *name);
void gk_kin_each(gk_kin_fn *each, void *context);

/* A signal to every child.  `ret_who` (may be NULL), empty before, names the first one. */
void gk_kin_signal(int number, struct gk_words *ret_who);

#endif
