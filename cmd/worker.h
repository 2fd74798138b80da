/* worker.h: what workers of the trainer and of `doctor` share. */
#ifndef ZT_CMD_WORKER_H
#define ZT_CMD_WORKER_H

#include "coll/coll.h"
#include "launch/launch.h"

/*
 * Collectives of CPU streams, over all ranks of the job in one group: shared memory, and TCP where there are
 * other nodes. By all of them; blocks until all are there, join_s seconds at most (0: as tcp.h says).
 */
int worker_open_cpu(struct zt_worker *w, struct zt_dev *dev, double join_s, struct zt_coll **out,
                    struct zt_err *err) ZT_MUST_CHECK;

#endif
