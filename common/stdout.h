/* What a program printed has to arrive, or somebody has to know that it did not. */
#ifndef GK_COMMON_STDOUT_H
#define GK_COMMON_STDOUT_H

#include "common/err.h"
#include "common/words.h"

#include <stdio.h>

/* Write out what `out` still holds.  GK_E_IO: this, or something before it, could not be written,
 * and words say why.  GK_E_CLOSED: the reader of a pipe has gone (`| head -1`), which is nothing to
 * complain about; SIGPIPE must be ignored to come to that.  Any thread that may write to it. */
enum gk_err gk_stdout_flush(FILE *out, struct gk_words *words);

#endif
