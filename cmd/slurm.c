#include "slurm.h"

#include <strings.h>

#include "base/program.h"
#include "launch/srun.h"
#include "launch/supervisor.h"

static const char nodes_var[] = "SLURM_JOB_NODELIST";

/* NULL: there is no allocation. */
static const char *nodelist(struct zt_err *err)
{
    const char *list = getenv(nodes_var);
    if (!list)
        zt_err_set(err, ZT_EINPUT,
                   "%s is not set: we are in no allocation; get one with salloc or sbatch",
                   nodes_var);
    return list;
}

int cmd_slurm_read(struct zt_hosts *h, struct zt_err *err)
{
    const char *nodes = nodelist(err), *tasks = getenv("SLURM_TASKS_PER_NODE");
    if (!nodes)
        return err->code;
    if (!tasks)
        return zt_err_set(err, ZT_EINPUT,
                          "SLURM_TASKS_PER_NODE is not set; allocate with --ntasks-per-node=N");
    return zt_hosts_from_slurm(nodes, tasks, h, err);
}

void cmd_slurm_note(const struct cmd_options *o)
{
    struct zt_hosts ours = {0};
    struct zt_err ignored;
    const char *list = nodelist(&ignored);
    if (!list || o->hostfile || o->launcher || o->joined)
        return;
    if (zt_hosts_of_nodelist(nodes_var, list, &ours, &ignored) == 0 &&
        (ours.n > 1 || !zt_host_is_local(ours.v[0].name)))
        fprintf(stderr,
                "note: this trains on this machine alone; --launcher=slurm trains on the hosts of "
                "the allocation, %s\n",
                list);
    zt_hosts_release(&ours);
}

static bool holds(const struct zt_hosts *h, const char *name)
{
    for (int i = 0; i < h->n; i++)
        if (strcasecmp(h->v[i].name, name) == 0)
            return true;
    return false;
}

int cmd_slurm_check(const struct zt_hosts *h, const char *hostfile, struct zt_err *err)
{
    struct zt_hosts ours = {0};
    const char *list = nodelist(err);
    int rc = list ? zt_hosts_of_nodelist(nodes_var, list, &ours, err) : err->code;
    for (int i = 0; i < h->n && !rc; i++)
        if (!holds(&ours, h->v[i].name))
            rc = zt_err_set(err, ZT_EINPUT, "%s:%d: %s is not in the allocation, %s=%s", hostfile,
                            h->v[i].line, h->v[i].name, nodes_var, list);
    zt_hosts_release(&ours);
    return rc;
}

/* ---- srun ---- */

enum { SQUEUE_S = 20 }; /* it has so long to answer */

