/* Writes the seeds of the corpora: legal messages, and whole conversations between the two real
 * cores. */
#ifndef GK_TESTS_FUZZ_SEEDS_H
#define GK_TESTS_FUZZ_SEEDS_H

#include <stddef.h>

/* ROOT/TARGET/NAME. */
void seeds_write(const char *target, const char *name, const void *bytes, size_t size);

void seeds_wire(void); /* header, bodies, frames, spec */
void seeds_talk(void); /* server, worker */

#endif
