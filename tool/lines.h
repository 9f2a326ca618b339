/* Lines from a stream of bytes: what a child writes appears in whole lines, between two drawings of
 * the bar. */
#ifndef GK_TOOL_LINES_H
#define GK_TOOL_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
    GK_LINES_BYTES_MAX = 16 * 1024, /* a longer line is written in pieces */
    GK_LINES_PREFIX_BYTES = 16,
};

struct gk_lines {
    /* "": lines of a daemon, which are good as they are.  Else they are of a program that may write
     * anything: each begins with the prefix and ends in a newline, control characters but the
     * tabulator and what is no UTF-8 become '?', and what a carriage return would overwrite on a
     * terminal is left out. */
    char prefix[GK_LINES_PREFIX_BYTES];
    char *text; /* an unfinished line */
    size_t used;
    bool cut; /* it is the rest of a line that was too long */
};

/* Append bytes and write what is complete to `out`.  True when something was written; the caller
 * has cleared the bar. */
bool gk_lines_feed(struct gk_lines *lines, const char *data, size_t size, FILE *out);

/* Write what is left, with a newline, and free.  Accepts a zeroed struct. */
void gk_lines_fini(struct gk_lines *lines, FILE *out);

#endif
