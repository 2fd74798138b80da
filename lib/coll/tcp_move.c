#include "coll/combine.h"
#include "coll/tcp_net.h"

/* ---- results that come in, to the members here ---- */

/* A range of the speaker's recv buffer that comes from another node. */
struct region {
    size_t at, bytes, pushed;
};

/* Give the others what has come of a region: into their buffers, or (in its turn, in blocks) by the stage. */
static int push(struct tcp_op *t, struct region *r, size_t come, bool in_turn)
{
    const char *from = t->dst[0] + r->at;
    if (t->direct) {
        for (int i = 1; i < t->op->n && come > r->pushed; i++)
            memcpy(t->dst[i] + r->at + r->pushed, from + r->pushed, come - r->pushed);
        r->pushed = come;
        return ZT_OK;
    }
    while (in_turn && r->pushed < r->bytes) {
        size_t n = ZT_MIN(r->bytes - r->pushed, (size_t)TCP_STAGE_BYTES);
        if (come < r->pushed + n)
            return ZT_OK;
        memcpy(zt_tcp_stage(t), from + r->pushed, n);
        int rc = zt_tcp_stage_meet(t);
        if (rc)
            return rc;
        r->pushed += n;
    }
    return ZT_OK;
}

/* The others' side of push(): a whole region in blocks. */
static int pull(struct tcp_op *t, size_t at, size_t bytes)
{
    char *recv = t->op->call->recv;
    for (size_t done = 0; !t->direct && done < bytes;) {
        size_t n = ZT_MIN(bytes - done, (size_t)TCP_STAGE_BYTES);
        const char *block = zt_tcp_stage(t);
        int rc = zt_tcp_stage_meet(t);
        if (rc)
            return rc;
        memcpy(recv + at + done, block, n);
        done += n;
    }
    return ZT_OK;
}

static bool any_left(const struct tcp_flow *flows, int n)
{
    for (int i = 0; i < n; i++)
        if (flows[i].done < flows[i].ready)
            return true;
    return false;
}

/* ---- all_gather: each node to each other ---- */

static struct region region_of(const struct tcp_op *t, int part)
{
    const struct tcp_part *p = &t->g->parts[part];
    size_t each = t->op->send_bytes;
    return (struct region){(size_t)p->first * each, (size_t)p->n * each, 0};
}

/* What the members of this node send: each copies that himself. */
static void gather_here(const struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    char *to = (char *)k->recv + region_of(t, t->g->me).at;
    for (int i = 0; i < t->op->n; i++, to += t->op->send_bytes)
        if (to != t->src[i])
            zt_copy_large(to, t->src[i], t->op->send_bytes);
}

static int gather_over(struct tcp_op *t)
{
    struct tcp_group *g = t->g;
    struct region r[ZT_TCP_MAX_NODES];
    int member[ZT_TCP_MAX_NODES] = {0}; /* whose bytes an out flow moves */
    int n = g->n_parts, turn = 0;
    size_t each = t->op->send_bytes;
    for (int i = 0; i < n; i++) {
        r[i] = region_of(t, i);
        if (i == g->me)
            r[i].bytes = 0;
        t->flows[i] =
            (struct tcp_flow){g->parts[i].conn, false, t->dst[0] + r[i].at, 0, r[i].bytes};
        t->flows[n + i] =
            (struct tcp_flow){g->parts[i].conn, true, (char *)t->src[0], 0, i == g->me ? 0 : each};
    }
    while (any_left(t->flows, 2 * n)) {
        int rc = zt_tcp_pump(t->op, t->flows, 2 * n);
        for (int i = 0; i < n && !rc; i++) {
            while (turn < n && r[turn].pushed == r[turn].bytes)
                turn++;
            rc = push(t, &r[i], t->flows[i].done, i == turn);
            struct tcp_flow *out = &t->flows[n + i];
            if (i != g->me && out->done == out->ready && member[i] + 1 < t->op->n) {
                out->p = (char *)t->src[++member[i]];
                out->done = 0;
            }
        }
        if (rc)
            return rc;
    }
    for (int i = 0; i < n; i++) {
        int rc = push(t, &r[i], r[i].bytes, true);
        if (rc)
            return rc;
    }
    return ZT_OK;
}

int zt_tcp_all_gather(struct tcp_op *t)
{
    int rc = ZT_OK;
    if (t->g->speaks)
        rc = gather_over(t);
    else
        for (int i = 0; i < t->g->n_parts && !rc; i++)
            if (i != t->g->me)
                rc = pull(t, region_of(t, i).at, region_of(t, i).bytes);
    if (!rc)
        gather_here(t);
    return rc;
}

/* ---- broadcast: from the root's node along the others, both ways ---- */

