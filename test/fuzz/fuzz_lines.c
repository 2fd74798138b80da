/*
 * fuzz_lines.c: what a worker prints, cut into lines. The first byte says into how large pieces the rest
 * is fed; however it is cut, the same lines come out, none longer than ZT_LINE_MAX, and no byte but the
 * newlines is lost.
 */
#include "base/err.h"
#include "launch/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct seen {
    size_t n_lines, n_bytes;
    uint64_t hash;
};

static void count(void *ctx, const char *line, size_t len)
{
    struct seen *s = ctx;
    ZT_ASSERT_CMP(len, <=, ZT_LINE_MAX);
    s->n_lines++;
    s->n_bytes += len;
    for (size_t i = 0; i < len; i++)
        s->hash = s->hash * 31 + (unsigned char)line[i];
    s->hash = s->hash * 31 + len;
}

static struct seen cut_into(const char *data, size_t n, size_t piece)
{
    struct zt_lines l = {0};
    struct seen s = {0};
    for (size_t at = 0; at < n; at += piece)
        zt_lines_feed(&l, data + at, ZT_MIN(piece, n - at), count, &s);
    zt_lines_end(&l, count, &s);
    zt_lines_release(&l);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    const char *text = (const char *)data + 1;
    size_t n_newlines = 0;
    for (size_t i = 0; i + 1 < n; i++)
        n_newlines += text[i] == '\n';
    struct seen whole = cut_into(text, n - 1, n - 1);
    struct seen cut = cut_into(text, n - 1, (size_t)data[0] + 1);
    ZT_ASSERT_CMP(whole.n_lines, ==, cut.n_lines);
    ZT_ASSERT_CMP(whole.hash, ==, cut.hash);
    ZT_ASSERT_CMP(whole.n_bytes + n_newlines, ==, n - 1);
    return 0;
}
