#include "hosts_in.h"

#include <unistd.h>

#include "launch/detect.h"

static int failed(const struct zt_err *err)
{
    cmd_error("%s", err->msg);
    return zt_exit_code(err->code);
}

/* The hosts that were chosen; release h in either case. */
static int read_hosts(const struct cmd_options *o, struct zt_hosts *h)
{
    struct zt_hosts_filter filter = o->hosts;
    struct zt_err err = {0};
    filter.num_gpus = o->num_gpus;
    int rc = zt_hosts_read(o->hostfile, h, &err);
    if (!rc)
        rc = zt_hosts_choose(h, &filter, &err);
    return rc ? failed(&err) : 0;
}

/* Options that say nothing without a hostfile. */
static int check_no_hostfile(const struct cmd_options *o)
{
    if (o->hosts.num_nodes <= 1)
        return 0;
    cmd_error("--num_nodes=%d: name them with --hostfile=FILE; without one there is this machine "
              "alone",
              o->hosts.num_nodes);
    return ZT_EXIT_USAGE;
}

static int take_slots(struct cmd_options *o, const struct zt_hosts *h)
{
    char ours[ZT_HOST_NAME_BYTES] = "this machine";
    gethostname(ours, sizeof ours - 1);
    if (h->n > 1 || !zt_host_is_local(h->v[0].name)) {
        cmd_error(
            "%s: %s%s%s%s: training on hosts other than this one (%s) is not carried out yet. "
            "`zerotrain hosts` shows the ranks of a hostfile, `zerotrain plan` plans them",
            o->hostfile, h->v[0].name, h->n > 1 ? ", " : "", h->n > 1 ? h->v[1].name : "",
            h->n > 2 ? ", ..." : "", ours);
        return ZT_EXIT_UNSUPPORTED;
    }
    const struct zt_host *here = &h->v[0];
    int *slots = zt_arena_alloc(&o->arena, (size_t)here->n_devices, sizeof *slots);
    memcpy(slots, here->devices, (size_t)here->n_devices * sizeof *slots);
    o->slots = slots;
    o->num_gpus = here->n_devices;
    return 0;
}

int cmd_hosts_here(struct cmd_options *o)
{
    struct zt_hosts h = {0};
    if (!o->hostfile)
        return check_no_hostfile(o);
    int code = read_hosts(o, &h);
    if (!code)
        code = take_slots(o, &h);
    zt_hosts_release(&h);
    return code;
}

int cmd_hosts_alone(void)
{
    extern char **environ;
    struct zt_env env = {0};
    struct zt_place p;
    struct zt_err err = {0};
    zt_env_add_all(&env, environ);
    int rc = zt_detect_place(&env, &p, &err);
    zt_env_release(&env);
    if (rc)
        return failed(&err);
    if (!p.by || p.world == 1)
        return 0;
    cmd_error(
        "%s=%d: this is one of %d processes, by %s. zerotrain starts its own workers, so each "
        "would train the same; start it once, without that launcher. Joining as one of its "
        "processes is not carried out yet",
        p.rank_var, p.rank, p.world, p.by);
    return ZT_EXIT_UNSUPPORTED;
}

int cmd_hosts_count(struct cmd_options *o)
{
    struct zt_hosts h = {0};
    if (!o->hostfile && (o->hosts.include || o->hosts.exclude)) {
        cmd_error("--%s: name the hosts with --hostfile=FILE",
                  o->hosts.include ? "include" : "exclude");
        return ZT_EXIT_USAGE;
    }
    if (!o->hostfile)
        return check_no_hostfile(o);
    int code = read_hosts(o, &h);
    int n = zt_hosts_n_ranks(&h);
    zt_hosts_release(&h);
    if (!code && n > CMD_MAX_RANKS) {
        cmd_error("%s: %d ranks; a job has at most %d", o->hostfile, n, CMD_MAX_RANKS);
        return ZT_EXIT_INPUT;
    }
    o->num_gpus = n;
    return code;
}

/* GPUs that a hostfile promises must be there. */
static int keep_slots(const struct cmd_options *o, const int *slots, int n, const char **gpus,
                      int *n_gpus)
{
    if (slots[n - 1] >= *n_gpus) { /* they ascend, so they may be moved in place */
        cmd_error("%s: slot %d of this machine is wanted, but it has %d GPU%s that we may use",
                  o->hostfile, slots[n - 1], *n_gpus, *n_gpus == 1 ? "" : "s");
        return ZT_EXIT_INPUT;
    }
    for (int i = 0; i < n; i++)
        gpus[i] = gpus[slots[i]];
    *n_gpus = n;
    return 0;
}

int cmd_hosts_gpus(const struct cmd_options *o, const char **gpus, int *n_gpus)
{
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    struct zt_hosts_filter filter = o->hosts;
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    char line[64];
    if (o->slots)
        return keep_slots(o, o->slots, o->num_gpus, gpus, n_gpus);
    if (!filter.include && !filter.exclude)
        return 0;
    filter.num_gpus = o->num_gpus;
    int n = snprintf(line, sizeof line, "localhost slots=%d", *n_gpus);
    int rc = zt_hosts_parse("this machine", line, (size_t)n, &h, &err);
    if (!rc)
        rc = zt_hosts_choose(&h, &filter, &err);
    if (rc && mask)
        zt_err_wrap(&err, "with CUDA_VISIBLE_DEVICES=%s, whose GPUs are slots 0 to %d of localhost",
                    mask, *n_gpus - 1);
    int code = rc ? failed(&err) : keep_slots(o, h.v[0].devices, h.v[0].n_devices, gpus, n_gpus);
    zt_hosts_release(&h);
    return code;
}
