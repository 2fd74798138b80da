#include "hosts/hosts.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <strings.h>

#include "internal.h"

/* ---- what is wrong ---- */

void zt_problem(struct problems *p, const char *fmt, ...)
{
    enum { SHOWN = 20 };
    char line[512];
    va_list ap;
    if (p->n++ >= SHOWN)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    zt_str_printf(&p->text, "%s%s", p->text.len ? "\n" : "", line);
    if (p->n == SHOWN)
        zt_str_puts(&p->text, "\nmore may be wrong; only the first 20 are shown");
}

int zt_problems_report(struct problems *p, struct zt_err *err)
{
    int rc = p->n ? zt_err_set(err, ZT_EINPUT, "%s", zt_str_get(&p->text)) : 0;
    zt_str_release(&p->text);
    return rc;
}

const char *zt_quoted(const char *s, size_t len, char buf[ZT_QUOTED_BYTES])
{
    enum { SHOWN = 40 };
    size_t n = 0;
    for (size_t i = 0; i < ZT_MIN(len, SHOWN); i++) {
        bool plain = isprint((unsigned char)s[i]);
        n += (size_t)snprintf(buf + n, ZT_QUOTED_BYTES - n, plain ? "%c" : "\\x%02x",
                              (unsigned char)s[i]);
    }
    snprintf(buf + n, ZT_QUOTED_BYTES - n, "%s", len > SHOWN ? "..." : "");
    return buf;
}

/* ---- names ---- */

/* "2001:db8::11" or "fe80::1%eth0" in its shortest form. */
static const char *ipv6_name(const char *s, size_t len, char out[ZT_HOST_NAME_BYTES])
{
    static const char wrong[] =
        "is neither a name nor an IPv6 address; a port is set in ~/.ssh/config";
    char text[ZT_HOST_NAME_BYTES];
    struct in6_addr a;
    const char *zone = memchr(s, '%', len);
    size_t n = zone ? (size_t)(zone - s) : len;
    memcpy(text, s, n);
    text[n] = '\0';
    if (memchr(s, '\0', len) || inet_pton(AF_INET6, text, &a) != 1)
        return wrong;
    inet_ntop(AF_INET6, &a, out, INET6_ADDRSTRLEN);
    for (size_t i = n + 1; i < len; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i]))
            return wrong;
    if (zone && len - n < 2)
        return wrong;
    size_t used = strlen(out);
    if (used + (len - n) >= ZT_HOST_NAME_BYTES)
        return wrong;
    snprintf(out + used, ZT_HOST_NAME_BYTES - used, "%.*s", (int)(len - n), s + n);
    return NULL;
}

const char *zt_host_name(const char *s, size_t len, char out[ZT_HOST_NAME_BYTES])
{
    if (len == 0)
        return "is no name of a host";
    if (len >= ZT_HOST_NAME_BYTES)
        return "is too long for the name of a host";
    if (s[0] == '[')
        return s[len - 1] == ']' ? ipv6_name(s + 1, len - 2, out)
               : memchr(s, ']', len)
                   ? "has more after its closing ]; a port is set in ~/.ssh/config"
                   : "lacks its closing ]";
    if (memchr(s, ':', len))
        return ipv6_name(s, len, out);
    if (s[0] == '-' || s[0] == '.')
        return "is no name of a host: it cannot begin so";
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)s[i]) && (s[i] == '\0' || !strchr(".-_", s[i])))
            return "is no name of a host: letters, digits, '.', '-' and '_'";
    snprintf(out, ZT_HOST_NAME_BYTES, "%.*s", (int)len, s);
    return NULL;
}

int zt_digits(const char *s, size_t len, int most)
{
    int64_t n = 0;
    if (len == 0)
        return -1;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        n = n * 10 + (s[i] - '0');
        if (n > most)
            return -1;
    }
    return (int)n;
}

/* ---- the list ---- */

struct zt_host *zt_hosts_find(const struct zt_hosts *h, const char *name)
{
    for (int i = 0; i < h->n; i++)
        if (strcasecmp(h->v[i].name, name) == 0)
            return &h->v[i];
    return NULL;
}

struct zt_host *zt_hosts_add(struct zt_hosts *h, const char *name, const char *user, int n_slots)
{
    ZT_GROW(h->v, h->n + 1, h->cap);
    struct zt_host *host = &h->v[h->n++];
    *host = (struct zt_host){
        .name = zt_arena_strdup(&h->arena, name),
        .user = user ? zt_arena_strdup(&h->arena, user) : NULL,
        .n_slots = n_slots,
        .n_devices = n_slots,
        .devices = zt_arena_alloc(&h->arena, (size_t)n_slots, sizeof *host->devices),
    };
    for (int i = 0; i < n_slots; i++)
        host->devices[i] = i;
    return host;
}

void zt_hosts_release(struct zt_hosts *h)
{
    free(h->v);
    zt_arena_release(&h->arena);
    memset(h, 0, sizeof *h);
}

/* ---- ranks ---- */

int zt_hosts_n_ranks(const struct zt_hosts *h)
{
    int n = 0; /* at most ZT_HOSTS_MAX * ZT_HOST_MAX_SLOTS */
    for (int i = 0; i < h->n; i++)
        n += h->v[i].n_devices;
    return n;
}

void zt_hosts_print(const struct zt_hosts *h, struct zt_str *out)
{
    int width = (int)strlen("host"), rank = 0;
    for (int i = 0; i < h->n; i++)
        width = ZT_MAX(width, (int)strlen(h->v[i].name));
    zt_str_printf(out, "%6s  %-*s  %10s  %6s\n", "rank", width, "host", "local rank", "device");
    for (int i = 0; i < h->n; i++)
        for (int local = 0; local < h->v[i].n_devices; local++)
            zt_str_printf(out, "%6d  %-*s  %10d  %6d\n", rank++, width, h->v[i].name, local,
                          h->v[i].devices[local]);
    zt_str_printf(out, "%d rank%s on %d host%s\n", rank, rank == 1 ? "" : "s", h->n,
                  h->n == 1 ? "" : "s");
}

/* Names and users hold no character that JSON would escape. */
void zt_hosts_print_json(const struct zt_hosts *h, struct zt_str *out)
{
    int rank = 0;
    zt_str_printf(out, "{\"world_size\": %d, \"hosts\": [", zt_hosts_n_ranks(h));
    for (int i = 0; i < h->n; i++) {
        const struct zt_host *host = &h->v[i];
        const char *quote = host->user ? "\"" : "";
        zt_str_printf(out, "%s\n  {\"host\": \"%s\", \"user\": %s%s%s, \"slots\": %d}",
                      i ? "," : "", host->name, quote, host->user ? host->user : "null", quote,
                      host->n_slots);
    }
    zt_str_puts(out, "\n], \"ranks\": [");
    for (int i = 0; i < h->n; i++)
        for (int local = 0; local < h->v[i].n_devices; local++, rank++)
            zt_str_printf(out,
                          "%s\n  {\"rank\": %d, \"host\": \"%s\", \"local_rank\": %d, "
                          "\"device\": %d}",
                          rank ? "," : "", rank, h->v[i].name, local, h->v[i].devices[local]);
    zt_str_puts(out, "\n]}\n");
}
