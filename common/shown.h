/* A text of somebody else's inside a line for a person. */
#ifndef GK_COMMON_SHOWN_H
#define GK_COMMON_SHOWN_H

#include <stddef.h>

enum { GK_SHOWN_BYTES = 60 }; /* of the text; what follows becomes an ellipsis */

struct gk_shown {
    char text[GK_SHOWN_BYTES + 4]; /* terminated */
};

/* Its beginning, on one line: control characters become '?', whether ASCII or the two bytes of
 * UTF-8 that some terminals obey; a long text is cut between two characters and ends in an
 * ellipsis, so that what the line has to say behind it is not lost.  Any thread. */
struct gk_shown gk_shown(const char *text);

/* The same of the first `length` bytes. */
struct gk_shown gk_shown_part(const char *text, size_t length);

#endif
