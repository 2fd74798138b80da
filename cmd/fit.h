/* fit.h: what a rank may take of a machine's memory, and what to do when a plan takes more. */
#ifndef ZT_CMD_FIT_H
#define ZT_CMD_FIT_H

#include "cmd.h"
#include "devices.h"
#include "plan/fit.h"

/*
 * What the recipe says (parallel.device_memory, parallel.host_memory), and with `measure` what is free,
 * less what a worker takes beside its arenas: of the GPU and of the host that have least (dev->free; where nobody
 * was asked, of this machine's), for CPU workers of this machine shared by its n_here (0: not asked).
 */
int cmd_fit_limits(const struct zt_recipe *r, const struct cmd_devices *dev, bool measure,
                   struct zt_fit_limits *out, struct zt_err *err) ZT_MUST_CHECK;

/* 0, or after a message with all that makes it fit ZT_EXIT_MEMORY. */
int cmd_fit_check(const char *name, const struct zt_plan *p, const struct zt_fit_limits *limits);

enum cmd_fit_show { CMD_FIT_QUIET, CMD_FIT_TABLE, CMD_FIT_JSON };

/*
 * zero_optimization.stage: auto. Search, append to `out` what was tried, and put the cheapest that fits into o->chosen
 * for cmd_load_recipe(). ZT_ENOMEM: nothing fits.
 */
int cmd_fit_choose(struct cmd_options *o, const struct zt_recipe *r, const struct cmd_devices *dev,
                   const struct zt_fit_limits *limits, enum cmd_fit_show show, struct zt_str *out,
                   struct zt_err *err) ZT_MUST_CHECK;

#endif
