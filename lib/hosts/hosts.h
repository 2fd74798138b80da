/*
 * hosts.h: which hosts a job runs on, and which devices of each: from a hostfile in DeepSpeed's grammar, or
 * from a Slurm allocation, through --include, --exclude, --num_nodes and --num_gpus, to the table of ranks.
 * Pure functions over text (but zt_hosts_read and zt_host_is_local); nothing is started here.
 *
 * A hostfile has a host a line, `[user@]name slots=N`. Blank lines are skipped, and what follows a '#' at a
 * line's beginning or behind a blank. A name is a host's name, an IPv4 or an IPv6 address, the latter in
 * brackets or not; line ends may be DOS's, and a byte order mark is skipped. Slots are the devices 0..N-1.
 * Everything that is wrong is reported at once, a line each, as file:line:column.
 *
 * Ranks are counted by the order of hosts in the file, then by device; filters never reorder (CASES L01).
 */
#ifndef ZT_HOSTS_HOSTS_H
#define ZT_HOSTS_HOSTS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum {
    ZT_HOSTS_MAX = 4096,      /* hosts of a job */
    ZT_HOST_MAX_SLOTS = 1024, /* of one host */
    ZT_HOST_NAME_BYTES = 256, /* of a name, with its NUL */
    ZT_HOSTS_FILE_BYTES = 1 << 20,
};

struct zt_host {
    /* Without user and brackets, as ssh and MASTER_ADDR want it; IPv6 in its shortest form. */
    const char *name;
    const char *user; /* NULL: ssh decides */
    int line;         /* in the hostfile; 0: from elsewhere */
    int n_slots;
    int n_devices; /* chosen; 1 or more once a filter has run */
    int *devices;  /* (n_devices) ascending, each in 0..n_slots-1 */
};

/* Zero-initialised is empty. Owns its hosts; release accepts a zeroed one. */
struct zt_hosts {
    struct zt_host *v;
    int n;
    size_t cap;
    struct zt_arena arena;
};

void zt_hosts_release(struct zt_hosts *h);

/* A hostfile's text; `path` is for messages. *out is empty before, and all slots are chosen after. */
int zt_hosts_parse(const char *path, const char *text, size_t len, struct zt_hosts *out,
                   struct zt_err *err) ZT_MUST_CHECK;

/* The same of a file; "-" is standard input. One that is missing is an error like any other. */
int zt_hosts_read(const char *path, struct zt_hosts *out, struct zt_err *err) ZT_MUST_CHECK;

/* What of the hosts to use. NULL and 0: not given. */
struct zt_hosts_filter {
    /* Items joined by '@': NAME (all its slots) or NAME:0,2; IPv6: [NAME]:0,2. */
    const char *include, *exclude;
    int num_nodes; /* the first N hosts */
    int num_gpus;  /* devices 0..N-1 of each */
};

/*
 * Narrow h to what the filter says; hosts without a device left drop out. As with DeepSpeed, only one of
 * include, exclude and the two numbers may be given. A host or device that is not there, more of them than
 * there are, and nothing left are errors, ZT_EUSAGE where it makes no sense whatever the hosts are. An item may be
 * written user@NAME where that is the host's user. On failure h may only be released.
 */
int zt_hosts_choose(struct zt_hosts *h, const struct zt_hosts_filter *f,
                    struct zt_err *err) ZT_MUST_CHECK;

/*
 * h without the n hosts of these names, and of at most `most` devices in all (0: any number): the last ones
 * are left out. *out is empty before; it may have no host after.
 */
void zt_hosts_without(const struct zt_hosts *h, const char *const *names, int n, int most,
                      struct zt_hosts *out);

/*
 * A Slurm allocation: SLURM_JOB_NODELIST ("gpu[01-03,7],login-[1-2]-ib[0-1]", with zeros and order kept; the
 * last bracket counts fastest, as `scontrol show hostnames` does) and SLURM_TASKS_PER_NODE ("4(x2),3"): one
 * slot a task. *out is empty before.
 */
int zt_hosts_from_slurm(const char *nodelist, const char *tasks_per_node, struct zt_hosts *out,
                        struct zt_err *err) ZT_MUST_CHECK;

/* Such nodes alone, one slot each; var: where the list is from, for messages. *out is empty before. */
int zt_hosts_of_nodelist(const char *var, const char *nodelist, struct zt_hosts *out,
                         struct zt_err *err) ZT_MUST_CHECK;

int zt_hosts_n_ranks(const struct zt_hosts *h);

/* Ranks, a line each, for a person; as one JSON object. */
void zt_hosts_print(const struct zt_hosts *h, struct zt_str *out);
void zt_hosts_print_json(const struct zt_hosts *h, struct zt_str *out);

/*
 * Is this name our own machine: localhost, our host name (short or whole), or a name or address that
 * resolves to one of our interfaces. May block in the resolver for a name that is none of the first.
 */
bool zt_host_is_local(const char *name);

#endif
