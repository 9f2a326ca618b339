/* The machine that a run is on, as far as a comparison of two runs has to know it. */
#ifndef GK_TOOL_MACHINE_H
#define GK_TOOL_MACHINE_H

#include <jansson.h>

#include <stddef.h>
#include <stdint.h>

enum { GK_MACHINE_CPU_BYTES = 128 };

/* The processor as the system names it; "" where it does not. */
void gk_machine_cpu(char *ret, size_t ret_bytes);

/* Processors that this process may run on. */
uint64_t gk_machine_cores(void);

/* Both, and the words of the workers on their matrix library ("": none), as one object.  NULL: out
 * of memory. */
json_t *gk_machine_json(const char *blas);

#endif
