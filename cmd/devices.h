/* devices.h: which devices a run uses. */
#ifndef ZT_CMD_DEVICES_H
#define ZT_CMD_DEVICES_H

#include "cmd.h"
#include "dev/dev.h"
#include "launch/launch.h"
#include "plan/plan.h"

struct cmd_devices {
    enum zt_dev_kind kind;
    int n_workers; /* of all hosts */
    int on_a_host; /* of the host with most */
    int n_here;    /* on this machine; 0: it is none of them */
    int n_gpus;    /* that we may use, and what CUDA_VISIBLE_DEVICES calls each */
    const char *gpus[ZT_LAUNCH_MAX_WORKERS];
    const char *workers[ZT_LAUNCH_MAX_WORKERS]; /* (n_workers) the GPU of each */
    int per_gpu;                                /* workers of one GPU */
    struct zt_str buf;                          /* of their names */
};

/* 0, or an exit code after a message that says what to do. Release dev in either case. */
int cmd_pick_devices(const struct cmd_options *o, struct cmd_devices *dev);
void cmd_devices_release(struct cmd_devices *dev);

/* OpenMP threads of a worker: the recipe's, else the cores shared evenly by a host's workers. */
int cmd_threads(const struct zt_recipe *r, const struct cmd_devices *dev);

/* zt_train_plan_config() for these devices. */
int cmd_plan_config(const struct zt_recipe *r, const struct zt_model *m,
                    const struct cmd_devices *dev, int stage, struct zt_plan_config *cfg,
                    struct zt_err *err) ZT_MUST_CHECK;

#endif
