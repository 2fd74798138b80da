/* plan_memory.h: what `zerotrain plan` answers about memory beside the ledger. */
#ifndef ZT_CMD_PLAN_MEMORY_H
#define ZT_CMD_PLAN_MEMORY_H

#include "cmd.h"
#include "devices.h"

/* --fit: how to ask for what was chosen (o->chosen). */
void plan_print_chosen(const struct cmd_options *o);

/* --largest, without a recipe; and --deepspeed_estimate of a recipe. Exit codes. */
int plan_largest(const struct cmd_options *o);
int plan_deepspeed_estimate(const struct cmd_options *o, const struct zt_recipe *r,
                            const struct cmd_devices *dev);

#endif
