#include "plan/verify_internal.h"

#include "base/err.h"

/*
 * The verifier. It takes the list order as the meaning of the program and proves that the streams
 * and waits keep it: for each op and stream it collects the highest position of any op there,
 * earlier in the list, that touches a common byte with a write on either side; the op's start clock
 * must reach it. Nothing is forgotten on the way (hazard.c clears readers at a write), and two runs
 * are unrolled. Given the order, provenance follows the list: each byte of a transient that is read
 * was written as that buffer's in the same run, by an op that is not skipped, which happens-before
 * alone does not show.
 */

const char *zt_op_text(const struct zt_plan *p, enum zt_program_kind k, int op, char *buf,
                       size_t buf_bytes)
{
    const struct zt_op *o = &p->programs[k].ops[op];
    char what[64] = "", mb[24] = "";
    if (o->segment >= 0 && p->model)
        snprintf(what, sizeof what, " %s", p->model->segments[o->segment].name);
    else if (o->unit >= 0 && p->units)
        snprintf(what, sizeof what, " %s", p->units[o->unit].name);
    if (o->mb >= 0)
        snprintf(mb, sizeof mb, " mb %d", o->mb);
    snprintf(buf, buf_bytes, "%s%s%s (op %d of %s, on %s)", zt_op_kind_name(o->kind), what, mb, op,
             zt_program_name(k), zt_stream_name(o->stream));
    return buf;
}

static int by_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Where the accesses of an op to an arena begin and end; returns how many that are. */
static int ends_of(const struct zt_verifier *v, int i, enum zt_arena_id arena, uint64_t *out)
{
    const struct zt_access *a = zt_op_accesses(v->prog, i);
    int n = 0;
    for (int j = 0; j < v->prog->ops[i].n_accesses; j++) {
        const struct zt_buf *b = &v->p->bufs[a[j].buf];
        if (b->arena != arena)
            continue;
        const struct zt_extent x = zt_verify_reach(v->p, v->k, i, j);
        out[n++] = b->offset + x.begin;
        out[n++] = b->offset + x.end;
    }
    return n;
}

/* Every arena cut where an access of the program begins or ends. */
static void cells_init(struct verifier_cells *c, const struct zt_verifier *v)
{
    uint64_t *ends = zt_xcalloc((size_t)v->prog->n_accesses * 2, sizeof *ends);
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        int n = 0;
        for (int i = 0; i < v->prog->n_ops; i++)
            n += ends_of(v, i, (enum zt_arena_id)arena, ends + n);
        qsort(ends, n, sizeof *ends, by_u64);
        struct cell *cells = zt_xcalloc(n, sizeof *cells);
        int m = 0;
        for (int i = 0; i < n; i++)
            if (!m || cells[m - 1].at != ends[i])
                cells[m++] = (struct cell){.at = ends[i], .owner = -1};
        c->cells[arena] = cells;
        c->n[arena] = m;
    }
    free(ends);
}

static void cells_release(struct verifier_cells *c)
{
    for (int arena = 0; arena < ZT_N_ARENAS; arena++)
        free(c->cells[arena]);
}

