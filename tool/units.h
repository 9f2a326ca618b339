/* Quantities as people read them: "1.2 MiB", "2 min 05 s", "26 667".  Numbers that are not finite
 * read "-". */
#ifndef GK_TOOL_UNITS_H
#define GK_TOOL_UNITS_H

#include <stdint.h>

struct gk_unit {
    char text[32];
};

struct gk_unit gk_unit_bytes(uint64_t bytes); /* powers of 1024 */
struct gk_unit
gk_unit_seconds(double seconds); /* "850 us", "1.20 ms", "4.80 s", "2 min 05 s", "3 h 02 min" */
struct gk_unit gk_unit_count(uint64_t count);    /* digits in groups of three */
struct gk_unit gk_unit_rate(double per_s);       /* three digits, or a count when there are more */
struct gk_unit gk_unit_number(double x);         /* four digits: losses */
struct gk_unit gk_unit_percent(double fraction); /* "96.94 %" */

#endif
