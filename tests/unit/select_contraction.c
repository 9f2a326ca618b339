/* Goal: what top-k leaves behind, ||u - top_k(u)||^2 / ||u||^2, is what theory says.
 * Method: `topk` and `gaussk` on samples of laws whose ratio has a closed form, within sampling
 * error; and the counter-example of equal magnitudes, where the ratio is exactly 1 - k/d and the
 * bound (1 - k/d)^2, which holds for bell shapes, does not. */
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"

#include <criterion/criterion.h>

enum { RATIOS = 6, N = RIG_SANITIZED ? 100000 : 1000000 };

static const double ratios[RATIOS] = {0.0001, 0.001, 0.005, 0.01, 0.1, 0.5};

static const struct {
    unsigned law;
    double left[RATIOS];
} table[] = {
    {LAW_GAUSSIAN, {0.99830, 0.98730, 0.95143, 0.91551, 0.56071, 0.07133}},
    {LAW_LAPLACE, {0.99474, 0.96823, 0.89833, 0.83791, 0.40465, 0.03331}},
    {LAW_UNIFORM, {0.99970, 0.99700, 0.98508, 0.97030, 0.72900, 0.12500}},
    {LAW_GENERAL, {0.97633, 0.89777, 0.75083, 0.65075, 0.19788, 0.00754}},
};

static double energy(const float *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static double left_by(const char *name, const float *x, uint64_t n, double ratio)
{
    const struct rig_options options = {.name = name, .ops = gk_vector_reference(), .n = n};
    struct rig rig;

    rig_open(&rig, &options);
    cr_assert_eq(rig_step(&rig, 0, ratio, x), GK_OK, "%s", rig.words.text);
    const double left = energy(rig.e, n) / energy(x, n);
    rig_close(&rig);
    return left;
}

Test(select_contraction, closed_forms)
{
    float *x = rig_floats(N);

    for (unsigned row = 0; row < sizeof(table) / sizeof(table[0]); row++) {
        law_fill(table[row].law, 4, x, N);
        for (unsigned i = 0; i < RATIOS; i++) {
            const double expected = table[row].left[i];
            const double left = left_by("topk", x, N, ratios[i]);
            /* The energy of k entries has a relative error near 1 / sqrt(k), times a tail-dependent
             * factor below 2; the fixed part is the rounding of the table. */
            const double tolerance = 4 / sqrt(ratios[i] * N) * fmin(1 - expected, expected) + 1e-5;
            cr_assert(fabs(left - expected) <= tolerance, "%s at %g: %.5f instead of %.5f",
                      laws[table[row].law].name, ratios[i], left, expected);
            cr_assert_leq(left, (1 - ratios[i]) * (1 - ratios[i]) * (1 + 1e-3),
                          "%s at %g: the bound for bell shapes", laws[table[row].law].name,
                          ratios[i]);
            cr_assert_eq(left, left_by("gaussk", x, N, ratios[i]));
        }
    }
    free(x);
}

Test(select_contraction, equal_magnitudes_break_the_bound)
{
    enum { SIZE = 1 << 16 };
    float *x = rig_floats(SIZE);

    law_fill(LAW_TWO_VALUED, 1, x, SIZE);
    for (unsigned i = 0; i < RATIOS; i++) {
        const double left = left_by("topk", x, SIZE, ratios[i]);
        const double share = (double)gk_select_k(ratios[i], SIZE) / SIZE;
        cr_assert_eq(left, 1 - share, "%g: %g", ratios[i], left);
        cr_assert_gt(left, (1 - share) * (1 - share));
    }
    free(x);
}
