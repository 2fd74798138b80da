/*
 * devices.c: which devices a run uses, and what to say when there are none.
 */
#include "devices.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "cmd.h"
#include "coll/backend.h"
#include "coll/tcp.h"
#include "hosts_in.h"
#include "train/train.h"

static void count_workers(const struct cmd_options *o, int n, struct cmd_devices *dev)
{
    dev->n_workers = n;
    dev->on_a_host = o->nodes.n ? o->nodes.most : n;
    dev->n_here = o->nodes.n ? o->nodes.n_here : n;
}

static int cpu_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    dev->kind = ZT_DEV_CPU;
    count_workers(o, o->num_gpus ? o->num_gpus : 1, dev);
    if (o->per_gpu || o->transport) {
        cmd_error(
            "--%s is for GPUs; --num_gpus=N starts N CPU workers, which talk over shared memory",
            o->per_gpu ? "devices_per_gpu" : "collectives");
        return ZT_EXIT_USAGE;
    }
    if (o->nodes.n > 1 && (o->nodes.n > ZT_TCP_MAX_NODES || dev->n_workers > ZT_TCP_MAX_RANKS)) {
        cmd_error("%s: %d CPU workers on %d hosts; up to %d on %d talk to each other", o->hostfile,
                  dev->n_workers, o->nodes.n, ZT_TCP_MAX_RANKS, ZT_TCP_MAX_NODES);
        return ZT_EXIT_UNSUPPORTED;
    }
    if (!o->hostfile && (o->hosts.include || o->hosts.exclude)) {
        cmd_error("--%s chooses among GPUs, or hosts of a --hostfile; --num_gpus=N starts N CPU "
                  "workers",
                  o->hosts.include ? "include" : "exclude");
        return ZT_EXIT_USAGE;
    }
    if (dev->on_a_host <= ZT_SHM_MAX_RANKS)
        return 0;
    cmd_error("--num_gpus=%d: at most %d CPU workers run on one host; `zerotrain plan` plans any "
              "number",
              dev->on_a_host, ZT_SHM_MAX_RANKS);
    return ZT_EXIT_USAGE;
}

/* Asked for, and not there: `why` in words, or NULL where there is simply none. */
static int no_gpu(const struct cmd_options *o, const char *why, int code)
{
    int n = o->num_gpus ? o->num_gpus : 1;
    char asked[300];
    if (o->hostfile)
        snprintf(asked, sizeof asked, "--hostfile=%s", o->hostfile);
    else if (o->hosts.include || o->hosts.exclude)
        snprintf(asked, sizeof asked, "--%s=%s", o->hosts.include ? "include" : "exclude",
                 o->hosts.include ? o->hosts.include : o->hosts.exclude);
    else if (o->num_gpus)
        snprintf(asked, sizeof asked, "--num_gpus=%d", n);
    else
        snprintf(asked, sizeof asked, "--device=%s", o->device);
    cmd_error("%s: %s. To train with %d CPU worker%s instead: zerotrain --device=cpu --num_gpus=%d "
              "%s",
              asked, why, n, n == 1 ? "" : "s", n, o->recipe_path);
    return code;
}

/*
 * Threads that the driver starts must leave our signals alone: the launcher waits for them on the main
 * thread.
 */
