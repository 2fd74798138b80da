#include "data/blend.h"

#include <math.h>

#include "base/arena.h"

/* Turns of a period of length n, largest remainder first. Are they exactly the weights' shares? */
static bool apportion(const double *weights, int n_sources, double sum, int32_t n, int32_t *counts)
{
    bool exact = true;
    int32_t left = n;
    for (int s = 0; s < n_sources; s++) {
        double share = weights[s] / sum * n, whole = round(share);
        if (fabs(share - whole) > 1e-9 * n)
            exact = false;
        counts[s] = (int32_t)(fabs(share - whole) > 1e-9 * n ? floor(share) : whole);
        left -= counts[s];
    }
    while (left > 0) {
        int best = 0;
        double most = -1;
        for (int s = 0; s < n_sources; s++) {
            double remainder = weights[s] / sum * n - counts[s];
            if (remainder > most) {
                most = remainder;
                best = s;
            }
        }
        counts[best]++;
        left--;
    }
    return exact;
}

/*
 * Turn j (0-based) of a source with `count` of `period` turns may come at i when j * period < count *
 * (i + 1), and has to come before ceil((j + 1) * period / count): unit jobs, so that the earliest
 * deadline first meets all of them.
 */
static void order_turns(struct zt_blend *b, int32_t *had)
{
    for (int64_t i = 0; i < b->period; i++) {
        int next = -1;
        int64_t soonest = INT64_MAX;
        for (int s = 0; s < b->n_sources; s++) {
            int64_t count = b->counts[s], j = had[s];
            int64_t deadline = ((j + 1) * b->period + count - 1) / count;
            if (j * b->period < count * (i + 1) && deadline < soonest) {
                soonest = deadline;
                next = s;
            }
        }
        ZT_ASSERT(next >= 0 && soonest > i);
        b->turns[i] = (struct zt_blend_turn){(uint16_t)next, (uint16_t)had[next]};
        had[next]++;
    }
}

int zt_blend_init(struct zt_blend *b, const double *weights, int n_sources, struct zt_err *err)
{
    enum { MAX_SOURCES = 1024, LONGEST_EXACT = 10000 };
    double sum = 0;
    memset(b, 0, sizeof *b);
    if (n_sources < 1 || n_sources > MAX_SOURCES)
        return zt_err_set(err, ZT_EINPUT, "%d sources with weights; at most %d can be blended",
                          n_sources, MAX_SOURCES);
    for (int s = 0; s < n_sources; s++)
        sum += weights[s];
    b->n_sources = n_sources;
    b->counts = zt_xcalloc((size_t)n_sources, sizeof *b->counts);
    for (b->period = 1; b->period <= LONGEST_EXACT; b->period++)
        if (apportion(weights, n_sources, sum, b->period, b->counts))
            break;
    if (b->period > LONGEST_EXACT) {
        b->period = ZT_BLEND_PERIOD;
        apportion(weights, n_sources, sum, b->period, b->counts);
    }
    for (int s = 0; s < n_sources; s++) {
        if (b->counts[s] > 0)
            continue;
        zt_blend_release(b);
        return zt_err_set(err, ZT_EINPUT,
                          "weight %g is less than 1/%d of the sum of all, %g: leave its files out, "
                          "or give it more",
                          weights[s], ZT_BLEND_PERIOD, sum);
    }
    b->turns = zt_xcalloc((size_t)b->period, sizeof *b->turns);
    int32_t *had = zt_xcalloc((size_t)n_sources, sizeof *had);
    order_turns(b, had);
    free(had);
    return 0;
}

void zt_blend_release(struct zt_blend *b)
{
    free(b->counts);
    free(b->turns);
    memset(b, 0, sizeof *b);
}

void zt_blend_at(const struct zt_blend *b, int64_t pos, int *source, int64_t *source_pos)
{
    const struct zt_blend_turn *turn = &b->turns[pos % b->period];
    *source = turn->source;
    *source_pos = pos / b->period * b->counts[turn->source] + turn->nth;
}
