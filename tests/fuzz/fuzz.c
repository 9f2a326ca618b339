#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void fuzz_failed(const char *expression, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, expression);
    abort();
}

void fuzz_check_words(const char *text)
{
    FUZZ_CHECK(text[0] != '\0');
    for (; *text; text++) {
        FUZZ_CHECK((unsigned char)*text >= 0x20 && *text != 0x7f);
    }
}

uint64_t fuzz_next(struct fuzz_random *random)
{
    uint64_t x = random->state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint32_t fuzz_below(struct fuzz_random *random, uint32_t bound)
{
    return (uint32_t)((fuzz_next(random) >> 32) * bound >> 32);
}

uint64_t fuzz_interesting(struct fuzz_random *random, uint64_t old)
{
    uint32_t shift = fuzz_below(random, 64);

    switch (fuzz_below(random, 8)) {
    case 0:
        return 0;
    case 1:
        return old + 1;
    case 2:
        return old - 1;
    case 3:
        return fuzz_below(random, 32);
    case 4:
        return UINT64_C(1) << shift;
    case 5:
        return (UINT64_C(1) << shift) - 1;
    case 6:
        return old ^ UINT64_C(1) << shift;
    default:
        return fuzz_next(random) >> shift;
    }
}
