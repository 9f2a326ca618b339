#include "tool/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t gk_json_u64(const json_t *object, const char *key, uint64_t fallback)
{
    const json_t *value = json_object_get(object, key);

    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        return (uint64_t)json_integer_value(value);
    }
    return fallback;
}

double gk_json_double(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

bool gk_json_bool(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

void gk_json_text(const json_t *object, const char *key, char *ret, size_t ret_bytes)
{
    const char *text = json_string_value(json_object_get(object, key));
    size_t used = 0;

    for (; text && *text && used + 1 < ret_bytes; text++, used++) {
        unsigned char byte = (unsigned char)*text;

        ret[used] = *text;
        if (byte < 32 || byte == 127) {
            ret[used] = '?';
        }
    }
    if (ret_bytes > 0) {
        ret[used] = '\0';
    }
}

bool gk_json_hex64(const json_t *object, const char *key, uint64_t *ret)
{
    const char *text = json_string_value(json_object_get(object, key));
    size_t digits = text ? strspn(text, "0123456789abcdefABCDEF") : 0;

    if (digits < 1 || digits > 16 || text[digits] != '\0') {
        return false;
    }
    *ret = (uint64_t)strtoull(text, NULL, 16);
    return true;
}

json_t *gk_json_string(const char *text)
{
    json_t *value = json_string(text);
    char *copy;

    if (value) {
        return value;
    }
    copy = strdup(text);
    for (char *at = copy; at && *at; at++) {
        if ((unsigned char)*at >= 128) {
            *at = '?';
        }
    }
    value = copy ? json_string(copy) : NULL;
    free(copy);
    return value;
}

char *gk_json_dump(const json_t *object, bool indent)
{
    /* 15 digits: 0.1 is shown as it was written, and nothing we report is known better. */
    size_t flags = JSON_REAL_PRECISION(15) | (indent ? JSON_INDENT(2) : JSON_COMPACT);
    char *text = object ? json_dumps(object, flags) : NULL;
    size_t length = text ? strlen(text) : 0;
    char *line = text ? realloc(text, length + 2) : NULL;

    if (!line) {
        free(text);
        return NULL;
    }
    line[length] = '\n';
    line[length + 1] = '\0';
    return line;
}
