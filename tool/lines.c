#include "tool/lines.h"

#include <stdlib.h>
#include <string.h>

/* How many bytes the character at the beginning has, as UTF-8; 0: it is none, or a control
 * character, of which some terminals obey also those of two bytes. */
static size_t character(const unsigned char *text, size_t size)
{
    unsigned char first = text[0];
    size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    if (length == 1) {
        return (first >= 32 && first != 127) || first == '\t';
    }
    if (length == 0 || first > 0xf4 || length > size) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((first == 0xc2 && text[1] < 0xa0) || (first == 0xe0 && text[1] < 0xa0) ||
        (first == 0xed && text[1] >= 0xa0) || (first == 0xf0 && text[1] < 0x90) ||
        (first == 0xf4 && text[1] >= 0x90)) {
        return 0; /* a control character, an overlong form, a surrogate, beyond the last one */
    }
    return length;
}

static void clean(char *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        size_t length = character((const unsigned char *)text + i, size - i);

        if (length == 0) {
            text[i] = '?';
        }
        i += length > 0 ? length : 1;
    }
}

/* What a terminal would show of the line: the text behind the last carriage return, but for those
 * at the very end. */
static const char *visible(const char *text, size_t *size)
{
    const char *from = text;

    while (*size > 0 && text[*size - 1] == '\r') {
        (*size)--;
    }
    for (size_t i = 0; i < *size; i++) {
        if (text[i] == '\r') {
            from = text + i + 1;
        }
    }
    *size -= (size_t)(from - text);
    return from;
}

/* One line or piece of one, without its newline. */
static void write_line(const struct gk_lines *lines, char *text, size_t size, FILE *out)
{
    const char *from = visible(text, &size);

    clean(text + (from - text), size);
    (void)fputs(lines->prefix, out);
    (void)fwrite(from, 1, size, out);
    (void)fputc('\n', out);
}

/* Where a line that is too long may be cut: not within a character. */
static size_t find_cut(const char *text, size_t size)
{
    size_t cut = size;

    while (cut > 0 && size - cut < 4 && ((unsigned char)text[cut - 1] & 0xc0) == 0x80) {
        cut--;
    }
    if (cut > 0 && (unsigned char)text[cut - 1] >= 0xc0) {
        return cut - 1;
    }
    return size;
}

/* Bytes that were written. */
static size_t write_prefixed(struct gk_lines *lines, FILE *out)
{
    size_t done = 0;
    char *newline;

    while ((newline = memchr(lines->text + done, '\n', lines->used - done)) != NULL) {
        size_t size = (size_t)(newline - lines->text) - done;

        if (size > 0 || !lines->cut) {
            write_line(lines, lines->text + done, size, out);
        }
        lines->cut = false;
        done += size + 1;
    }
    if (done == 0 && lines->used == GK_LINES_BYTES_MAX) {
        done = find_cut(lines->text, lines->used);
        write_line(lines, lines->text, done, out);
        lines->cut = true;
    }
    return done;
}

static size_t write_plain(const struct gk_lines *lines, FILE *out)
{
    size_t end = lines->used;

    while (end > 0 && lines->text[end - 1] != '\n') {
        end--;
    }
    if (end == 0 && lines->used == GK_LINES_BYTES_MAX) {
        end = lines->used;
    }
    (void)fwrite(lines->text, 1, end, out);
    return end;
}

static bool write_lines(struct gk_lines *lines, FILE *out)
{
    size_t done = lines->prefix[0] ? write_prefixed(lines, out) : write_plain(lines, out);

    if (done == 0) {
        return false;
    }
    (void)fflush(out);
    memmove(lines->text, lines->text + done, lines->used - done);
    lines->used -= done;
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
    if (lines->used > 0 && lines->prefix[0]) {
        write_line(lines, lines->text, lines->used, out);
        (void)fflush(out);
    } else if (lines->used > 0) {
        (void)fwrite(lines->text, 1, lines->used, out);
        (void)fputc('\n', out);
        (void)fflush(out);
    }
    free(lines->text);
    memset(lines, 0, sizeof(*lines));
}