static int pass_on(struct tcp_op *t, int root_part, const char *from)
{
    struct tcp_group *g = t->g;
    size_t bytes = t->op->send_bytes;
    struct region r = {0, bytes, 0};
    int n = 0, in = -1;
    if (g->me != root_part) {
        in = n;
        t->flows[n++] = (struct tcp_flow){g->parts[g->me + (g->me > root_part ? -1 : 1)].conn,
                                          false, t->dst[0], 0, bytes};
    }
    for (int step = -1; step <= 1; step += 2) {
        int to = g->me + step;
        bool away = step < 0 ? g->me <= root_part : g->me >= root_part;
        if (away && to >= 0 && to < g->n_parts)
            t->flows[n++] =
                (struct tcp_flow){g->parts[to].conn, true, (char *)from, 0, in < 0 ? bytes : 0};
    }
    while (any_left(t->flows, n)) {
        int rc = zt_tcp_pump(t->op, t->flows, n);
        if (!rc && in >= 0)
            rc = push(t, &r, t->flows[in].done, true);
        for (int i = in + 1; in >= 0 && i < n; i++)
            t->flows[i].ready = t->flows[in].done;
        if (rc)
            return rc;
    }
    return ZT_OK;
}

int zt_tcp_broadcast(struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    struct tcp_group *g = t->g;
    int part = g->n_parts - 1;
    while (g->parts[part].first > k->root)
        part--;
    int root = part == g->me ? k->root - g->parts[part].first : -1;
    int rc = ZT_OK;
    if (g->speaks)
        rc = pass_on(t, part, root < 0 ? t->dst[0] : t->src[root]);
    else if (root < 0)
        rc = pull(t, 0, t->op->recv_bytes);
    if (!rc && root >= 0 && root != t->op->me)
        zt_copy_large(k->recv, t->src[root], t->op->send_bytes);
    return rc;
}

/* ---- all_to_all: each node to each other, of each member for each member ---- */

/* Counts in the shared memory of a member here: sent, expected, and what the others send to it. */
enum { SENT, EXPECTED, COMING };

static int64_t *counts_of(const struct tcp_op *t, int member, int which)
{
    char *p = zt_tcp_shared(t->op->c, t->op->ranks[member], t->g);
    return (int64_t *)(p + 2 * (size_t)TCP_STAGE_BYTES) + which * t->op->c->net->world;
}

void zt_tcp_publish_counts(const struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    size_t bytes = (size_t)t->g->n * sizeof(int64_t);
    memcpy(counts_of(t, t->op->me, SENT), k->send_counts, bytes);
    memcpy(counts_of(t, t->op->me, EXPECTED), k->recv_counts, bytes);
}

/* Tell the members here what comes to them. */
static int swap_counts(struct tcp_op *t)
{
    const void *mine[ZT_SHM_MAX_RANKS], *all[ZT_TCP_MAX_RANKS];
    const struct tcp_part *ours = &t->g->parts[t->g->me];
    for (int i = 0; i < t->op->n; i++)
        mine[i] = counts_of(t, i, SENT);
    int rc = zt_tcp_exchange(t, mine, all, (size_t)t->g->n * sizeof(int64_t));
    for (int k = 0; k < t->op->n && !rc; k++)
        for (int i = 0; i < t->g->n; i++)
            memcpy(&counts_of(t, k, COMING)[i], (const int64_t *)all[i] + ours->first + k,
                   sizeof(int64_t));
    return rc;
}

static int check_counts(const struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    const int64_t *coming = counts_of(t, t->op->me, COMING);
    const struct zt_coll *base = &t->op->c->base;
    for (int i = 0; i < t->g->n; i++)
        if (coming[i] != k->recv_counts[i] || coming[i] < 0 || coming[i] > k->count)
            return zt_err_set(t->op->err, ZT_EPROTO,
                              "all_to_all #%u: rank %d sends %lld elements where rank %d expects "
                              "%lld, at most %lld",
                              t->op->task->seq,
                              zt_group_member(&base->mesh, k->group, base->rank, i),
                              (long long)coming[i], base->rank, (long long)k->recv_counts[i],
                              (long long)k->count);
    return ZT_OK;
}

/* What goes to another node: pieces of member `from` here to member `to` of that node, in that order. */
struct pieces {
    int part, from, to;
};

static bool next_piece(struct tcp_op *t, struct pieces *p, struct tcp_flow *f)
{
    const struct zt_call *k = t->op->call;
    const struct tcp_part *there = &t->g->parts[p->part];
    size_t elem_bytes = zt_dtype_bytes(k->dtype);
    while (f->done == f->ready) {
        if (++p->to == there->n) {
            p->to = 0;
            p->from++;
        }
        if (p->from == t->op->n)
            return false;
        int j = there->first + p->to;
        f->p = (char *)t->src[p->from] + (size_t)(j * k->count) * elem_bytes;
        f->done = 0;
        f->ready = (size_t)counts_of(t, p->from, SENT)[j] * elem_bytes;
    }
    return true;
}

