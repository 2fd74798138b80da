/*
 * adam.h: one element of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015,
 * algorithm 1) and of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019,
 * algorithm 2), the only definitions in the project: CPU, offload and CUDA include them.
 *
 * Every operation is rounded explicitly (fmaf, sqrtf, /) and must not be contracted, so that all of
 * them give the same bits. Compile with -ffp-contract=off; nvcc with -fmad=false for this code, and
 * never with --use_fast_math.
 */
#ifndef ZT_DEV_ADAM_H
#define ZT_DEV_ADAM_H

#include <math.h>

#include "dev/optimizer.h"
#include "dev/step.h"

struct zt_adam_coef {
    float grad_scale;
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float bias1, bias2; /* 1 / (1 - beta^t) */
    float eps;
    float lr; /* step size of this tensor */
    float weight_decay;
    float decay_keep; /* AdamW: 1 - lr * weight_decay */
};

static inline ZT_HOST_DEVICE struct zt_adam_coef zt_adam_coef(const struct zt_step_block *sb,
                                                              float lr_scale, float weight_decay)
{
    struct zt_adam_coef c;
    c.grad_scale = sb->grad_scale;
    c.beta1 = sb->beta1;
    c.one_minus_beta1 = 1.0f - sb->beta1;
    c.beta2 = sb->beta2;
    c.one_minus_beta2 = 1.0f - sb->beta2;
    c.bias1 = sb->bias1;
    c.bias2 = sb->bias2;
    c.eps = sb->eps;
    c.lr = sb->lr * lr_scale;
    c.weight_decay = weight_decay;
    c.decay_keep = 1.0f - c.lr * weight_decay;
    return c;
}

/* m and v take the gradient in; returns the step in units of lr. */
static inline ZT_HOST_DEVICE float zt_adam_step(const struct zt_adam_coef *c, float g, float *m,
                                                float *v)
{
    float m1 = fmaf(c->beta1, *m, c->one_minus_beta1 * g);
    float v1 = fmaf(c->beta2, *v, c->one_minus_beta2 * (g * g));
    float denom = sqrtf(v1 * c->bias2) + c->eps;
    *m = m1;
    *v = v1;
    return (m1 * c->bias1) / denom;
}

/* w, m, v in place; g is the raw gradient (scaled here). */
static inline ZT_HOST_DEVICE void zt_adamw_element(const struct zt_adam_coef *c, float g, float *w,
                                                   float *m, float *v)
{
    float step = zt_adam_step(c, g * c->grad_scale, m, v);
    *w = fmaf(-c->lr, step, *w * c->decay_keep);
}

/* The decay is a part of the gradient, after clipping: torch.optim.Adam, adam_w_mode: false. */
static inline ZT_HOST_DEVICE void zt_adam_element(const struct zt_adam_coef *c, float g, float *w,
                                                  float *m, float *v)
{
    float step = zt_adam_step(c, fmaf(c->weight_decay, *w, g * c->grad_scale), m, v);
    *w = fmaf(-c->lr, step, *w);
}

#endif
