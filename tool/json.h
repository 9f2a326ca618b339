/* Reading JSON that another process wrote: a field that is missing or of the wrong type gives the
 * fallback, never an error, so that a newer or older daemon can still be shown.  Every getter
 * accepts NULL and non-objects.  Any thread. */
#ifndef GK_TOOL_JSON_H
#define GK_TOOL_JSON_H

#include "common/json.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole number that is not negative. */
uint64_t gk_json_u64(const json_t *object, const char *key, uint64_t fallback);

/* Any number; NAN when there is none. */
double gk_json_double(const json_t *object, const char *key);

bool gk_json_bool(const json_t *object, const char *key);

/* The string as printable text, cut at the buffer's end: control characters become '?', because it
 * goes to a terminal.
 * "" when there is none. */
void gk_json_text(const json_t *object, const char *key, char *ret, size_t ret_bytes);

/* 1..16 hexadecimal digits.  False, and ret untouched, when there are none. */
bool gk_json_hex64(const json_t *object, const char *key, uint64_t *ret);

/* Any text: bytes that are no UTF-8 become '?'.  NULL: out of memory. */
json_t *gk_json_string(const char *text);

/* The document as one text ending in a newline, to be freed: indented for people, or one line.
 * NULL: out of memory, or a part of it could not be made. */
char *gk_json_dump(const json_t *object, bool indent);

#endif
