#include "launch/ranklog.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/io.h"

int zt_ranklogs_init(struct zt_ranklogs *l, int n, const char *dir, bool append, struct zt_err *err)
{
    const int how = O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC);
    memset(l, 0, sizeof *l);
    l->n = n;
    l->v = zt_xcalloc((size_t)n, sizeof *l->v);
    for (int i = 0; i < n; i++)
        l->v[i].fd = -1;
    if (!dir)
        return 0;
    l->dir = zt_xstrdup(dir);
    int rc = zt_make_dirs(dir, err);
    for (int i = 0; !rc && i < n; i++) {
        zt_str_reset(&l->line);
        zt_str_printf(&l->line, "%s/rank-%d.log", dir, i);
        l->v[i].fd = open(l->line.buf, how, 0666);
        if (l->v[i].fd < 0)
            rc = zt_err_errno(err, ZT_EIO, "%s", l->line.buf);
    }
    if (rc)
        zt_ranklogs_release(l);
    return rc;
}

int zt_ranklogs_add(struct zt_ranklogs *l, int rank, enum zt_log_stream stream, const char *line,
                    size_t len, struct zt_err *err)
{
    struct zt_ranklog *r = &l->v[rank];
    if (stream == ZT_LOG_STDERR) {
        struct zt_str *slot = &r->tail[r->n_lines++ % ZT_TAIL_LINES];
        zt_str_reset(slot);
        zt_str_add(slot, line, ZT_MIN(len, ZT_TAIL_LINE_BYTES));
    }
    if (r->fd < 0)
        return 0;
    zt_str_reset(&l->line);
    zt_str_add(&l->line, line, len);
    zt_str_puts(&l->line, "\n");
    int rc = zt_write_full(r->fd, l->line.buf, l->line.len, l->dir, err);
    if (!rc)
        return 0;
    close(r->fd);
    r->fd = -1;
    if (l->failed)
        return 0;
    l->failed = true;
    return zt_err_wrap(err, "the log of rank %d ends here", rank);
}

void zt_ranklogs_tail(const struct zt_ranklogs *l, int rank, const char *prefix, struct zt_str *out)
{
    const struct zt_ranklog *r = &l->v[rank];
    for (size_t i = r->n_lines - ZT_MIN(r->n_lines, ZT_TAIL_LINES); i < r->n_lines; i++) {
        const struct zt_str *line = &r->tail[i % ZT_TAIL_LINES];
        zt_str_puts(out, prefix);
        zt_str_add(out, zt_str_get(line), line->len);
        zt_str_puts(out, "\n");
    }
}

void zt_ranklogs_release(struct zt_ranklogs *l)
{
    for (int i = 0; i < l->n; i++) {
        if (l->v[i].fd >= 0)
            close(l->v[i].fd);
        for (int j = 0; j < ZT_TAIL_LINES; j++)
            zt_str_release(&l->v[i].tail[j]);
    }
    free(l->v);
    free(l->dir);
    zt_str_release(&l->line);
    memset(l, 0, sizeof *l);
}
