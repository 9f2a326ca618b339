#include "common/cpu/radix.h"

#include <string.h>

enum { LOW_BITS = 10, LOW_BINS = 1 << LOW_BITS, LOW_MASK = LOW_BINS - 1 };

void gk_cpu_radix_clear(struct gk_cpu_radix *radix)
{
    memset(radix, 0, sizeof(*radix));
}

/* Candidates lie close together, so neighbours often share a bin: two tables keep one increment
 * from waiting for the other. */
void gk_cpu_radix_count(struct gk_cpu_radix *radix, const float *x, uint64_t n)
{
    uint32_t *restrict even = radix->bins;
    uint32_t *restrict odd = radix->odd;
    uint64_t i = 0;

    for (; i + 2 <= n; i += 2) {
        even[gk_cpu_key(x[i]) >> GK_CPU_RADIX_SHIFT]++;
        odd[gk_cpu_key(x[i + 1]) >> GK_CPU_RADIX_SHIFT]++;
    }
    if (i < n) {
        even[gk_cpu_key(x[i]) >> GK_CPU_RADIX_SHIFT]++;
    }
}

void gk_cpu_radix_join(struct gk_cpu_radix *radix)
{
    for (uint32_t bin = 0; bin < GK_CPU_RADIX_BINS; bin++) {
        radix->bins[bin] += radix->odd[bin];
    }
}

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

struct gk_cpu_digit gk_cpu_radix_digit(const struct gk_cpu_radix *radix, uint64_t k)
{
    struct gk_cpu_digit digit = {.k = k, .rank = k};

    digit.digit = find_digit(radix->bins, GK_CPU_RADIX_BINS - 1, &digit.rank);
    digit.count = radix->bins[digit.digit];
    return digit;
}

/* The keys that begin with the digit.  Each key is written and the end advances only past those: no
 * branch. */
static uint64_t gather(const float *restrict x, uint64_t n, uint32_t digit, uint32_t *restrict keys)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint32_t key = gk_cpu_key(x[i]);

        keys[count] = key;
        count += key >> GK_CPU_RADIX_SHIFT == digit;
    }
    return count;
}

struct gk_cpu_kth gk_cpu_radix_kth(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                   struct gk_cpu_digit digit, uint32_t *spare)
{
    const uint64_t count = gather(x, n, digit.digit, spare);
    uint32_t *bins = radix->odd;
    uint64_t rank = digit.rank;
    uint32_t middle, low;

    memset(bins, 0, LOW_BINS * sizeof(*bins));
    for (uint64_t i = 0; i < count; i++) {
        bins[spare[i] >> LOW_BITS & LOW_MASK]++;
    }
    middle = digit.digit << LOW_BITS | find_digit(bins, LOW_MASK, &rank);
    memset(bins, 0, LOW_BINS * sizeof(*bins));
    for (uint64_t i = 0; i < count; i++) {
        if (spare[i] >> LOW_BITS == middle) {
            bins[spare[i] & LOW_MASK]++;
        }
    }
    low = find_digit(bins, LOW_MASK, &rank);
    return (struct gk_cpu_kth){.key = middle << LOW_BITS | low, .above = digit.k - rank};
}

struct gk_cpu_kth gk_cpu_radix_find(struct gk_cpu_radix *radix, const float *x, uint64_t n,
                                    uint64_t k, uint32_t *spare)
{
    gk_cpu_radix_clear(radix);
    gk_cpu_radix_count(radix, x, n);
    gk_cpu_radix_join(radix);
    return gk_cpu_radix_kth(radix, x, n, gk_cpu_radix_digit(radix, k), spare);
}

void gk_cpu_radix_keep(const struct gk_cpu_list *from, struct gk_cpu_kth kth, uint64_t k,
                       struct gk_cpu_list *to)
{
    const uint64_t n = from->n;
    uint64_t ties = k - kth.above;
    uint64_t kept = 0;

    for (uint64_t i = 0; i < n && kept < k; i++) { /* `to` has no room behind the k-th */
        uint32_t at = from->idx[i];
        float x = from->val[i];
        uint64_t tie = gk_cpu_key(x) == kth.key && ties > 0;

        to->idx[kept] = at;
        to->val[kept] = x;
        ties -= tie;
        kept += gk_cpu_key(x) > kth.key || tie != 0;
    }
    to->n = kept;
}
