/* A file that appears whole or not at all. */
#ifndef GK_TOOL_OUTPUT_H
#define GK_TOOL_OUTPUT_H

#include "common/err.h"
#include "common/words.h"

#include <stdio.h>

/* Can the file be written later?  Found out by making (and removing) the temporary file that
 * gk_output_write would make, so that hours of work do not end at a wrong path.  "-" is standard
 * output and always can.  Else it must be a regular file, or nothing yet in a folder that can be
 * written; a link is followed, also to a file that is not there yet.  GK_E_IO with words;
 * GK_E_REFUSED: the state of a job is kept there (state_dir.h). */
enum gk_err gk_output_probe(const char *path, struct gk_words *words);

/* Write the text: into a file without a name (where the file system has those, so that nothing is
 * left when this process is killed), synced, then put in its place.  GK_E_IO with words; then the
 * old file is untouched.  GK_E_CLOSED: standard output, and its reader has gone. */
enum gk_err gk_output_write(const char *path, const char *text, struct gk_words *words);

/* The same of a regular file that `fill` writes, whose errors are given back with words that name
 * the file.  Also GK_E_NOMEM. */
enum gk_err gk_output_make(const char *path,
                           enum gk_err (*fill)(void *context, FILE *out, struct gk_words *words),
                           void *context, struct gk_words *words);

#endif
