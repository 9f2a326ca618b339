/* Laws that the selection tests draw gradients from.  Those with a `tail` also know their exact
 * survival function and deviation, so that a rule can be run on the law itself, without sampling
 * error. */
#ifndef GK_TESTS_UNIT_SELECT_LAWS_H
#define GK_TESTS_UNIT_SELECT_LAWS_H

#include "common/bits.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static const double laws_pi = 3.14159265358979323846;
static const double laws_sqrt_half = 0.70710678118654752440;

struct stream { /* splitmix64 */
    uint64_t state;
};

static inline uint64_t draw_u64(struct stream *stream)
{
    return gk_mix64(stream->state += UINT64_C(0x9e3779b97f4a7c15));
}

/* In (0, 1). */
static inline double draw_unit(struct stream *stream)
{
    return ((double)(draw_u64(stream) >> 12) + 0.5) * 0x1p-52;
}

static inline double draw_normal(struct stream *stream)
{
    const double r = sqrt(-2 * log(draw_unit(stream)));
    return r * cos(2 * laws_pi * draw_unit(stream));
}

static inline double draw_signed(struct stream *stream, double magnitude)
{
    return draw_u64(stream) >> 63 ? -magnitude : magnitude;
}

static inline double draw_laplace(struct stream *stream)
{
    return draw_signed(stream, -log(draw_unit(stream)));
}

static inline double draw_student3(struct stream *stream)
{
    double chi = 0;
    for (int i = 0; i < 3; i++) {
        const double x = draw_normal(stream);
        chi += x * x;
    }
    return draw_normal(stream) / sqrt(chi / 3);
}

/* |x|^(1/2) has the gamma law of shape 2. */
static inline double draw_general(struct stream *stream)
{
    const double root = -log(draw_unit(stream)) - log(draw_unit(stream));
    return draw_signed(stream, root * root);
}

static inline double draw_lognormal1(struct stream *stream)
{
    return draw_signed(stream, exp(draw_normal(stream)));
}

static inline double draw_lognormal2(struct stream *stream)
{
    return draw_signed(stream, exp(2 * draw_normal(stream)));
}

static inline double draw_lognormal25(struct stream *stream)
{
    return draw_signed(stream, exp(2.5 * draw_normal(stream)));
}

static inline double draw_lognormal3(struct stream *stream)
{
    return draw_signed(stream, exp(3 * draw_normal(stream)));
}

static inline double draw_mixture99(struct stream *stream)
{
    return (draw_unit(stream) < 0.01 ? 10 : 1) * draw_normal(stream);
}

static inline double draw_mixture90(struct stream *stream)
{
    return (draw_unit(stream) < 0.1 ? 1 : 0.1) * draw_normal(stream);
}

static inline double draw_uniform(struct stream *stream)
{
    return 2 * draw_unit(stream) - 1;
}

static inline double draw_shifted(struct stream *stream)
{
    return 0.5 + draw_normal(stream);
}

static inline double draw_sparse(struct stream *stream)
{
    return draw_unit(stream) < 0.01 ? draw_normal(stream) : 0;
}

static inline double draw_wide(struct stream *stream)
{
    return (draw_unit(stream) < 0.1 ? 1 : 0.01) * draw_normal(stream);
}

static inline double draw_two_valued(struct stream *stream)
{
    return draw_signed(stream, 1);
}

static inline double draw_constant(struct stream *stream)
{
    (void)stream;
    return 1;
}

static inline double draw_zero(struct stream *stream)
{
    return draw_signed(stream, 0);
}

static inline double draw_cauchy(struct stream *stream)
{
    return tan(laws_pi * (draw_unit(stream) - 0.5));
}

static inline double draw_huge(struct stream *stream)
{
    return (draw_unit(stream) < 1e-4 ? 1e6 : 1e-6) * draw_normal(stream);
}

/* Denormals, both zeros and many ties. */
static inline double draw_denormal(struct stream *stream)
{
    return draw_signed(stream, (double)(draw_u64(stream) % 64) * 0x1p-149);
}

static inline double draw_ties(struct stream *stream)
{
    return draw_signed(stream, 0.25 * (double)(draw_u64(stream) % 5));
}

static inline double normal_two_tails(double t)
{
    return erfc(t * laws_sqrt_half);
}

