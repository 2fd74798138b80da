#include "slurm.h"

#include <strings.h>

#include "launch/srun.h"

int cmd_slurm_read(struct zt_hosts *h, struct zt_err *err)
{
    const char *nodes = getenv("SLURM_JOB_NODELIST"), *tasks = getenv("SLURM_TASKS_PER_NODE");
    if (!nodes)
        return zt_err_set(err, ZT_EINPUT,
                          "SLURM_JOB_NODELIST is not set: we are in no allocation; get one "
                          "with salloc or sbatch");
    if (!tasks)
        return zt_err_set(err, ZT_EINPUT,
                          "SLURM_TASKS_PER_NODE is not set; allocate with --ntasks-per-node=N");
    return zt_hosts_from_slurm(nodes, tasks, h, err);
}

int cmd_slurm_check(const struct zt_hosts *h, const char *hostfile, struct zt_err *err)
{
    const char *list = getenv("SLURM_JOB_NODELIST");
    struct zt_hosts ours = {0};
    int rc = list ? zt_hosts_of_nodelist(list, &ours, err)
                  : zt_err_set(err, ZT_EINPUT,
                               "SLURM_JOB_NODELIST is not set: we are in no "
                               "allocation; get one with salloc or sbatch");
    for (int i = 0; i < h->n && !rc; i++) {
        int k = 0;
        while (k < ours.n && strcasecmp(ours.v[k].name, h->v[i].name) != 0)
            k++;
        if (k == ours.n)
            rc = zt_err_set(err, ZT_EINPUT,
                            "%s:%d: %s is not in the allocation, SLURM_JOB_NODELIST=%s", hostfile,
                            h->v[i].line, h->v[i].name, list);
    }
    zt_hosts_release(&ours);
    return rc;
}

/* Which of the processes is on which host; they need not have come in our order. */
static int match(struct cmd_options *o, const char *const *hosts, struct zt_err *err)
{
    struct zt_rendezvous *r = o->joined;
    for (int i = 0; i < o->nodes.n; i++) {
        int k = 0;
        while (k < r->m.world && strcasecmp(r->v[k].host, hosts[i]) != 0)
            k++;
        if (k == r->m.world)
            return zt_err_set(err, ZT_ESYS, "srun has started no process on %s, but one on %s",
                              hosts[i], r->v[i].host);
        o->nodes.v[i].party = &r->v[k];
        o->nodes.v[i].address = r->v[k].address;
    }
    return 0;
}

struct listener {
    void (*notice)(void *ctx, const char *text);
    void *ctx;
};

static void say(void *ctx, const char *line, size_t len)
{
    const struct listener *l = ctx;
    char text[1024];
    snprintf(text, sizeof text, "%.*s", (int)ZT_MIN(len, sizeof text), line);
    l->notice(l->ctx, text);
}

int cmd_slurm_start(struct cmd_options *o, void (*notice)(void *ctx, const char *text), void *ctx,
                    int *sig, struct zt_err *err)
{
    *sig = 0;
    if (!cmd_by_slurm(o) || o->joined)
        return 0;
    const int n = o->nodes.n;
    const char **hosts = zt_arena_alloc(&o->arena, (size_t)n, sizeof *hosts);
    struct listener *l = zt_arena_alloc(&o->arena, 1, sizeof *l);
    const char *towards = NULL;
    int limit_s;
    for (int i = 0, rank = 0; i < n; rank += o->nodes.v[i++].n_workers) {
        hosts[i] = o->nodes.host_of[rank];
        if (!towards && !(o->nodes.n_here && rank == o->nodes.first_here))
            towards = hosts[i];
    }
    *l = (struct listener){notice, ctx};
    o->srun = zt_arena_alloc(&o->arena, 1, sizeof *o->srun);
    *o->srun = (struct zt_srun){.say = say, .ctx = l};
    struct zt_rendezvous *r = zt_arena_alloc(&o->arena, 1, sizeof *r);
    int rc = zt_join_seconds(getenv("ZT_JOIN_SECONDS"), &limit_s, err);
    if (!rc)
        rc = zt_srun_start(o->srun, o->remote_path, hosts, n, towards ? towards : hosts[0], limit_s,
                           r, sig, err);
    if (rc)
        return rc;
    o->joined = r;
    return match(o, hosts, err);
}
