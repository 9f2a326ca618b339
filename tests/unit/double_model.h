/* Included before everything else, this header makes a source of worker/model one in double
 * precision.  What has floats in common with the rest of the libraries (gk_rng_float, the job spec)
 * must not be used then. */
#ifndef GK_TESTS_UNIT_DOUBLE_MODEL_H
#define GK_TESTS_UNIT_DOUBLE_MODEL_H

#include <cblas.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma clang diagnostic ignored "-Wkeyword-macro"
#endif
#define float double
#define cblas_sgemm cblas_dgemm
#define expf exp
#define logf log
#define sqrtf sqrt
#define tanhf tanh

#endif
