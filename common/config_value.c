/* One text into one typed value, and what would have been allowed in words.  The parsers are
 * stricter than those of libc, which take blanks, signs, hexadecimal, "inf" and "nan": a value
 * means the same to everyone or is refused. */
#include "common/config_internal.h"

#include "common/shown.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bool_word {
    const char *text;
    bool value;
};

static const struct bool_word bool_words[] = {
    {"true", true},   {"yes", true}, {"on", true},   {"1", true},
    {"false", false}, {"no", false}, {"off", false}, {"0", false},
};

static bool parse_bool(const char *text, bool *ret_value)
{
    for (size_t i = 0; i < sizeof(bool_words) / sizeof(bool_words[0]); i++) {
        if (strcmp(text, bool_words[i].text) == 0) {
            *ret_value = bool_words[i].value;
            return true;
        }
    }
    return false;
}

/* Digits alone: strtoull also takes blanks, signs and "-1". */
static bool parse_uint(const char *text, uint64_t *ret_value, const char **ret_rest)
{
    uint64_t value = 0;
    const char *at = text;

    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');

        if (value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *ret_value = value;
    *ret_rest = at;
    return at > text;
}

static bool parse_bytes(const char *text, uint64_t *ret_value)
{
    const char *rest;
    uint64_t value;
    unsigned shift = 0;

    if (!parse_uint(text, &value, &rest)) {
        return false;
    }
    switch (*rest) {
    case 'k':
    case 'K':
        shift = 10;
        break;
    case 'm':
    case 'M':
        shift = 20;
        break;
    case 'g':
    case 'G':
        shift = 30;
        break;
    default:
        break;
    }
    rest += shift > 0;
    if (*rest || value > UINT64_MAX >> shift) {
        return false;
    }
    *ret_value = value << shift;
    return true;
}

/* Decimal notation alone: strtod also takes blanks, hexadecimal, "inf" and "nan". */
static bool parse_float(const char *text, double *ret_value)
{
    char *end;
    double value;

    if (!*text || text[strspn(text, "0123456789+-.eE")]) {
        return false;
    }
    value = strtod(text, &end);
    if (*end || !isfinite(value)) {
        return false;
    }
    *ret_value = value + 0.0; /* -0 becomes 0: one value, one meaning */
    return true;
}

static bool parse_choice(const char *choices, const char *text, uint32_t *ret_value)
{
    size_t length = strlen(text);

    for (uint32_t i = 0; choices; i++) {
        size_t choice_length = strcspn(choices, "|");

        if (choice_length == length && memcmp(choices, text, length) == 0) {
            *ret_value = i;
            return true;
        }
        choices = choices[choice_length] ? choices + choice_length + 1 : NULL;
    }
    return false;
}

static bool has_bounds(const struct gk_option *option)
{
    return option->min < 0 || option->min > 0 || option->max < 0 || option->max > 0;
}

/* long double holds every uint64_t, so that the bounds of large numbers are exact. */
static bool in_bounds(const struct gk_option *option, long double value)
{
    return !has_bounds(option) || (value >= option->min && value <= option->max);
}

static bool parse_typed(const struct gk_option *option, const char *text, void *ret_value)
{
    const char *rest = "";
    double number = 0;
    uint64_t count = 0;
    uint32_t position = 0;
    bool truth = false;

    switch (option->type) {
    case GK_OPTION_STRING:
        memcpy(ret_value, &text, sizeof(text));
        return true;
    case GK_OPTION_UINT:
        if (!parse_uint(text, &count, &rest) || *rest || !in_bounds(option, count)) {
            return false;
        }
        memcpy(ret_value, &count, sizeof(count));
        return true;
    case GK_OPTION_BYTES:
        if (!parse_bytes(text, &count) || !in_bounds(option, count)) {
            return false;
        }
        memcpy(ret_value, &count, sizeof(count));
        return true;
    case GK_OPTION_FLOAT:
        if (!parse_float(text, &number) || !in_bounds(option, number)) {
            return false;
        }
        memcpy(ret_value, &number, sizeof(number));
        return true;
    case GK_OPTION_BOOL:
        if (!parse_bool(text, &truth)) {
            return false;
        }
        memcpy(ret_value, &truth, sizeof(truth));
        return true;
    case GK_OPTION_CHOICE:
        if (!parse_choice(option->choices, text, &position)) {
            return false;
        }
        memcpy(ret_value, &position, sizeof(position));
        return true;
    }
    return false;
}

enum gk_err gk_config_value_parse(const struct gk_option *option, const char *text, void *ret_value,
                                  struct gk_words *words)
{
    char allowed[GK_CONFIG_ALLOWED_BYTES];

    if (parse_typed(option, text, ret_value)) {
        return GK_OK;
    }
    gk_config_value_allowed(option, allowed, sizeof(allowed));
    if (*text) {
        gk_words_set(words, "'%s' is not %s", gk_shown(text).text, allowed);
    } else {
        gk_words_set(words, "the value is empty; it must be %s", allowed);
    }
    return GK_E_CONFIG;
}

const char *gk_config_value_bool(const char *text)
{
    bool value = false;

    (void)parse_bool(text, &value); /* the caller knows that it is one */
    return value ? "true" : "false";
}

static void append(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t bytes, const char *format, ...)
{
    size_t length = strlen(text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text + length, bytes - length, format, args);
    va_end(args);
}

static void append_bound(char *text, size_t bytes, double bound)
{
    /* Whole numbers in full: 1048576, not 1.04858e+06. */
    bool whole = fabs(bound) < 1e16 && !(bound < floor(bound) || bound > floor(bound));

    append(text, bytes, whole ? "%.0f" : "%.10g", bound);
}

static void append_bounds(char *text, size_t bytes, const struct gk_option *option)
{
    if (!has_bounds(option)) {
        return;
    }
    append(text, bytes, "%s", " from ");
    append_bound(text, bytes, option->min);
    if (option->max >= 1e19) {
        append(text, bytes, "%s", " up");
        return;
    }
    append(text, bytes, "%s", " to ");
    append_bound(text, bytes, option->max);
}

static void append_choices(char *text, size_t bytes, const char *choices)
{
    while (choices) {
        size_t length = strcspn(choices, "|");
        const char *next = choices[length] ? choices + length + 1 : NULL;

        append(text, bytes, "%.*s", (int)length, choices);
        if (next) {
            append(text, bytes, "%s", strchr(next, '|') ? ", " : " or ");
        }
        choices = next;
    }
}

void gk_config_value_allowed(const struct gk_option *option, char *ret_text, size_t bytes)
{
    ret_text[0] = '\0';
    switch (option->type) {
    case GK_OPTION_STRING:
        break;
    case GK_OPTION_UINT:
        append(ret_text, bytes, "%s", "a whole number");
        append_bounds(ret_text, bytes, option);
        break;
    case GK_OPTION_BYTES:
        append(ret_text, bytes, "%s", "a number of bytes (k, M, G: powers of 1024)");
        append_bounds(ret_text, bytes, option);
        break;
    case GK_OPTION_FLOAT:
        append(ret_text, bytes, "%s", "a number");
        append_bounds(ret_text, bytes, option);
        break;
    case GK_OPTION_BOOL:
        append(ret_text, bytes, "%s", "true or false (or yes, no, on, off, 1, 0)");
        break;
    case GK_OPTION_CHOICE:
        append_choices(ret_text, bytes, option->choices);
        break;
    }
}
