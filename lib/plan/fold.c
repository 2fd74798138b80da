#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Folding. Micro-batches in the middle of a long accumulation are alike, so lifetimes, packing and time
 * are those of a program that lists a few of them: one of them stands for all that are left out. The one
 * before it must be like it, row by row and buffer by buffer: so a row's buffer one micro-batch on is
 * known, also where it is gathered in one and used in the next. Such buffers follow one another in a
 * chain and have one offset, so a chain can be continued for as many micro-batches as there are: what is
 * alive beside a row there is, offset by offset, what is alive beside its row here.
 */

/* ---- is it alike? ---- */

static bool alike_bufs(const struct zt_buf *x, const struct zt_buf *y)
{
    return x->cat == y->cat && x->arena == y->arena && x->used == y->used && x->bytes == y->bytes &&
           x->padding == y->padding && x->dtype == y->dtype && x->unit == y->unit &&
           x->program >= 0 && x->program == y->program && x->last < y->first;
}

static bool alike_ops(const struct zt_op *a, const struct zt_op *b)
{
    return a->kind == b->kind && a->stream == b->stream && a->predicate == b->predicate &&
           a->unit == b->unit && a->segment == b->segment && a->first_use == b->first_use &&
           a->last_use == b->last_use && a->group == b->group && a->dtype == b->dtype &&
           a->count == b->count && a->cost_kind == b->cost_kind && a->cost == b->cost &&
           a->bytes_sent == b->bytes_sent && a->n_accesses == b->n_accesses;
}

/* Operands of two like rows: the same buffer, or y is to follow x. */
static bool link_operands(const struct zt_plan *p, const struct zt_access *a,
                          const struct zt_access *b, int *next, int *prev)
{
    const int x = a->buf, y = b->buf;
    if (a->mode != b->mode || a->role != b->role || b->end - b->begin != a->end - a->begin)
        return false;
    if (x == y)
        return next[x] < 0 && prev[x] < 0;
    if (a->begin != b->begin || !alike_bufs(&p->bufs[x], &p->bufs[y]))
        return false;
    if (next[x] < 0 && prev[y] < 0) {
        next[x] = y;
        prev[y] = x;
    }
    return next[x] == y && prev[y] == x;
}

bool zt_fold(struct zt_plan *p, const int begin[3], int period, int n_repeats)
{
    const struct zt_program *prog = &p->programs[ZT_PROG_TRAIN];
    const int len = begin[1] - begin[0];
    int *next = zt_arena_alloc(&p->arena, (size_t)p->n_bufs, sizeof *next);
    int *prev = zt_arena_alloc(&p->arena, (size_t)p->n_bufs, sizeof *prev);
    bool alike = begin[2] - begin[1] == len;
    for (int b = 0; b < p->n_bufs; b++)
        next[b] = prev[b] = -1;
    for (int i = 0; i < len && alike; i++) {
        const struct zt_access *a = zt_op_accesses(prog, begin[0] + i);
        const struct zt_access *b = zt_op_accesses(prog, begin[1] + i);
        alike = alike_ops(&prog->ops[begin[0] + i], &prog->ops[begin[1] + i]);
        for (int j = 0; alike && j < prog->ops[begin[0] + i].n_accesses; j++)
            alike = link_operands(p, &a[j], &b[j], next, prev);
    }
    if (alike)
        p->fold = (struct zt_fold){.period = period,
                                   .n_repeats = n_repeats,
                                   .before = begin[0],
                                   .begin = begin[1],
                                   .end = begin[2],
                                   .n_bufs = p->n_bufs,
                                   .next = next,
                                   .prev = prev};
    return alike;
}

/* ---- more of the program, or all ---- */

struct unfolding {
    struct zt_plan *p;
    const struct zt_fold *fold;
    int n; /* micro-batches to list, or pairs of them: of those left out the first */
    const struct zt_program *from;
    struct zt_program *to;
    int *tail; /* (fold->n_bufs) last buffers of chains: the first that continues it; else -1 */
};

