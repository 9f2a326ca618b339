/* JSON values of ours.  Any thread. */
#ifndef GK_COMMON_JSON_H
#define GK_COMMON_JSON_H

#include <jansson.h>

#include <stdint.h>

/* A JSON number, or null where JSON has none (NaN, infinity).  NULL: out of memory. */
json_t *gk_json_real(double x);

/* A JSON integer; above what JSON libraries read safely (2^63 - 1) it is that bound.  NULL: out of
 * memory. */
json_t *gk_json_integer(uint64_t x);

/* 16 hexadecimal digits.  NULL: out of memory. */
json_t *gk_json_hash(uint64_t x);

#endif
