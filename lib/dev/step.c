#include "dev/step.h"

#include <math.h>

double zt_schedule_lr(const struct zt_schedule *s, int64_t it)
{
    if (it < s->warmup_steps)
        return s->lr * (double)(it + 1) / (double)(s->warmup_steps + 1);
    if (s->kind == ZT_SCHED_CONSTANT)
        return s->lr;
    if (it == s->warmup_steps) /* also when the warm-up is all there is: 0 / 0 below */
        return s->lr;
    if (it >= s->total_steps)
        return s->min_lr;
    double done = (double)(it - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
    return s->min_lr + (s->lr - s->min_lr) / 2 * (1 + cos(M_PI * done));
}

void zt_step_refresh(struct zt_step_block *sb)
{
    double t = (double)sb->adam_t;
    sb->lr = (float)zt_schedule_lr(&sb->schedule, sb->adam_t - 1);
    sb->bias1 = (float)(1 / (1 - pow((double)sb->beta1, t)));
    sb->bias2 = (float)(1 / (1 - pow((double)sb->beta2, t)));
}

void zt_step_next(struct zt_step_block *sb)
{
    sb->step++;
    if (sb->apply)
        sb->adam_t++;
    else
        sb->skipped++;
    zt_step_refresh(sb);
}
