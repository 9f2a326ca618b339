/* Goal: a division by a prepared divisor (cuda/divide.cuh) is the quotient, for every divisor and
 * every number of 32 bits.  Method: all small divisors, those around powers of two, and random
 * ones; numbers around multiples, where a wrong quotient would be, at both ends, and at random. */
#include "cuda/divide.cuh"

#include <stdio.h>

static uint64_t state;
static unsigned failed;

static uint32_t draw()
{
    return static_cast<uint32_t>(gk_mix64(++state));
}

static void check(uint32_t n, const divisor<uint32_t> &by)
{
    uint32_t rest = n;
    const uint32_t quotient = split(&rest, by);

    if (quotient != n / by.value || rest != n % by.value) {
        printf("%u / %u is not %u, rest %u\n", n, by.value, quotient, rest);
        failed++;
    }
}

static void check_divisor(uint32_t value)
{
    divisor<uint32_t> by;

    set_divisor(&by, value);
    for (uint32_t i = 0; i < 20; i++) {
        const uint32_t multiple = draw() / value * value;

        check(multiple, by);
        check(multiple - 1, by);
        check(multiple + value - 1, by);
        check(draw(), by);
        check(i, by);
        check(UINT32_MAX - i, by);
    }
}

int main()
{
    for (uint32_t value = 1; value < 5000; value++) {
        check_divisor(value);
        check_divisor(draw() >> (draw() % 32) | 1);
        check_divisor(UINT32_MAX - value);
    }
    for (uint32_t shift = 0; shift < 32; shift++) {
        check_divisor(UINT32_C(1) << shift);
        check_divisor((UINT32_C(1) << shift) + 1);
        check_divisor((UINT32_C(2) << shift) - 1);
    }
    printf("%u wrong\n", failed);
    return failed ? 1 : 0;
}
