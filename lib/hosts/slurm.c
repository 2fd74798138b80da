/*
 * slurm.c: the hosts of a Slurm allocation, from what Slurm puts into the environment. The form of its
 * lists: "HOSTLIST EXPRESSIONS" in scontrol(1), "OUTPUT ENVIRONMENT VARIABLES" in sbatch(1).
 */
#include "internal.h"

static const char nodes_var[] = "SLURM_JOB_NODELIST", tasks_var[] = "SLURM_TASKS_PER_NODE";

/* ---- nodes ---- */

struct nodelist {
    const char *var, *text;
    struct zt_hosts *out;
    struct zt_err *err;
};

static int wrong_at(const struct nodelist *l, const char *at, const char *what)
{
    return zt_err_set(l->err, ZT_EINPUT, "%s=%.200s: %s, at character %d", l->var, l->text, what,
                      (int)(at - l->text) + 1);
}

static int add_node(const struct nodelist *l, const char *at, const char *prefix)
{
    char name[ZT_HOST_NAME_BYTES];
    if (zt_host_name(prefix, strlen(prefix), name) || strchr(name, ':'))
        return wrong_at(l, at, "not the name of a node");
    if (zt_hosts_find(l->out, name))
        return wrong_at(l, at, "a node that is in it already");
    if (l->out->n == ZT_HOSTS_MAX)
        return wrong_at(l, at, "too many nodes");
    zt_hosts_add(l->out, name, NULL, 1);
    return 0;
}

static int expand(const struct nodelist *l, const char *p, const char *end, const char *prefix);

/* "01-03" or "7", then what follows the bracket, for each number of the range. */
static int expand_range(const struct nodelist *l, const char *p, const char *end, const char *rest,
                        const char *rest_end, const char *prefix)
{
    enum { MAX_NUMBER = 99999999 };
    const char *dash = memchr(p, '-', (size_t)(end - p));
    const char *low_end = dash ? dash : end;
    int low = zt_digits(p, (size_t)(low_end - p), MAX_NUMBER), high = low;
    if (dash)
        high = zt_digits(dash + 1, (size_t)(end - dash - 1), MAX_NUMBER);
    if (low < 0 || high < low)
        return wrong_at(l, p, "not a range such as 01-16");
    if (high - low >= ZT_HOSTS_MAX)
        return wrong_at(l, p, "too many nodes");
    for (int i = low; i <= high; i++) {
        char longer[ZT_HOST_NAME_BYTES];
        int n = snprintf(longer, sizeof longer, "%s%0*d", prefix, (int)(low_end - p), i);
        if (n >= (int)sizeof longer)
            return wrong_at(l, p, "a name that is too long");
        int rc = expand(l, rest, rest_end, longer);
        if (rc)
            return rc;
    }
    return 0;
}

/* What is left of one item, p[0..end), behind what it has come to so far. */
static int expand(const struct nodelist *l, const char *p, const char *end, const char *prefix)
{
    char longer[ZT_HOST_NAME_BYTES];
    const char *open = memchr(p, '[', (size_t)(end - p));
    const char *plain_end = open ? open : end;
    int n = snprintf(longer, sizeof longer, "%s%.*s", prefix, (int)(plain_end - p), p);
    if (n >= (int)sizeof longer)
        return wrong_at(l, p, "a name that is too long");
    if (!open)
        return add_node(l, p, longer);
    const char *close = memchr(open, ']', (size_t)(end - open));
    if (!close)
        return wrong_at(l, open, "a bracket that is not closed");
    for (const char *r = open + 1;;) {
        const char *comma = memchr(r, ',', (size_t)(close - r));
        int rc = expand_range(l, r, comma ? comma : close, close + 1, end, longer);
        if (rc || !comma)
            return rc;
        r = comma + 1;
    }
}

int zt_hosts_of_nodelist(const char *var, const char *text, struct zt_hosts *out,
                         struct zt_err *err)
{
    const struct nodelist l = {var, text, out, err};
    const char *p = text;
    for (;;) {
        const char *end = p;
        for (bool inside = false; *end && (inside || *end != ','); end++)
            inside = *end == '[' || (inside && *end != ']');
        int rc = expand(&l, p, end, "");
        if (rc || !*end)
            return rc;
        p = end + 1;
    }
}

/* ---- tasks ---- */

/* "4(x2)" or "3". */
static bool take_count(const char *p, const char *end, int *count, int *times)
{
    const char *open = memchr(p, '(', (size_t)(end - p));
    *times = 1;
    if (open) {
        if (end - open < 4 || open[1] != 'x' || end[-1] != ')')
            return false;
        *times = zt_digits(open + 2, (size_t)(end - 1 - (open + 2)), ZT_HOSTS_MAX);
    }
    *count = zt_digits(p, (size_t)((open ? open : end) - p), ZT_HOST_MAX_SLOTS);
    return *count > 0 && *times > 0;
}

static int count_tasks(const char *text, int n_nodes, int *tasks, struct zt_err *err)
{
    int n = 0;
    for (const char *p = text;;) {
        const char *end = p + strcspn(p, ",");
        int count, times;
        if (!take_count(p, end, &count, &times))
            return zt_err_set(err, ZT_EINPUT,
                              "%s=%.200s: \"%.*s\" is not a count such as 4 or 4(x2)", tasks_var,
                              text, (int)ZT_MIN(end - p, 40), p);
        for (int i = 0; i < times && n <= n_nodes; i++, n++)
            if (n < n_nodes)
                tasks[n] = count;
        if (!*end)
            break;
        p = end + 1;
    }
    if (n == n_nodes)
        return 0;
    return zt_err_set(err, ZT_EINPUT, "%s=%.200s: it counts %s%d node(s), but %s has %d", tasks_var,
                      text, n > n_nodes ? "more than " : "", ZT_MIN(n, n_nodes), nodes_var,
                      n_nodes);
}

int zt_hosts_from_slurm(const char *nodelist, const char *tasks_per_node, struct zt_hosts *out,
                        struct zt_err *err)
{
    struct zt_hosts names = {0};
    int rc = zt_hosts_of_nodelist(nodes_var, nodelist, &names, err);
    int *tasks = zt_xcalloc((size_t)names.n + 1, sizeof *tasks);
    if (!rc)
        rc = count_tasks(tasks_per_node, names.n, tasks, err);
    for (int i = 0; !rc && i < names.n; i++)
        zt_hosts_add(out, names.v[i].name, NULL, tasks[i]);
    free(tasks);
    zt_hosts_release(&names);
    return rc;
}
