/*
 * devices.c: which devices a run uses, and what to say when there are none.
 */
#include "devices.h"

#include "coll/coll.h"
#include "coll/tcp.h"
#include "gpus.h"
#include "hosts_in.h"
#include "launch/rendezvous.h"
#include "restart.h"
#include "train/train.h"

static void count_workers(const struct cmd_options *o, int n, struct cmd_devices *dev)
{
    dev->n_workers = n;
    dev->on_a_host = o->nodes.n ? o->nodes.most : n;
    dev->n_here = o->nodes.n ? o->nodes.n_here : n;
}

/* What does not go by NCCL goes by TCP between hosts. */
static int check_tcp(const struct cmd_options *o, const struct cmd_devices *dev, const char *what)
{
    if (o->nodes.n <= 1 || (o->nodes.n <= ZT_TCP_MAX_NODES && dev->n_workers <= ZT_TCP_MAX_RANKS))
        return 0;
    cmd_error("%s: %d %s on %d hosts; up to %d on %d talk to each other", o->nodes.from,
              dev->n_workers, what, o->nodes.n, ZT_TCP_MAX_RANKS, ZT_TCP_MAX_NODES);
    return ZT_EXIT_UNSUPPORTED;
}

static int cpu_devices(const struct cmd_options *o, struct cmd_devices *dev)
{
    const int n = ZT_MAX(o->num_gpus, 1);
    dev->kind = ZT_DEV_CPU;
    count_workers(o, o->lost.most ? ZT_MIN(n, o->lost.most) : n, dev);
    if (o->per_gpu || o->transport) {
        cmd_error(
            "--%s is for GPUs; --num_gpus=N starts N CPU workers, which talk over shared memory",
            o->per_gpu ? "devices_per_gpu" : "collectives");
        return ZT_EXIT_USAGE;
    }
    int code = check_tcp(o, dev, "CPU workers");
    if (code)
        return code;
    if (!o->hostfile && !o->nodes.n && (o->hosts.include || o->hosts.exclude)) {
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

/* ---- GPUs ---- */

static const char *name_of(const struct cmd_host_gpus *h)
{
    return h->host ? h->host : "this machine";
}

/* Asked for, and not there on this machine: what to do instead. */
static int no_gpu_here(const struct cmd_options *o, const struct cmd_host_gpus *h)
{
    int n = o->num_gpus ? o->num_gpus : 1;
    char asked[300];
    if (o->joined) {
        cmd_error("%s has started %d processes, and %s; with --device=cpu each is a CPU worker",
                  o->joined->m.by, n, h->none);
        return h->code;
    }
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
              asked, h->none, n, n == 1 ? "" : "s", n, o->recipe_path);
    return h->code;
}

/* Every one of the hosts that has none, or cannot tell; 0: all have some. */
static int check_hosts(const struct cmd_options *o, const struct cmd_host_gpus *hosts)
{
    enum zt_exit code = 0;
    int n_none = 0;
    for (int i = 0; i < o->nodes.n; i++) {
        const struct cmd_host_gpus *h = &hosts[i];
        if (h->n)
            continue;
        cmd_error("%s: %s says: %s", o->nodes.from, h->host, h->none ? h->none : h->wrong);
        n_none += h->none != NULL;
        code = code ? code : h->code;
    }
    if (n_none)
        cmd_error("%s: every host must have GPUs; --device=cpu trains with %d CPU workers there",
                  o->nodes.from, o->nodes.n_ranks);
    return code;
}

/* NCCL must be on all hosts or on none, and what it is not there for goes by way of TCP. */
static int check_transport(const struct cmd_options *o, const struct cmd_devices *dev,
                           const struct cmd_host_gpus *hosts)
{
    const bool staged = o->transport == ZT_TRANSPORT_STAGED || dev->per_gpu > 1 || !hosts[0].nccl;
    for (int i = 1; i < o->nodes.n && o->transport != ZT_TRANSPORT_STAGED; i++) {
        if (dev->per_gpu > 1 || hosts[i].nccl == hosts[0].nccl)
            continue;
        cmd_error("%s: the CUDA part of %s was built %s NCCL, that of %s %s it; install the same "
                  "one, or train with --collectives=staged",
                  o->nodes.from, hosts[i].host, hosts[i].nccl ? "with" : "without", hosts[0].host,
                  hosts[0].nccl ? "with" : "without");
        return ZT_EXIT_UNSUPPORTED;
    }
    return staged ? check_tcp(o, dev, "GPU workers with host-staged collectives") : 0;
}

/* The smallest memory counts, and the host with the least for each of its n workers. */
static void keep_least(struct cmd_devices *dev, const struct cmd_host_gpus *h,
                       const struct cmd_gpu *gpu, int n)
{
    struct cmd_free *f = &dev->free;
    const size_t each = h->host_bytes / (size_t)n;
    const int cores = ZT_MAX(1, h->cores / n);
    if (gpu->free_bytes < f->gpu_bytes) {
        f->gpu_bytes = gpu->free_bytes;
        f->gpu_what = h->host ? zt_arena_printf(&dev->arena, "what is free on GPU %s of %s",
                                                gpu->entry, h->host)
                              : "what is free on its GPU";
    }
    if (each < f->host_bytes) {
        f->host_bytes = each;
        f->host_what = h->host
                           ? zt_arena_printf(&dev->arena, "its part of what is free on %s", h->host)
                           : "its part of what is free on this machine";
    }
    f->cores = f->cores ? ZT_MIN(f->cores, cores) : cores;
}

/* Can the host's GPU of this number be used? 0, or an exit code after a message. */
static int check_slot(const struct cmd_options *o, const struct cmd_host_gpus *h, int slot)
{
    if (slot >= h->n) {
        cmd_error("%s: slot %d of %s is wanted, but it has %d GPU%s that we may use%s%s%s",
                  o->nodes.n ? o->nodes.from : o->hostfile, slot, name_of(h), h->n,
                  h->n == 1 ? "" : "s", h->mask && h->host ? " (there CUDA_VISIBLE_DEVICES=" : "",
                  h->mask && h->host ? h->mask : "", h->mask && h->host ? ")" : "");
        return ZT_EXIT_INPUT;
    }
    if (!h->v[slot].broken)
        return 0;
    char label[CMD_GPU_LABEL_BYTES];
    cmd_error("%s of %s cannot be used: %s", cmd_gpu_label(&h->v[slot], label), name_of(h),
              h->v[slot].broken);
    return ZT_EXIT_FAILURE;
}

/* For a rank, one of n on that host. */
static void take_gpu(struct cmd_devices *dev, const struct cmd_host_gpus *h,
                     const struct cmd_gpu *gpu, int rank, int n)
{
    dev->workers[rank] = gpu->id;
    keep_least(dev, h, gpu, n);
}

/* n ranks from `first` on, a slot each: the host's GPUs of these numbers. */
static int take_slots(const struct cmd_options *o, struct cmd_devices *dev,
                      const struct cmd_host_gpus *h, int first, int n)
{
    for (int rank = first; rank < first + n; rank++) {
        const int slot = o->nodes.slots[rank], code = check_slot(o, h, slot);
        if (code)
            return code;
        take_gpu(dev, h, &h->v[slot], rank, n);
    }
    return 0;
}

/* GPUs of more than one model: who waits, and what counts. */
static void note_models(const struct cmd_options *o, const struct cmd_devices *dev,
                        const struct cmd_host_gpus *hosts)
{
    const struct cmd_gpu *first = &hosts[0].v[o->nodes.slots[0]];
    for (int r = 0, i = 0, end = o->nodes.v[0].n_workers; r < dev->n_workers; r++) {
        if (r == end)
            end += o->nodes.v[++i].n_workers;
        const struct cmd_gpu *gpu = &hosts[i].v[o->nodes.slots[r]];
        if (strcmp(gpu->name, first->name) == 0)
            continue;
        cmd_note("%s has an %s, %s an %s: all wait for the slower, and the least memory counts",
                 hosts[0].host, first->name, hosts[i].host, gpu->name);
        return;
    }
}

/* Which GPUs each rank of other hosts has. */
static int gpus_of_hosts(const struct cmd_options *o, struct cmd_devices *dev,
                         const struct cmd_host_gpus *hosts)
{
    int code = check_hosts(o, hosts), first = 0;
    if (code)
        return code;
    for (int i = 0; i < o->nodes.n; first += o->nodes.v[i++].n_workers) {
        int bad = take_slots(o, dev, &hosts[i], first, o->nodes.v[i].n_workers);
        code = code ? code : bad;
    }
    if (!code)
        code = check_transport(o, dev, hosts);
    if (!code)
        note_models(o, dev, hosts);
    return code;
}

/* A copy that outlives the attempt. */
static void add_gpu(struct cmd_options *o, const struct cmd_gpu *gpu)
{
    o->gpus[o->n_gpus++] = (struct cmd_gpu){.id = zt_arena_strdup(&o->arena, gpu->id),
                                            .entry = zt_arena_strdup(&o->arena, gpu->entry)};
}

/*
 * Those that the filters name, or the hostfile's slots, or the first: all must be there. 0, or an exit code after
 * a message.
 */
static int choose_gpus(struct cmd_options *o, struct cmd_devices *dev,
                       const struct cmd_host_gpus *h)
{
    const int *slots;
    int n, code = cmd_hosts_slots(o, h->n, &dev->arena, &slots, &n);
    if (code)
        return code;
    if (o->num_gpus > n) {
        cmd_error("--num_gpus=%d: only %d GPU%s here", o->num_gpus, n, n == 1 ? " is" : "s are");
        return ZT_EXIT_INPUT;
    }
    n = o->num_gpus ? o->num_gpus : n;
    o->gpus = zt_arena_alloc(&o->arena, (size_t)n, sizeof *o->gpus);
    for (int i = 0; i < n && !code; i++) {
        code = check_slot(o, h, slots[i]);
        if (!code)
            add_gpu(o, &h->v[slots[i]]);
    }
    return code;
}

/* A run on several hosts goes on without the others: this machine's GPUs are those that it had then. */
static void keep_asked(struct cmd_options *o)
{
    const struct cmd_host_gpus *h = NULL;
    for (int k = 0; k < o->n_asked && !h; k++)
        h = zt_host_is_local(o->asked[k].host) ? &o->asked[k] : NULL;
    if (!h || !o->slots)
        return;
    o->gpus = zt_arena_alloc(&o->arena, (size_t)o->num_gpus, sizeof *o->gpus);
    for (int i = 0; i < o->num_gpus; i++)
        add_gpu(o, &h->v[o->slots[i]]);
}

/*
 * A run that begins again keeps to its GPUs: one that cannot be used any more is left out, or the end of it. h tells
 * of each (cmd_gpus_ask_again()). 0, or an exit code after a message.
 */
static int keep_gpus(struct cmd_options *o, int per_gpu, const struct cmd_host_gpus *h)
{
    const int n_before = o->n_gpus;
    struct zt_str say = {0};
    char label[CMD_GPU_LABEL_BYTES];
    o->n_gpus = 0;
    for (int i = 0; i < n_before; i++) {
        const struct cmd_gpu *gpu = &h->v[i];
        if (!gpu->broken)
            o->gpus[o->n_gpus++] = o->gpus[i];
        else if (o->elastic)
            cmd_error("%s is left out from now on: %s", cmd_gpu_label(gpu, label), gpu->broken);
        else
            cmd_error("%s, which this run began with, cannot be used any more: %s; --elastic goes "
                      "on without it",
                      cmd_gpu_label(gpu, label), gpu->broken);
    }
    if (o->n_gpus == n_before)
        return 0;
    if (o->n_gpus == 0)
        cmd_error("no GPU of this run is left");
    if (o->n_gpus == 0 || !o->elastic)
        return ZT_EXIT_FAILURE;
    cmd_restart_divide(o->lost.batch, per_gpu, o->n_gpus, &say);
    if (say.len)
        cmd_error("%s", say.buf);
    zt_str_release(&say);
    return 0;
}

static const struct cmd_gpu *find_gpu(const struct cmd_host_gpus *h, const char *id)
{
    const struct cmd_gpu *gpu = h->v;
    while (strcmp(gpu->id, id) != 0) {
        gpu++;
        ZT_ASSERT(gpu < h->v + h->n_asked);
    }
    return gpu;
}

/* Ranks on this machine's GPUs, unless some have to stand by (cmd_restart_divide()). */
static int gpus_here(struct cmd_options *o, struct cmd_devices *dev, const struct cmd_host_gpus *h)
{
    int code = o->n_gpus ? keep_gpus(o, dev->per_gpu, h) : choose_gpus(o, dev, h);
    if (code)
        return code;
    const int n = cmd_restart_divide(o->lost.batch, dev->per_gpu, o->n_gpus, NULL);
    count_workers(o, n * dev->per_gpu, dev);
    dev->workers = zt_arena_alloc(&dev->arena, (size_t)dev->n_workers, sizeof *dev->workers);
    for (int i = 0; i < dev->n_workers; i++)
        take_gpu(dev, h, find_gpu(h, o->gpus[i / dev->per_gpu].id), i, dev->n_workers);
    return 0;
}

/* Of each host we need to know those up to the last that may be used. */
static int n_to_ask(const struct cmd_options *o)
{
    int n = 0;
    if (o->slots)
        return o->slots[o->num_gpus - 1] + 1; /* they ascend */
    for (int r = 0; r < o->nodes.n_ranks; r++)
        n = ZT_MAX(n, o->nodes.slots[r] + 1);
    if (n)
        return n;
    return o->num_gpus ? o->num_gpus : ZT_LAUNCH_MAX_WORKERS;
}

static int gpu_devices(struct cmd_options *o, struct cmd_devices *dev,
                       const struct cmd_host_gpus *hosts)
{
    dev->kind = ZT_DEV_CUDA;
    dev->per_gpu = o->per_gpu ? o->per_gpu : 1;
    dev->free = (struct cmd_free){.gpu_bytes = SIZE_MAX, .host_bytes = SIZE_MAX};
    if (dev->per_gpu > 1 && o->transport == ZT_TRANSPORT_NCCL) {
        cmd_error("--collectives=nccl: NCCL refuses two workers on one GPU; with "
                  "--devices_per_gpu=%d leave it out",
                  dev->per_gpu);
        return ZT_EXIT_USAGE;
    }
    int code;
    if (o->nodes.n) {
        count_workers(o, o->nodes.n_ranks, dev);
        dev->workers = zt_arena_alloc(&dev->arena, (size_t)dev->n_workers, sizeof *dev->workers);
        code = gpus_of_hosts(o, dev, hosts);
    } else {
        code = gpus_here(o, dev, hosts);
    }
    if (!code && dev->on_a_host > ZT_SHM_MAX_RANKS) {
        cmd_error("%d workers: at most %d run on one host", dev->on_a_host, ZT_SHM_MAX_RANKS);
        return ZT_EXIT_USAGE;
    }
    return code;
}

/* Other hosts are asked once: one that is lost later could not be, and what it has is known. */
static int ask(struct cmd_options *o, const struct zt_env *env, struct cmd_devices *dev,
               struct cmd_host_gpus **out)
{
    if (o->n_gpus)
        return cmd_gpus_ask_again(o, env, &dev->arena, out);
    if (o->nodes.n == 0)
        return cmd_gpus_ask(o, env, n_to_ask(o), &dev->arena, out);
    if (!o->n_asked) {
        int code = cmd_gpus_ask(o, env, n_to_ask(o), &o->arena, &o->asked);
        if (code)
            return code;
        o->n_asked = o->nodes.n;
    }
    *out = zt_arena_alloc(&dev->arena, (size_t)o->nodes.n, sizeof **out);
    for (int i = 0, rank = 0; i < o->nodes.n; rank += o->nodes.v[i++].n_workers)
        for (int k = 0; k < o->n_asked; k++)
            if (strcmp(o->asked[k].host, o->nodes.host_of[rank]) == 0)
                (*out)[i] = o->asked[k];
    return 0;
}

int cmd_pick_devices(struct cmd_options *o, const struct zt_env *env, struct cmd_devices *dev)
{
    const struct cmd_host_gpus nothing = {.none = "there is no GPU on this machine",
                                          .code = ZT_EXIT_INPUT};
    const struct cmd_host_gpus *here = &nothing;
    struct cmd_host_gpus *hosts;
    memset(dev, 0, sizeof *dev);
    if (strcmp(o->device, "cpu") == 0)
        return cpu_devices(o, dev);
    if (!o->nodes.n && !o->n_gpus)
        keep_asked(o);
    if (o->nodes.n || o->n_gpus || cmd_may_have_gpus()) {
        int code = ask(o, env, dev, &hosts);
        if (code)
            return code;
        here = hosts;
    }
    if (o->nodes.n || here->n || o->n_gpus)
        return gpu_devices(o, dev, here);
    if (here->wrong) {
        cmd_error("%s", here->wrong);
        return here->code;
    }
    if (strcmp(o->device, "auto") || o->num_gpus || o->hosts.include || o->hosts.exclude)
        return no_gpu_here(o, here);
    dev->no_gpu = here->none;
    return cpu_devices(o, dev);
}

int cmd_free_here(int n_gpus, int n_workers, struct zt_arena *arena, struct cmd_free *out,
                  struct zt_err *err)
{
    const struct cmd_options none = {0};
    const struct zt_env env = {0};
    struct cmd_devices dev = {.free = {.gpu_bytes = SIZE_MAX, .host_bytes = SIZE_MAX}};
    struct cmd_host_gpus *h;
    char label[CMD_GPU_LABEL_BYTES];
    if (cmd_gpus_ask(&none, &env, n_gpus, arena, &h))
        return zt_err_set(err, ZT_EDEVICE, "the GPUs cannot be asked for their free memory");
    if (!h->n)
        return zt_err_set(err, ZT_EDEVICE, "the GPUs cannot be asked for their free memory: %s",
                          h->none ? h->none : h->wrong);
    for (int i = 0; i < ZT_MIN(n_gpus, h->n); i++) {
        if (h->v[i].broken)
            return zt_err_set(err, ZT_EDEVICE, "%s: %s", cmd_gpu_label(&h->v[i], label),
                              h->v[i].broken);
        keep_least(&dev, h, &h->v[i], n_workers);
    }
    *out = dev.free;
    return 0;
}

void cmd_devices_release(struct cmd_devices *dev)
{
    zt_arena_release(&dev->arena);
}

int cmd_threads(const struct zt_recipe *r, const struct cmd_devices *dev)
{
    if (r->threads > 0)
        return r->threads;
    return dev->free.cores ? dev->free.cores : ZT_MAX(1, cmd_cores() / dev->on_a_host);
}

int cmd_plan_config(const struct zt_recipe *r, const struct zt_model *m,
                    const struct cmd_devices *dev, int stage, struct zt_plan_config *cfg,
                    struct zt_err *err)
{
    return zt_train_plan_config(r, m, dev->n_workers, cmd_threads(r, dev), dev->kind, stage, cfg,
                                err);
}