struct outgoing {
    int n;
    struct pieces pieces[ZT_TCP_MAX_NODES];
    bool over[ZT_TCP_MAX_NODES];
};

static void advance_all(struct tcp_op *t, struct outgoing *o)
{
    for (int i = 0; i < o->n; i++)
        o->over[i] = o->over[i] || !next_piece(t, &o->pieces[i], &t->flows[1 + i]);
}

/* flows[0] takes what comes; meanwhile all others go on. */
static int receive(struct tcp_op *t, struct outgoing *o)
{
    while (t->flows[0].done < t->flows[0].ready) {
        int rc = zt_tcp_pump(t->op, t->flows, 1 + o->n);
        if (rc)
            return rc;
        advance_all(t, o);
    }
    return ZT_OK;
}

/* The piece of group member i to member `to` here; every member of this node calls it. */
static int take_piece(struct tcp_op *t, struct outgoing *o, struct tcp_conn *conn, int i, int to)
{
    const struct zt_call *k = t->op->call;
    size_t elem_bytes = zt_dtype_bytes(k->dtype), at = (size_t)(i * k->count) * elem_bytes;
    size_t bytes = (size_t)counts_of(t, to, COMING)[i] * elem_bytes;
    bool staged = to > 0 && !t->direct;
    for (size_t done = 0; done < bytes && (staged || t->g->speaks);) {
        size_t n = staged ? ZT_MIN(bytes - done, (size_t)TCP_STAGE_BYTES) : bytes;
        char *p = staged ? zt_tcp_stage(t) : t->dst[to] + at;
        int rc = ZT_OK;
        if (t->g->speaks) {
            t->flows[0] = (struct tcp_flow){conn, false, p, 0, n};
            rc = receive(t, o);
        }
        if (!rc && staged)
            rc = zt_tcp_stage_meet(t);
        if (rc)
            return rc;
        if (staged && to == t->op->me)
            memcpy((char *)k->recv + at + done, p, n);
        done += n;
    }
    return ZT_OK;
}

static int take_all(struct tcp_op *t, struct outgoing *o)
{
    for (int i = 0; i < t->g->n_parts; i++) {
        const struct tcp_part *p = &t->g->parts[i];
        for (int k = 0; k < p->n && i != t->g->me; k++) {
            for (int to = 0; to < t->op->n; to++) {
                int rc = take_piece(t, o, p->conn, p->first + k, to);
                if (rc)
                    return rc;
            }
        }
    }
    return ZT_OK;
}

static void keep_here(const struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    const struct tcp_part *ours = &t->g->parts[t->g->me];
    size_t elem_bytes = zt_dtype_bytes(k->dtype), stride = (size_t)k->count * elem_bytes;
    for (int i = 0; i < t->op->n; i++)
        zt_copy_large((char *)k->recv + (size_t)(ours->first + i) * stride,
                      t->src[i] + (size_t)(ours->first + t->op->me) * stride,
                      (size_t)k->recv_counts[ours->first + i] * elem_bytes);
}

/* Every member has found that what comes to it fits: only then anything is sent. */
static int agree_on_counts(struct tcp_op *t)
{
    int rc = t->g->speaks ? swap_counts(t) : ZT_OK;
    if (!rc)
        rc = zt_shm_part(t->op);
    if (!rc)
        rc = check_counts(t);
    if (!rc)
        rc = zt_shm_part(t->op);
    if (!rc && t->g->speaks)
        rc = zt_tcp_exchange(t, NULL, NULL, 0);
    return rc;
}

int zt_tcp_all_to_all(struct tcp_op *t)
{
    struct outgoing o = {0};
    int rc = agree_on_counts(t);
    if (rc)
        return rc;
    memset(t->flows, 0, sizeof t->flows);
    for (int i = 0; t->g->speaks && i < t->g->n_parts; i++) {
        if (i == t->g->me)
            continue;
        t->flows[1 + o.n] = (struct tcp_flow){.conn = t->g->parts[i].conn, .out = true};
        o.pieces[o.n++] = (struct pieces){i, 0, -1};
    }
    advance_all(t, &o);
    rc = take_all(t, &o);
    while (!rc && any_left(t->flows, 1 + o.n)) {
        rc = zt_tcp_pump(t->op, t->flows, 1 + o.n);
        advance_all(t, &o);
    }
    if (!rc)
        keep_here(t);
    return rc;
}
