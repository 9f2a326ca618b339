/* The words and numbers of a fault script.  Pure; every function is false for a text that is none,
 * and then leaves its result alone. */
#ifndef GK_TOOL_FAULTS_VALUE_H
#define GK_TOOL_FAULTS_VALUE_H

#include "tool/faults.h"

/* "1.5 s", "200ms", "3 min", "50 us": microseconds. */
bool gk_faults_read_duration(const char *text, uint64_t *ret_us);

/* Digits alone, up to 10^15. */
bool gk_faults_read_number(const char *text, uint64_t *ret);

/* A length: "20 steps", "1.5 s", or "A to B" of two alike. */
bool gk_faults_read_span(const char *text, struct gk_faults_span *ret);

/* A point: numbers where `steps`, else durations; or "A to B" of two. */
bool gk_faults_read_point(const char *text, bool steps, struct gk_faults_span *ret);

/* "20 %", "20%" or "0.2": 0 to 1. */
bool gk_faults_read_chance(const char *text, double *ret);

/* "worker 2", "any server", "workers", "all", "launcher". */
bool gk_faults_read_who(const char *text, struct gk_faults_who *ret);

/* "3", "at most 3", "at least 3"; the line is the caller's. */
bool gk_faults_read_bounds(const char *text, struct gk_faults_bounds *ret);

bool gk_faults_read_bool(const char *text, bool *ret); /* true, yes, false, no */

#endif
