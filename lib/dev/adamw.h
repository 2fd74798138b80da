/*
 * adamw.h: one element of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization",
 * ICLR 2019, algorithm 2), the only definition in the project: CPU, offload and CUDA include it.
 *
 * Every operation is rounded explicitly (fmaf, sqrtf, /) and must not be contracted, so that all of
 * them give the same bits. Compile with -ffp-contract=off; nvcc with -fmad=false for this code, and
 * never with --use_fast_math.
 */
#ifndef ZT_DEV_ADAMW_H
#define ZT_DEV_ADAMW_H

#include <math.h>

#include "dev/step.h"

#ifdef __CUDACC__
#define ZT_HOST_DEVICE __host__ __device__
#else
#define ZT_HOST_DEVICE
#endif

struct zt_adamw_coef {
    float grad_scale;
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float bias1, bias2; /* 1 / (1 - beta^t) */
    float eps;
    float lr;         /* step size of this tensor */
    float decay_keep; /* 1 - lr * weight_decay */
};

static inline ZT_HOST_DEVICE struct zt_adamw_coef zt_adamw_coef(const struct zt_step_block *sb,
                                                                float lr_scale, float weight_decay)
{
    struct zt_adamw_coef c;
    c.grad_scale = sb->grad_scale;
    c.beta1 = sb->beta1;
    c.one_minus_beta1 = 1.0f - sb->beta1;
    c.beta2 = sb->beta2;
    c.one_minus_beta2 = 1.0f - sb->beta2;
    c.bias1 = sb->bias1;
    c.bias2 = sb->bias2;
    c.eps = sb->eps;
    c.lr = sb->lr * lr_scale;
    c.decay_keep = 1.0f - c.lr * weight_decay;
    return c;
}

/* w, m, v in place; g is the raw gradient (scaled here). */
static inline ZT_HOST_DEVICE void zt_adamw_element(const struct zt_adamw_coef *c, float g, float *w,
                                                   float *m, float *v)
{
    g = g * c->grad_scale;
    float m1 = fmaf(c->beta1, *m, c->one_minus_beta1 * g);
    float v1 = fmaf(c->beta2, *v, c->one_minus_beta2 * (g * g));
    float denom = sqrtf(v1 * c->bias2) + c->eps;
    float step = (m1 * c->bias1) / denom;
    *w = fmaf(-c->lr, step, *w * c->decay_keep);
    *m = m1;
    *v = v1;
}

#endif
