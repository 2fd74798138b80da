/* slurm.h: inside of a Slurm allocation. */
#ifndef ZT_CMD_SLURM_H
#define ZT_CMD_SLURM_H

#include "cmd.h"

/* The hosts of the allocation that we are in, one slot a task. */
int cmd_slurm_read(struct zt_hosts *h, struct zt_err *err) ZT_MUST_CHECK;

/* Are hosts of a hostfile in that allocation? `hostfile` is for messages. */
int cmd_slurm_check(const struct zt_hosts *h, const char *hostfile,
                    struct zt_err *err) ZT_MUST_CHECK;

/*
 * With --launcher=slurm, and once: srun on the hosts of o->nodes, and all of them have joined after.
 * notice: what srun says. *sig: the signal that ended it.
 */
int cmd_slurm_start(struct cmd_options *o, void (*notice)(void *ctx, const char *text), void *ctx,
                    int *sig, struct zt_err *err) ZT_MUST_CHECK;

#endif
