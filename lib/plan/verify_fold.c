#include "plan/verify_internal.h"

#include "base/err.h"

/*
 * Of a folded program the verifier walks over what is listed, and from the last two repetitions, A and B, it
 * follows for all that are left out. The whole program is: what is listed up to B's end, B again n_repeats
 * times, and the rest. What moves from A to B moves on: a chain's buffers, which lie at one place, operands along
 * a persistent buffer, ops that are waited for; and a wait of any other row for one in A, in B or behind them is
 * for the one as far from the end.
 *
 * Let S be all that the verifier knows at some row: positions of ops on their streams, in cells and clocks, and
 * owners of cells. Let s move on by one repetition: positions behind a base go up by the ops that B has on the
 * stream, owners go to the next of their chain. s is strictly increasing and one to one, so whatever the
 * verifier does - join clocks, compare them, look for owners - gives s of what it gave if it starts from s of
 * what it started from. So where B's end is s of A's end, each repetition left out is s of the one before
 * it, with the same answers; and all rows behind them, in this run and the next, see s, n_repeats times, of
 * what they see in the program listed, provided that what they read and wait for moves with it.
 */

static int not_alike(const struct zt_plan *p, int op, const char *what, struct zt_err *err)
{
    char text[160];
    return zt_err_set(err, ZT_EVERIFY, "%s: %s; what is not listed cannot be proven",
                      zt_op_text(p, ZT_PROG_TRAIN, op, text, sizeof text), what);
}

/* ---- rows ---- */

/* Rows before this one are far from the repetitions that count: nothing of them moves. */
static int base_row(const struct zt_fold *f)
{
    return f->before - 2 * (f->end - f->begin);
}

static bool is_chained(const struct zt_fold *f, int buf)
{
    return buf < f->n_bufs && (f->next[buf] >= 0 || f->prev[buf] >= 0);
}

/* Does an operand in B follow the one in A, or stay, or move along a persistent buffer? */
static bool follows(const struct zt_plan *p, const struct zt_access *a, const struct zt_access *b)
{
    const struct zt_fold *f = &p->fold;
    const struct zt_buf *x = &p->bufs[a->buf], *y = &p->bufs[b->buf];
    if (a->mode != b->mode || a->role != b->role || a->end - a->begin != b->end - b->begin)
        return false;
    if (a->buf != b->buf)
        return a->buf < f->n_bufs && b->buf < f->n_bufs && f->next[a->buf] == b->buf &&
               f->prev[b->buf] == a->buf && a->begin == b->begin && x->arena == y->arena &&
               x->offset == y->offset && x->bytes == y->bytes &&
               zt_is_transient(x, ZT_PROG_TRAIN) && zt_is_transient(y, ZT_PROG_TRAIN);
    if (is_chained(f, a->buf) || b->begin < a->begin)
        return false;
    const size_t moves = b->begin - a->begin;
    return moves == 0 || (x->program < 0 && moves <= (x->bytes - b->end) / (size_t)f->n_repeats);
}

static bool waits_follow(const struct zt_plan *p, const struct zt_op *a, const struct zt_op *b)
{
    const struct zt_fold *f = &p->fold;
    const struct zt_program *prog = &p->programs[ZT_PROG_TRAIN];
    bool all = a->n_waits == b->n_waits;
    for (int j = 0; all && j < a->n_waits; j++) {
        const struct zt_wait v = prog->waits[a->first_wait + j], w = prog->waits[b->first_wait + j];
        all =
            v.delta == 0 && w.delta == 0 && w.op >= f->before && w.op == v.op + (f->end - f->begin);
    }
    return all;
}

static int check_repeated(const struct zt_plan *p, int i, struct zt_err *err)
{
    const struct zt_program *prog = &p->programs[ZT_PROG_TRAIN];
    const int same = i - (p->fold.end - p->fold.begin);
    const struct zt_op *a = &prog->ops[same], *b = &prog->ops[i];
    if (a->kind != b->kind || a->stream != b->stream || a->predicate != b->predicate ||
        a->group != b->group || a->count != b->count || a->dtype != b->dtype ||
        a->n_accesses != b->n_accesses)
        return not_alike(p, i, "differs from the repetition before", err);
    for (int j = 0; j < a->n_accesses; j++)
        if (!follows(p, &zt_op_accesses(prog, same)[j], &zt_op_accesses(prog, i)[j]))
            return not_alike(p, i, "an operand does not follow the repetition before", err);
    if (!waits_follow(p, a, b))
        return not_alike(p, i, "waits are not those of the repetition before", err);
    return 0;
}

/* A row outside the repetitions: what it reads and waits for must be known to move, or to stay. */
static int check_outside(const struct zt_plan *p, int i, struct zt_err *err)
{
    const struct zt_fold *f = &p->fold;
    const struct zt_program *prog = &p->programs[ZT_PROG_TRAIN];
    const struct zt_op *op = &prog->ops[i];
    const struct zt_access *a = zt_op_accesses(prog, i);
    for (int j = 0; i >= f->end && j < op->n_accesses; j++)
        if (a[j].buf < f->n_bufs && f->next[a[j].buf] >= 0)
            return not_alike(p, i, "an operand is not of the last repetition", err);
    for (int j = 0; j < op->n_waits; j++) {
        const struct zt_wait w = prog->waits[op->first_wait + j];
        if ((i >= f->end || w.delta) && w.op >= base_row(f) && w.op < f->before)
            return not_alike(p, i, "a wait is neither for the last repetitions nor long ago", err);
    }
    return 0;
}

