#include "tool/faults_value.h"

#include "common/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_BYTES = 48 };

#define NUMBER_MAX UINT64_C(1000000000000000)

/* A text without blanks at its ends, into PART_BYTES. */
static bool trim(const char *text, size_t length, char *ret)
{
    while (length > 0 && *text == ' ') {
        text++;
        length--;
    }
    while (length > 0 && text[length - 1] == ' ') {
        length--;
    }
    if (length >= PART_BYTES) {
        return false;
    }
    memcpy(ret, text, length);
    ret[length] = '\0';
    return length > 0;
}

/* "12.5 s": digits with at most one point, and what follows behind blanks. */
static bool split_number(const char *text, double *ret_number, const char **ret_unit)
{
    size_t digits = strspn(text, "0123456789.");
    const char *point = memchr(text, '.', digits);

    if (digits == 0 || digits > 18 || text[0] == '.' ||
        (point && (memchr(point + 1, '.', digits - (size_t)(point + 1 - text)) ||
                   point + 1 == text + digits))) {
        return false;
    }
    *ret_number = strtod(text, NULL);
    *ret_unit = text + digits + strspn(text + digits, " ");
    return true;
}

bool gk_faults_read_duration(const char *text, uint64_t *ret_us)
{
    static const struct {
        const char *unit;
        double us;
    } units[] = {{"us", 1.0}, {"ms", 1e3}, {"s", 1e6}, {"min", 60e6}};
    const char *unit;
    double number;

    if (!split_number(text, &number, &unit)) {
        return false;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].unit) == 0 && number * units[i].us <= (double)NUMBER_MAX) {
            *ret_us = (uint64_t)llround(number * units[i].us);
            return true;
        }
    }
    return false;
}

bool gk_faults_read_number(const char *text, uint64_t *ret)
{
    size_t digits = strspn(text, "0123456789");
    uint64_t number;

    if (digits == 0 || digits > 16 || text[digits]) {
        return false;
    }
    number = strtoull(text, NULL, 10);
    if (number > NUMBER_MAX) {
        return false;
    }
    *ret = number;
    return true;
}

/* "A to B": both parts.  Anything else: the text itself as both. */
static bool split_range(const char *text, char *ret_low, char *ret_high)
{
    const char *to = strstr(text, " to ");

    return trim(text, to ? (size_t)(to - text) : strlen(text), ret_low) &&
           trim(to ? to + 4 : text, strlen(to ? to + 4 : text), ret_high);
}

bool gk_faults_read_point(const char *text, bool steps, struct gk_faults_span *ret)
{
    struct gk_faults_span span = {.given = true, .steps = steps};
    char low[PART_BYTES], high[PART_BYTES];

    if (!split_range(text, low, high) ||
        !(steps ? gk_faults_read_number(low, &span.low)
                : gk_faults_read_duration(low, &span.low)) ||
        !(steps ? gk_faults_read_number(high, &span.high)
                : gk_faults_read_duration(high, &span.high)) ||
        span.low > span.high) {
        return false;
    }
    *ret = span;
    return true;
}

static bool read_steps(const char *text, uint64_t *ret)
{
    const char *unit;
    double number;

    if (!split_number(text, &number, &unit) || number > (double)NUMBER_MAX ||
        number != floor(number) || (strcmp(unit, "steps") != 0 && strcmp(unit, "step") != 0)) {
        return false;
    }
    *ret = (uint64_t)number;
    return true;
}

bool gk_faults_read_span(const char *text, struct gk_faults_span *ret)
{
    struct gk_faults_span span = {.given = true};
    char low[PART_BYTES], high[PART_BYTES];

    if (!split_range(text, low, high)) {
        return false;
    }
    span.steps = read_steps(low, &span.low);
    if (!(span.steps || gk_faults_read_duration(low, &span.low)) ||
        !(span.steps ? read_steps(high, &span.high) : gk_faults_read_duration(high, &span.high)) ||
        span.low > span.high) {
        return false;
    }
    *ret = span;
    return true;
}

bool gk_faults_read_chance(const char *text, double *ret)
{
    const char *unit;
    double number;

    if (!split_number(text, &number, &unit)) {
        return false;
    }
    if (strcmp(unit, "%") == 0) {
        number /= 100.0;
    } else if (*unit) {
        return false;
    }
    if (number > 1.0) {
        return false;
    }
    *ret = number;
    return true;
}

static bool read_index(const char *text, uint32_t count_max, uint32_t *ret)
{
    uint64_t number;

    if (!gk_faults_read_number(text, &number) || number >= count_max) {
        return false;
    }
    *ret = (uint32_t)number;
    return true;
}

bool gk_faults_read_who(const char *text, struct gk_faults_who *ret)
{
    static const struct {
        const char *name;
        enum gk_faults_whom whom;
    } names[] = {
        {"any worker", GK_FAULTS_ANY_WORKER},
        {"any server", GK_FAULTS_ANY_SERVER},
        {"workers", GK_FAULTS_WORKERS},
        {"servers", GK_FAULTS_SERVERS},
        {"all", GK_FAULTS_ALL},
        {"launcher", GK_FAULTS_LAUNCHER},
    };
    struct gk_faults_who who = {.whom = GK_FAULTS_WORKER};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i].name) == 0) {
            who.whom = names[i].whom;
            *ret = who;
            return true;
        }
    }
    if (strncmp(text, "server ", 7) == 0) {
        who.whom = GK_FAULTS_SERVER;
    } else if (strncmp(text, "worker ", 7) != 0) {
        return false;
    }
    if (!read_index(text + 7, who.whom == GK_FAULTS_SERVER ? GK_SERVERS_MAX : GK_WORKERS_MAX,
                    &who.index)) {
        return false;
    }
    *ret = who;
    return true;
}

bool gk_faults_read_bounds(const char *text, struct gk_faults_bounds *ret)
{
    struct gk_faults_bounds bounds = {0};
    bool most = strncmp(text, "at most ", 8) == 0;
    bool least = strncmp(text, "at least ", 9) == 0;

    text += most ? 8 : least ? 9 : 0;
    if (!gk_faults_read_number(text, &bounds.low)) {
        return false;
    }
    bounds.high = least ? UINT64_MAX : bounds.low;
    bounds.low = most ? 0 : bounds.low;
    bounds.line = ret->line;
    *ret = bounds;
    return true;
}

bool gk_faults_read_bool(const char *text, bool *ret)
{
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "yes") == 0;

    if (!yes && strcmp(text, "false") != 0 && strcmp(text, "no") != 0) {
        return false;
    }
    *ret = yes;
    return true;
}
