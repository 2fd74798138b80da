#include "hosts_in.h"

#include <limits.h>
#include <unistd.h>

#include "launch/ssh_config.h"
#include "launch/ssh_keys.h"
#include "slurm.h"

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
    int rc = o->hostfile ? zt_hosts_read(o->hostfile, h, &err) : cmd_slurm_read(h, &err);
    if (!rc)
        rc = zt_hosts_choose(h, &filter, &err);
    if (!rc && o->hostfile && cmd_by_slurm(o))
        rc = cmd_slurm_check(h, o->hostfile, &err);
    return rc ? failed(&err) : 0;
}

/* Is every host of "NAME:0,2@..." this machine, as it is called without a hostfile? */
static bool is_localhost_only(const char *spec)
{
    static const char name[] = "localhost";
    for (const char *item = spec; item; item = strchr(item, '@')) {
        item += item != spec;
        if (strncmp(item, name, sizeof name - 1) || !strchr("@:", item[sizeof name - 1]))
            return false;
    }
    return true;
}

/* Options that say nothing without a hostfile. */
static int check_no_hostfile(const struct cmd_options *o)
{
    const char *spec = o->hosts.include ? o->hosts.include : o->hosts.exclude;
    if (spec && !is_localhost_only(spec)) {
        cmd_error("--%s=%s: without a hostfile there is this machine alone, as localhost; name "
                  "other hosts with --hostfile=FILE",
                  o->hosts.include ? "include" : "exclude", spec);
        return ZT_EXIT_USAGE;
    }
    if (o->hosts.num_nodes <= 1)
        return 0;
    cmd_error("--num_nodes=%d: name them with --hostfile=FILE; without one there is this machine "
              "alone",
              o->hosts.num_nodes);
    return ZT_EXIT_USAGE;
}

static void take_slots(struct cmd_options *o, const struct zt_hosts *h)
{
    const struct zt_host *here = &h->v[0];
    int *slots = zt_arena_alloc(&o->arena, (size_t)here->n_devices, sizeof *slots);
    memcpy(slots, here->devices, (size_t)here->n_devices * sizeof *slots);
    o->slots = slots;
    o->num_gpus = here->n_devices;
}

/* Where zerotrain is on other hosts. */
static int find_program(struct cmd_options *o, struct zt_err *err)
{
    char self[PATH_MAX];
    if (o->remote_path && zt_openssh_check_program(o->remote_path, err)) {
        err->code = ZT_EUSAGE;
        return zt_err_wrap(err, "--remote_path");
    }
    if (o->remote_path)
        return 0;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return zt_err_errno(err, ZT_ESYS, "/proc/self/exe");
    self[n] = '\0';
    o->remote_path = zt_arena_strdup(&o->arena, self);
    return zt_openssh_check_program(self, err)
               ? zt_err_wrap(err, "give --remote_path, where zerotrain is on other hosts")
               : 0;
}

/* What ssh's configuration says of a host: the name or address to connect to, among others. NULL after a message. */
static const struct zt_ssh_config *config_of(struct cmd_options *o, const struct zt_host *host)
{
    struct zt_ssh_config *config = zt_arena_alloc(&o->arena, 1, sizeof *config);
    struct zt_err err = {0};
    if (!zt_ssh_config_read(host->name, host->user, o->ssh_port, &o->arena, config, &err))
        return config;
    cmd_error("%s:%d: %s: %s%s", o->hostfile, host->line, host->name, err.msg,
              err.code == ZT_ESYS ? "; the OpenSSH client is asked for what is configured of other "
                                    "hosts"
                                  : "");
    return NULL;
}

/* The others would take such a name for themselves. */
static bool is_loopback_name(const char *name)
{
    return strcmp(name, "localhost") == 0 || strncmp(name, "127.", 4) == 0 ||
           strcmp(name, "::1") == 0;
}

/* For libssh2; passphrases are asked for once, however many jobs follow. */
static struct zt_ssh_keys *take_keys(struct cmd_options *o)
{
    if (!o->ssh_keys)
        o->ssh_keys = zt_ssh_keys_create();
    return o->ssh_keys;
}

