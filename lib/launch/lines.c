#include "launch/lines.h"

static void pass_on(struct zt_lines *l, zt_line_fn fn, void *ctx)
{
    fn(ctx, zt_str_get(&l->part), l->part.len);
    zt_str_reset(&l->part);
}

void zt_lines_feed(struct zt_lines *l, const char *bytes, size_t n, zt_line_fn fn, void *ctx)
{
    while (n > 0) {
        const char *nl = memchr(bytes, '\n', n);
        size_t room = ZT_LINE_MAX - l->part.len;
        size_t len = nl ? (size_t)(nl - bytes) : n;
        if (len > room) {
            zt_str_add(&l->part, bytes, room);
            pass_on(l, fn, ctx);
            bytes += room;
            n -= room;
            continue;
        }
        zt_str_add(&l->part, bytes, len);
        if (!nl)
            return;
        pass_on(l, fn, ctx);
        bytes += len + 1;
        n -= len + 1;
    }
}

void zt_lines_end(struct zt_lines *l, zt_line_fn fn, void *ctx)
{
    if (l->part.len)
        pass_on(l, fn, ctx);
}

void zt_lines_release(struct zt_lines *l)
{
    zt_str_release(&l->part);
}