/* The cells of an access: from the one that begins at its first byte to the one at its end. */
static struct cell *first_cell(const struct zt_verifier *v, const struct verifier_cells *c, int i,
                               int nth, uint64_t *end)
{
    const struct zt_buf *b = &v->p->bufs[zt_op_accesses(v->prog, i)[nth].buf];
    const struct zt_extent x = zt_verify_reach(v->p, v->k, i, nth);
    const uint64_t at = b->offset + x.begin;
    struct cell *lo = c->cells[b->arena], *hi = lo + c->n[b->arena] - 1;
    *end = b->offset + x.end;
    while (lo < hi) {
        struct cell *mid = lo + (hi - lo) / 2;
        if (mid->at < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void raise_to(struct vclock *c, const int positions[ZT_N_STREAMS])
{
    for (int s = 0; s < ZT_N_STREAMS; s++)
        c->done[s] = ZT_MAX(c->done[s], positions[s]);
}

static int provenance_error(const struct zt_verifier *v, int run, int i, const struct zt_access *a,
                            const struct cell *c, struct zt_err *err)
{
    const struct zt_buf *b = &v->p->bufs[a->buf];
    char op[160], by[160];
    zt_op_text(v->p, v->k, i, op, sizeof op);
    const char *verb = a->mode & ZT_WRITE ? "accumulates into" : "reads";
    size_t at = (size_t)(c->at - b->offset);
    if (c->owner == a->buf && c->owner_run == run)
        return zt_err_set(err, ZT_EVERIFY,
                          "%s %s byte %zu of '%s', written by %s, which may be skipped", op, verb,
                          at, b->name, zt_op_text(v->p, v->k, c->owner_op, by, sizeof by));
    if (c->owner < 0 || c->owner == a->buf)
        return zt_err_set(
            err, ZT_EVERIFY, "%s %s byte %zu of '%s', which no op of this run wrote before%s", op,
            verb, at, b->name, run && c->owner >= 0 ? " (stale from the last run)" : "");
    return zt_err_set(err, ZT_EVERIFY, "%s %s byte %zu of '%s', overwritten by %s for '%s'", op,
                      verb, at, b->name, zt_op_text(v->p, v->k, c->owner_op, by, sizeof by),
                      v->p->bufs[c->owner].name);
}

/* The bytes of a transient were written in this run, by an op that ran if op i runs. */
static bool is_meant(const struct zt_verifier *v, int run, int i, const struct zt_access *a,
                     const struct cell *c)
{
    return c->owner == a->buf && c->owner_run == run &&
           (v->prog->ops[c->owner_op].predicate == ZT_ALWAYS ||
            v->prog->ops[c->owner_op].predicate == v->prog->ops[i].predicate);
}

/* Reads of op i: conflicts with writers, and whose bytes these are. */
static int visit_reads(struct zt_verifier *v, struct verifier_cells *cells, int run, int i,
                       struct vclock *need, struct zt_err *err)
{
    const struct zt_access *a = zt_op_accesses(v->prog, i);
    for (int j = 0; j < v->prog->ops[i].n_accesses; j++) {
        uint64_t end;
        if (!(a[j].mode & ZT_READ))
            continue;
        for (struct cell *c = first_cell(v, cells, i, j, &end); c->at < end; c++) {
            if (v->p->bufs[a[j].buf].program >= 0 && !is_meant(v, run, i, &a[j], c))
                return provenance_error(v, run, i, &a[j], c, err);
            raise_to(need, c->last_write);
        }
    }
    return 0;
}

static void visit_writes(struct zt_verifier *v, struct verifier_cells *cells, int i,
                         struct vclock *need)
{
    const struct zt_access *a = zt_op_accesses(v->prog, i);
    for (int j = 0; j < v->prog->ops[i].n_accesses; j++) {
        uint64_t end;
        if (!(a[j].mode & ZT_WRITE))
            continue;
        for (struct cell *c = first_cell(v, cells, i, j, &end); c->at < end; c++)
            raise_to(need, c->last_touch);
    }
}

static void touch(struct zt_verifier *v, struct verifier_cells *cells, int run, int i)
{
    const struct zt_access *a = zt_op_accesses(v->prog, i);
    enum zt_stream_id s = v->prog->ops[i].stream;
    int position = run * v->stream_len[s] + v->pos[i] + 1;
    for (int j = 0; j < v->prog->ops[i].n_accesses; j++) {
        uint64_t end;
        for (struct cell *c = first_cell(v, cells, i, j, &end); c->at < end; c++) {
            c->last_touch[s] = position;
            if (!(a[j].mode & ZT_WRITE))
                continue;
            c->last_write[s] = position;
            c->owner = a[j].buf;
            c->owner_run = run;
            c->owner_op = i;
        }
    }
}

static void copy_cells(struct verifier_cells *to, const struct verifier_cells *from)
{
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        const size_t n = (size_t)from->n[arena];
        to->n[arena] = from->n[arena];
        to->cells[arena] = zt_xcalloc(n, sizeof *to->cells[arena]);
        if (n)
            memcpy(to->cells[arena], from->cells[arena], n * sizeof *to->cells[arena]);
    }
}

/* What every op needs to have ended before it starts; checks provenance on the way. */
static int collect_required(struct zt_verifier *v, struct zt_err *err)
{
    const struct zt_fold *fold = zt_verify_is_folded(v->p, v->k) ? &v->p->fold : &ZT_NO_FOLD;
    struct verifier_cells cells, before = {0};
    int n = v->prog->n_ops, rc = 0;
    cells_init(&cells, v);
    for (int run = 0; run < v->n_runs && !rc; run++) {
        for (int i = 0; i < n && !rc; i++) {
            struct vclock *need = &v->required[run * n + i];
            rc = visit_reads(v, &cells, run, i, need, err);
            visit_writes(v, &cells, i, need);
            need->done[v->prog->ops[i].stream] = 0; /* in order by itself */
            touch(v, &cells, run, i);
            if (i == fold->begin - 1)
                copy_cells(&before, &cells);
            if (i != fold->end - 1)
                continue;
            rc = rc ? rc : zt_verify_fold_cells(v, run, &before, &cells, err);
            cells_release(&before);
            before = (struct verifier_cells){0};
        }
    }
    cells_release(&before);
    cells_release(&cells);
    return rc;
}

static bool conflict(const struct zt_verifier *v, const struct zt_access *a,
                     const struct zt_access *b)
{
    const struct zt_buf *x = &v->p->bufs[a->buf], *y = &v->p->bufs[b->buf];
    return ((a->mode | b->mode) & ZT_WRITE) && x->arena == y->arena &&
           x->offset + a->begin < y->offset + b->end && y->offset + b->begin < x->offset + a->end;
}

static int race_error(const struct zt_verifier *v, struct race r, struct zt_err *err)
{
    const struct zt_program *prog = v->prog;
    int run = r.op / prog->n_ops, i = r.op % prog->n_ops;
    int position = v->required[r.op].done[r.stream] - 1;
    int other_run = position / v->stream_len[r.stream], other = 0;
    while (prog->ops[other].stream != (enum zt_stream_id)r.stream ||
           v->pos[other] != position % v->stream_len[r.stream])
        other++;
    const struct zt_access *a = zt_op_accesses(prog, i), *b = zt_op_accesses(prog, other);
    const char *mine = "?", *theirs = "?";
    for (int j = 0; j < prog->ops[i].n_accesses; j++) {
        for (int l = 0; l < prog->ops[other].n_accesses; l++) {
            if (conflict(v, &a[j], &b[l])) {
                mine = v->p->bufs[a[j].buf].name;
                theirs = v->p->bufs[b[l].buf].name;
            }
        }
    }
    char x[160], y[160];
    return zt_err_set(err, ZT_EVERIFY, "%s uses '%s' and may run while %s%s still uses '%s'",
                      zt_op_text(v->p, v->k, i, x, sizeof x), mine,
                      zt_op_text(v->p, v->k, other, y, sizeof y),
                      other_run < run ? " of the run before" : "", theirs);
}

void zt_verify_clocks_before(const struct zt_verifier *v, int from, struct vclock now[ZT_N_STREAMS])
{
    bool seen[ZT_N_STREAMS] = {false};
    int n_seen = 0;
    memset(now, 0, ZT_N_STREAMS * sizeof *now);
    for (int g = from - 1; g >= 0 && n_seen < ZT_N_STREAMS; g--) {
        enum zt_stream_id s = v->prog->ops[g % v->prog->n_ops].stream;
        if (!seen[s])
            now[s] = v->end[g];
        n_seen += !seen[s];
        seen[s] = true;
    }
}

/*
 * Runs the clocks from op number `from` on, with wait `omit` left out, up to the first op whose
 * start clock lacks something required; -1 when there is none. Ends of ops before `from` are in
 * v->end, those after go to `ends`.
 */
static struct race first_race(const struct zt_verifier *v, int from, int omit, struct vclock *ends)
{
    const struct zt_program *prog = v->prog;
    int n = prog->n_ops;
    struct vclock now[ZT_N_STREAMS];
    zt_verify_clocks_before(v, from, now);
    for (int g = from; g < v->n_runs * n; g++) {
        const struct zt_op *op = &prog->ops[g % n];
        struct vclock *c = &now[op->stream];
        for (int j = op->first_wait; j < op->first_wait + op->n_waits; j++) {
            int at = g - g % n - prog->waits[j].delta * n + prog->waits[j].op;
            if (j != omit && at >= 0)
                raise_to(c, at < from ? v->end[at].done : ends[at].done);
        }
        for (int s = 0; s < ZT_N_STREAMS; s++)
            if (c->done[s] < v->required[g].done[s])
                return (struct race){g, s};
        c->done[op->stream] = g / n * v->stream_len[op->stream] + v->pos[g % n] + 1;
        ends[g] = *c;
    }
    return (struct race){-1, 0};
}

int zt_verifier_check_waits(struct zt_verifier *v, int omit_wait, struct zt_err *err)
{
    struct race r = v->race;
    ZT_ASSERT_CMP(omit_wait, <, v->prog->n_waits);
    /* Nothing changes before the op that has the wait. */
    if (omit_wait >= 0 && (r.op < 0 || r.op >= v->wait_owner[omit_wait]))
        r = first_race(v, v->wait_owner[omit_wait], omit_wait, v->changed);
    return r.op < 0 ? 0 : race_error(v, r, err);
}

int zt_verifier_create(const struct zt_plan *p, enum zt_program_kind k, struct zt_verifier **out,
                       struct zt_err *err)
{
    *out = NULL;
    const struct zt_program *prog = &p->programs[k];
    int rc = zt_verify_ops(p, k, err);
    if (!rc)
        rc = zt_verify_layout(p, k, err);
    if (!rc && zt_verify_is_folded(p, k))
        rc = zt_verify_fold_rows(p, err);
    if (rc)
        return rc;
    struct zt_verifier *v = zt_xcalloc(1, sizeof *v);
    v->p = p;
    v->k = k;
    v->prog = prog;
    v->n_runs = prog->repeats ? 2 : 1;
    size_t n = (size_t)prog->n_ops * v->n_runs;
    v->pos = zt_xcalloc(prog->n_ops, sizeof *v->pos);
    v->wait_owner = zt_xcalloc(prog->n_waits, sizeof *v->wait_owner);
    v->required = zt_xcalloc(n, sizeof *v->required);
    v->end = zt_xcalloc(n, sizeof *v->end);
    v->changed = zt_xcalloc(n, sizeof *v->changed);
    for (int i = 0; i < prog->n_ops; i++) {
        v->pos[i] = v->stream_len[prog->ops[i].stream]++;
        for (int j = 0; j < prog->ops[i].n_waits; j++)
            v->wait_owner[prog->ops[i].first_wait + j] = i;
    }
    rc = collect_required(v, err);
    if (rc) {
        zt_verifier_free(v);
        return rc;
    }
    v->race = first_race(v, 0, -1, v->end);
    *out = v;
    return 0;
}

void zt_verifier_free(struct zt_verifier *v)
{
    if (!v)
        return;
    free(v->pos);
    free(v->wait_owner);
    free(v->required);
    free(v->end);
    free(v->changed);
    free(v);
}

int zt_verify_program(const struct zt_plan *p, enum zt_program_kind k, struct zt_err *err)
{
    struct zt_verifier *v;
    int rc = zt_verifier_create(p, k, &v, err);
    if (!rc)
        rc = zt_verifier_check_waits(v, -1, err);
    if (!rc && zt_verify_is_folded(p, k))
        rc = zt_verify_fold_clocks(v, err);
    zt_verifier_free(v);
    return rc;
}

int zt_verify(const struct zt_plan *p, struct zt_err *err)
{
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        if (p->programs[k].n_ops > 0 && zt_verify_program(p, k, err))
            return err->code;
    return zt_verify_start(p, err);
}
