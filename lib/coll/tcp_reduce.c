#include "base/size.h"
#include "coll/combine.h"
#include "coll/tcp_net.h"

enum { ALIGN_ELEMS = 64 };

/* ---- one rank on each node: everybody sums a part ---- */

struct flat {
    struct tcp_op *t;
    int64_t bounds[ZT_TCP_MAX_NODES + 1]; /* elements of the buffer that each node sums */
    bool gathers;                         /* and sends to all others */
    char *result;                         /* of ours */
    int64_t summed, chunk;
    size_t elem_bytes, result_elem_bytes;
    int n_flows;
    int part_of[2 * ZT_TCP_MAX_NODES];
    bool second[2 * ZT_TCP_MAX_NODES]; /* a flow has come to results */
};

static int64_t flat_part(const struct flat *f, int i)
{
    return f->bounds[i + 1] - f->bounds[i];
}

/* Bytes of the next piece of ours that each node sends. */
static size_t next_chunk(const struct flat *f)
{
    int64_t left = flat_part(f, f->t->g->me) - f->summed;
    return (size_t)ZT_MIN(f->chunk, left) * f->elem_bytes;
}

static void flat_start(struct flat *f)
{
    struct tcp_op *t = f->t;
    struct tcp_group *g = t->g;
    for (int k = 1; k < g->n_parts; k++) {
        int to = (g->me + k) % g->n_parts, from = (g->me - k + g->n_parts) % g->n_parts;
        f->part_of[f->n_flows] = to;
        t->flows[f->n_flows++] = (struct tcp_flow){
            g->parts[to].conn, true, (char *)t->src[0] + (size_t)f->bounds[to] * f->elem_bytes, 0,
            (size_t)flat_part(f, to) * f->elem_bytes};
        f->part_of[f->n_flows] = from;
        t->flows[f->n_flows++] =
            (struct tcp_flow){g->parts[from].conn, false,
                              g->chunks + (size_t)from * TCP_CHUNK_BYTES, 0, next_chunk(f)};
    }
}

/* The next piece of ours has come from all: sum it, and let the next one come. */
static bool flat_sum(struct flat *f)
{
    struct tcp_op *t = f->t;
    const struct zt_call *k = t->op->call;
    const void *src[ZT_TCP_MAX_NODES];
    int me = t->g->me;
    size_t bytes = next_chunk(f);
    if (!bytes)
        return false;
    for (int i = 1; i < f->n_flows; i += 2) {
        if (t->flows[i].done < bytes)
            return false;
        src[f->part_of[i]] = t->flows[i].p;
    }
    src[me] = t->src[0] + (size_t)(f->bounds[me] + f->summed) * f->elem_bytes;
    void *dst = f->result + (size_t)f->summed * f->result_elem_bytes;
    const struct zt_combine sum = {
        .n_src = t->g->n_parts,
        .n_dst = 1,
        .src = src,
        .dst = &dst,
        .dtype = k->dtype,
        .dst_dtype = k->recv_dtype,
        .op = k->redop,
        .count = (int64_t)(bytes / f->elem_bytes),
    };
    t->op->c->combine(&sum);
    f->summed += sum.count;
    for (int i = 1; i < f->n_flows; i += 2) {
        t->flows[i].done = 0;
        t->flows[i].ready = next_chunk(f);
    }
    return true;
}

/*
 * From parts to results. What comes in may overwrite what we have sent: a node can only send the sum of what
 * it has got.
 */
static void flat_turn(struct flat *f)
{
    struct tcp_op *t = f->t;
    char *recv = (char *)t->dst[0];
    int me = t->g->me;
    size_t mine = (size_t)f->bounds[me] * f->elem_bytes;
    for (int i = 0; f->gathers && i < f->n_flows; i++) {
        struct tcp_flow *w = &t->flows[i];
        size_t at = w->out ? mine : (size_t)f->bounds[f->part_of[i]] * f->elem_bytes;
        bool first_over = w->out ? w->done == w->ready : f->summed == flat_part(f, me);
        if (!f->second[i] && first_over) {
            f->second[i] = true;
            w->p = recv + at;
            w->done = 0;
            w->ready = w->out ? 0 : (size_t)flat_part(f, f->part_of[i]) * f->elem_bytes;
        }
        if (f->second[i] && w->out)
            w->ready = (size_t)f->summed * f->elem_bytes;
    }
}

