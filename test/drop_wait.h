/* drop_wait.h: a plan that has a race. */
#ifndef ZT_TEST_DROP_WAIT_H
#define ZT_TEST_DROP_WAIT_H

#include "plan/plan.h"

/* A planted fault: the op no longer waits. */
static ZT_UNUSED void drop_wait(struct zt_program *prog, int wait)
{
    for (int i = 0; i < prog->n_ops; i++) {
        struct zt_op *op = &prog->ops[i];
        if (wait >= op->first_wait && wait < op->first_wait + op->n_waits) {
            prog->waits[wait] = prog->waits[op->first_wait];
            op->first_wait++;
            op->n_waits--;
        }
    }
}

#endif
