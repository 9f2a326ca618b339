/* A list of strings that ends in NULL: the arguments or the environment of a child. */
#ifndef GK_TOOL_ARGS_H
#define GK_TOOL_ARGS_H

#include <stdbool.h>
#include <stddef.h>

struct gk_args {
    char **v; /* v[count] is NULL */
    size_t count, room;
    bool failed; /* out of memory: something is missing */
};

/* Append one string.  Starts from a zeroed struct. */
void gk_args_add(struct gk_args *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Accepts a zeroed struct, and leaves one. */
void gk_args_fini(struct gk_args *args);

#endif
