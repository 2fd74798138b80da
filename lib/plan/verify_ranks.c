#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Across ranks. A collective is one event of its group: it starts when every member has come to it,
 * so the n-th collective of a group must be the same call on all members, and all orders together
 * (each rank's streams and waits, joined at the collectives) must have no cycle, or the ranks wait
 * for each other for ever. One run is enough: nothing waits for a later run, and all ranks run
 * equally many.
 */

/* One collective of a rank, as its group sees it. */
struct call {
    zt_axes group;
    int leader; /* rank of the group's first member: names the group among those with these axes */
    int index;  /* the how-manieth of the group in this program */
    int rank_i, op;
    int node;
};

struct merge {
    const struct zt_plan *const *plans;
    int n;
    enum zt_program_kind k;
    struct call *calls;
    size_t n_calls, calls_cap;
    int *first_node; /* (n + 1) node of op 0 of each rank, before merging */
    int *node;       /* (all ops) node after merging */
    int *in_degree;
    int *first_edge, *edges; /* successors */
};

static const struct zt_program *program(const struct merge *m, int r)
{
    return &m->plans[r]->programs[m->k];
}

static bool is_collective(const struct zt_plan *p, const struct zt_op *op)
{
    return op->count > 0 && zt_group_size(&p->cfg.mesh, op->group) > 1;
}

static const char *text_of(const struct merge *m, int r, int op, char *buf, size_t buf_bytes)
{
    return zt_op_text(m->plans[r], m->k, op, buf, buf_bytes);
}

static int collect_calls(struct merge *m, int r, struct zt_err *err)
{
    const struct zt_plan *p = m->plans[r];
    const struct zt_program *prog = program(m, r);
    size_t begin = m->n_calls;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_op *op = &prog->ops[i];
        if (!is_collective(p, op))
            continue;
        int index = 0;
        for (size_t c = m->n_calls; c-- > begin;) {
            if (m->calls[c].group != op->group)
                continue;
            const struct zt_op *before = &prog->ops[m->calls[c].op];
            if (before->stream != op->stream) {
                char x[160], y[160];
                return zt_err_set(err, ZT_EVERIFY,
                                  "rank %d: %s and %s are calls of one group on two streams: their "
                                  "order is left open",
                                  p->rank, text_of(m, r, m->calls[c].op, x, sizeof x),
                                  text_of(m, r, i, y, sizeof y));
            }
            index = m->calls[c].index + 1;
            break;
        }
        ZT_GROW(m->calls, m->n_calls + 1, m->calls_cap);
        m->calls[m->n_calls++] =
            (struct call){.group = op->group,
                          .leader = zt_group_member(&p->cfg.mesh, op->group, p->rank, 0),
                          .index = index,
                          .rank_i = r,
                          .op = i};
    }
    return 0;
}

static int by_event(const void *a, const void *b)
{
    const struct call *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->leader != y->leader)
        return x->leader < y->leader ? -1 : 1;
    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return (x->rank_i > y->rank_i) - (x->rank_i < y->rank_i);
}

static bool same_event(const struct call *x, const struct call *y)
{
    return x->group == y->group && x->leader == y->leader && x->index == y->index;
}

/* Members of one event: all the given ranks of the group, with the same call. */
static int check_event(const struct merge *m, const struct call *c, size_t n, struct zt_err *err)
{
    char x[160], y[160];
    const struct zt_op *a = &program(m, c->rank_i)->ops[c->op];
    const struct zt_mesh *mesh = &m->plans[0]->cfg.mesh;
    for (size_t i = 1; i < n; i++) {
        const struct zt_op *b = &program(m, c[i].rank_i)->ops[c[i].op];
        if (a->kind == b->kind && a->count == b->count && a->dtype == b->dtype &&
            a->predicate == b->predicate)
            continue;
        return zt_err_set(err, ZT_EVERIFY,
                          "collective %d of a group: rank %d has %s, %lld x %s, rank %d has %s, "
                          "%lld x %s",
                          c->index, m->plans[c->rank_i]->rank,
                          text_of(m, c->rank_i, c->op, x, sizeof x), (long long)a->count,
                          zt_dtype_name(a->dtype), m->plans[c[i].rank_i]->rank,
                          text_of(m, c[i].rank_i, c[i].op, y, sizeof y), (long long)b->count,
                          zt_dtype_name(b->dtype));
    }
    for (int r = 0; r < m->n; r++) {
        bool member = zt_group_member(mesh, c->group, m->plans[r]->rank, 0) == c->leader;
        bool there = false;
        for (size_t i = 0; i < n; i++)
            there |= c[i].rank_i == r;
        if (member && !there)
            return zt_err_set(err, ZT_EVERIFY,
                              "collective %d of a group: rank %d has %s, rank %d has none",
                              c->index, m->plans[c->rank_i]->rank,
                              text_of(m, c->rank_i, c->op, x, sizeof x), m->plans[r]->rank);
    }
    return 0;
}

