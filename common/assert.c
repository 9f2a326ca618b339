#include "common/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void gk_assert_failed(const char *expression, const char *file, int line)
{
    (void)fprintf(stderr, "gkps: assertion failed: %s (%s:%d)\n", expression, file, line);
    abort();
}
