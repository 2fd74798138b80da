#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>

#include "base/arena.h"

static void reserve(struct zt_str *s, size_t extra)
{
    ZT_GROW(s->buf, s->len + extra + 1, s->cap);
}

void zt_str_add(struct zt_str *s, const void *bytes, size_t n)
{
    reserve(s, n);
    if (n)
        memcpy(s->buf + s->len, bytes, n);
    s->len += n;
    s->buf[s->len] = '\0';
}

void zt_str_puts(struct zt_str *s, const char *text)
{
    zt_str_add(s, text, strlen(text));
}

void zt_str_printf(struct zt_str *s, const char *fmt, ...)
{
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        reserve(s, (size_t)n);
        vsnprintf(s->buf + s->len, (size_t)n + 1, fmt, ap2);
        s->len += (size_t)n;
    }
    va_end(ap2);
}

void zt_str_reset(struct zt_str *s)
{
    s->len = 0;
    if (s->buf)
        s->buf[0] = '\0';
}

void zt_str_release(struct zt_str *s)
{
    free(s->buf);
    memset(s, 0, sizeof *s);
}

bool zt_parse_i64(const char *text, int64_t *out)
{
    const char *p = text;
    bool neg = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    if (!*p)
        return false;
    int64_t v = 0;
    for (; *p; p++) {
        if (*p < '0' || *p > '9')
            return false;
        int64_t digit = *p - '0';
        if (__builtin_mul_overflow(v, 10, &v) ||
            (neg ? __builtin_sub_overflow(v, digit, &v) : __builtin_add_overflow(v, digit, &v)))
            return false;
    }
    *out = v;
    return true;
}

bool zt_parse_f64(const char *text, double *out)
{
    bool digit = false;
    for (const char *p = text; *p; p++) {
        if (*p >= '0' && *p <= '9')
            digit = true;
        else if (!strchr("+-.eE", *p))
            return false; /* no nan, inf, hex, blanks */
    }
    if (!digit)
        return false;
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (*end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

bool zt_parse_bytes(const char *text, int64_t *out)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"kB", 1e3},      {"KB", 1e3},      {"MB", 1e6},
                 {"GB", 1e9},      {"TB", 1e12},     {"KiB", 1 << 10},
                 {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0}};
    char number[32];
    double v;
    if (zt_parse_i64(text, out))
        return *out > 0;
    for (size_t i = 0; i < ZT_ARRAY_LEN(units); i++) {
        const size_t len = strlen(text), unit = strlen(units[i].unit);
        if (len <= unit || len - unit >= sizeof number ||
            strcmp(text + len - unit, units[i].unit) != 0)
            continue;
        snprintf(number, sizeof number, "%.*s", (int)(len - unit), text);
        if (!zt_parse_f64(number, &v) || v * units[i].bytes < 1 || v * units[i].bytes > 9e18)
            return false;
        *out = (int64_t)(v * units[i].bytes);
        return true;
    }
    return false;
}

size_t zt_utf8_char(const char *p, size_t n, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* of so many bytes */
    const unsigned char *s = (const unsigned char *)p;
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (len == 0 || len > n || s[0] >= 0xf8)
        return 0;
    uint32_t c = len == 1 ? s[0] : s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *code = c;
    return len;
}

static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Of letters, large or small, that are added, left out, others, or two that have changed places. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX || nb > MAX)
        return MAX;
    size_t rows[3][MAX + 1] = {{0}}; /* of the first i letters of a: row i % 3 */
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *row = rows[i % 3];
        const size_t *before = rows[(i - 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const size_t other = before[j - 1] + !same_letter(a[i - 1], b[j - 1]);
            row[j] = ZT_MIN(other, ZT_MIN(before[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]))
                row[j] = ZT_MIN(row[j], rows[(i - 2) % 3][j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

const char *zt_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t best_dist = strlen(word) / 3 + 2; /* farther than this is noise, not a typing error */
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, candidates[i]);
        if (d < best_dist) {
            best_dist = d;
            best = candidates[i];
        }
    }
    return best;
}

const char *zt_fmt_dims(char *buf, size_t buf_bytes, int n_dims, const int64_t *dims)
{
    size_t at = (size_t)snprintf(buf, buf_bytes, "%s", "");
    for (int i = 0; i < n_dims && at < buf_bytes; i++)
        at +=
            (size_t)snprintf(buf + at, buf_bytes - at, "%s%lld", i ? ", " : "", (long long)dims[i]);
    return buf;
}

const char *zt_fmt_gb(char *buf, size_t buf_bytes, double bytes)
{
    if (bytes >= 1e8)
        snprintf(buf, buf_bytes, "%.2f GB", bytes / 1e9);
    else
        snprintf(buf, buf_bytes, "%.2f MB", bytes / 1e6);
    return buf;
}

const char *zt_fmt_gib(char *buf, size_t buf_bytes, double bytes)
{
    const double mib = 1024.0 * 1024.0;
    if (bytes >= 100 * mib)
        snprintf(buf, buf_bytes, "%.2f GiB", bytes / (1024 * mib));
    else
        snprintf(buf, buf_bytes, "%.2f MiB", bytes / mib);
    return buf;
}
