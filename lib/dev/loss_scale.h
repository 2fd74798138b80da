/*
 * loss_scale.h: the loss scale of fp16, by DeepSpeed's rule (deepspeed/runtime/fp16/loss_scaler.py,
 * DynamicLossScaler): halve at an overflow, double after `window` steps without one. Hysteresis: so
 * many overflows halve nothing but the last of them; what is used up comes back when the scale
 * grows, or with `consecutive` after every step that does not overflow.
 *
 * Part of the step block: fixed-width fields only, shared with CUDA.
 */
#ifndef ZT_DEV_LOSS_SCALE_H
#define ZT_DEV_LOSS_SCALE_H

#include "base/compat.h"

struct zt_loss_scaler {
    float min_scale;
    int32_t dynamic; /* 0: the scale never changes */
    int32_t consecutive;
    int32_t hysteresis; /* overflows that it takes to halve the scale; at least 1 */
    int32_t patience;   /* of them still to come; hysteresis in the beginning */
    int32_t reserved;
    int64_t window;        /* at least 1 */
    int64_t last_overflow; /* step; -1 in the beginning */
};

/* Doubling ends before the scale is infinite: gradients that are all zero would take it there. */
#define ZT_MOST_LOSS_SCALE 0x1p126f

static inline ZT_HOST_DEVICE float zt_loss_scale_overflow(struct zt_loss_scaler *s, float scale)
{
    if (s->patience > 1) {
        s->patience--;
        return scale;
    }
    return ZT_MAX(scale / 2, s->min_scale);
}

static inline ZT_HOST_DEVICE float zt_loss_scale_clean(struct zt_loss_scaler *s, float scale,
                                                       int64_t step)
{
    int64_t clean = step - s->last_overflow - 1; /* not this one: growing takes window + 1 steps */
    bool grows = clean > 0 && clean % s->window == 0;
    if (grows || s->consecutive)
        s->patience = s->hysteresis;
    return grows && scale < ZT_MOST_LOSS_SCALE ? scale * 2 : scale;
}

/* What becomes of `scale` after step `step` (0-based, skipped ones count). */
static inline ZT_HOST_DEVICE float zt_loss_scale_next(struct zt_loss_scaler *s, float scale,
                                                      int64_t step, bool overflow)
{
    if (!s->dynamic)
        return scale;
    if (!overflow)
        return zt_loss_scale_clean(s, scale, step);
    s->last_overflow = step;
    return zt_loss_scale_overflow(s, scale);
}

/* Would an overflow now have to halve a scale that is as low as it may be? Then training stops. */
static inline ZT_HOST_DEVICE bool zt_loss_scale_at_end(const struct zt_loss_scaler *s, float scale)
{
    return s->dynamic && s->patience <= 1 && scale <= s->min_scale;
}

#endif