static int add_node(struct cmd_options *o, const struct zt_host *host, const char **host_of,
                    int *slots)
{
    struct cmd_nodes *nodes = &o->nodes;
    const int per_slot = ZT_MAX(o->per_gpu, 1), n = host->n_devices * per_slot;
    const char *name = zt_arena_strdup(&o->arena, host->name);
    struct zt_launch_node *node = &nodes->v[nodes->n++];
    if (!cmd_by_slurm(o) && is_loopback_name(name)) {
        cmd_error("%s:%d: %s beside other hosts, which must reach it: write this machine's name or "
                  "address",
                  o->hostfile, host->line, name);
        return ZT_EXIT_INPUT;
    }
    const bool local = zt_host_is_local(name) && !(cmd_by_slurm(o) && nodes->n_here);
    if (local && nodes->n_here) {
        cmd_error("%s:%d: %s and %s are both this machine; write it once, with all its slots",
                  o->hostfile, host->line, host_of[nodes->first_here], name);
        return ZT_EXIT_INPUT;
    }
    *node = (struct zt_launch_node){.n_workers = n, .address = name};
    if (local) {
        nodes->first_here = nodes->n_ranks;
        nodes->n_here = n;
    } else if (!cmd_by_slurm(o)) {
        struct zt_ssh_target *ssh = zt_arena_alloc(&o->arena, 1, sizeof *ssh);
        *ssh = (struct zt_ssh_target){.host = name,
                                      .user = host->user ? zt_arena_strdup(&o->arena, host->user)
                                                         : NULL,
                                      .port = o->ssh_port,
                                      .program = o->remote_path};
        const struct zt_ssh_config *config = config_of(o, host);
        if (!config)
            return ZT_EXIT_FAILURE;
        ssh->config = config;
        ssh->by_client = o->launcher && strcmp(o->launcher, "openssh") == 0;
        ssh->keys = ssh->by_client ? NULL : take_keys(o);
        node->ssh = ssh;
        node->address = config->hostname;
    }
    for (int i = 0; i < n; i++) {
        slots[nodes->n_ranks] = host->devices[i / per_slot];
        host_of[nodes->n_ranks++] = name;
    }
    nodes->most = ZT_MAX(nodes->most, n);
    return 0;
}

static int take_nodes(struct cmd_options *o, const struct zt_hosts *h)
{
    struct zt_err err = {0};
    const size_t n = (size_t)zt_hosts_n_ranks(h) * (size_t)ZT_MAX(o->per_gpu, 1);
    const char **host_of = zt_arena_alloc(&o->arena, n, sizeof *host_of);
    int *slots = zt_arena_alloc(&o->arena, n, sizeof *slots);
    if (find_program(o, &err))
        return failed(&err);
    o->nodes.from = o->hostfile ? o->hostfile : "SLURM_JOB_NODELIST";
    o->nodes.host_of = host_of;
    o->nodes.slots = slots;
    o->nodes.v = zt_arena_alloc(&o->arena, (size_t)h->n, sizeof *o->nodes.v);
    for (int i = 0, code; i < h->n; i++)
        if ((code = add_node(o, &h->v[i], host_of, slots)))
            return code;
    o->num_gpus = o->nodes.n_ranks;
    return 0;
}

/* Options that say nothing without other hosts. */
static int check_no_ssh(const struct cmd_options *o)
{
    if (!o->ssh_port && !o->remote_path && !o->launcher)
        return 0;
    cmd_error("--%s is for other hosts: name them with --hostfile=FILE", o->ssh_port ? "ssh_port"
                                                                         : o->remote_path
                                                                             ? "remote_path"
                                                                             : "launcher");
    return ZT_EXIT_USAGE;
}

int cmd_hosts_train(struct cmd_options *o)
{
    struct zt_hosts h = {0};
    if (o->joined)
        return 0;
    if (!o->hostfile && !cmd_by_slurm(o)) {
        int code = check_no_ssh(o);
        return code ? code : check_no_hostfile(o);
    }
    if (o->ssh_port && cmd_by_slurm(o)) {
        cmd_error("--ssh_port: --launcher=slurm reaches hosts by srun, not by ssh");
        return ZT_EXIT_USAGE;
    }
    int code = o->listed.n ? 0 : read_hosts(o, &o->listed); /* once: it may be a pipe */
    if (code)
        return code;
    zt_hosts_without(&o->listed, o->lost.hosts.items, o->lost.hosts.n, 0, &h);
    o->nodes = (struct cmd_nodes){0};
    if (!cmd_by_slurm(o) && h.n == 1 && zt_host_is_local(h.v[0].name)) {
        take_slots(o, &h); /* of which cmd_pick_devices() takes what is left */
    } else {
        zt_hosts_release(&h);
        zt_hosts_without(&o->listed, o->lost.hosts.items, o->lost.hosts.n, o->lost.most, &h);
        code = take_nodes(o, &h);
    }
    zt_hosts_release(&h);
    return code;
}

