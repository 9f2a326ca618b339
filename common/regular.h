/* Files that are named by a user and read as a whole: regular ones only.  Opening a pipe would wait
 * for a writer that may never come, and a folder or a device has no bytes of its own. */
#ifndef GK_COMMON_REGULAR_H
#define GK_COMMON_REGULAR_H

#include "common/err.h"
#include "common/words.h"

#include <stdio.h>

/* Open for reading; never waits.  GK_E_NOTFOUND: nothing has this name; GK_E_IO: it cannot be
 * opened, or it is no regular file; GK_E_NOMEM.  The words are what follows the path. */
enum gk_err gk_regular_open(const char *path, FILE **ret_file, struct gk_words *words);

#endif
