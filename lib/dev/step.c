#include "dev/step.h"

#include <math.h>

void zt_step_refresh(struct zt_step_block *sb)
{
    double t = (double)sb->adam_t;
    sb->lr = (float)zt_schedule_lr(&sb->schedule, sb->adam_t - 1);
    if (zt_schedule_moves_beta1(&sb->schedule))
        sb->beta1 = (float)zt_schedule_beta1(&sb->schedule, sb->adam_t - 1);
    sb->bias1 = (float)(1 / (1 - pow((double)sb->beta1, t)));
    sb->bias2 = (float)(1 / (1 - pow((double)sb->beta2, t)));
}

void zt_step_next(struct zt_step_block *sb)
{
    sb->loss_scale = zt_loss_scale_next(&sb->scaler, sb->loss_scale, sb->step, sb->overflow != 0);
    sb->step++;
    sb->first_sample += sb->step_samples;
    if (sb->apply)
        sb->adam_t++;
    else
        sb->skipped++;
    zt_step_refresh(sb);
}
