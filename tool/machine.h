/* The machine that a run is on, as far as a comparison of two runs has to know it. */
#ifndef GK_TOOL_MACHINE_H
#define GK_TOOL_MACHINE_H

#include <jansson.h>

#include <stdint.h>

/* "cpu": the processor as the system names it, null where it does not; "cores": how many of them
 * this process may run on; "blas": the words of the workers on their matrix library, null for "".
 * NULL: out of memory. */
json_t *gk_machine_json(const char *blas);

/* How many processors this process may run on. */
uint64_t gk_machine_cores(void);

/* How many GPUs the NVIDIA driver shows, in `root`/proc or `root`/dev ("": of this machine). */
uint32_t gk_machine_gpus(const char *root);

#endif
