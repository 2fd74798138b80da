#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Lifetimes. Packing by program order alone would hand the bytes of a buffer that a collective
 * still reads to the next compute op, which then waits: 5-58 % of a step in the prototype. So a
 * lifetime is stretched over every op that would begin a new buffer in the same arena before the
 * old one's users have ended.
 */

enum { N_RUNS = 5, STEADY_RUN = 3 }; /* the run looked at, and the one after it */

static const double SLACK = 1.25; /* transfers may take a quarter longer than the profile says */

void zt_lifetimes_plain(const struct zt_plan *p, enum zt_program_kind k, struct zt_life *out)
{
    const struct zt_program *prog = &p->programs[k];
    for (int b = 0; b < p->n_bufs; b++)
        out[b] =
            p->bufs[b].program < 0 ? (struct zt_life){0, prog->n_ops - 1} : (struct zt_life){0, -1};
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_access *a = zt_op_accesses(prog, i);
        for (int j = 0; j < prog->ops[i].n_accesses; j++) {
            struct zt_life *l = &out[a[j].buf];
            if (!zt_is_transient(&p->bufs[a[j].buf], k))
                continue;
            if (l->hi < 0)
                l->lo = i;
            l->hi = i;
        }
    }
}

size_t zt_live_bound(const struct zt_plan *p, enum zt_program_kind k, const struct zt_life *life,
                     enum zt_arena_id arena)
{
    int n = p->programs[k].n_ops;
    size_t *born = zt_xcalloc((size_t)n + 1, sizeof *born);
    size_t *died = zt_xcalloc((size_t)n + 1, sizeof *died);
    size_t live = 0, most = 0;
    for (int b = 0; b < p->n_bufs; b++) {
        const struct zt_buf *buf = &p->bufs[b];
        if (buf->arena != arena)
            continue;
        if (buf->program < 0) {
            live += buf->bytes;
        } else if (zt_is_transient(buf, k) && life[b].hi >= life[b].lo) {
            born[life[b].lo] += buf->bytes;
            if (life[b].hi >= n) { /* the run before left it alive */
                live += buf->bytes;
                died[life[b].hi - n + 1] += buf->bytes;
            } else {
                died[life[b].hi + 1] += buf->bytes;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        live += born[i] - died[i];
        most = ZT_MAX(most, live);
    }
    free(born);
    free(died);
    return n ? most : live;
}

/* First toucher of each op's buffers: first_of[b] is the op where transient b begins, or -1. */
static int *first_ops(const struct zt_plan *p, enum zt_program_kind k)
{
    struct zt_life *life = zt_xcalloc(p->n_bufs, sizeof *life);
    int *first = zt_xcalloc(p->n_bufs, sizeof *first);
    zt_lifetimes_plain(p, k, life);
    for (int b = 0; b < p->n_bufs; b++)
        first[b] = zt_is_transient(&p->bufs[b], k) && life[b].hi >= 0 ? life[b].lo : -1;
    free(life);
    return first;
}

static bool begins_gradient(const struct zt_plan *p, const struct zt_program *prog, int op,
                            const int *first)
{
    const struct zt_access *a = zt_op_accesses(prog, op);
    for (int j = 0; j < prog->ops[op].n_accesses; j++)
        if (p->bufs[a[j].buf].cat == ZT_CAT_GRAD && first[a[j].buf] == op)
            return true;
    return false;
}

/* Per buffer: does a WRITE send it to the disk? (n_bufs) */
static bool *written_bufs(const struct zt_plan *p, const struct zt_program *prog)
{
    bool *written = zt_xcalloc(p->n_bufs, sizeof *written);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_access *a = zt_op_accesses(prog, i);
        for (int j = 0; prog->ops[i].kind == ZT_OP_WRITE && j < prog->ops[i].n_accesses; j++)
            written[a[j].buf] |= (a[j].mode & ZT_READ) != 0;
    }
    return written;
}

static int last_op(const struct zt_program *prog, enum zt_op_kind kind)
{
    int i = prog->n_ops - 1;
    while (i >= 0 && prog->ops[i].kind != kind)
        i--;
    return i;
}

/* Does the op write what a WRITE sends to the disk? */
static bool fills_written(const struct zt_plan *p, const struct zt_program *prog, int op,
                          const bool *written)
{
    const struct zt_access *a = zt_op_accesses(prog, op);
    for (int j = 0; j < prog->ops[op].n_accesses; j++)
        if (written[a[j].buf] && p->bufs[a[j].buf].program >= 0 && (a[j].mode & ZT_WRITE))
            return true;
    return false;
}

void zt_windowed_waits(const struct zt_plan *p, enum zt_program_kind k,
                       const struct zt_wait_list *unlimited, int backlog, struct zt_wait_list *out)
{
    const struct zt_program *prog = &p->programs[k];
    int *first = first_ops(p, k);
    /* reduce_before[m]: the last REDUCE listed before the m-th op that begins a gradient */
    int *reduce_before = zt_xcalloc((size_t)prog->n_ops + 1, sizeof *reduce_before);
    bool *written = written_bufs(p, prog);
    const int last_write = last_op(prog, ZT_OP_WRITE);
    int compute = -1, reduce = -1, write = -1, n_begun = 0;
    zt_wait_list_begin(out, prog->n_ops);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_op *op = &prog->ops[i];
        int n;
        const struct zt_wait *w = zt_waits_of(prog, unlimited, i, &n);
        for (int j = 0; j < n; j++)
            zt_wait_list_add(out, w[j]);
        const bool ahead =
            op->kind == ZT_OP_GATHER || op->kind == ZT_OP_FETCH || op->kind == ZT_OP_READ;
        if (ahead && compute >= 0)
            zt_wait_list_add(out, (struct zt_wait){.op = compute});
        if (fills_written(p, prog, i, written)) {
            if (write >= 0)
                zt_wait_list_add(out, (struct zt_wait){.op = write});
            else if (prog->repeats)
                zt_wait_list_add(out, (struct zt_wait){.delta = 1, .op = last_write});
        }
        if (backlog > 0 && begins_gradient(p, prog, i, first)) {
            reduce_before[n_begun++] = reduce;
            int old = n_begun > backlog ? reduce_before[n_begun - 1 - backlog] : -1;
            if (old >= 0)
                zt_wait_list_add(out, (struct zt_wait){.op = old});
        }
        if (op->stream == ZT_ST_COMPUTE)
            compute = i;
        if (op->kind == ZT_OP_REDUCE)
            reduce = i;
        if (op->kind == ZT_OP_WRITE)
            write = i;
        zt_wait_list_close_op(out, i);
    }
    free(written);
    free(reduce_before);
    free(first);
}