static int flat_run(struct flat *f)
{
    struct tcp_op *t = f->t;
    const struct zt_call *k = t->op->call;
    f->elem_bytes = zt_dtype_bytes(k->dtype);
    f->result_elem_bytes = zt_dtype_bytes(k->recv_dtype);
    f->chunk = TCP_CHUNK_BYTES / (int64_t)f->elem_bytes;
    flat_start(f);
    for (;;) {
        while (flat_sum(f))
            ;
        flat_turn(f);
        bool busy = false;
        for (int i = 0; i < f->n_flows; i++)
            busy = busy || t->flows[i].done < t->flows[i].ready;
        if (!busy)
            return ZT_OK;
        int rc = zt_tcp_pump(t->op, t->flows, f->n_flows);
        if (rc)
            return rc;
    }
}

/* ---- several ranks on a node: partial sums along the nodes ---- */

/* A call cut into pieces, the same on all nodes; none crosses the border of two members' results. */
struct cut {
    int64_t total, slice, chunk; /* elements */
};

static int64_t piece(const struct cut *c, int64_t at)
{
    int64_t slice_end = (at / c->slice + 1) * c->slice;
    return ZT_MIN(c->chunk, ZT_MIN(slice_end, c->total) - at);
}

struct stop {
    int64_t at; /* first element */
    int64_t index;
};

static void go_on(const struct cut *c, struct stop *s)
{
    s->at += piece(c, s->at);
    s->index++;
}

/*
 * One node of the chain. Pieces come (came), are combined, and leave (left), at most TCP_RING of them being
 * here; results come back or, at the last node, are made.
 */
struct chain {
    struct tcp_op *t;
    struct cut cut;
    bool scatters; /* reduce_scatter: a result goes to its member's node, from the last one */
    bool first, last;
    enum zt_dtype partial;
    size_t partial_bytes, result_bytes; /* of an element */
    struct stop came, combined, left;
    struct stop result; /* pieces of the result that members here have */
    int64_t result_end;
};

static struct cut cut_of(const struct zt_call *k, int n)
{
    size_t wide =
        ZT_MAX(zt_dtype_bytes(zt_tcp_partial_dtype(k->dtype)), zt_dtype_bytes(k->recv_dtype));
    bool scatters = k->kind == ZT_REDUCE_SCATTER;
    return (struct cut){.total = scatters ? k->count * n : k->count,
                        .slice = ZT_MAX(k->count, (int64_t)1),
                        .chunk = TCP_CHUNK_BYTES / (int64_t)wide};
}

static char *ring(const struct chain *c, const struct stop *s)
{
    return c->t->g->chunks + (size_t)(s->index % TCP_RING) * TCP_CHUNK_BYTES;
}

/* The group index of the member whose result a piece is part of (of all: 0). */
static int owner(const struct chain *c, int64_t at)
{
    return c->scatters ? (int)(at / c->cut.slice) : 0;
}

/* The member here that it is, or -1: another node's. */
static int owner_here(const struct chain *c, int64_t at)
{
    const struct tcp_part *ours = &c->t->g->parts[c->t->g->me];
    int i = owner(c, at) - ours->first;
    return i >= 0 && i < ours->n ? i : -1;
}

static struct tcp_conn *owner_conn(const struct chain *c, int64_t at)
{
    const struct tcp_group *g = c->t->g;
    int i = g->n_parts - 1;
    while (g->parts[i].first > owner(c, at))
        i--;
    return g->parts[i].conn;
}

/* Where a piece of a result of a member here is to be written first. */
static char *place(const struct chain *c, const struct stop *s)
{
    struct tcp_op *t = c->t;
    int i = c->scatters ? owner_here(c, s->at) : 0;
    int64_t at = c->scatters ? s->at % c->cut.slice : s->at;
    if (i > 0 && !t->direct)
        return zt_tcp_stage(t);
    return t->dst[i] + (size_t)at * c->result_bytes;
}

