#include "common/cpu/radix.h"

#include <string.h>

enum { LEVELS = 3 };

static const unsigned shifts[LEVELS] = {GK_CPU_RADIX_SHIFT, 10, 0};
static const uint32_t digit_masks[LEVELS] = {0x7ff, 0x3ff, 0x3ff};

/* The digit of the entry that is *rank-th from the top; *rank becomes its rank among those of the
 * same digit. */
static uint32_t find_digit(const uint32_t *bins, uint32_t last, uint64_t *rank)
{
    uint32_t digit = last;

    while (digit > 0 && *rank > bins[digit]) {
        *rank -= bins[digit];
        digit--;
    }
    return digit;
}

static void count_top(uint32_t *restrict bins, const float *restrict x, uint64_t n)
{
    memset(bins, 0, GK_CPU_RADIX_BINS * sizeof(*bins));
    for (uint64_t i = 0; i < n; i++)
        bins[gk_cpu_key(x[i]) >> GK_CPU_RADIX_SHIFT]++;
}

/* Count the next digit of the keys that begin with prefix. */
static void count_level(uint32_t *restrict bins, const float *restrict x, uint64_t n,
                        unsigned level, uint32_t prefix)
{
    const unsigned shift = shifts[level];
    const unsigned prefix_shift = shifts[level - 1];
    const uint32_t mask = digit_masks[level];

    memset(bins, 0, (mask + 1) * sizeof(*bins));
    for (uint64_t i = 0; i < n; i++) {
        uint32_t key = gk_cpu_key(x[i]);

        if (key >> prefix_shift == prefix)
            bins[(key >> shift) & mask]++;
    }
}

struct gk_cpu_kth gk_cpu_radix_kth_counted(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                           uint64_t k)
{
    uint64_t rank = k;
    uint32_t prefix = find_digit(radix->bins, digit_masks[0], &rank);

    for (unsigned level = 1; level < LEVELS; level++) {
        count_level(radix->bins, x, n, level, prefix);
        prefix = prefix << (shifts[level - 1] - shifts[level]) |
                 find_digit(radix->bins, digit_masks[level], &rank);
    }
    return (struct gk_cpu_kth){.key = prefix, .above = k - rank};
}

struct gk_cpu_kth gk_cpu_radix_kth(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                   uint64_t k)
{
    count_top(radix->bins, x, n);
    return gk_cpu_radix_kth_counted(radix, x, n, k);
}

/* Writes each entry and advances only past those that stay: no branch to mispredict. */
static uint64_t keep(uint32_t *idx, float *val, uint64_t n, uint32_t key, uint64_t ties)
{
    uint64_t kept = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint32_t at = idx[i];
        float x = val[i];
        uint64_t tie = gk_cpu_key(x) == key && ties > 0;

        idx[kept] = at;
        val[kept] = x;
        ties -= tie;
        kept += gk_cpu_key(x) > key || tie != 0;
    }
    return kept;
}

uint32_t gk_cpu_radix_prune(struct gk_cpu_radix *radix, struct gk_cpu_list *list, uint64_t k)
{
    struct gk_cpu_kth kth = gk_cpu_radix_kth(radix, list->val, list->n, k);

    list->n = keep(list->idx, list->val, list->n, kth.key, k - kth.above);
    return kth.key;
}
