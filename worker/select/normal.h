/* Quantiles of the standard normal law. */
#ifndef GK_WORKER_SELECT_NORMAL_H
#define GK_WORKER_SELECT_NORMAL_H

/* z >= 0 with P(N > z) = p, for p in (0, 1/2]; 0 for p above; infinity for p <= 0. */
double gk_normal_upper(double p);

#endif
