/*
 * hosts.c: `zerotrain hosts`: who would run where, without starting anything.
 */
#include "hosts/hosts.h"

#include "cmd.h"
#include "exact.h"
#include "foreign.h"
#include "slurm.h"

static const char usage[] =
    "usage: zerotrain hosts --hostfile=FILE [OPTIONS]\n"
    "       zerotrain hosts --slurm [OPTIONS]\n"
    "\n"
    "Show the ranks of a job: host, local rank, device. Nothing is started, no host is asked.\n"
    "\n"
    "  --hostfile=FILE    lines [user@]name slots=N; - is standard input\n"
    "  --slurm            the Slurm allocation that we are in, one slot a task\n"
    "  --include=SPEC     only these: NAME or NAME:0,2, joined by @; IPv6: [ADDRESS]:0,2\n"
    "  --exclude=SPEC     all but these\n"
    "  --num_nodes=N      the first N hosts\n"
    "  --num_gpus=N       the first N devices of each host\n"
    "  --json             print JSON\n"
    "  --help             print this help\n"
    "\n"
    "See zerotrain-hosts(1) and zerotrain-hostfile(5).\n";

struct options {
    const char *hostfile;
    bool slurm, json;
    struct zt_hosts_filter filter;
};

static bool take_number(const char *name, const char *text, int *out)
{
    int64_t n;
    if (!zt_parse_i64(text, &n) || n < 1 || n > ZT_HOSTS_MAX) {
        cmd_error("--%s=%s: a number from 1 to %d is needed", name, text, ZT_HOSTS_MAX);
        return false;
    }
    *out = (int)n;
    return true;
}

/* -1 to go on, or an exit code. */
static int parse(struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        {"hostfile", required_argument, NULL, 'f'},
        {"slurm", no_argument, NULL, 's'},
        {"include", required_argument, NULL, 'i'},
        {"exclude", required_argument, NULL, 'e'},
        {"num_nodes", required_argument, NULL, 'n'},
        {"num_gpus", required_argument, NULL, 'g'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static const struct cmd_optset set = {
        .command = "hosts", .longs = longs, .instead = cmd_foreign_option};
    struct zt_err err;
    int opt;
    while ((opt = cmd_getopt(&set, argc, argv, &err)) != -1) {
        bool ok = true;
        switch (opt) {
        case 'f':
            o->hostfile = optarg;
            break;
        case 's':
            o->slurm = true;
            break;
        case 'i':
            o->filter.include = optarg;
            break;
        case 'e':
            o->filter.exclude = optarg;
            break;
        case 'n':
            ok = take_number("num_nodes", optarg, &o->filter.num_nodes);
            break;
        case 'g':
            ok = take_number("num_gpus", optarg, &o->filter.num_gpus);
            break;
        case 'j':
            o->json = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return ZT_EXIT_OK;
        default:
            cmd_error("%s", err.msg);
            ok = false;
        }
        if (!ok)
            return ZT_EXIT_USAGE;
    }
    if (optind < argc)
        cmd_error("\"%s\" is too much; see zerotrain hosts --help", argv[optind]);
    else if (!o->hostfile == !o->slurm)
        cmd_error("give one of --hostfile=FILE and --slurm (without hosts training runs on this "
                  "machine alone)");
    else
        return -1;
    return ZT_EXIT_USAGE;
}

int cmd_hosts(int argc, char **argv)
{
    struct options o = {0};
    struct zt_hosts h = {0};
    struct zt_str out = {0};
    struct zt_err err = {0};
    int code = parse(&o, argc, argv);
    if (code >= 0)
        return code;
    int rc = o.slurm ? cmd_slurm_read(&h, &err) : zt_hosts_read(o.hostfile, &h, &err);
    if (!rc)
        rc = zt_hosts_choose(&h, &o.filter, &err);
    if (!rc && o.json)
        zt_hosts_print_json(&h, &out);
    else if (!rc)
        zt_hosts_print(&h, &out);
    else
        cmd_error("%s", err.msg);
    fputs(zt_str_get(&out), stdout);
    zt_str_release(&out);
    zt_hosts_release(&h);
    return zt_exit_code(rc);
}
