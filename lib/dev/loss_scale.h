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

/* What becomes of `scale` after step `step` (0-based, skipped ones count). */
float zt_loss_scale_next(struct zt_loss_scaler *s, float scale, int64_t step, bool overflow);

/* Would an overflow now have to halve a scale that is as low as it may be? Then training stops. */
bool zt_loss_scale_at_end(const struct zt_loss_scaler *s, float scale);

#endif
