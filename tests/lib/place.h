/* Where ranks of the test rig may bind memory; also for C++. */
#ifndef GK_TESTS_LIB_PLACE_H
#define GK_TESTS_LIB_PLACE_H

#include <stdbool.h>
#include <stdint.h>

enum { RIG_PARAMS = 320 }; /* of all tensors */

/* Memory that ranks bind in place of their own, somewhere else, where a stream works on it. */
struct rig_place {
    const char *device; /* of struct gkps_config */
    /* Two arrays of RIG_PARAMS floats there, and a stream. */
    void (*open)(void **ret_stream, float **ret_params, float **ret_gradient);
    void (*close)(void *stream, float *params, float *gradient);
    /* RIG_PARAMS floats, in the stream: with `wait` they are copied on return, else later. */
    void (*copy)(void *stream, float *to, const float *from, bool wait);
    /* After so many copies more, or waits for a stream, of whomever, one fails; negative: none. */
    void (*refuse)(int64_t after);
    void (*break_off)(int64_t after);
};

#endif