/* The buffer that lies n micro-batches on in the chain of b; b itself where it is in none. */
static int advance(const struct unfolding *u, int b, int n)
{
    if (b >= u->fold->n_bufs || (u->fold->next[b] < 0 && u->fold->prev[b] < 0))
        return b;
    for (; n > 0 && u->fold->next[b] >= 0; n--)
        b = u->fold->next[b];
    return n > 0 ? u->tail[b] + n - 1 : b;
}

/* "x h.2 mb3" of another micro-batch. */
static const char *name_at(struct zt_plan *p, const struct zt_buf *b, int mb)
{
    char old[24];
    snprintf(old, sizeof old, " mb%d", b->mb);
    const char *at = strstr(b->name, old);
    return at ? zt_arena_printf(&p->arena, "%.*s mb%d%s", (int)(at - b->name), b->name, mb,
                                at + strlen(old))
              : b->name;
}

static void set_micro_batch(struct zt_plan *p, int b, int mb)
{
    if (p->bufs[b].mb < 0)
        return;
    p->bufs[b].name = name_at(p, &p->bufs[b], mb);
    p->bufs[b].mb = mb;
}

/* Make the buffers of the micro-batches that are to be listed. */
static void continue_chains(struct unfolding *u)
{
    const struct zt_fold *f = u->fold;
    struct zt_plan *p = u->p;
    for (int b = 0; b < f->n_bufs; b++) {
        u->tail[b] = -1;
        if (f->prev[b] < 0 || f->next[b] >= 0)
            continue;
        int mb = p->bufs[f->prev[b]].mb +
                 f->period; /* what the last one uses was listed as the last one's */
        set_micro_batch(p, b, mb);
        u->tail[b] = p->n_bufs;
        ZT_GROW(p->bufs, p->n_bufs + u->n, p->bufs_cap);
        for (int r = 0; r < u->n; r++) {
            p->bufs[p->n_bufs] = p->bufs[b];
            set_micro_batch(p, p->n_bufs++, mb += f->period);
        }
    }
}

static void copy_access(const struct unfolding *u, const struct zt_access *a, size_t shift, int n)
{
    struct zt_access to = *a;
    to.buf = advance(u, a->buf, n);
    to.begin += shift;
    to.end += shift;
    struct zt_buf *b = &u->p->bufs[to.buf];
    if (b->program >= 0) {
        b->first = b->first < 0 ? u->to->n_ops : b->first;
        b->last = u->to->n_ops;
    }
    u->to->accesses[u->to->n_accesses++] = to;
}

/* Append row i, `n` micro-batches on. */
static void copy_op(const struct unfolding *u, int i, int n)
{
    const struct zt_fold *f = u->fold;
    const struct zt_access *a = zt_op_accesses(u->from, i), *before = NULL;
    struct zt_op op = u->from->ops[i];
    op.first_access = u->to->n_accesses;
    if (i >= f->begin && i < f->end) {
        const int same = i - (f->begin - f->before);
        before = zt_op_accesses(u->from, same);
        if (op.mb >= 0)
            op.mb = u->from->ops[same].mb + f->period * (1 + n);
    }
    for (int j = 0; j < op.n_accesses; j++)
        copy_access(u, &a[j],
                    before && before[j].buf == a[j].buf ? (a[j].begin - before[j].begin) * (size_t)n
                                                        : 0,
                    n);
    u->to->ops[u->to->n_ops++] = op;
}

static void make_room(const struct unfolding *u)
{
    const struct zt_fold *f = u->fold;
    const struct zt_program *from = u->from;
    struct zt_program *to = u->to;
    size_t n_accesses = 0;
    for (int i = f->begin; i < f->end; i++)
        n_accesses += (size_t)from->ops[i].n_accesses;
    *to = (struct zt_program){.kind = from->kind, .repeats = from->repeats};
    to->backlog = from->backlog;
    to->time_s = from->time_s;
    to->time_unlimited_s = from->time_unlimited_s;
    to->busiest_s = from->busiest_s;
    to->critical_path_s = from->critical_path_s;
    to->ops_cap = (size_t)from->n_ops + (size_t)u->n * (size_t)(f->end - f->begin);
    to->accesses_cap = (size_t)from->n_accesses + (size_t)u->n * n_accesses;
    to->ops = zt_xcalloc(to->ops_cap, sizeof *to->ops);
    to->accesses = zt_xcalloc(to->accesses_cap, sizeof *to->accesses);
}

