/*
 * filter.c: --include, --exclude, --num_nodes and --num_gpus. '@' joins items in DeepSpeed's grammar, and
 * also stands in user@host: a word that is no host, before one whose user it is, is that user.
 */
#include "internal.h"

struct filter {
    struct zt_hosts *h;
    const char *option; /* for messages */
    bool *named;        /* (hosts, ZT_HOST_MAX_SLOTS) */
    struct problems wrong;
    bool malformed; /* something could be nobody's name or number */
};

struct item {
    const char *text;
    size_t len;
    const char *list; /* behind the ':', or NULL: all */
    size_t list_len;
    const char *wrong; /* with the name */
    char name[ZT_HOST_NAME_BYTES];
};

/* "NAME", "NAME:0,2", "[NAME]:0,2"; more than one ':' without brackets is an IPv6 address, all of it. */
static void cut_item(const char *s, size_t len, struct item *it)
{
    *it = (struct item){.text = s, .len = len};
    const char *end = s + len, *colon = memchr(s, ':', len);
    if (len && s[0] == '[') {
        const char *close = memchr(s, ']', len);
        colon = close && close + 1 < end && close[1] == ':' ? close + 1 : NULL;
    } else if (colon && memchr(colon + 1, ':', (size_t)(end - colon - 1))) {
        colon = NULL;
    }
    if (colon) {
        it->list = colon + 1;
        it->list_len = (size_t)(end - it->list);
    }
    it->wrong = zt_host_name(s, (size_t)((colon ? colon : end) - s), it->name);
}

static struct zt_host *host_of(const struct filter *f, const struct item *it)
{
    return it->wrong ? NULL : zt_hosts_find(f->h, it->name);
}

static void no_such_host(struct filter *f, const struct item *it)
{
    char shown[ZT_QUOTED_BYTES];
    zt_quoted(it->text, it->len, shown);
    f->malformed |= it->wrong != NULL;
    if (it->wrong)
        zt_problem(&f->wrong, "%s: \"%s\" %s; write NAME or NAME:0,2, joined by @", f->option,
                   shown, it->wrong);
    else
        zt_problem(&f->wrong, "%s: no host is named %s%s", f->option, it->name,
                   strchr(it->name, ':') && !it->list
                       ? "; devices of an IPv6 address: [ADDRESS]:0,2"
                       : "");
}

static void name_devices(struct filter *f, const struct item *it, const struct zt_host *host)
{
    char shown[ZT_QUOTED_BYTES];
    bool *named = f->named + (size_t)(host - f->h->v) * ZT_HOST_MAX_SLOTS;
    if (!it->list) {
        for (int i = 0; i < host->n_slots; i++)
            named[i] = true;
        return;
    }
    for (const char *p = it->list, *end = p + it->list_len;;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t len = (size_t)((comma ? comma : end) - p);
        int device = zt_digits(p, len, INT32_MAX);
        f->malformed |= device < 0;
        if (device < 0)
            zt_problem(&f->wrong, "%s: %s: \"%s\" is not the number of a device; write %s:0,2",
                       f->option, host->name, zt_quoted(p, len, shown), host->name);
        else if (device >= host->n_slots)
            zt_problem(&f->wrong, "%s: %s has no device %d: it has %d slot%s, counted from 0",
                       f->option, host->name, device, host->n_slots, host->n_slots == 1 ? "" : "s");
        else
            named[device] = true;
        if (!comma)
            return;
        p = comma + 1;
    }
}

/* Is `it` the user of the host that `next` names? */
static bool is_user_of(struct filter *f, const struct item *it, const struct item *next)
{
    const struct zt_host *host = host_of(f, next);
    if (it->list || !host || !host->user || strlen(host->user) != it->len ||
        memcmp(host->user, it->text, it->len))
        return false;
    if (host_of(f, it))
        zt_problem(&f->wrong, "%s: \"%s@%s\": is %s the host, or the user? Name the hosts alone",
                   f->option, host->user, host->name, host->user);
    return true;
}

