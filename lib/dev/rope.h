/*
 * rope.h: the angles of rotary position embedding (Su et al. 2021), shared by every device.
 *
 * Pair i of a head turns by position * f[i]. Plainly f[i] = theta^(-2i / head_dim). The scaled rules
 * stretch a model to longer sequences than it was first trained on:
 *   LINEAR  f[i] / factor (Chen et al. 2023, position interpolation).
 *   LLAMA3  Llama 3.1's, as Hugging Face's rope_type "llama3": with n = original_positions * f[i] /
 *           (2 pi), the turns within the original length, f[i] is kept where n > high_freq_factor,
 *           divided by factor where n < low_freq_factor, and between them mixed linearly in n.
 */
#ifndef ZT_DEV_ROPE_H
#define ZT_DEV_ROPE_H

#include <math.h>

#include "base/compat.h"

enum zt_rope_kind { ZT_ROPE_PLAIN, ZT_ROPE_LINEAR, ZT_ROPE_LLAMA3 };

struct zt_rope_rule {
    enum zt_rope_kind kind;
    double theta;                             /* >= 1 */
    double factor;                            /* LINEAR, LLAMA3: >= 1 */
    double low_freq_factor, high_freq_factor; /* LLAMA3: low < high */
    double original_positions;                /* LLAMA3 */
};

/* Radians per position of pair i, 0 <= i < head_dim / 2; at most 1. */
static inline double zt_rope_frequency(const struct zt_rope_rule *r, int64_t head_dim, int64_t i)
{
    const double two_pi = 6.283185307179586;
    double f = pow(r->theta, -2.0 * (double)i / (double)head_dim);
    if (r->kind == ZT_ROPE_PLAIN)
        return f;
    if (r->kind == ZT_ROPE_LINEAR)
        return f / r->factor;
    double turns = r->original_positions * f / two_pi;
    double keep = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
    return keep * f + (1 - keep) * f / r->factor;
}

#endif
