#include "tool/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct gk_unit none(void)
{
    return (struct gk_unit){.text = "-"};
}

struct gk_unit gk_unit_bytes(uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct gk_unit unit;
    double x = (double)bytes;
    unsigned power = 0;

    /* 1023.95 would be printed as 1024.0 of the smaller unit. */
    while (x >= 1023.95 && power + 1 < sizeof(names) / sizeof(names[0])) {
        x /= 1024.0;
        power++;
    }
    (void)snprintf(unit.text, sizeof(unit.text), power ? "%.1f %s" : "%.0f %s", x, names[power]);
    return unit;
}

struct gk_unit gk_unit_seconds(double seconds)
{
    struct gk_unit unit;
    uint64_t whole;

    if (!isfinite(seconds) || seconds < 0.0 || seconds > 1e12) {
        return none();
    }
    if (seconds < 0.0009995) {
        (void)snprintf(unit.text, sizeof(unit.text), "%.0f us", seconds * 1e6);
    } else if (seconds < 0.9995) {
        (void)snprintf(unit.text, sizeof(unit.text), "%.3g ms", seconds * 1e3);
    } else if (seconds < 59.95) {
        (void)snprintf(unit.text, sizeof(unit.text), "%.1f s", seconds);
    } else {
        whole = (uint64_t)(seconds + 0.5);
        if (whole < 3600) {
            (void)snprintf(unit.text, sizeof(unit.text), "%" PRIu64 " min %02" PRIu64 " s",
                           whole / 60, whole % 60);
        } else {
            (void)snprintf(unit.text, sizeof(unit.text), "%" PRIu64 " h %02" PRIu64 " min",
                           whole / 3600, whole / 60 % 60);
        }
    }
    return unit;
}

struct gk_unit gk_unit_count(uint64_t count)
{
    struct gk_unit unit;
    char digits[24];
    size_t length, used = 0;

    (void)snprintf(digits, sizeof(digits), "%" PRIu64, count);
    length = strlen(digits);
    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            unit.text[used++] = ' ';
        }
        unit.text[used++] = digits[i];
    }
    unit.text[used] = '\0';
    return unit;
}

struct gk_unit gk_unit_rate(double per_s)
{
    struct gk_unit unit;

    if (!isfinite(per_s) || per_s < 0.0 || per_s > 1e18) {
        return none();
    }
    if (per_s >= 999.5) {
        return gk_unit_count((uint64_t)(per_s + 0.5));
    }
    (void)snprintf(unit.text, sizeof(unit.text), "%.3g", per_s);
    return unit;
}

struct gk_unit gk_unit_number(double x)
{
    struct gk_unit unit;

    if (!isfinite(x)) {
        return none();
    }
    (void)snprintf(unit.text, sizeof(unit.text), "%.4g", x);
    return unit;
}

struct gk_unit gk_unit_percent(double fraction)
{
    struct gk_unit unit;

    if (!isfinite(fraction) || fabs(fraction) > 1e6) {
        return none();
    }
    (void)snprintf(unit.text, sizeof(unit.text), "%.2f %%", fraction * 100.0);
    return unit;
}