/*
 * Ops that begin a transient in one arena on one stream, in list order over two runs, with the
 * earliest start of any from here on: so the last one that starts before a given time is found by
 * bisection.
 */
struct births {
    int n;
    int *op;            /* extended index: the next run's ops follow with n_ops added */
    double *no_earlier; /* min of the starts of this and all later ones */
};

static void births_init(struct births *out, const struct zt_plan *p, enum zt_program_kind k,
                        const int *first, enum zt_arena_id arena, enum zt_stream_id stream,
                        const double *start)
{
    const struct zt_program *prog = &p->programs[k];
    int n = prog->n_ops, n_extended = prog->repeats ? 2 * n : n;
    bool *begins = zt_xcalloc(n, sizeof *begins);
    for (int b = 0; b < p->n_bufs; b++)
        if (first[b] >= 0 && p->bufs[b].arena == arena && prog->ops[first[b]].stream == stream)
            begins[first[b]] = true;
    out->n = 0;
    out->op = zt_xcalloc(n_extended, sizeof *out->op);
    out->no_earlier = zt_xcalloc(n_extended, sizeof *out->no_earlier);
    for (int e = 0; e < n_extended; e++)
        if (begins[e % n])
            out->op[out->n++] = e;
    for (int i = out->n - 1; i >= 0; i--) {
        double t = start[out->op[i]];
        out->no_earlier[i] = i + 1 < out->n ? ZT_MIN(t, out->no_earlier[i + 1]) : t;
    }
    free(begins);
}

static void births_release(struct births *b)
{
    free(b->op);
    free(b->no_earlier);
}

/* The last of them that starts before `t`, or -1. */
static int last_before(const struct births *b, double t)
{
    int lo = 0, hi = b->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (b->no_earlier[mid] < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? b->op[lo - 1] : -1;
}

/* Per transient and stream, when its last user there has ended; 0: no user. (n_bufs x streams) */
static double *last_uses(const struct zt_plan *p, enum zt_program_kind k, const double *finish)
{
    const struct zt_program *prog = &p->programs[k];
    double *ended = zt_xcalloc((size_t)p->n_bufs * ZT_N_STREAMS, sizeof *ended);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_access *a = zt_op_accesses(prog, i);
        for (int j = 0; j < prog->ops[i].n_accesses; j++) {
            double *e = &ended[(size_t)a[j].buf * ZT_N_STREAMS + prog->ops[i].stream];
            *e = ZT_MAX(*e, finish[i]);
        }
    }
    return ended;
}

