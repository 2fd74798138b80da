/*
 * lines.h: cut a stream of bytes into lines. A line is passed on without its newline; one longer than
 * ZT_LINE_MAX is passed on in pieces; what is left at the end is a line too.
 */
#ifndef ZT_LAUNCH_LINES_H
#define ZT_LAUNCH_LINES_H

#include "base/str.h"

enum { ZT_LINE_MAX = 64 << 10 };

struct zt_lines {
    struct zt_str part; /* of a line whose end has not come */
};

/* `line` is valid during the call only. */
typedef void (*zt_line_fn)(void *ctx, const char *line, size_t len);

void zt_lines_feed(struct zt_lines *l, const char *bytes, size_t n, zt_line_fn fn, void *ctx);
void zt_lines_end(struct zt_lines *l, zt_line_fn fn, void *ctx);
void zt_lines_release(struct zt_lines *l);

#endif
