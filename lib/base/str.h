/*
 * str.h: a growing byte string, always NUL-terminated. Zero-initialised is the empty string.
 */
#ifndef ZT_BASE_STR_H
#define ZT_BASE_STR_H

#include "base/compat.h"

struct zt_str {
    char *buf; /* NULL while empty and never used: read it through zt_str_get() */
    size_t len, cap;
};

void zt_str_add(struct zt_str *s, const void *bytes, size_t n);
void zt_str_puts(struct zt_str *s, const char *text);
void zt_str_printf(struct zt_str *s, const char *fmt, ...) ZT_PRINTF(2, 3);
void zt_str_reset(struct zt_str *s); /* empty, storage kept */
void zt_str_release(struct zt_str *s);

static inline const char *zt_str_get(const struct zt_str *s)
{
    return s->buf ? s->buf : "";
}

/*
 * Numbers as text. Whole string or failure (false); no locale, no octal ("010" is ten), no
 * whitespace. parse_f64 takes 2e-5, .95, 1.e-8, 5e8; rejects nan, inf, hex and overflow.
 */
ZT_MUST_CHECK bool zt_parse_i64(const char *text, int64_t *out);
ZT_MUST_CHECK bool zt_parse_f64(const char *text, double *out);

/* A size: bytes alone, or a number with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB. Above 0. */
ZT_MUST_CHECK bool zt_parse_bytes(const char *text, int64_t *out);

/*
 * The character of UTF-8 (RFC 3629) that p[0..n) begins with, n > 0: its length in bytes and its code point; 0, and
 * no code point: there is none. Text that ends with a NUL is n = 4 bytes anywhere, as no character has one inside.
 */
size_t zt_utf8_char(const char *p, size_t n, uint32_t *code);

/* The candidate nearest to `word` by edit distance, whatever the case of letters, or NULL when none is near enough to suggest. */
const char *zt_nearest(const char *word, const char *const *candidates, size_t n);

/* "2, 3, 4": the dimensions of a tensor, cut where buf ends; returns buf. */
const char *zt_fmt_dims(char *buf, size_t buf_bytes, int n_dims, const int64_t *dims);

/* "12.3 GB" (powers of 1000) and "11.4 GiB" (powers of 1024); returns buf. */
const char *zt_fmt_gb(char *buf, size_t buf_bytes, double bytes);
const char *zt_fmt_gib(char *buf, size_t buf_bytes, double bytes);

#endif