/* Check every event and make its ops one node. */
static int merge_events(struct merge *m, struct zt_err *err)
{
    for (int i = 0; i < m->first_node[m->n]; i++)
        m->node[i] = i;
    if (m->n_calls)
        qsort(m->calls, m->n_calls, sizeof *m->calls, by_event);
    for (size_t i = 0, n; i < m->n_calls; i += n) {
        for (n = 1; i + n < m->n_calls && same_event(&m->calls[i], &m->calls[i + n]); n++)
            ;
        if (check_event(m, &m->calls[i], n, err))
            return err->code;
        const struct call *c = &m->calls[i];
        for (size_t j = 1; j < n; j++)
            m->node[m->first_node[c[j].rank_i] + c[j].op] = m->first_node[c->rank_i] + c->op;
    }
    return 0;
}

/* Calls visit(from, to) for every edge: stream order and waits inside a run. */
static void each_edge(struct merge *m, void (*visit)(struct merge *, int, int))
{
    for (int r = 0; r < m->n; r++) {
        const struct zt_program *prog = program(m, r);
        const int *node = m->node + m->first_node[r];
        int last[ZT_N_STREAMS];
        memset(last, 0xff, sizeof last);
        for (int i = 0; i < prog->n_ops; i++) {
            const struct zt_op *op = &prog->ops[i];
            if (last[op->stream] >= 0)
                visit(m, node[last[op->stream]], node[i]);
            last[op->stream] = i;
            for (int j = op->first_wait; j < op->first_wait + op->n_waits; j++)
                if (prog->waits[j].delta == 0)
                    visit(m, node[prog->waits[j].op], node[i]);
        }
    }
}

static void count_edge(struct merge *m, int from, int to)
{
    m->first_edge[from + 1]++;
    m->in_degree[to]++;
}

static void store_edge(struct merge *m, int from, int to)
{
    m->edges[m->first_edge[from]++] = to; /* moves first_edge[from] to the next node's begin */
}

static void build_edges(struct merge *m)
{
    int n_nodes = m->first_node[m->n];
    m->in_degree = zt_xcalloc(n_nodes, sizeof *m->in_degree);
    m->first_edge = zt_xcalloc((size_t)n_nodes + 1, sizeof *m->first_edge);
    each_edge(m, count_edge);
    for (int i = 0; i < n_nodes; i++)
        m->first_edge[i + 1] += m->first_edge[i];
    m->edges = zt_xcalloc(m->first_edge[n_nodes], sizeof *m->edges);
    each_edge(m, store_edge);
    memmove(m->first_edge + 1, m->first_edge, (size_t)n_nodes * sizeof *m->first_edge);
    m->first_edge[0] = 0;
}

/* Names a collective that cannot start, on the first rank that has one. */
static int cycle_error(const struct merge *m, struct zt_err *err)
{
    for (size_t c = 0; c < m->n_calls; c++) {
        const struct call *x = &m->calls[c];
        if (m->in_degree[m->node[m->first_node[x->rank_i] + x->op]] <= 0)
            continue;
        for (size_t d = c + 1; d < m->n_calls; d++) {
            const struct call *y = &m->calls[d];
            char a[160], b[160];
            if (same_event(x, y) || m->in_degree[m->node[m->first_node[y->rank_i] + y->op]] <= 0)
                continue;
            return zt_err_set(err, ZT_EVERIFY,
                              "ranks wait for each other for ever: %s on rank %d and %s on rank %d "
                              "are among the collectives that none can start",
                              text_of(m, x->rank_i, x->op, a, sizeof a), m->plans[x->rank_i]->rank,
                              text_of(m, y->rank_i, y->op, b, sizeof b), m->plans[y->rank_i]->rank);
        }
    }
    return zt_err_set(err, ZT_EVERIFY, "%s: the waits of a rank form a cycle",
                      zt_program_name(m->k));
}

