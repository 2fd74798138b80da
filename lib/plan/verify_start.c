#include "plan/verify_internal.h"

#include "base/err.h"

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
        const struct zt_extent x = zt_verify_reach(p, k, i, j);
        if (b->program >= 0 || !(a[j].mode & ZT_READ) ||
            is_covered(&written[a[j].buf], x.begin, x.end))
            continue;
        char text[160];
        return zt_err_set(err, ZT_EVERIFY,
                          "%s reads [%zu, %zu) of '%s', of which neither %s nor this program "
                          "before has written all",
                          zt_op_text(p, k, i, text, sizeof text), x.begin, x.end, b->name,
                          zt_program_name(ZT_PROG_INIT));
    }
    for (int j = 0; j < n && p->programs[k].ops[i].predicate == ZT_ALWAYS; j++)
        if (p->bufs[a[j].buf].program < 0 && (a[j].mode & ZT_WRITE))
            cover(&written[a[j].buf], a[j].begin, a[j].end);
    return 0;
}

/* Write what the repetitions of a folded program write that are not listed: where one moves along a buffer. */
static void cover_repetitions(const struct zt_plan *p, struct coverage *written)
{
    const struct zt_fold *f = &p->fold;
    const struct zt_program *prog = &p->programs[ZT_PROG_TRAIN];
    const int first = prog->ops[f->begin].first_access, len = f->end - f->begin;
    const int before = prog->ops[f->begin - len].first_access;
    int *moving = zt_xcalloc((size_t)(prog->ops[f->end].first_access - first), sizeof *moving);
    int n = 0;
    for (int i = f->begin; i < f->end; i++) {
        for (int j = 0; j < prog->ops[i].n_accesses; j++) {
            const int at = prog->ops[i].first_access + j;
            const struct zt_access *x = &prog->accesses[at];
            if (prog->ops[i].predicate == ZT_ALWAYS && (x->mode & ZT_WRITE) &&
                p->bufs[x->buf].program < 0 && x->begin > prog->accesses[before + at - first].begin)
                moving[n++] = at - first;
        }
    }
    for (size_t r = 1; r <= (size_t)f->n_repeats; r++) {
        for (int m = 0; m < n; m++) {
            const struct zt_access *a = &prog->accesses[before + moving[m]];
            const struct zt_access *b = &prog->accesses[first + moving[m]];
            const size_t by = (b->begin - a->begin) * r;
            cover(&written[b->buf], b->begin + by, b->end + by);
        }
    }
    free(moving);
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
        for (int i = 0; i < p->programs[k].n_ops && !rc; i++) {
            rc = check_op(p, k, i, written, err);
            if (zt_verify_is_folded(p, (enum zt_program_kind)k) && i == p->fold.end - 1)
                cover_repetitions(p, written);
        }
    }
    free_coverage(start, p->n_bufs);
    free_coverage(written, p->n_bufs);
    return rc;
}
