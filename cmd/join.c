#include "join.h"

#include <sched.h>
#include <unistd.h>

#include "launch/detect.h"
#include "launch/rendezvous.h"
#include "slurm.h"

static int failed(const struct zt_err *err)
{
    cmd_error("%s", err->msg);
    return zt_exit_code(err->code);
}

/* Who has started us says all of this. */
static int check_options(const struct cmd_options *o, const struct zt_place *p)
{
    const struct {
        const char *name;
        bool given;
    } options[] = {
        {"num_gpus", o->num_gpus},         {"hostfile", o->hostfile},
        {"include", o->hosts.include},     {"exclude", o->hosts.exclude},
        {"num_nodes", o->hosts.num_nodes}, {"launcher", o->launcher},
        {"devices_per_gpu", o->per_gpu},   {"ssh_port", o->ssh_port},
        {"remote_path", o->remote_path},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(options); i++) {
        if (!options[i].given)
            continue;
        cmd_error(
            "--%s: %s has started %d processes, one for each rank (%s=%d is this one's); leave "
            "the option out, or start zerotrain once, without that launcher",
            options[i].name, p->by, p->world, p->rank_var, p->rank);
        return ZT_EXIT_USAGE;
    }
    return 0;
}

static int take_part(struct zt_meeting *m, const char *host)
{
    struct zt_err err = {0};
    int code = 0;
    return zt_member_run(m, host, &code, &err) ? failed(&err) : code;
}

/* ---- rank 0 ---- */

/* CPUs of the ranks, and for us and our agent all of those here: launchers may have bound us to one. */
static void take_cpus(struct cmd_options *o)
{
    const struct zt_rendezvous *r = o->joined;
    unsigned long all[ZT_CPUS_MAX_BYTES / sizeof(unsigned long)] = {0};
    o->cpus = zt_arena_alloc(&o->arena, (size_t)r->m.world, sizeof *o->cpus);
    for (int i = 0; i < r->m.world; i++) {
        const struct zt_party *p = &r->v[i];
        unsigned long mask[ZT_ARRAY_LEN(all)] = {0};
        o->cpus[i] = p->cpus; /* theirs */
        if (strcmp(p->host_id, r->v[0].host_id) != 0)
            continue;
        memcpy(mask, zt_str_get(&p->cpus), ZT_MIN(p->cpus.len, sizeof mask));
        for (size_t k = 0; k < ZT_ARRAY_LEN(all); k++)
            all[k] |= mask[k];
    }
    if (sched_setaffinity(0, sizeof all, (const cpu_set_t *)all))
        fprintf(stderr,
                "note: bound to the CPUs of rank 0 alone: those of the other ranks here are "
                "not ours to use\n");
}

/*
 * GPUs that the launcher has given to each rank of this host, a different one: as if they had all been
 * given to us.
 */
static int take_gpus(const struct zt_rendezvous *r)
{
    struct zt_str list = {0};
    bool differ = false, single = true;
    for (int i = 0; i < r->m.world; i++) {
        const char *mine = r->v[i].visible, *first = r->v[0].visible;
        differ = differ || (mine && first && strcmp(mine, first) != 0);
        single = single && mine && *mine && !strchr(mine, ',');
        zt_str_printf(&list, "%s%s", i ? "," : "", mine ? mine : "");
    }
    int code = 0;
    if (differ && single) {
        setenv("CUDA_VISIBLE_DEVICES", list.buf, 1);
    } else if (differ) {
        cmd_error("the ranks have CUDA_VISIBLE_DEVICES of their own, and not one GPU each: %s",
                  list.buf);
        code = ZT_EXIT_INPUT;
    }
    zt_str_release(&list);
    return code;
}

/* Ranks of the host that has rank `first`: how many, one after the other. */
static int count_host(const struct zt_rendezvous *r, int first)
{
    int n = 1;
    while (first + n < r->m.world && strcmp(r->v[first + n].host_id, r->v[first].host_id) == 0)
        n++;
    return n;
}

