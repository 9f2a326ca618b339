#include "tool/console.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void gk_console_init(struct gk_console *console, FILE *out)
{
    const char *kind = getenv("TERM");

    memset(console, 0, sizeof(*console));
    console->out = out;
    console->bar = isatty(fileno(out)) == 1 && kind && *kind && strcmp(kind, "dumb") != 0;
}

unsigned gk_console_columns(const struct gk_console *console)
{
    struct winsize size;

    if (ioctl(fileno(console->out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        return 80;
    }
    return size.ws_col;
}

void gk_console_draw(struct gk_console *console, const char *text)
{
    /* Text first, then the rest of the old line is erased: no moment without a bar, so no flicker.
     */
    (void)fprintf(console->out, "\r%s\x1b[K", text);
    (void)fflush(console->out);
    console->shown = true;
}

void gk_console_clear(struct gk_console *console)
{
    if (console->shown) {
        (void)fputs("\r\x1b[K", console->out);
        (void)fflush(console->out);
        console->shown = false;
    }
}