/* Kahn's topological sort. */
static int check_acyclic(struct merge *m, struct zt_err *err)
{
    int n_nodes = m->first_node[m->n], n_ready = 0, n_left = 0;
    int *ready = zt_xcalloc(n_nodes, sizeof *ready);
    for (int i = 0; i < n_nodes; i++) {
        n_left += m->node[i] == i;
        if (m->node[i] == i && !m->in_degree[i])
            ready[n_ready++] = i;
    }
    while (n_ready) {
        int i = ready[--n_ready];
        n_left--;
        for (int e = m->first_edge[i]; e < m->first_edge[i + 1]; e++)
            if (!--m->in_degree[m->edges[e]])
                ready[n_ready++] = m->edges[e];
    }
    free(ready);
    return n_left ? cycle_error(m, err) : 0;
}

static int verify_program_ranks(const struct zt_plan *const *plans, int n, enum zt_program_kind k,
                                struct zt_err *err)
{
    struct merge m = {.plans = plans, .n = n, .k = k};
    int rc = 0;
    m.first_node = zt_xcalloc((size_t)n + 1, sizeof *m.first_node);
    for (int r = 0; r < n; r++) {
        m.first_node[r + 1] = m.first_node[r] + program(&m, r)->n_ops;
        rc = collect_calls(&m, r, err);
        if (rc)
            goto out;
    }
    m.node = zt_xcalloc(m.first_node[n], sizeof *m.node);
    rc = merge_events(&m, err);
    if (rc)
        goto out;
    build_edges(&m);
    rc = check_acyclic(&m, err);
out:
    free(m.calls);
    free(m.first_node);
    free(m.node);
    free(m.in_degree);
    free(m.first_edge);
    free(m.edges);
    return rc;
}

static int check_alike(const struct zt_plan *a, const struct zt_plan *b, struct zt_err *err)
{
    if (a->rank == b->rank)
        return zt_err_set(err, ZT_EVERIFY, "two plans of rank %d", a->rank);
    if (memcmp(&a->cfg.mesh, &b->cfg.mesh, sizeof a->cfg.mesh) != 0)
        return zt_err_set(err, ZT_EVERIFY, "ranks %d and %d have different meshes", a->rank,
                          b->rank);
    for (int ar = 0; ar < ZT_N_ARENAS; ar++)
        if (a->ledger.peak[ar] != b->ledger.peak[ar])
            return zt_err_set(err, ZT_EVERIFY, "arena %d: %zu bytes on rank %d, %zu on rank %d", ar,
                              a->ledger.peak[ar], a->rank, b->ledger.peak[ar], b->rank);
    return 0;
}

int zt_verify_ranks(const struct zt_plan *const *plans, int n, struct zt_err *err)
{
    for (int i = 1; i < n; i++)
        for (int j = 0; j < i; j++)
            if (check_alike(plans[j], plans[i], err))
                return err->code;
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        if (verify_program_ranks(plans, n, k, err))
            return err->code;
    return 0;
}

/* The first collective from row i on; n_ops: there is none. */
static int next_collective(const struct zt_plan *p, const struct zt_program *prog, int i)
{
    while (i < prog->n_ops && !is_collective(p, &prog->ops[i]))
        i++;
    return i;
}

static bool same_call(const struct zt_op *a, const struct zt_op *b)
{
    return a->kind == b->kind && a->group == b->group && a->stream == b->stream &&
           a->count == b->count && a->dtype == b->dtype && a->predicate == b->predicate;
}

static int check_calls(const struct zt_plan *first, const struct zt_plan *p, enum zt_program_kind k,
                       struct zt_err *err)
{
    const struct zt_program *f = &first->programs[k], *g = &p->programs[k];
    char x[160] = "no more", y[160] = "no more";
    int i = next_collective(first, f, 0), j = next_collective(p, g, 0), n = 0;
    for (; i < f->n_ops && j < g->n_ops && same_call(&f->ops[i], &g->ops[j]); n++) {
        i = next_collective(first, f, i + 1);
        j = next_collective(p, g, j + 1);
    }
    if (i == f->n_ops && j == g->n_ops)
        return 0;
    if (i < f->n_ops)
        zt_op_text(first, k, i, x, sizeof x);
    if (j < g->n_ops)
        zt_op_text(p, k, j, y, sizeof y);
    return zt_err_set(err, ZT_EVERIFY, "collective %d of %s: rank %d has %s, rank %d has %s%s", n,
                      zt_program_name(k), first->rank, x, p->rank, y,
                      i < f->n_ops && j < g->n_ops ? ", which differ" : "");
}

int zt_verify_like(const struct zt_plan *first, const struct zt_plan *p, struct zt_err *err)
{
    int rc = check_alike(first, p, err);
    for (int k = 0; k < ZT_N_PROGRAMS && !rc; k++)
        rc = check_calls(first, p, (enum zt_program_kind)k, err);
    return rc;
}
