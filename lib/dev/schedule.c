#include "dev/schedule.h"

#include <math.h>

#include "base/err.h"

/* ---- ours ---- */

static double constant(const struct zt_schedule *s, int64_t it)
{
    if (it < s->warmup_steps)
        return s->lr * (double)(it + 1) / (double)(s->warmup_steps + 1);
    return s->lr;
}

static double cosine(const struct zt_schedule *s, int64_t it)
{
    if (it <= s->warmup_steps) /* also when the warm-up is all there is: 0 / 0 below */
        return constant(s, it);
    if (it >= s->total_steps)
        return s->min_lr;
    double done = (double)(it - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
    return s->min_lr + (s->lr - s->min_lr) / 2 * (1 + cos(M_PI * done));
}

/* ---- DeepSpeed's ---- */

/* How far the warm-up is after `done` steps of the scheduler, 0 to 1; done < warmup_steps. */
static double warmed_up(const struct zt_schedule *s, int64_t done)
{
    if (s->log_warmup)
        return log((double)(done + 1)) / log((double)s->warmup_steps);
    return (double)done / (double)s->warmup_steps;
}

/*
 * What is left of the rate above the lowest once the warm-up is over. The scheduler has been stepped
 * `done` times beyond its first; decay begins one update earlier for the cosine.
 */
static double left_over(const struct zt_schedule *s, int64_t done)
{
    double span = (double)ZT_MAX(s->total_steps - s->warmup_steps, (int64_t)1);
    if (s->kind == ZT_SCHED_WARMUP_DECAY)
        return fmax(0, (double)(s->total_steps - done) / span);
    if (s->kind == ZT_SCHED_WARMUP_COSINE)
        return (1 + cos(M_PI * fmin(1, (double)(done - s->warmup_steps + 1) / span))) / 2;
    return 1;
}

static double warmup(const struct zt_schedule *s, int64_t it)
{
    if (it == 0)
        return s->kind == ZT_SCHED_WARMUP_COSINE ? 0 : s->start_lr;
    int64_t done = it - 1; /* the scheduler's own count, which begins behind the first update */
    if (done < s->warmup_steps)
        return s->start_lr + (s->lr - s->start_lr) * warmed_up(s, done);
    double low = s->kind == ZT_SCHED_WARMUP_COSINE ? s->min_lr : s->start_lr;
    return low + (s->lr - low) * left_over(s, done);
}

static double range_test(const struct zt_schedule *s, int64_t it)
{
    const struct zt_range_test *r = &s->range;
    double rises = (double)it / (double)r->size;
    return s->start_lr * (1 + r->rate * (r->staircase ? floor(rises) : rises));
}

/* 0 at the ends of the cycle, 1 at its top. */
static double height(const struct zt_one_cycle *c, int64_t it)
{
    int64_t at = it % (c->first_size + c->second_size);
    bool rising = at <= c->first_size;
    int64_t done = rising ? at : c->first_size + c->second_size - at;
    int64_t size = rising ? c->first_size : c->second_size;
    int64_t stairs = rising ? c->first_stairs : c->second_stairs;
    if (stairs > 0) /* a quotient of whole numbers rounds up to a stair only if it is one */
        return floor((double)done * (double)stairs / (double)size) / (double)stairs;
    return (double)done / (double)size;
}

/* Intervals of decay behind the cycle; negative inside it. */
static double decayed(const struct zt_one_cycle *c, int64_t it)
{
    int64_t after = it - (c->first_size + c->second_size);
    if (after <= 0)
        return -1;
    return c->decay_size > 0 ? (double)after / (double)c->decay_size : 0;
}

static double one_cycle(const struct zt_schedule *s, int64_t it)
{
    double intervals = decayed(&s->cycle, it);
    if (intervals >= 0)
        return s->min_lr / (1 + s->cycle.decay_lr_rate * intervals);
    return s->min_lr + (s->lr - s->min_lr) * height(&s->cycle, it);
}

double zt_schedule_lr(const struct zt_schedule *s, int64_t it)
{
    switch ((enum zt_schedule_kind)s->kind) {
    case ZT_SCHED_CONSTANT:
        return constant(s, it);
    case ZT_SCHED_COSINE:
        return cosine(s, it);
    case ZT_SCHED_WARMUP:
    case ZT_SCHED_WARMUP_DECAY:
    case ZT_SCHED_WARMUP_COSINE:
        return warmup(s, it);
    case ZT_SCHED_RANGE_TEST:
        return range_test(s, it);
    case ZT_SCHED_ONE_CYCLE:
        break;
    }
    ZT_ASSERT_CMP(s->kind, ==, ZT_SCHED_ONE_CYCLE);
    return one_cycle(s, it);
}

bool zt_schedule_moves_beta1(const struct zt_schedule *s)
{
    return s->kind == ZT_SCHED_ONE_CYCLE && s->cycle.cycle_momentum;
}

/* The largest beta1 that leaves 1 - beta1 something in fp32. */
#define MOST_BETA1 (1 - 1.0 / (1 << 20))

double zt_schedule_beta1(const struct zt_schedule *s, int64_t it)
{
    const struct zt_one_cycle *c = &s->cycle;
    if (it == 0) /* DeepSpeed's first update has the lowest, not the highest as update 1 has */
        return c->min_mom;
    double intervals = decayed(c, it);
    double mom = intervals >= 0 ? c->max_mom * (1 + c->decay_mom_rate * intervals)
                                : c->max_mom - (c->max_mom - c->min_mom) * height(c, it);
    return fmin(mom, MOST_BETA1);
}

int64_t zt_schedule_beta1_end(const struct zt_schedule *s)
{
    const struct zt_one_cycle *c = &s->cycle;
    if (!zt_schedule_moves_beta1(s) || c->decay_size == 0 || c->decay_mom_rate <= 0 ||
        c->max_mom <= 0)
        return INT64_MAX;
    double intervals = (MOST_BETA1 / c->max_mom - 1) / c->decay_mom_rate;
    double end = (double)(c->first_size + c->second_size) + intervals * (double)c->decay_size;
    return end < 9e18 ? (int64_t)end : INT64_MAX;
}