static void name_items(struct filter *f, const char *spec)
{
    struct item it, next;
    const char *at = strchr(spec, '@');
    cut_item(spec, at ? (size_t)(at - spec) : strlen(spec), &it);
    for (;; it = next) {
        bool user = false, more = at != NULL;
        if (more) {
            const char *begin = at + 1;
            at = strchr(begin, '@');
            cut_item(begin, at ? (size_t)(at - begin) : strlen(begin), &next);
            user = is_user_of(f, &it, &next);
        }
        const struct zt_host *host = host_of(f, &it);
        if (!user && host)
            name_devices(f, &it, host);
        else if (!user)
            no_such_host(f, &it);
        if (!more)
            return;
    }
}

/* Keep the devices that were named, or those that were not; hosts without any drop out. */
static void keep(struct zt_hosts *h, const bool *named, bool kept)
{
    int n_hosts = 0;
    for (int i = 0; i < h->n; i++) {
        struct zt_host host = h->v[i];
        int n = 0;
        for (int d = 0; d < host.n_devices; d++)
            if (named[(size_t)i * ZT_HOST_MAX_SLOTS + (size_t)host.devices[d]] == kept)
                host.devices[n++] = host.devices[d];
        host.n_devices = n;
        if (n)
            h->v[n_hosts++] = host;
    }
    h->n = n_hosts;
}

static int choose_by_name(struct zt_hosts *h, const char *spec, bool include, struct zt_err *err)
{
    struct filter f = {.h = h, .option = include ? "--include" : "--exclude"};
    f.named = zt_xcalloc((size_t)h->n * ZT_HOST_MAX_SLOTS, sizeof *f.named);
    name_items(&f, spec);
    if (!f.wrong.n)
        keep(h, f.named, include);
    if (!f.wrong.n && h->n == 0)
        zt_problem(&f.wrong, "%s=%s leaves no device", f.option, spec);
    free(f.named);
    if (!zt_problems_report(&f.wrong, err))
        return 0;
    if (f.malformed)
        err->code = ZT_EUSAGE;
    return err->code;
}

static int choose_by_number(struct zt_hosts *h, const struct zt_hosts_filter *f, struct zt_err *err)
{
    struct problems wrong = {0};
    if (f->num_nodes > h->n)
        zt_problem(&wrong, "--num_nodes=%d: there %s %d host%s", f->num_nodes,
                   h->n == 1 ? "is" : "are", h->n, h->n == 1 ? "" : "s");
    else if (f->num_nodes)
        h->n = f->num_nodes;
    for (int i = 0; f->num_gpus && i < h->n; i++) {
        struct zt_host *host = &h->v[i];
        if (f->num_gpus > host->n_slots)
            zt_problem(&wrong,
                       "--num_gpus=%d: %s has %d slot%s (with a hostfile it counts the "
                       "devices of each host)",
                       f->num_gpus, host->name, host->n_slots, host->n_slots == 1 ? "" : "s");
        else
            host->n_devices = f->num_gpus;
    }
    return zt_problems_report(&wrong, err);
}

int zt_hosts_choose(struct zt_hosts *h, const struct zt_hosts_filter *f, struct zt_err *err)
{
    if (f->include && f->exclude)
        return zt_err_set(err, ZT_EUSAGE, "--include and --exclude: give one of them");
    if ((f->include || f->exclude) && (f->num_nodes || f->num_gpus))
        return zt_err_set(err, ZT_EUSAGE,
                          "--%s and --num_%s: give one of them; --%s can name the devices",
                          f->include ? "include" : "exclude", f->num_nodes ? "nodes" : "gpus",
                          f->include ? "include" : "exclude");
    if (f->include || f->exclude)
        return choose_by_name(h, f->include ? f->include : f->exclude, f->include != NULL, err);
    return choose_by_number(h, f, err);
}

/* ---- what is left ---- */

void zt_hosts_without(const struct zt_hosts *h, const char *const *names, int n, int most,
                      struct zt_hosts *out)
{
    int left = most ? most : INT32_MAX;
    for (int i = 0; i < h->n && left > 0; i++) {
        const struct zt_host *from = &h->v[i];
        bool named = false;
        for (int k = 0; k < n; k++)
            named = named || strcmp(names[k], from->name) == 0;
        if (named)
            continue;
        struct zt_host *to = zt_hosts_add(out, from->name, from->user, from->n_slots);
        to->line = from->line;
        to->n_devices = ZT_MIN(from->n_devices, left);
        memcpy(to->devices, from->devices, (size_t)to->n_devices * sizeof *to->devices);
        left -= to->n_devices;
    }
}
