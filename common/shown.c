#include "common/shown.h"

#include <stdbool.h>
#include <string.h>

static bool continues(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

struct gk_shown gk_shown_part(const char *text, size_t length)
{
    struct gk_shown shown;
    size_t kept = length;

    if (length > GK_SHOWN_BYTES) {
        kept = GK_SHOWN_BYTES;
        while (kept > GK_SHOWN_BYTES - 4 && continues(text[kept])) {
            kept--;
        }
    }
    memcpy(shown.text, text, kept);
    for (size_t i = 0; i < kept; i++) {
        unsigned char byte = (unsigned char)text[i];
        bool c1 = byte >= 0x80 && byte < 0xa0 && i > 0 && text[i - 1] == '\xc2';

        if (byte < 32 || byte == 127 || c1) {
            shown.text[i] = '?';
            if (c1) {
                shown.text[i - 1] = '?';
            }
        }
    }
    memcpy(shown.text + kept, length > kept ? "\xe2\x80\xa6" : "", length > kept ? 4 : 1);
    return shown;
}

struct gk_shown gk_shown(const char *text)
{
    return gk_shown_part(text, strlen(text));
}
