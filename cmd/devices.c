/*
 * devices.c: which devices a run uses, and what to say when there are none.
 */
#include "devices.h"

#include <sched.h>
#include <unistd.h>

#include "cmd.h"
#include "coll/coll.h"
#include "launch/launch.h"

static int cpu_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    dev->kind = ZT_DEV_CPU;
    dev->n_workers = o->num_gpus ? o->num_gpus : 1;
    if (dev->n_workers <= ZT_SHM_MAX_RANKS)
        return 0;
    cmd_error("--num_gpus=%d: at most %d CPU workers run on one host; `zerotrain plan` plans any "
              "number",
              dev->n_workers, ZT_SHM_MAX_RANKS);
    return ZT_EXIT_USAGE;
}

static int no_gpu(const struct cmd_options *o, bool hidden)
{
    int n = o->num_gpus ? o->num_gpus : 1;
    char asked[32];
    if (o->num_gpus)
        snprintf(asked, sizeof asked, "--num_gpus=%d", n);
    else
        snprintf(asked, sizeof asked, "--device=%s", o->device);
    cmd_error("%s: there is no GPU %s. To train with %d CPU worker%s instead: "
              "zerotrain --device=cpu --num_gpus=%d %s",
              asked, hidden ? "that CUDA_VISIBLE_DEVICES lets us use" : "on this machine", n,
              n == 1 ? "" : "s", n, o->recipe_path);
    return ZT_EXIT_INPUT;
}

/* How many GPUs there are for us. Where there is none, CUDA_VISIBLE_DEVICES has nothing to say. */
static int count_visible(int n_present, int *n_visible, struct zt_err *err)
{
    enum { MAX = 1024 };
    const char *entries[MAX];
    struct zt_str buf = {0};
    *n_visible = 0;
    if (n_present == 0)
        return 0;
    int rc = zt_pick_devices(getenv("CUDA_VISIBLE_DEVICES"), n_present, 0, &buf, entries, MAX,
                             n_visible, err);
    zt_str_release(&buf);
    return rc;
}

int cmd_pick_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    struct zt_err err = {0};
    int n_present = zt_count_devices(), n_visible;
    memset(dev, 0, sizeof *dev);
    if (strcmp(o->device, "cpu") == 0)
        return cpu_devices(o, dev);
    if (count_visible(n_present, &n_visible, &err)) {
        cmd_error("%s", err.msg);
        return ZT_EXIT_INPUT;
    }
    if (n_visible == 0 && strcmp(o->device, "auto") == 0 && !o->num_gpus) {
        fprintf(stderr,
                "No GPU %s: training with 1 CPU worker. (--device=cpu --num_gpus=N starts N.)\n",
                n_present ? "that CUDA_VISIBLE_DEVICES lets us use" : "here");
        return cpu_devices(o, dev);
    }
    if (n_visible == 0)
        return no_gpu(o, n_present > 0);
    if (o->num_gpus > n_visible) {
        cmd_error("--num_gpus=%d: only %d GPU%s here", o->num_gpus, n_visible,
                  n_visible == 1 ? " is" : "s are");
        return ZT_EXIT_INPUT;
    }
    cmd_error("%d GPU%s here, but this build has no CUDA part yet; train on the CPU with "
              "--device=cpu",
              n_visible, n_visible == 1 ? " is" : "s are");
    return ZT_EXIT_UNSUPPORTED;
}

int cmd_threads(const struct zt_recipe *r, int n_workers)
{
    cpu_set_t ours; /* taskset, containers and batch systems give fewer than there are */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof ours, &ours) == 0)
        cores = CPU_COUNT(&ours);
    if (r->threads > 0)
        return r->threads;
    return (int)ZT_MAX(1, cores / n_workers);
}
