#include "recipe/diag.h"

#include <stdarg.h>

void zt_diag_add(struct zt_diags *d, enum zt_diag_kind kind, struct zt_pos at, const char *fmt, ...)
{
    d->any_wrong |= kind == ZT_DIAG_WRONG;
    d->any_unsupported |= kind == ZT_DIAG_UNSUPPORTED;
    d->n_total++;
    if (d->n == ZT_DIAG_KEEP)
        return;

    char text[1024]; /* longer ones are cut: they quote input */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?'; /* a message is one line, and no terminal's commands */
    }
    d->items[d->n] = (struct zt_diag){kind, at, d->n, zt_arena_strdup(d->arena, text)};
    d->n++;
}

const char *zt_pos_text(struct zt_arena *a, struct zt_pos at)
{
    if (at.line == 0 || at.src->kind == ZT_SOURCE_SET || at.src->kind == ZT_SOURCE_CHOSEN)
        return at.src->name;
    return zt_arena_printf(a, "%s:%d:%d", at.src->name, at.line, at.col);
}

static int compare(const void *pa, const void *pb)
{
    const struct zt_diag *a = pa, *b = pb;
    if (a->at.src->order != b->at.src->order)
        return a->at.src->order - b->at.src->order;
    if (a->at.line != b->at.line) /* what has no line comes last */
        return (unsigned)a->at.line - 1u < (unsigned)b->at.line - 1u ? -1 : 1;
    if (a->at.col != b->at.col)
        return a->at.col - b->at.col;
    return a->nth - b->nth;
}

void zt_diag_sort(struct zt_diags *d)
{
    qsort(d->items, (size_t)d->n, sizeof d->items[0], compare);
}

int zt_diag_report(struct zt_diags *d, struct zt_err *err)
{
    if (d->n_total == 0)
        return 0;
    zt_diag_sort(d);

    const size_t room = sizeof err->msg - 32; /* for "and N more" */
    size_t len = 0;
    int shown = 0;
    while (shown < ZT_MIN(d->n, (int)ZT_DIAG_SHOW)) {
        const struct zt_diag *item = &d->items[shown];
        const char *at = zt_pos_text(d->arena, item->at);
        int n = snprintf(err->msg + len, room - len, "%s%s: %s", shown ? "\n" : "", at, item->text);
        if (n < 0 || (size_t)n >= room - len) {
            if (shown == 0)
                len = room - 1; /* one huge message: what fits of it */
            break;
        }
        len += (size_t)n;
        shown++;
    }
    shown = ZT_MAX(shown, 1);
    err->msg[len] = '\0';
    if (shown < d->n_total)
        snprintf(err->msg + len, sizeof err->msg - len, "\nand %d more", d->n_total - shown);
    err->code = !d->any_wrong && d->any_unsupported ? ZT_EUNSUPPORTED : ZT_EINPUT;
    return err->code;
}