/* start: of two runs, finish: of the first of them. */
static void widen_by_schedule(const struct zt_plan *p, enum zt_program_kind k, const double *start,
                              const double *finish, struct zt_life *life)
{
    int n = p->programs[k].n_ops;
    int *first = first_ops(p, k);
    double *ended = last_uses(p, k, finish);
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        for (int stream = 0; stream < ZT_N_STREAMS; stream++) {
            struct births births;
            births_init(&births, p, k, first, arena, stream, start);
            for (int b = 0; births.n > 0 && b < p->n_bufs; b++) {
                if (first[b] < 0 || p->bufs[b].arena != (enum zt_arena_id)arena)
                    continue;
                double t = 0; /* the stream's own order needs no room */
                for (int s = 0; s < ZT_N_STREAMS; s++)
                    if (s != stream)
                        t = ZT_MAX(t, ended[(size_t)b * ZT_N_STREAMS + s]);
                int hi = ZT_MIN(last_before(&births, t), first[b] + n - 1);
                life[b].hi = ZT_MAX(life[b].hi, hi);
            }
            births_release(&births);
        }
    }
    free(ended);
    free(first);
}

static void widen_by_profile(const struct zt_plan *p, enum zt_program_kind k,
                             const struct zt_wait_list *unlimited, int backlog,
                             struct zt_life *life)
{
    const struct zt_program *prog = &p->programs[k];
    size_t n = (size_t)prog->n_ops;
    int n_runs = prog->repeats ? N_RUNS : 1, run = prog->repeats ? STEADY_RUN : 0;
    struct zt_wait_list windowed;
    zt_windowed_waits(p, k, unlimited, backlog, &windowed);
    double *dur = zt_xcalloc(n, sizeof *dur);
    double *start = zt_xcalloc(n * n_runs, sizeof *start);
    double *finish = zt_xcalloc(n * n_runs, sizeof *finish);
    zt_durations(p, k, p->cfg.profile, SLACK, dur);
    zt_run_list(prog, &ZT_NO_FOLD, &windowed, dur, n_runs, start, finish);
    widen_by_schedule(p, k, start + run * n, finish + run * n, life);
    zt_wait_list_release(&windowed);
    free(dur);
    free(start);
    free(finish);
}

/* The ops that a schedule is counted in when no time is known: one a segment, one a unit. */
static bool is_beat(const struct zt_op *op)
{
    return op->kind == ZT_OP_FORWARD || op->kind == ZT_OP_BACKWARD || op->kind == ZT_OP_UPDATE ||
           op->kind == ZT_OP_LOAD_UNIT;
}

/*
 * A buffer last touched off the compute stream outlives one more beat, in the next run if need be.
 */
static void widen_by_beats(const struct zt_plan *p, enum zt_program_kind k, struct zt_life *life)
{
    const struct zt_program *prog = &p->programs[k];
    int n = prog->n_ops, n_extended = prog->repeats ? 2 * n : n;
    int *second_beat = zt_xcalloc((size_t)n_extended + 1, sizeof *second_beat);
    int next = n_extended, after = n_extended;
    for (int e = n_extended - 1; e >= 0; e--) {
        second_beat[e] = after; /* the second beat listed after e */
        if (is_beat(&prog->ops[e % n])) {
            after = next;
            next = e;
        }
    }
    for (int b = 0; b < p->n_bufs; b++) {
        struct zt_life *l = &life[b];
        if (!zt_is_transient(&p->bufs[b], k) || l->hi < 0 ||
            prog->ops[l->hi].stream == ZT_ST_COMPUTE)
            continue;
        l->hi = ZT_MIN(ZT_MAX(l->hi, second_beat[l->hi] - 1), l->lo + n - 1);
    }
    free(second_beat);
}

/* What follows one another in a chain has one place (fold.c): none may outlive the beginning of the next. */
static void keep_apart(const struct zt_plan *p, enum zt_program_kind k, struct zt_life *life)
{
    const int n_ops = p->programs[k].n_ops;
    for (int b = 0; b < p->fold.n_bufs; b++) {
        if (!zt_is_transient(&p->bufs[b], k) || !zt_fold_is_first(&p->fold, b))
            continue;
        int i = b;
        for (int next; (next = zt_fold_next(&p->fold, i)) >= 0; i = next)
            life[i].hi = ZT_MIN(life[i].hi, life[next].lo - 1);
        life[i].hi = ZT_MIN(life[i].hi, life[b].lo + n_ops - 1);
    }
}

void zt_lifetimes_by_waits(const struct zt_plan *p, enum zt_program_kind k,
                           const struct zt_wait_list *unlimited, int backlog, struct zt_life *out)
{
    zt_lifetimes_plain(p, k, out);
    if (p->cfg.profile_known)
        widen_by_profile(p, k, unlimited, backlog, out);
    else
        widen_by_beats(p, k, out);
    keep_apart(p, k, out);
}

void zt_lifetimes_widened(const struct zt_plan *p, enum zt_program_kind k, int backlog,
                          struct zt_life *out)
{
    struct zt_wait_list unlimited;
    zt_derive_waits_unlimited(p, k, &unlimited);
    zt_lifetimes_by_waits(p, k, &unlimited, backlog, out);
    zt_wait_list_release(&unlimited);
}
