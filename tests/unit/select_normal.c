/* Goal: the normal quantile is right to 1e-9 and better over the whole range that densities can
 * ask for.
 * Method: known quantiles, the round trip through erfc, and monotony down to the smallest
 * probabilities. */
#include "worker/select/normal.h"

#include <criterion/criterion.h>
#include <math.h>

Test(select_normal, known_quantiles)
{
    static const struct {
        double p, z;
    } known[] = {
        {0.5, 0},
        {0.25, 0.674489750196081743},
        {0.05, 1.644853626951472715},
        {0.025, 1.959963984540054236},
        {0.005, 2.575829303548900761},
        {0.0005, 3.290526731491894794},
        {0.00005, 3.890591886413093973},
        {1e-10, 6.361340902404056205},
    };

    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const double z = gk_normal_upper(known[i].p);
        cr_assert(fabs(z - known[i].z) < 1e-12, "p %g: %.17g", known[i].p, z);
    }
}

Test(select_normal, round_trip_and_monotony)
{
    double last = -1;

    for (double p = 0.499; p > 1e-300; p *= 0.97) {
        const double z = gk_normal_upper(p);
        const double back = 0.5 * erfc(z / sqrt(2.0));
        cr_assert(z > last, "p %g: %.17g is not above %.17g", p, z, last);
        cr_assert(fabs(back / p - 1) < 1e-12 * (1 + z * z), "p %g: comes back as %g", p, back);
        last = z;
    }
}

Test(select_normal, edges)
{
    cr_assert_eq(gk_normal_upper(0.5), 0);
    cr_assert_eq(gk_normal_upper(1), 0);
    cr_assert(isinf(gk_normal_upper(0)));
}
