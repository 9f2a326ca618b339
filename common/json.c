#include "common/json.h"

#include <inttypes.h>
#include <math.h>

json_t *gk_json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *gk_json_integer(uint64_t x)
{
    return json_integer(x > INT64_MAX ? INT64_MAX : (json_int_t)x);
}

json_t *gk_json_hash(uint64_t x)
{
    return json_sprintf("%016" PRIx64, x);
}