/* A piece of the result lies at its place(): let the other members have it. */
static int hand_out(struct chain *c)
{
    struct tcp_op *t = c->t;
    const struct stop *s = &c->result;
    size_t bytes = (size_t)piece(&c->cut, s->at) * c->result_bytes;
    size_t at = (size_t)s->at * c->result_bytes;
    int rc = ZT_OK;
    if (c->scatters) {
        if (!t->direct && owner_here(c, s->at) > 0)
            rc = zt_tcp_stage_meet(t);
    } else if (t->direct) {
        for (int i = 1; i < t->op->n; i++)
            memcpy(t->dst[i] + at, t->dst[0] + at, bytes);
    } else {
        memcpy(zt_tcp_stage(t), t->dst[0] + at, bytes);
        rc = zt_tcp_stage_meet(t);
    }
    go_on(&c->cut, &c->result);
    return rc;
}

/* Combine the next piece, if it is there and has a place to go to. */
static bool combine_next(struct chain *c)
{
    struct tcp_op *t = c->t;
    const struct zt_call *k = t->op->call;
    const void *src[ZT_SHM_MAX_RANKS];
    struct stop *s = &c->combined;
    bool there = c->first ? s->index - c->left.index < TCP_RING : s->index < c->came.index;
    if (!there || s->at >= c->cut.total)
        return false;
    bool result_here = c->last && (!c->scatters || owner_here(c, s->at) >= 0);
    if (result_here && c->left.index < s->index) /* its place may be taken */
        return false;
    for (int i = 0; i < t->op->n; i++)
        src[i] = t->src[i] + (size_t)s->at * zt_dtype_bytes(k->dtype);
    void *dst = result_here ? place(c, s) : ring(c, s);
    const struct zt_combine sum = {
        .n_src = t->op->n,
        .n_dst = 1,
        .src = src,
        .dst = &dst,
        .dtype = k->dtype,
        .dst_dtype = c->last ? k->recv_dtype : c->partial,
        .op = k->redop,
        .count = piece(&c->cut, s->at),
    };
    zt_tcp_combine(t->op, c->first ? NULL : ring(c, s), &sum);
    go_on(&c->cut, s);
    return true;
}

enum { FROM_PREV, TO_NEXT, FROM_NEXT, TO_PREV, N_FLOWS };

/* What this node's flows may move next. */
static void aim(struct chain *c)
{
    struct tcp_op *t = c->t;
    struct tcp_flow *f = t->flows;
    struct tcp_part *parts = t->g->parts;
    int me = t->g->me, end = t->g->n_parts - 1;
    if (!c->first && f[FROM_PREV].done == f[FROM_PREV].ready && c->came.at < c->cut.total &&
        c->came.index - c->left.index < TCP_RING)
        f[FROM_PREV] = (struct tcp_flow){parts[me - 1].conn, false, ring(c, &c->came), 0,
                                         (size_t)piece(&c->cut, c->came.at) * c->partial_bytes};
    if (f[TO_NEXT].done == f[TO_NEXT].ready && c->left.index < c->combined.index)
        f[TO_NEXT] = (struct tcp_flow){
            c->last ? owner_conn(c, c->left.at) : parts[me + 1].conn, true, ring(c, &c->left), 0,
            (size_t)piece(&c->cut, c->left.at) * (c->last ? c->result_bytes : c->partial_bytes)};
    if (!c->last && f[FROM_NEXT].done == f[FROM_NEXT].ready && c->result.at < c->result_end)
        f[FROM_NEXT] =
            (struct tcp_flow){parts[c->scatters ? end : me + 1].conn, false, place(c, &c->result),
                              0, (size_t)piece(&c->cut, c->result.at) * c->result_bytes};
    if (!c->first && !c->scatters) {
        f[TO_PREV].conn = parts[me - 1].conn;
        f[TO_PREV].out = true;
        f[TO_PREV].p = t->dst[0];
        f[TO_PREV].ready = (size_t)c->result.at * c->result_bytes;
    }
}

static bool over(const struct tcp_flow *f)
{
    return f->ready && f->done == f->ready;
}

/* Take note of pieces that have come or gone as a whole. */
static int settle(struct chain *c)
{
    struct tcp_flow *f = c->t->flows;
    if (over(&f[FROM_PREV])) {
        go_on(&c->cut, &c->came);
        f[FROM_PREV].done = f[FROM_PREV].ready = 0;
    }
    if (over(&f[TO_NEXT])) {
        go_on(&c->cut, &c->left);
        f[TO_NEXT].done = f[TO_NEXT].ready = 0;
    }
    if (over(&f[FROM_NEXT])) {
        f[FROM_NEXT].done = f[FROM_NEXT].ready = 0;
        return hand_out(c);
    }
    return ZT_OK;
}