static int ask_backend(int *n, struct zt_err *err)
{
    const struct zt_backend *b;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = zt_backend_load(&b, err);
    if (!rc)
        rc = b->device_count(n, err);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/*
 * The GPUs that we may use: their entries of CUDA_VISIBLE_DEVICES. None: *why says so for a person. The
 * library is not opened where there is nothing to find: no device, and no ZT_CUDA_LIB that tells us to.
 */
static int find_gpus(struct cmd_devices *dev, const char **why, struct zt_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n_present = zt_count_devices(), n_found = 0;
    bool look = n_present > 0 || getenv("ZT_CUDA_LIB");
    *why = "there is no GPU on this machine";
    if (!look)
        return 0;
    int rc = zt_pick_devices(visible, n_present ? n_present : -1, 0, &dev->buf, dev->gpus,
                             ZT_LAUNCH_MAX_WORKERS, &dev->n_gpus, err);
    if (rc)
        return rc;
    *why = "there is no GPU that CUDA_VISIBLE_DEVICES lets us use";
    if (visible && dev->n_gpus == 0)
        return 0;
    rc = ask_backend(&n_found, err);
    if (rc) {
        dev->n_gpus = 0;
        *why = err->msg;
        return rc == ZT_EUNSUPPORTED ? 0 : rc;
    }
    if (visible && n_found < dev->n_gpus)
        return zt_err_set(err, ZT_EINPUT,
                          "CUDA_VISIBLE_DEVICES=%s names %d GPUs, but CUDA finds %d of them",
                          visible, dev->n_gpus, n_found);
    if (visible)
        return 0;
    return zt_pick_devices(NULL, n_found, 0, &dev->buf, dev->gpus, ZT_LAUNCH_MAX_WORKERS,
                           &dev->n_gpus, err);
}

static int gpu_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    int code = cmd_hosts_gpus(o, dev->gpus, &dev->n_gpus);
    if (code)
        return code;
    if (o->num_gpus > dev->n_gpus) {
        cmd_error("--num_gpus=%d: only %d GPU%s here", o->num_gpus, dev->n_gpus,
                  dev->n_gpus == 1 ? " is" : "s are");
        return ZT_EXIT_INPUT;
    }
    dev->kind = ZT_DEV_CUDA;
    dev->per_gpu = o->per_gpu ? o->per_gpu : 1;
    count_workers(o, (o->num_gpus ? o->num_gpus : dev->n_gpus) * dev->per_gpu, dev);
    if (dev->per_gpu > 1 && o->transport == ZT_TRANSPORT_NCCL) {
        cmd_error("--collectives=nccl: NCCL refuses two workers on one GPU; with "
                  "--devices_per_gpu=%d leave it out",
                  dev->per_gpu);
        return ZT_EXIT_USAGE;
    }
    if (dev->n_workers > ZT_SHM_MAX_RANKS) {
        cmd_error("%d workers: at most %d run on one host", dev->n_workers, ZT_SHM_MAX_RANKS);
        return ZT_EXIT_USAGE;
    }
    for (int i = 0; i < dev->n_workers; i++)
        dev->workers[i] = dev->gpus[i / dev->per_gpu];
    return 0;
}

int cmd_pick_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    struct zt_err err = {0};
    const char *why = NULL;
    memset(dev, 0, sizeof *dev);
    if (strcmp(o->device, "cpu") == 0)
        return cpu_devices(o, dev);
    if (o->nodes.n) {
        cmd_error("%s: training on GPUs of other hosts is not carried out yet; --device=cpu trains "
                  "with %d CPU workers there",
                  o->hostfile, o->nodes.n_ranks);
        return ZT_EXIT_UNSUPPORTED;
    }
    if (find_gpus(dev, &why, &err)) {
        cmd_error("%s", err.msg);
        return ZT_EXIT_INPUT;
    }
    if (dev->n_gpus > 0)
        return gpu_devices(o, dev);
    if (strcmp(o->device, "auto") || o->num_gpus || o->hosts.include || o->hosts.exclude)
        return no_gpu(o, why, err.code == ZT_EUNSUPPORTED ? ZT_EXIT_UNSUPPORTED : ZT_EXIT_INPUT);
    fprintf(stderr, "Training with 1 CPU worker: %s. (--device=cpu --num_gpus=N starts N.)\n", why);
    return cpu_devices(o, dev);
}

void cmd_devices_release(struct cmd_devices *dev)
{
    zt_str_release(&dev->buf);
}

int cmd_threads(const struct zt_recipe *r, const struct cmd_devices *dev)
{
    cpu_set_t ours; /* taskset, containers and batch systems give fewer than there are */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof ours, &ours) == 0)
        cores = CPU_COUNT(&ours);
    if (r->threads > 0)
        return r->threads;
    return (int)ZT_MAX(1, cores / dev->on_a_host);
}

int cmd_plan_config(const struct zt_recipe *r, const struct zt_model *m,
                    const struct cmd_devices *dev, int stage, struct zt_plan_config *cfg,
                    struct zt_err *err)
{
    return zt_train_plan_config(r, m, dev->n_workers, cmd_threads(r, dev), dev->kind, stage, cfg,
                                err);
}
