#include "dev/loss_scale.h"

/* Doubling ends before the scale is infinite: gradients that are all zero would take it there. */
#define MOST_SCALE 0x1p126f

static float after_overflow(struct zt_loss_scaler *s, float scale)
{
    if (s->patience > 1) {
        s->patience--;
        return scale;
    }
    return ZT_MAX(scale / 2, s->min_scale);
}

static float after_clean_step(struct zt_loss_scaler *s, float scale, int64_t step)
{
    int64_t clean = step - s->last_overflow - 1; /* not this one: growing takes window + 1 steps */
    bool grows = clean > 0 && clean % s->window == 0;
    if (grows || s->consecutive)
        s->patience = s->hysteresis;
    return grows && scale < MOST_SCALE ? scale * 2 : scale;
}

float zt_loss_scale_next(struct zt_loss_scaler *s, float scale, int64_t step, bool overflow)
{
    if (!s->dynamic)
        return scale;
    if (!overflow)
        return after_clean_step(s, scale, step);
    s->last_overflow = step;
    return after_overflow(s, scale);
}

bool zt_loss_scale_at_end(const struct zt_loss_scaler *s, float scale)
{
    return s->dynamic && s->patience <= 1 && scale <= s->min_scale;
}
