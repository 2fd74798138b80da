/* slurm.h: inside of a Slurm allocation. */
#ifndef ZT_CMD_SLURM_H
#define ZT_CMD_SLURM_H

#include "cmd.h"

/* The hosts of the allocation that we are in, one slot a task. */
int cmd_slurm_read(struct zt_hosts *h, struct zt_err *err) ZT_MUST_CHECK;

/* A training of this machine alone, in an allocation of more than that: a person is told. */
void cmd_slurm_note(const struct cmd_options *o);

/* Are hosts of a hostfile in that allocation? `hostfile` is for messages. */
int cmd_slurm_check(const struct zt_hosts *h, const char *hostfile,
                    struct zt_err *err) ZT_MUST_CHECK;

/*
 * With --launcher=slurm, unless it was done: srun on the hosts of o->nodes, and all of them have joined after (o->srun,
 * o->joined). notice: what srun says. On failure nothing is left running, and *result is as zt_launch_run() gives it:
 * whether a signal ended it, and which hosts did not come.
 */
int cmd_slurm_start(struct cmd_options *o, void (*notice)(void *ctx, const char *text), void *ctx,
                    struct zt_launch_result *result, struct zt_err *err) ZT_MUST_CHECK;

/* Of a failure of cmd_slurm_start(). */
static inline int cmd_slurm_exit_code(int rc, const struct zt_launch_result *result)
{
    return result->told ? 128 + result->told : zt_exit_code(rc);
}

/* The processes leave, with that code, and srun ends; if it is our srun. Then it may be started again. */
void cmd_slurm_end(struct cmd_options *o, int exit_code);

#endif