static int check_order(const struct zt_rendezvous *r, int first)
{
    for (int i = 0; i < first; i++) {
        if (strcmp(r->v[i].host_id, r->v[first].host_id) != 0)
            continue;
        cmd_error(
            "ranks %d and %d are on %s, but not those between them: ranks of a host must follow "
            "each other (srun --distribution=block, mpirun --map-by slot)",
            i, first, r->v[i].host);
        return ZT_EXIT_INPUT;
    }
    return 0;
}

static int take_hosts(struct cmd_options *o)
{
    struct zt_rendezvous *r = o->joined;
    struct cmd_nodes *nodes = &o->nodes;
    const char **host_of = zt_arena_alloc(&o->arena, (size_t)r->m.world, sizeof *host_of);
    int *slots = zt_arena_alloc(&o->arena, (size_t)r->m.world, sizeof *slots);
    nodes->slots = slots;
    nodes->v = zt_arena_alloc(&o->arena, (size_t)r->m.world, sizeof *nodes->v);
    nodes->from = r->m.by;
    nodes->host_of = host_of;
    for (int first = 0, n; first < r->m.world; first += n) {
        struct zt_party *p = &r->v[first];
        int code = check_order(r, first);
        if (code)
            return code;
        n = count_host(r, first);
        for (int i = 0; i < n; i++) {
            slots[nodes->n_ranks] = i;
            host_of[nodes->n_ranks++] = r->v[first].host;
        }
        nodes->most = ZT_MAX(nodes->most, n);
        nodes->v[nodes->n++] = (struct zt_launch_node){
            .n_workers = n, .party = first ? p : NULL, .address = first ? p->address : r->address};
        if (first && p->n_agents == 0) {
            cmd_error("the process of rank %d is the first on %s, but its local rank is %d", first,
                      p->host, p->local_rank);
            return ZT_EXIT_INPUT;
        }
    }
    nodes->n_here = nodes->v[0].n_workers;
    return 0;
}

static int lead(struct cmd_options *o, const struct zt_meeting *m, const char *host)
{
    struct zt_err err = {0};
    struct zt_rendezvous *r = zt_arena_alloc(&o->arena, 1, sizeof *r);
    if (zt_rendezvous_open(m, host, r, &err))
        return failed(&err);
    o->joined = r;
    if (zt_rendezvous_wait(r, &err))
        return failed(&err);
    o->num_gpus = m->world;
    take_cpus(o);
    return count_host(r, 0) < m->world ? take_hosts(o) : take_gpus(r);
}

int cmd_join(struct cmd_options *o, bool *done)
{
    struct zt_env env = {0};
    struct zt_place p;
    struct zt_meeting m;
    struct zt_err err = {0};
    zt_env_add_all(&env, environ);
    int rc = zt_detect_place(&env, &p, &err);
    const bool many = !rc && p.by && p.world > 1;
    if (many)
        rc = zt_meeting_of_env(&env, &p, &m, &err);
    zt_env_release(&env);
    if (rc)
        return failed(&err);
    if (!many)
        return 0;
    int code = check_options(o, &p);
    const char *host = strcmp(p.by, "srun") == 0 ? getenv("SLURMD_NODENAME") : NULL;
    *done = m.rank > 0;
    if (!code)
        code = m.rank > 0 ? take_part(&m, host) : lead(o, &m, host);
    explicit_bzero(&m, sizeof m);
    return code;
}

const char *cmd_join_again(const struct cmd_options *o)
{
    if (strcmp(o->joined->m.by, "srun") == 0)
        return "srun has started processes on several hosts, and does not start them again; leave "
               "srun out: `zerotrain --launcher=slurm` in the allocation does";
    if (strcmp(o->joined->m.by, "torchrun") == 0)
        return "torchrun has started processes on several hosts, and only it can start them again: "
               "give torchrun its --max-restarts, and zerotrain --resume=auto";
    return "mpirun, or flux, has started processes on several hosts, and does not start them "
           "again: "
           "give --resume=auto, and run it again when it has failed";
}

void cmd_join_leave(struct cmd_options *o, int exit_code)
{
    cmd_slurm_end(o, exit_code);
    if (o->joined)
        zt_rendezvous_leave(o->joined, exit_code);
}
