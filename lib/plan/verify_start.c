#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * What the programs leave to one another. The engine drains all streams between two different
 * programs, so only persistent buffers pass, and any program may be the first after INIT. So every
 * persistent byte that a program reads before it writes it must be one that INIT writes: an arena
 * starts as noise.
 */

/* Bytes of one buffer that have been written: disjoint ranges in order, none touching the next. */
struct coverage {
    struct range {
        size_t begin, end;
    } * ranges;
    int n;
    size_t cap;
};

static void cover(struct coverage *c, size_t begin, size_t end)
{
    int lo = 0;
    while (lo < c->n && c->ranges[lo].end < begin)
        lo++;
    int hi = lo; /* ranges [lo, hi) meet the new one and melt into it */
    for (; hi < c->n && c->ranges[hi].begin <= end; hi++) {
        begin = ZT_MIN(begin, c->ranges[hi].begin);
        end = ZT_MAX(end, c->ranges[hi].end);
    }
    ZT_GROW(c->ranges, c->n + 1, c->cap);
    memmove(c->ranges + lo + 1, c->ranges + hi, (size_t)(c->n - hi) * sizeof *c->ranges);
    c->ranges[lo] = (struct range){begin, end};
    c->n += 1 - (hi - lo);
}

static bool is_covered(const struct coverage *c, size_t begin, size_t end)
{
    for (int i = 0; i < c->n; i++)
        if (c->ranges[i].begin <= begin && end <= c->ranges[i].end)
            return true;
    return false;
}

/* Reads of op i are checked against what was written before; its writes count from then on. */
static int check_op(const struct zt_plan *p, enum zt_program_kind k, int i,
                    struct coverage *written, struct zt_err *err)
{
    const struct zt_access *a = zt_op_accesses(&p->programs[k], i);
    int n = p->programs[k].ops[i].n_accesses;
    for (int j = 0; j < n; j++) {
        const struct zt_buf *b = &p->bufs[a[j].buf];
        if (b->program >= 0 || !(a[j].mode & ZT_READ) ||
            is_covered(&written[a[j].buf], a[j].begin, a[j].end))
            continue;
        char text[160];
        return zt_err_set(err, ZT_EVERIFY,
                          "%s reads [%zu, %zu) of '%s', of which neither %s nor this program "
                          "before has written all",
                          zt_op_text(p, k, i, text, sizeof text), a[j].begin, a[j].end, b->name,
                          zt_program_name(ZT_PROG_INIT));
    }
    for (int j = 0; j < n && p->programs[k].ops[i].predicate == ZT_ALWAYS; j++)
        if (p->bufs[a[j].buf].program < 0 && (a[j].mode & ZT_WRITE))
            cover(&written[a[j].buf], a[j].begin, a[j].end);
    return 0;
}

/* Coverage after INIT, copied for each program that follows. */
static void copy_coverage(struct coverage *to, const struct coverage *from, int n)
{
    for (int b = 0; b < n; b++) {
        to[b].n = 0;
        for (int i = 0; i < from[b].n; i++)
            cover(&to[b], from[b].ranges[i].begin, from[b].ranges[i].end);
    }
}

static void free_coverage(struct coverage *c, int n)
{
    for (int b = 0; b < n; b++)
        free(c[b].ranges);
    free(c);
}

int zt_verify_start(const struct zt_plan *p, struct zt_err *err)
{
    if (!p->programs[ZT_PROG_INIT].n_ops)
        return 0; /* a program by itself, as tests have them */
    struct coverage *start = zt_xcalloc(p->n_bufs, sizeof *start);
    struct coverage *written = zt_xcalloc(p->n_bufs, sizeof *written);
    int rc = 0;
    for (int i = 0; i < p->programs[ZT_PROG_INIT].n_ops && !rc; i++)
        rc = check_op(p, ZT_PROG_INIT, i, start, err);
    for (int k = ZT_PROG_INIT + 1; k < ZT_N_PROGRAMS && !rc; k++) {
        copy_coverage(written, start, p->n_bufs);
        for (int i = 0; i < p->programs[k].n_ops && !rc; i++)
            rc = check_op(p, k, i, written, err);
    }
    free_coverage(start, p->n_bufs);
    free_coverage(written, p->n_bufs);
    return rc;
}
