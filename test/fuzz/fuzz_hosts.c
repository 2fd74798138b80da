/*
 * fuzz_hosts.c: any bytes as a hostfile; then, up to a newline each, as a filter, as Slurm's list of nodes and
 * as its tasks per node. What is accepted keeps its promises: sane names, ascending devices, a rank for
 * each, and a hostfile made of it means the same.
 */
#include "base/str.h"
#include "hosts/hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_hosts(const struct zt_hosts *h)
{
    ZT_ASSERT_CMP(h->n, >, 0);
    ZT_ASSERT_CMP(h->n, <=, ZT_HOSTS_MAX);
    int n_ranks = 0;
    for (int i = 0; i < h->n; i++) {
        const struct zt_host *host = &h->v[i];
        ZT_ASSERT(host->name[0] && host->name[0] != '-');
        ZT_ASSERT(!strpbrk(host->name, " \t\r\n@[]\"\\;$`'"));
        ZT_ASSERT_CMP(host->n_devices, >, 0);
        n_ranks += host->n_devices;
        for (int d = 0; d < host->n_devices; d++) {
            ZT_ASSERT_CMP(host->devices[d], <, host->n_slots);
            ZT_ASSERT(d == 0 || host->devices[d - 1] < host->devices[d]);
        }
    }
    ZT_ASSERT_CMP(zt_hosts_n_ranks(h), ==, n_ranks);
}

static void check_round_trip(const struct zt_hosts *h)
{
    struct zt_str text = {0};
    struct zt_hosts again = {0};
    struct zt_err err;
    for (int i = 0; i < h->n; i++)
        zt_str_printf(&text, "%s%s%s slots=%d\n", h->v[i].user ? h->v[i].user : "",
                      h->v[i].user ? "@" : "", h->v[i].name, h->v[i].n_slots);
    ZT_ASSERT(zt_hosts_parse("again", text.buf, text.len, &again, &err) == 0);
    ZT_ASSERT_CMP(again.n, ==, h->n);
    for (int i = 0; i < h->n; i++)
        ZT_ASSERT(strcmp(again.v[i].name, h->v[i].name) == 0);
    zt_hosts_release(&again);
    zt_str_release(&text);
}

/* The next line of the input, without NUL bytes. */
static void next_line(const char **p, const char *end, struct zt_str *out)
{
    zt_str_reset(out);
    for (; *p < end && **p != '\n'; (*p)++)
        if (**p)
            zt_str_add(out, *p, 1);
    *p += *p < end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *p = (const char *)data, *end = p + n;
    struct zt_hosts h = {0};
    struct zt_str a = {0}, b = {0};
    struct zt_err err;
    err.msg[0] = '\0';
    if (zt_hosts_parse("fuzz", p, n, &h, &err) == 0) {
        check_hosts(&h);
        check_round_trip(&h);
    } else {
        ZT_ASSERT(h.n == 0 && err.msg[0] != '\0');
    }
    zt_hosts_release(&h);

    static const char known[] = "a slots=4\nu@b slots=2\n2001:db8::1 slots=1\n";
    next_line(&p, end, &a);
    const struct zt_hosts_filter f = {.include = zt_str_get(&a)};
    ZT_ASSERT(zt_hosts_parse("known", known, sizeof known - 1, &h, &err) == 0);
    if (zt_hosts_choose(&h, &f, &err) == 0)
        check_hosts(&h);
    zt_hosts_release(&h);

    next_line(&p, end, &a);
    next_line(&p, end, &b);
    if (zt_hosts_from_slurm(zt_str_get(&a), zt_str_get(&b), &h, &err) == 0)
        check_hosts(&h);
    zt_hosts_release(&h);
    zt_str_release(&a);
    zt_str_release(&b);
    return 0;
}
