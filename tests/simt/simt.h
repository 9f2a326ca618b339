/* What a test may ask of the SIMT emulator (README.md): the schedule, and failures on demand.  Also
 * for C.
 *
 * Any thread may call these and the runtime; one lock serves all. */
#ifndef GK_TESTS_SIMT_SIMT_H
#define GK_TESTS_SIMT_SIMT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gk_simt_order {
    GK_SIMT_ASCENDING,  /* blocks, warps and lanes by number, as far as each comes */
    GK_SIMT_DESCENDING, /* the last ones first */
    GK_SIMT_RANDOM,     /* per launch: threads at random, or warps by a random rank */
};

/* For kernels that have not run yet.  Before the first call: random, seed 1. */
void gk_simt_schedule(enum gk_simt_order order, uint64_t seed);

/* The allocation (device or host), or the launch, that comes after so many others fails; negative:
 * none does. */
void gk_simt_fail_allocation(int64_t after);
void gk_simt_fail_launch(int64_t after);

/* The same of copies, and of waits for a stream; from any thread. */
void gk_simt_fail_copy(int64_t after);
void gk_simt_fail_wait(int64_t after);

/* The same of calls of cuBLAS: handles and products. */
void gk_simt_fail_blas(int64_t after);

/* How many devices the runtime finds; 1 before the first call.  Negative: no driver. */
void gk_simt_devices(int count);

/* From now on the barrier in this line of the file (the end of its path) is not there; NULL: all
 * are. */
void gk_simt_skip_barrier(const char *file, int line);

/* Kernels that have run. */
uint64_t gk_simt_launches(void);

/* The text of every fault that was found goes to stderr, and the process aborts. */

#ifdef __cplusplus
}
#endif

#endif
