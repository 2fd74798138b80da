/*
 * devices.c: which devices a run uses, and what to say when there are none.
 */
#include "devices.h"

#include <dirent.h>
#include <unistd.h>

#include "cmd.h"
#include "launch/launch.h"

/* GPUs that the driver shows; no CUDA library is needed for that. */
static int count_gpus(void)
{
    DIR *d = opendir("/proc/driver/nvidia/gpus");
    int n = 0;
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int cpu_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    dev->kind = ZT_DEV_CPU;
    dev->n_workers = o->num_gpus ? o->num_gpus : 1;
    return 0;
}

static int cuda_devices(int n_present, struct cmd_devices *dev)
{
    cmd_error("%d GPU%s here, but this build has no CUDA part yet; train on the CPU with "
              "--device=cpu",
              dev->n_workers ? dev->n_workers : n_present, n_present == 1 ? " is" : "s are");
    return ZT_EXIT_UNSUPPORTED;
}

int cmd_pick_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    enum { MAX = 1024 };
    const char *entries[MAX];
    struct zt_str buf = {0};
    struct zt_err err = {0};
    int n_present = count_gpus(), n_visible = 0;
    memset(dev, 0, sizeof *dev);
    if (strcmp(o->device, "cpu") == 0)
        return cpu_devices(o, dev);
    int rc = zt_pick_devices(getenv("CUDA_VISIBLE_DEVICES"), n_present, 0, &buf, entries, MAX,
                             &n_visible, &err);
    zt_str_release(&buf);
    if (rc) {
        cmd_error("%s", err.msg);
        return ZT_EXIT_INPUT;
    }
    bool auto_device = strcmp(o->device, "auto") == 0;
    if (n_visible == 0 && auto_device && !o->num_gpus) {
        fputs("No GPU here: training with 1 CPU worker. (--device=cpu --num_gpus=N starts N.)\n",
              stderr);
        return cpu_devices(o, dev);
    }
    if (n_visible == 0) {
        int n = o->num_gpus ? o->num_gpus : 1;
        cmd_error("--num_gpus=%d: there is no GPU %s. To train with %d CPU worker%s instead: "
                  "zerotrain --device=cpu --num_gpus=%d %s",
                  n, n_present ? "that CUDA_VISIBLE_DEVICES lets us use" : "on this machine", n,
                  n == 1 ? "" : "s", n, o->recipe_path);
        return ZT_EXIT_INPUT;
    }
    if (o->num_gpus > n_visible) {
        cmd_error("--num_gpus=%d: only %d GPU%s here", o->num_gpus, n_visible,
                  n_visible == 1 ? " is" : "s are");
        return ZT_EXIT_INPUT;
    }
    return cuda_devices(n_visible, dev);
}

int cmd_threads(const struct zt_recipe *r, int n_workers)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (r->threads > 0)
        return r->threads;
    return (int)ZT_MAX(1, cores / n_workers);
}
