/* join.h: started by srun, mpirun or torchrun as one of many. */
#ifndef ZT_CMD_JOIN_H
#define ZT_CMD_JOIN_H

#include "cmd.h"

/*
 * Before training. Started alone: nothing. As rank 0 of many: meets the others, and puts what they are into
 * o->joined, o->num_gpus or o->nodes, and their CPUs. As another: takes part until the job has ended; then *done is
 * set. 0, or an exit code: the job's, or after a message.
 */
int cmd_join(struct cmd_options *o, bool *done);

/* Of several hosts: that only the launcher begins such a job again, and how, for a person. */
const char *cmd_join_again(const struct cmd_options *o);

/* After all that rank 0 does: the others leave with its exit code. */
void cmd_join_leave(struct cmd_options *o, int exit_code);

#endif
