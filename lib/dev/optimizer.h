/*
 * optimizer.h: the optimizers, and what state they keep for each element: m always (fp32), v if they
 * say so. Their one-element definitions are dev/adam.h and dev/lion.h.
 */
#ifndef ZT_DEV_OPTIMIZER_H
#define ZT_DEV_OPTIMIZER_H

#include "base/compat.h"

enum zt_optimizer {
    ZT_ADAMW, /* decay apart from the gradient */
    ZT_ADAM,  /* decay as part of the gradient (L2) */
    ZT_LION,
};

static inline ZT_HOST_DEVICE bool zt_optimizer_has_v(enum zt_optimizer o)
{
    return o != ZT_LION;
}

#endif