static inline double tail_laplace(double t)
{
    return exp(-t);
}

static inline double tail_student3(double t)
{
    const double s = t / sqrt(3.0);
    return 1 - 2 / laws_pi * (s / (1 + s * s) + atan(s));
}

static inline double tail_general(double t)
{
    return (1 + sqrt(t)) * exp(-sqrt(t));
}

static inline double tail_lognormal1(double t)
{
    return 0.5 * normal_two_tails(log(t));
}

/* Half of the two tails where ln t > 0; erfc is also right where it is negative. */
static inline double tail_lognormal2(double t)
{
    return 0.5 * normal_two_tails(log(t) / 2);
}

static inline double tail_lognormal25(double t)
{
    return 0.5 * normal_two_tails(log(t) / 2.5);
}

static inline double tail_mixture99(double t)
{
    return 0.99 * normal_two_tails(t) + 0.01 * normal_two_tails(t / 10);
}

static inline double tail_mixture90(double t)
{
    return 0.9 * normal_two_tails(t / 0.1) + 0.1 * normal_two_tails(t);
}

static inline double tail_uniform(double t)
{
    return t < 1 ? 1 - t : 0;
}

struct law {
    const char *name;
    double (*draw)(struct stream *stream);
    double variance;          /* 0: no closed form is used */
    double (*tail)(double t); /* P(|x| > t) */
};

/* Those with closed forms first, in the order of docs/selection.md. */
static const struct law laws[] = {
    {"Gaussian", draw_normal, 1, normal_two_tails},
    {"Laplace", draw_laplace, 2, tail_laplace},
    {"Student-t, 3 d.o.f.", draw_student3, 3, tail_student3},
    {"generalised Gaussian, shape 0.5", draw_general, 120, tail_general},
    {"log-normal magnitude, s = 1", draw_lognormal1, 7.38905609893065, tail_lognormal1},
    {"log-normal magnitude, s = 2", draw_lognormal2, 2980.9579870417283, tail_lognormal2},
    {"log-normal magnitude, s = 2.5", draw_lognormal25, 268337.2865208745, tail_lognormal25},
    {"99 % N(0, 1) + 1 % N(0, 10^2)", draw_mixture99, 1.99, tail_mixture99},
    {"90 % N(0, 0.1^2) + 10 % N(0, 1)", draw_mixture90, 0.109, tail_mixture90},
    {"uniform on [-1, 1]", draw_uniform, 1.0 / 3, tail_uniform},
    {"N(0.5, 1)", draw_shifted, 0, NULL},
    {"99 % zeros, 1 % N(0, 1)", draw_sparse, 0, NULL},
    {"90 % N(0, 0.01^2) + 10 % N(0, 1)", draw_wide, 0, NULL},
    {"+-1", draw_two_valued, 0, NULL},
    {"constant", draw_constant, 0, NULL},
    {"N(0, 1) + one outlier of 1e6", draw_normal, 0, NULL},
    {"Cauchy", draw_cauchy, 0, NULL},
    {"log-normal magnitude, s = 3", draw_lognormal3, 0, NULL},
    {"0.01 % huge, rest tiny", draw_huge, 0, NULL},
    {"zeros of both signs", draw_zero, 0, NULL},
    {"denormals", draw_denormal, 0, NULL},
    {"five magnitudes", draw_ties, 0, NULL},
};

enum {
    LAW_GAUSSIAN = 0,
    LAW_LAPLACE = 1,
    LAW_GENERAL = 3,
    LAW_UNIFORM = 9,
    LAWS_CLOSED = 10,
    LAW_SHIFTED = 10,
    LAW_SPARSE = 11,
    LAW_WIDE = 12,
    LAW_TWO_VALUED = 13,
    LAW_CONSTANT = 14,
    LAW_OUTLIER = 15,
    LAW_CAUCHY = 16,
    LAW_LOGNORMAL3 = 17,
    LAW_HUGE = 18,
    LAW_ZEROS = 19,
    LAWS_COUNT = sizeof(laws) / sizeof(laws[0]),
};

static inline void law_fill(unsigned law, uint64_t seed, float *x, uint64_t n)
{
    struct stream stream = {gk_mix64(seed) + law};
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)laws[law].draw(&stream);
    if (law == LAW_OUTLIER && n > 0)
        x[n / 3] = 1e6f;
}

#endif