int zt_verify_fold_rows(const struct zt_plan *p, struct zt_err *err)
{
    const struct zt_fold *f = &p->fold;
    const struct zt_program *prog = &p->programs[ZT_PROG_TRAIN];
    const int len = f->end - f->begin;
    if (f->before < 0 || len <= 0 || f->begin - f->before != len || f->end >= prog->n_ops)
        return zt_err_set(err, ZT_EVERIFY, "rows [%d, %d) repeat nothing", f->begin, f->end);
    int rc = 0;
    for (int i = f->begin; i < f->end && !rc; i++)
        rc = check_repeated(p, i, err);
    for (int i = 0; i < prog->n_ops && !rc; i++)
        if (i < f->before || i >= f->end)
            rc = check_outside(p, i, err);
    return rc;
}

struct zt_extent zt_verify_reach(const struct zt_plan *p, enum zt_program_kind k, int op, int nth)
{
    const struct zt_fold *f = &p->fold;
    const struct zt_program *prog = &p->programs[k];
    const struct zt_access *x = &zt_op_accesses(prog, op)[nth];
    struct zt_extent reach = {x->begin, x->end};
    if (!zt_verify_is_folded(p, k) || op < ZT_MAX(base_row(f), 0) || op >= f->end)
        return reach;
    const int len = f->end - f->begin, in_b = f->end - 1 - (f->end - 1 - op) % len;
    const struct zt_access *b = &zt_op_accesses(prog, in_b)[nth];
    const struct zt_access *a = &zt_op_accesses(prog, in_b - len)[nth];
    if (nth < prog->ops[in_b].n_accesses && a->begin < b->begin && x->buf == b->buf) {
        const size_t moves = b->begin - a->begin, begin = a->begin - ZT_MIN(a->begin, 2 * moves);
        reach.begin = ZT_MIN(x->begin, begin);
        reach.end = ZT_MAX(x->end, b->end + moves * (size_t)f->n_repeats);
    }
    return reach;
}

/* ---- one repetition on ---- */

/* s, for positions of a run. */
struct moving_on {
    int base[ZT_N_STREAMS], by[ZT_N_STREAMS];
};

static struct moving_on moving_on(const struct zt_verifier *v, int run)
{
    const struct zt_fold *f = &v->p->fold;
    struct moving_on m = {{0}, {0}};
    for (int s = 0; s < ZT_N_STREAMS; s++)
        m.base[s] = run * v->stream_len[s];
    for (int i = 0; i < base_row(f); i++)
        m.base[v->prog->ops[i].stream]++;
    for (int i = f->begin; i < f->end; i++)
        m.by[v->prog->ops[i].stream]++;
    return m;
}

static bool moved_on(const struct moving_on *m, const int from[ZT_N_STREAMS],
                     const int to[ZT_N_STREAMS])
{
    bool all = true;
    for (int s = 0; s < ZT_N_STREAMS; s++)
        all &= to[s] == (from[s] > m->base[s] ? from[s] + m->by[s] : from[s]);
    return all;
}

/*
 * A cell's owner went to the next of its chain, or stayed: then it is in none, or not the last of one, which no row
 * behind may read, or of the run before, of which none may.
 */
static bool owner_moved_on(const struct zt_verifier *v, int run, const struct cell *x,
                           const struct cell *y)
{
    const struct zt_fold *f = &v->p->fold;
    const struct zt_op *ops = v->prog->ops;
    if (x->owner < 0 || y->owner < 0)
        return x->owner == y->owner;
    if (x->owner_run != y->owner_run || ops[x->owner_op].predicate != ops[y->owner_op].predicate)
        return false;
    return x->owner == y->owner
               ? !is_chained(f, y->owner) || f->next[y->owner] >= 0 || x->owner_run < run
               : x->owner < f->n_bufs && f->next[x->owner] == y->owner;
}

int zt_verify_fold_cells(const struct zt_verifier *v, int run, const struct verifier_cells *before,
                         const struct verifier_cells *after, struct zt_err *err)
{
    const struct moving_on m = moving_on(v, run);
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        for (int i = 0; i < after->n[arena]; i++) {
            const struct cell *x = &before->cells[arena][i], *y = &after->cells[arena][i];
            if (!moved_on(&m, x->last_touch, y->last_touch) ||
                !moved_on(&m, x->last_write, y->last_write) || !owner_moved_on(v, run, x, y))
                return zt_err_set(err, ZT_EVERIFY,
                                  "byte %llu of the %s arena is not used in turn; what is not "
                                  "listed cannot be proven",
                                  (unsigned long long)y->at,
                                  zt_arena_name((enum zt_arena_id)arena));
        }
    }
    return 0;
}

int zt_verify_fold_clocks(const struct zt_verifier *v, struct zt_err *err)
{
    const struct zt_fold *f = &v->p->fold;
    const int n = v->prog->n_ops, len = f->end - f->begin;
    for (int run = 0; run < v->n_runs; run++) {
        const struct moving_on m = moving_on(v, run);
        const struct vclock *end = v->end + (size_t)run * (size_t)n;
        struct vclock now[ZT_N_STREAMS];
        for (int i = f->begin; i < f->end; i++)
            if (!moved_on(&m, end[i - len].done, end[i].done))
                return not_alike(v->p, i, "what has ended before does not move on", err);
        zt_verify_clocks_before(v, run * n + f->end, now);
        for (int s = 0; s < ZT_N_STREAMS; s++)
            if (m.by[s] == 0 && !moved_on(&m, now[s].done, now[s].done))
                return not_alike(v->p, f->end - 1, "a stream without ops knows too much", err);
    }
    return 0;
}