int cmd_hosts_left(const struct cmd_options *o)
{
    struct zt_hosts h = {0};
    zt_hosts_without(&o->listed, o->lost.hosts.items, o->lost.hosts.n, 0, &h);
    const int n = zt_hosts_n_ranks(&h);
    zt_hosts_release(&h);
    return n;
}

const char *cmd_hosts_name(const struct cmd_nodes *nodes, int node)
{
    int rank = 0;
    for (int i = 0; i < node; i++)
        rank += nodes->v[i].n_workers;
    return nodes->host_of[rank];
}

/* --include=localhost:0,2 without a hostfile: nobody knows how many devices there are, but how many are named. */
static int count_devices(struct cmd_options *o)
{
    struct zt_hosts_filter filter = o->hosts;
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    char line[64];
    if (!o->hosts.include || !strchr(o->hosts.include, ':')) {
        cmd_error("--%s: of how many devices? Give --num_gpus=N instead, or name them: "
                  "--include=localhost:0,2",
                  o->hosts.include ? "include" : "exclude");
        return ZT_EXIT_USAGE;
    }
    filter.num_gpus = o->num_gpus;
    const int len = snprintf(line, sizeof line, "localhost slots=%d", ZT_HOST_MAX_SLOTS);
    int rc = zt_hosts_parse("this machine", line, (size_t)len, &h, &err);
    if (!rc)
        rc = zt_hosts_choose(&h, &filter, &err);
    o->num_gpus = rc ? 0 : zt_hosts_n_ranks(&h);
    zt_hosts_release(&h);
    return rc ? failed(&err) : 0;
}

int cmd_hosts_count(struct cmd_options *o)
{
    struct zt_hosts h = {0};
    int code;
    if (!o->hostfile && (code = check_no_hostfile(o)))
        return code;
    if (!o->hostfile)
        return o->hosts.include || o->hosts.exclude ? count_devices(o) : 0;
    code = read_hosts(o, &h);
    int n = zt_hosts_n_ranks(&h);
    for (int i = 0; i < h.n; i++)
        o->nodes.most = ZT_MAX(o->nodes.most, h.v[i].n_devices);
    zt_hosts_release(&h);
    if (!code && n > CMD_MAX_RANKS) {
        cmd_error("%s: %d ranks; a job has at most %d", o->hostfile, n, CMD_MAX_RANKS);
        return ZT_EXIT_INPUT;
    }
    o->num_gpus = n;
    return code;
}

int cmd_hosts_slots(const struct cmd_options *o, int n_gpus, struct zt_arena *arena,
                    const int **slots, int *n)
{
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    struct zt_hosts_filter filter = o->hosts;
    struct zt_hosts h = {0};
    struct zt_err err = {0};
    char line[64];
    if (o->slots) {
        *slots = o->slots;
        *n = o->num_gpus;
        return 0;
    }
    if (filter.include || filter.exclude)
        filter.num_gpus =
            o->num_gpus; /* both are refused; alone it is looked at where GPUs are counted */
    int len = snprintf(line, sizeof line, "localhost slots=%d", n_gpus);
    int rc = zt_hosts_parse("this machine", line, (size_t)len, &h, &err);
    if (!rc)
        rc = zt_hosts_choose(&h, &filter, &err);
    if (rc && mask)
        zt_err_wrap(&err, "with CUDA_VISIBLE_DEVICES=%s, whose GPUs are slots 0 to %d of localhost",
                    mask, n_gpus - 1);
    if (!rc) {
        *n = h.v[0].n_devices;
        int *copy = zt_arena_alloc(arena, (size_t)*n, sizeof *copy);
        memcpy(copy, h.v[0].devices, (size_t)*n * sizeof *copy);
        *slots = copy;
    }
    zt_hosts_release(&h);
    return rc ? failed(&err) : 0;
}
