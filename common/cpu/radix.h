/* Exact k-th largest key by counting digits of 11, 10 and 10 bits. */
#ifndef GK_COMMON_CPU_RADIX_H
#define GK_COMMON_CPU_RADIX_H

#include "common/cpu/loops.h"

#include <stdint.h>

enum { GK_CPU_RADIX_BINS = 2048, GK_CPU_RADIX_SHIFT = 20 };

struct gk_cpu_radix { /* counts fit: a vector has fewer than 2^32 elements */
    uint32_t bins[GK_CPU_RADIX_BINS];
};

struct gk_cpu_kth {
    uint32_t key;   /* the k-th largest */
    uint64_t above; /* how many keys are larger than it */
};

/* Of n >= k >= 1 values. */
struct gk_cpu_kth gk_cpu_radix_kth(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                   uint64_t k);

/* The same when radix->bins already counts key >> GK_CPU_RADIX_SHIFT of all values. */
struct gk_cpu_kth gk_cpu_radix_kth_counted(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                           uint64_t k);

/* Keep the k >= 1 largest of a list of at least k, ties to the lower index, order kept.  Returns
 * the k-th key. */
uint32_t gk_cpu_radix_prune(struct gk_cpu_radix *radix, struct gk_cpu_list *list, uint64_t k);

#endif