/* The chains with the buffers that are new, and the last rows listed as those that stand for what is left. */
static void fold_what_is_left(const struct unfolding *u)
{
    const struct zt_fold *f = u->fold;
    struct zt_plan *p = u->p;
    const int len = f->end - f->begin;
    if (f->n_repeats == u->n) {
        p->fold = ZT_NO_FOLD;
        return;
    }
    int *next = zt_arena_alloc(&p->arena, (size_t)p->n_bufs, sizeof *next);
    int *prev = zt_arena_alloc(&p->arena, (size_t)p->n_bufs, sizeof *prev);
    for (int b = 0; b < p->n_bufs; b++) {
        next[b] = b < f->n_bufs ? f->next[b] : -1;
        prev[b] = b < f->n_bufs ? f->prev[b] : -1;
    }
    for (int b = 0; b < f->n_bufs; b++) {
        for (int r = 0, last = b; u->tail[b] >= 0 && r < u->n; r++) {
            next[last] = u->tail[b] + r;
            prev[u->tail[b] + r] = last;
            last = u->tail[b] + r;
        }
    }
    const int end = f->end + u->n * len;
    p->fold = (struct zt_fold){.n_repeats = f->n_repeats - u->n,
                               .period = f->period,
                               .before = end - 2 * len,
                               .begin = end - len,
                               .end = end,
                               .n_bufs = p->n_bufs,
                               .next = next,
                               .prev = prev};
}

void zt_plan_unroll(struct zt_plan *p, int n)
{
    const struct zt_fold f = p->fold;
    struct zt_program *train = &p->programs[ZT_PROG_TRAIN], to;
    struct zt_ledger *l = &p->ledger;
    n = ZT_MIN(n, f.n_repeats);
    if (n == 0)
        return;
    struct unfolding u = {.p = p, .fold = &f, .n = n, .from = train, .to = &to};
    u.tail = zt_xcalloc((size_t)f.n_bufs, sizeof *u.tail);
    make_room(&u);
    continue_chains(&u);
    for (int b = 0; b < p->n_bufs; b++)
        if (zt_is_transient(&p->bufs[b], ZT_PROG_TRAIN))
            p->bufs[b].first = p->bufs[b].last = -1;
    for (int i = 0; i < f.end; i++)
        copy_op(&u, i, 0);
    for (int r = 1; r <= n; r++)
        for (int i = f.begin; i < f.end; i++)
            copy_op(&u, i, r);
    for (int i = f.end; i < train->n_ops; i++)
        copy_op(&u, i, n);
    if (l->fullest_program == ZT_PROG_TRAIN && l->fullest_op >= f.end)
        l->fullest_op += n * (f.end - f.begin);
    fold_what_is_left(&u);
    free(u.tail);
    free(train->ops);
    free(train->accesses);
    free(train->waits);
    *train = to;
    zt_derive_waits(p, ZT_PROG_TRAIN);
}

/* ---- what a folded program says of the whole ---- */

int zt_plan_row(const struct zt_plan *p, enum zt_program_kind k, int op)
{
    const struct zt_fold *f = &p->fold;
    return k == ZT_PROG_TRAIN && op >= f->end ? op + f->n_repeats * (f->end - f->begin) : op;
}

int zt_plan_n_waits(const struct zt_plan *p, enum zt_program_kind k)
{
    int n = 0;
    for (int i = 0; i < p->programs[k].n_ops; i++)
        n += zt_fold_times(p, k, i) * p->programs[k].ops[i].n_waits;
    return n;
}
