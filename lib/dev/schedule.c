#include "dev/schedule.h"

int64_t zt_schedule_beta1_end(const struct zt_schedule *s)
{
    const struct zt_one_cycle *c = &s->cycle;
    if (!zt_schedule_moves_beta1(s) || c->decay_size == 0 || c->decay_mom_rate <= 0 ||
        c->max_mom <= 0)
        return INT64_MAX;
    double intervals = (ZT_MOST_BETA1 / c->max_mom - 1) / c->decay_mom_rate;
    double end = (double)(c->first_size + c->second_size) + intervals * (double)c->decay_size;
    return end < 9e18 ? (int64_t)end : INT64_MAX;
}