/* The last node keeps what belongs here: it has left when it is combined. */
static int keep_results(struct chain *c)
{
    while (c->last && c->left.index < c->combined.index &&
           c->t->flows[TO_NEXT].done == c->t->flows[TO_NEXT].ready &&
           (!c->scatters || owner_here(c, c->left.at) >= 0)) {
        go_on(&c->cut, &c->left);
        int rc = hand_out(c);
        if (rc)
            return rc;
    }
    return ZT_OK;
}

static int chain_run(struct chain *c)
{
    struct tcp_op *t = c->t;
    for (;;) {
        int rc = settle(c);
        if (!rc)
            rc = keep_results(c);
        while (!rc && combine_next(c))
            rc = keep_results(c);
        if (rc)
            return rc;
        aim(c);
        bool moves = false;
        for (int i = 0; i < N_FLOWS; i++)
            moves = moves || t->flows[i].done < t->flows[i].ready;
        if (!moves)
            return ZT_OK;
        rc = zt_tcp_pump(t->op, t->flows, N_FLOWS);
        if (rc)
            return rc;
    }
}

static int run_chain(struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    const struct tcp_part *ours = &t->g->parts[t->g->me];
    struct chain c = {
        .t = t,
        .cut = cut_of(k, t->g->n),
        .scatters = k->kind == ZT_REDUCE_SCATTER,
        .first = t->g->me == 0,
        .last = t->g->me == t->g->n_parts - 1,
        .partial = zt_tcp_partial_dtype(k->dtype),
        .result_bytes = zt_dtype_bytes(k->recv_dtype),
    };
    c.partial_bytes = zt_dtype_bytes(c.partial);
    c.result_end = c.cut.total;
    if (c.scatters) {
        /* Only this node's members' results, whose pieces begin with a slice. */
        c.result.at = ours->first * c.cut.slice;
        c.result_end = (ours->first + ours->n) * c.cut.slice;
    }
    memset(t->flows, 0, N_FLOWS * sizeof *t->flows);
    return chain_run(&c);
}

/* A member that does not speak, and cannot be written to: its results pass by in pieces. */
static int take_pieces(struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    const struct tcp_part *ours = &t->g->parts[t->g->me];
    struct cut cut = cut_of(k, t->g->n);
    bool scatters = k->kind == ZT_REDUCE_SCATTER;
    struct stop s = {.at = scatters ? (ours->first + 1) * cut.slice : 0};
    int64_t end = scatters ? (ours->first + ours->n) * cut.slice : cut.total;
    if (t->direct)
        return ZT_OK;
    for (; s.at < end; go_on(&cut, &s)) {
        const char *block = zt_tcp_stage(t);
        int64_t at = scatters ? s.at % cut.slice : s.at;
        int rc = zt_tcp_stage_meet(t);
        if (rc)
            return rc;
        if (scatters && s.at / cut.slice != ours->first + t->op->me)
            continue;
        memcpy((char *)k->recv + (size_t)at * zt_dtype_bytes(k->recv_dtype), block,
               (size_t)piece(&cut, s.at) * zt_dtype_bytes(k->recv_dtype));
    }
    return ZT_OK;
}

int zt_tcp_all_reduce(struct tcp_op *t)
{
    int64_t count = t->op->call->count;
    int n = t->g->n_parts, me = t->g->me;
    if (!t->g->speaks)
        return take_pieces(t);
    if (!t->g->flat)
        return run_chain(t);
    struct flat f = {.t = t, .gathers = true};
    int64_t part = zt_align_i64(zt_ceil_div_i64(count, n), ALIGN_ELEMS);
    for (int i = 0; i <= n; i++)
        f.bounds[i] = ZT_MIN(part * i, count);
    f.result = t->dst[0] + (size_t)f.bounds[me] * zt_dtype_bytes(t->op->call->dtype);
    return flat_run(&f);
}

int zt_tcp_reduce_scatter(struct tcp_op *t)
{
    if (!t->g->speaks)
        return take_pieces(t);
    if (!t->g->flat)
        return run_chain(t);
    struct flat f = {.t = t, .result = t->dst[0]};
    for (int i = 0; i <= t->g->n_parts; i++)
        f.bounds[i] = i * t->op->call->count;
    return flat_run(&f);
}
