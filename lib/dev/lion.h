/*
 * lion.h: one element of Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS
 * 2023, algorithm 2): the sign of a running mean, decoupled decay, one state. Explicitly rounded, as
 * dev/adam.h says.
 *
 * The sign of 0 is 0, as in the paper: a row of an embedding that was never used does not move.
 * (DeepSpeed's kernel takes it for -1.)
 */
#ifndef ZT_DEV_LION_H
#define ZT_DEV_LION_H

#include <math.h>

#include "dev/optimizer.h"
#include "dev/step.h"

struct zt_lion_coef {
    float grad_scale;
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float lr;         /* step size of this tensor */
    float decay_keep; /* 1 - lr * weight_decay */
};

static inline ZT_HOST_DEVICE struct zt_lion_coef zt_lion_coef(const struct zt_step_block *sb,
                                                              float lr_scale, float weight_decay)
{
    struct zt_lion_coef c;
    c.grad_scale = sb->grad_scale;
    c.beta1 = sb->beta1;
    c.one_minus_beta1 = 1.0f - sb->beta1;
    c.beta2 = sb->beta2;
    c.one_minus_beta2 = 1.0f - sb->beta2;
    c.lr = sb->lr * lr_scale;
    c.decay_keep = 1.0f - c.lr * weight_decay;
    return c;
}

/* w, m in place; g is the raw gradient (scaled here). */
static inline ZT_HOST_DEVICE void zt_lion_element(const struct zt_lion_coef *c, float g, float *w,
                                                  float *m)
{
    g = g * c->grad_scale;
    float mean = fmaf(c->beta1, *m, c->one_minus_beta1 * g);
    float sign = mean > 0 ? 1.0f : mean < 0 ? -1.0f : 0.0f;
    *w = fmaf(-c->lr, sign, *w * c->decay_keep);
    *m = fmaf(c->beta2, *m, c->one_minus_beta2 * g);
}

#endif
