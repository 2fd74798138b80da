/* hosts_in.h: --hostfile and its filters, as train and plan take them. */
#ifndef ZT_CMD_HOSTS_IN_H
#define ZT_CMD_HOSTS_IN_H

#include "cmd.h"

/*
 * Before training: where it runs. Of a hostfile that comes to this machine alone the slots go into o->slots,
 * their number into o->num_gpus; other hosts go into o->nodes, as they are started by ssh. Again, when
 * o->lost has changed. 0, or an exit code after a message.
 */
int cmd_hosts_train(struct cmd_options *o);

/* Of a hostfile: how many slots there are without o->lost.hosts. */
int cmd_hosts_left(const struct cmd_options *o);

/* The name of a node, as the hostfile calls it. */
const char *cmd_hosts_name(const struct cmd_nodes *nodes, int node);

/* Before planning: the ranks of all hosts go into o->num_gpus, those of the host with most into o->nodes.most. */
int cmd_hosts_count(struct cmd_options *o);

/*
 * Of this machine's n_gpus those to be used, ascending: what o->slots names, or without a hostfile --include and
 * --exclude, for which this machine is "localhost", else all. 0, or an exit code after a message.
 */
int cmd_hosts_slots(const struct cmd_options *o, int n_gpus, struct zt_arena *arena,
                    const int **slots, int *n);

#endif
