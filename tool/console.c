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

static bool write_lines(struct gk_lines *lines, FILE *out)
{
    size_t end = lines->used;

    while (end > 0 && lines->text[end - 1] != '\n') {
        end--;
    }
    if (end == 0 && lines->used == GK_LINES_BYTES_MAX) {
        end = lines->used;
    }
    if (end == 0) {
        return false;
    }
    (void)fwrite(lines->text, 1, end, out);
    (void)fflush(out);
    memmove(lines->text, lines->text + end, lines->used - end);
    lines->used -= end;
    return true;
}

bool gk_lines_feed(struct gk_lines *lines, const char *data, size_t size, FILE *out)
{
    bool written = false;

    if (!lines->text) {
        lines->text = malloc(GK_LINES_BYTES_MAX);
    }
    if (!lines->text) {
        (void)fwrite(data, 1, size, out);
        return true;
    }
    while (size > 0) {
        size_t n = GK_LINES_BYTES_MAX - lines->used;

        n = n < size ? n : size;
        memcpy(lines->text + lines->used, data, n);
        lines->used += n;
        data += n;
        size -= n;
        written = write_lines(lines, out) || written;
    }
    return written;
}

void gk_lines_fini(struct gk_lines *lines, FILE *out)
{
    if (lines->used > 0) {
        (void)fwrite(lines->text, 1, lines->used, out);
        (void)fputc('\n', out);
        (void)fflush(out);
    }
    free(lines->text);
    memset(lines, 0, sizeof(*lines));
}
