#include "tool/args.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(struct gk_args *args)
{
    size_t room = args->room ? 2 * args->room : 32;
    char **v;

    if (args->count + 1 < args->room) {
        return true;
    }
    v = realloc(args->v, room * sizeof(*v));
    if (!v) {
        return false;
    }
    args->v = v;
    args->room = room;
    return true;
}

void gk_args_add(struct gk_args *args, const char *format, ...)
{
    va_list list;
    char *text = NULL;
    int length;

    va_start(list, format);
    length = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (length >= 0 && make_room(args)) {
        text = malloc((size_t)length + 1);
    }
    if (!text) {
        args->failed = true;
        return;
    }
    va_start(list, format);
    (void)vsnprintf(text, (size_t)length + 1, format, list);
    va_end(list);
    args->v[args->count++] = text;
    args->v[args->count] = NULL;
}

void gk_args_fini(struct gk_args *args)
{
    for (size_t i = 0; i < args->count; i++) {
        free(args->v[i]);
    }
    free(args->v);
    memset(args, 0, sizeof(*args));
}
