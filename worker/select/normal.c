#include "worker/select/normal.h"

#include <math.h>

/* Bisection over erfc, which libm gives to the last places even far out in the tail: about sixty
 * evaluations a step buy an answer without a table of coefficients. */
double gk_normal_upper(double p)
{
    const double sqrt_half = 0.70710678118654752440;
    double lo = 0;
    double hi = 40; /* P(N > 40) is below the smallest double */

    if (p <= 0) {
        return INFINITY;
    }
    if (p >= 0.5) {
        return 0;
    }
    for (;;) {
        const double middle = lo + (hi - lo) / 2;

        if (middle <= lo || middle >= hi) {
            return middle;
        }
        if (0.5 * erfc(middle * sqrt_half) > p) {
            lo = middle;
        } else {
            hi = middle;
        }
    }
}
