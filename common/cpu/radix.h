/* Exact k-th largest key by counting digits of 11, 10 and 10 bits. */
#ifndef GK_COMMON_CPU_RADIX_H
#define GK_COMMON_CPU_RADIX_H

#include "common/cpu/loops.h"

#include <stdint.h>

enum { GK_CPU_RADIX_BINS = 2048, GK_CPU_RADIX_SHIFT = 20 };

/* Counts of the first digit, key >> GK_CPU_RADIX_SHIFT.  Counts fit: a vector has fewer than 2^32
 * elements. */
struct gk_cpu_radix {
    uint32_t bins[GK_CPU_RADIX_BINS];
    uint32_t odd[GK_CPU_RADIX_BINS]; /* of every other element, until they are joined */
};

struct gk_cpu_digit {
    uint64_t k;
    uint32_t digit; /* the first digit of the k-th largest key */
    uint64_t rank;  /* its rank among the keys with that digit */
    uint64_t count; /* how many keys have that digit */
};

struct gk_cpu_kth {
    uint32_t key;   /* the k-th largest */
    uint64_t above; /* how many keys are larger than it */
};

/* Step by step: clear, count (any number of times), join, digit, kth.  `spare` has room for
 * digit.count + 1 keys. */
void gk_cpu_radix_clear(struct gk_cpu_radix *radix);
void gk_cpu_radix_count(struct gk_cpu_radix *radix, const float *x, uint64_t n);
void gk_cpu_radix_join(struct gk_cpu_radix *radix);
struct gk_cpu_digit gk_cpu_radix_digit(const struct gk_cpu_radix *radix, uint64_t k);
struct gk_cpu_kth gk_cpu_radix_kth(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                   struct gk_cpu_digit digit, uint32_t *spare);

/* At once: the k-th largest of n >= k >= 1 values.  `spare` has room for n + 1 keys. */
struct gk_cpu_kth gk_cpu_radix_find(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                    uint64_t k, uint32_t *spare);

/* The entries of `from` that are among the k largest, order kept, into `to`, which may be `from`:
 * what is above the k-th, and the first of its ties. */
void gk_cpu_radix_keep(const struct gk_cpu_list *from, struct gk_cpu_kth kth, uint64_t k,
                       struct gk_cpu_list *to);

#endif
