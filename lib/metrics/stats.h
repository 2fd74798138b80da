/*
 * stats.h: the middle and the spread of a run's steps. Pure functions.
 */
#ifndef ZT_METRICS_STATS_H
#define ZT_METRICS_STATS_H

#include "base/compat.h"

struct zt_spread {
    size_t n;
    double median, p10, p90; /* NAN when n is 0 */
};

/*
 * The value below which the part `p` (0 to 1) of n > 0 values lies: linear between order statistics,
 * at p * (n - 1) (Hyndman and Fan's type 7, as numpy has it). `sorted` ascends and is finite.
 */
double zt_percentile(const double *sorted, size_t n, double p);

/* Sorts `values`, which are finite. */
void zt_spread_of(double *values, size_t n, struct zt_spread *out);

/*
 * How many of n timed steps are warm-up (caches, page faults, first touches of memory): the first
 * fifth, at least 2 and at most 50, but never all of them.
 */
size_t zt_warmup_steps(size_t n_timed);

#endif
