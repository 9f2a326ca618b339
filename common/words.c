#include "common/words.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void make_one_line(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 32 || *text == 127) {
            *text = '?';
        }
    }
}

void gk_words_set(struct gk_words *words, const char *format, ...)
{
    va_list args;

    if (!words) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(words->text, sizeof(words->text), format, args);
    va_end(args);
    make_one_line(words->text);
}

void gk_words_prefix(struct gk_words *words, const char *format, ...)
{
    struct gk_words old;
    va_list args;
    size_t length;

    if (!words) {
        return;
    }
    old = *words;
    va_start(args, format);
    (void)vsnprintf(words->text, sizeof(words->text), format, args);
    va_end(args);
    length = strlen(words->text);
    (void)snprintf(words->text + length, sizeof(words->text) - length, "%s", old.text);
    make_one_line(words->text);
}
