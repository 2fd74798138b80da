#include "metrics/stats.h"

#include <math.h>

double zt_percentile(const double *sorted, size_t n, double p)
{
    double at = p * (double)(n - 1);
    size_t below = ZT_MIN((size_t)at, n - 1), above = ZT_MIN(below + 1, n - 1);
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void zt_spread_of(double *values, size_t n, struct zt_spread *out)
{
    *out = (struct zt_spread){n, NAN, NAN, NAN};
    if (n == 0)
        return;
    qsort(values, n, sizeof *values, compare);
    out->median = zt_percentile(values, n, 0.5);
    out->p10 = zt_percentile(values, n, 0.1);
    out->p90 = zt_percentile(values, n, 0.9);
}

size_t zt_warmup_steps(size_t n_timed)
{
    size_t fifth = ZT_MIN(ZT_MAX(n_timed / 5, (size_t)2), (size_t)50);
    return n_timed == 0 ? 0 : ZT_MIN(fifth, n_timed - 1);
}
