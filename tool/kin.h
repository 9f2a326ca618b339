/* The children of this process as the system knows them: also those that others have started and
 * that it has inherited as a "subreaper". */
#ifndef GK_TOOL_KIN_H
#define GK_TOOL_KIN_H

#include "common/words.h"

#include <stdint.h>

/* A signal to every child.  How many there are; `ret_who` (may be NULL), empty before, names the
 * first one: "process 12 (a name)". */
uint32_t gk_kin_signal(int number, struct gk_words *ret_who);

#endif
