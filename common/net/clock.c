#include "common/net/clock.h"

#include <uv.h>

uint64_t gk_now_us(void)
{
    return uv_hrtime() / 1000;
}

enum gk_err gk_random_bytes(void *ret, size_t n)
{
    /* Without a loop and a callback the call is synchronous. */
    return uv_random(NULL, NULL, ret, n, 0, NULL) == 0 ? GK_OK : GK_E_IO;
}
