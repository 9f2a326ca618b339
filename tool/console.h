/* One place that writes for people: a bar line that is redrawn, and lines that must not be torn by
 * it. */
#ifndef GK_TOOL_CONSOLE_H
#define GK_TOOL_CONSOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct gk_console {
    FILE *out;
    bool bar;   /* a terminal that can redraw a line */
    bool shown; /* the bar is on the screen now */
};

/* `out` is borrowed.  The bar is for a terminal that is not dumb. */
void gk_console_init(struct gk_console *console, FILE *out);

/* Columns of the terminal; 80 when it does not tell. */
unsigned gk_console_columns(const struct gk_console *console);

/* Draw, or draw again. */
void gk_console_draw(struct gk_console *console, const char *text);

/* Take the bar away: call before anything else is written to the terminal. */
void gk_console_clear(struct gk_console *console);

#endif