/* Which of the processes is on which host; they need not have come in our order. */
static int match(struct cmd_options *o, struct zt_rendezvous *r, const char *const *hosts,
                 struct zt_err *err)
{
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

/* The hosts of o->nodes; another one than this machine, if there is any, in *towards. */
static const char **hosts_of(struct cmd_options *o, const char **towards)
{
    const struct cmd_nodes *nodes = &o->nodes;
    const char **hosts = zt_arena_alloc(&o->arena, (size_t)nodes->n, sizeof *hosts);
    *towards = NULL;
    for (int i = 0, rank = 0; i < nodes->n; rank += nodes->v[i++].n_workers) {
        hosts[i] = nodes->host_of[rank];
        if (!*towards && !(nodes->n_here && rank == nodes->first_here))
            *towards = hosts[i];
    }
    if (!*towards)
        *towards = hosts[0];
    return hosts;
}

/* Which hosts are in the way: those that have failed, else those that others have waited for. False: it cannot be told. */
static bool blame(const enum zt_srun_host *state, int n, struct zt_launch_result *result)
{
    int count[ZT_SRUN_N_HOST] = {0};
    for (int i = 0; i < n; i++)
        count[state[i]]++;
    const enum zt_srun_host bad = count[ZT_SRUN_FAILED] ? ZT_SRUN_FAILED : ZT_SRUN_AWAITED;
    for (int i = 0; i < n; i++)
        result->node_end[i] = state[i] == bad ? ZT_NODE_NO_START : ZT_NODE_NOTHING;
    return count[bad] < n;
}

/*
 * Nobody has come. Slurm takes a host that dies out of the allocation, or ends that; of which srun says only
 * that it cannot start. Then *err, which has what srun said, says more.
 */
static int ask_allocation(const struct cmd_options *o, const char *const *hosts,
                          struct zt_launch_result *result, struct zt_err *err)
{
    const char *job = getenv("SLURM_JOB_ID");
    const char *const argv[] = {"squeue", "-h", "-t", "R,S", "-o", "%N", "-j", job, NULL};
    struct zt_str said = {0}, gone = {0};
    struct zt_hosts left = {0};
    struct zt_err ignored;
    sigset_t heed;
    zt_ending_signals(&heed);
    int rc = err->code;
    const int status = job ? zt_program_output(argv, SQUEUE_S, &heed, &said, &ignored) : -1;
    result->told = zt_await_ending_signal(0);
    if (said.len)
        said.buf[strcspn(said.buf, "\n")] = '\0';
    const char *list = zt_str_get(&said);
    if (strstr(list, "Invalid job id") || (status == 0 && !*list))
        rc =
            zt_err_set(err, ZT_EINPUT,
                       "SLURM_JOB_ID=%s: this allocation is over: a host that dies ends it, unless "
                       "it was made with --no-kill",
                       job);
    else if (status == 0 && zt_hosts_of_nodelist("squeue", list, &left, &ignored) == 0)
        for (int i = 0; i < o->nodes.n; i++)
            if (!holds(&left, hosts[i]))
                zt_str_printf(&gone, "%s%s", gone.len ? ", " : "", hosts[i]);
    for (int i = 0; gone.len && i < o->nodes.n; i++)
        result->node_end[i] = holds(&left, hosts[i]) ? ZT_NODE_NOTHING : ZT_NODE_NO_START;
    if (result->told)
        rc = zt_err_set(err, ZT_EPEER, "stopped by signal %d (%s) while Slurm was asked for hosts",
                        result->told, strsignal(result->told));
    else if (gone.len)
        rc = zt_err_set(err, o->elastic ? ZT_EPEER : ZT_EINPUT,
                        "Slurm has taken %.300s out of the allocation%s", gone.buf,
                        o->elastic ? "" : "; --max_restarts with --elastic goes on without");
    zt_str_release(&said);
    zt_str_release(&gone);
    zt_hosts_release(&left);
    return rc;
}

int cmd_slurm_start(struct cmd_options *o, void (*notice)(void *ctx, const char *text), void *ctx,
                    struct zt_launch_result *result, struct zt_err *err)
{
    *result = (struct zt_launch_result){.first_rank = -1};
    if (!cmd_by_slurm(o) || o->joined)
        return 0;
    const char *towards, **hosts = hosts_of(o, &towards);
    const int n = o->nodes.n;
    struct zt_srun *srun = zt_arena_alloc(&o->arena, 1, sizeof *srun);
    struct zt_rendezvous *r = zt_arena_alloc(&o->arena, 1, sizeof *r);
    struct listener *l = zt_arena_alloc(&o->arena, 1, sizeof *l);
    enum zt_srun_host *state = zt_arena_alloc(&o->arena, (size_t)n, sizeof *state);
    int limit_s;
    *l = (struct listener){notice, ctx};
    *srun = (struct zt_srun){.say = say, .ctx = l};
    int rc = zt_join_seconds(getenv("ZT_JOIN_SECONDS"), &limit_s, err);
    if (!rc && n > ZT_LAUNCH_MAX_NODES)
        rc = zt_err_set(err, ZT_EINPUT, "%d hosts; up to %d are possible", n, ZT_LAUNCH_MAX_NODES);
    if (rc)
        return rc;
    rc = zt_srun_start(srun, o->remote_path, hosts, n, towards, limit_s, r, state, &result->told,
                       err);
    if (!rc) {
        o->srun = srun;
        o->joined = r;
        return match(o, r, hosts, err);
    }
    if (result->told)
        return rc;
    return blame(state, n, result) ? rc : ask_allocation(o, hosts, result, err);
}

void cmd_slurm_end(struct cmd_options *o, int exit_code)
{
    bool some_lost = false;
    if (!o->srun)
        return;
    for (int i = 0; i < o->joined->m.world; i++)
        some_lost = some_lost || o->joined->v[i].gone;
    zt_rendezvous_leave(o->joined, exit_code);
    zt_srun_end(o->srun, some_lost);
    o->joined = NULL;
    o->srun = NULL;
}
