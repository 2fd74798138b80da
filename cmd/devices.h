/* devices.h: which devices a run uses. */
#ifndef ZT_CMD_DEVICES_H
#define ZT_CMD_DEVICES_H

#include "cmd.h"
#include "dev/dev.h"
#include "launch/env.h"
#include "launch/launch.h"
#include "plan/plan.h"

/* What is free for a worker: on the GPU and on the host that have least. */
struct cmd_free {
    size_t gpu_bytes;  /* of one GPU; SIZE_MAX: not known */
    size_t host_bytes; /* of the host, for each of its workers; SIZE_MAX: not known */
    const char *gpu_what, *host_what; /* which they are, for messages */
    int cores;                        /* for each worker of a host; 0: nobody was asked */
};

struct cmd_devices {
    enum zt_dev_kind kind;
    int n_workers;        /* of all hosts */
    int on_a_host;        /* of the host with most */
    int n_here;           /* on this machine; 0: it is none of them */
    int per_gpu;          /* workers of one GPU */
    const char *no_gpu;   /* why it is a CPU worker that nobody has asked for; else NULL */
    const char **workers; /* (n_workers) the GPU of each (struct cmd_gpu: id) */
    struct cmd_free free; /* of GPU workers */
    struct zt_arena arena;
};

/*
 * Before training. `env` is what the user gives to all workers. Where GPUs may be wanted every host is asked,
 * once (o->asked), with this machine alone only itself. 0, or an exit code after a message that says what to do. Release dev
 * in either case.
 */
int cmd_pick_devices(struct cmd_options *o, const struct zt_env *env, struct cmd_devices *dev);
void cmd_devices_release(struct cmd_devices *dev);

/* What is free on the first n_gpus of this machine, where nobody has asked: for planning. */
int cmd_free_here(int n_gpus, int n_workers, struct zt_arena *arena, struct cmd_free *out,
                  struct zt_err *err) ZT_MUST_CHECK;

/* OpenMP threads of a worker: the recipe's, else the cores shared evenly by a host's workers. */
int cmd_threads(const struct zt_recipe *r, const struct cmd_devices *dev);

/* zt_train_plan_config() for these devices. */
int cmd_plan_config(const struct zt_recipe *r, const struct zt_model *m,
                    const struct cmd_devices *dev, int stage, struct zt_plan_config *cfg,
                    struct zt_err *err) ZT_MUST_CHECK;

#endif
