#include "base/size.h"
#include "coll/combine.h"
#include "coll/tcp_net.h"

/* ---- what every call begins with ---- */

/* A call, and one that does not match it, of the members on a node. */
struct wire_call {
    uint8_t kind, dtype, recv_dtype, redop, root, group, reserved[2];
    int32_t rank, reserved_2;
    uint64_t seq;
    int64_t count;
};

struct wire_head {
    struct wire_call calls[2]; /* rank of the second -1: all match */
};

static struct wire_call to_wire(const struct shm_call *c, int rank)
{
    return (struct wire_call){
        .kind = c->kind,
        .dtype = c->dtype,
        .recv_dtype = c->recv_dtype,
        .redop = c->redop,
        .root = c->root,
        .group = c->group,
        .rank = rank,
        .seq = c->seq,
        .count = c->count,
    };
}

static struct shm_call from_wire(const struct wire_call *w)
{
    return (struct shm_call){
        .kind = w->kind,
        .dtype = w->dtype,
        .recv_dtype = w->recv_dtype,
        .redop = w->redop,
        .root = w->root,
        .group = w->group,
        .seq = w->seq,
        .count = w->count,
    };
}

/* What the members here call, once they have met. */
static struct wire_head head_of(const struct shm_op *op)
{
    struct wire_head h = {{to_wire(op->calls[0], op->ranks[0]), {.rank = -1}}};
    for (int i = 1; i < op->n && h.calls[1].rank < 0; i++)
        if (!zt_shm_same_call(op->calls[0], op->calls[i]))
            h.calls[1] = to_wire(op->calls[i], op->ranks[i]);
    return h;
}

/* The first call in the order of the ranks that is not the first rank's; NULL: all match. */
static const struct wire_call *odd_one(const struct wire_head *const *heads, int n)
{
    struct shm_call first = from_wire(&heads[0]->calls[0]);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 2; k++) {
            const struct wire_call *w = &heads[i]->calls[k];
            struct shm_call c = from_wire(w);
            if (w->rank >= 0 && !zt_shm_same_call(&c, &first))
                return w;
        }
    }
    return NULL;
}

/* Leave it where the other members here look when they are woken by the abort. */
static int mismatch(struct shm_op *op, const struct wire_call *odd, const struct wire_call *first)
{
    struct shm_verdict *v = &zt_shm_slot_of(op, op->c->base.rank)->verdict;
    v->ranks[0] = odd->rank;
    v->ranks[1] = first->rank;
    v->calls[0] = from_wire(odd);
    v->calls[1] = from_wire(first);
    atomic_store_explicit(&v->found, SHM_MISMATCH, memory_order_release);
    return zt_shm_mismatch(op, v->ranks[0], &v->calls[0], v->ranks[1], &v->calls[1]);
}

/*
 * One message to each node and one from each: head, then the payload. A head that does not match is the
 * last that comes from that node.
 */
static int swap_messages(struct tcp_op *t, char *mine, size_t bytes, char **theirs)
{
    struct shm_op *op = t->op;
    struct tcp_group *g = t->g;
    const struct wire_head *own = (const struct wire_head *)mine;
    struct shm_call call = from_wire(&own->calls[0]);
    int n = 0;
    bool busy = true;
    for (int i = 0; i < g->n_parts; i++) {
        if (i == g->me)
            continue;
        t->flows[n++] = (struct tcp_flow){g->parts[i].conn, true, mine, 0,
                                          sizeof *own + (size_t)g->parts[g->me].n * bytes};
        t->flows[n++] = (struct tcp_flow){g->parts[i].conn, false, theirs[i], 0,
                                          sizeof *own + (size_t)g->parts[i].n * bytes};
    }
    while (busy) {
        int rc = zt_tcp_pump(op, t->flows, n);
        busy = false;
        for (int k = 0; k < n; k++) {
            struct tcp_flow *f = &t->flows[k];
            const struct wire_head *h = (const struct wire_head *)f->p;
            if (!f->out && f->done >= sizeof *h && f->done < f->ready) {
                struct shm_call other = from_wire(&h->calls[0]);
                if (h->calls[1].rank >= 0 || !zt_shm_same_call(&other, &call))
                    f->ready = f->done;
            }
            busy = busy || f->done < f->ready;
        }
        if (rc)
            return rc;
    }
    return ZT_OK;
}

static size_t message_bytes(int members, size_t bytes)
{
    return zt_align_size(sizeof(struct wire_head) + (size_t)members * bytes, SHM_LINE_BYTES);
}

size_t zt_tcp_small_bytes(const struct tcp_group *g)
{
    return (size_t)g->n_parts * message_bytes(0, 0) + (size_t)g->n_parts * SHM_LINE_BYTES +
           ZT_MAX((size_t)g->n * sizeof(int64_t) * (size_t)g->n, (size_t)TCP_STAGE_BYTES);
}

int zt_tcp_exchange(struct tcp_op *t, const void *const *mine, const void **all, size_t bytes)
{
    struct tcp_group *g = t->g;
    const struct wire_head *heads[ZT_TCP_MAX_NODES];
    char *theirs[ZT_TCP_MAX_NODES] = {g->small};
    struct wire_head head = head_of(t->op);
    char *at = g->small;
    ZT_ASSERT_CMP(g->n_parts, >, 1);
    for (int i = 0; i < g->n_parts; i++) {
        theirs[i] = at;
        heads[i] = (const struct wire_head *)at;
        at += message_bytes(g->parts[i].n, bytes);
    }
    char *own = theirs[g->me];
    bool fits = head.calls[1].rank < 0;
    memcpy(own, &head, sizeof head);
    for (int i = 0; bytes && fits && i < t->op->n; i++)
        memcpy(own + sizeof head + (size_t)i * bytes, mine[i], bytes);
    int rc = swap_messages(t, own, fits ? bytes : 0, theirs);
    if (rc)
        return rc;
    const struct wire_call *odd = odd_one(heads, g->n_parts);
    if (odd)
        return mismatch(t->op, odd, &heads[0]->calls[0]);
    for (int i = 0; all && i < g->n_parts; i++)
        for (int k = 0; k < g->parts[i].n; k++)
            all[g->parts[i].first + k] = theirs[i] + sizeof head + (size_t)k * bytes;
    return ZT_OK;
}

/* ---- blocks for members whose buffers we cannot write ---- */

char *zt_tcp_stage(const struct tcp_op *t)
{
    return t->stage + (t->n_staged % 2) * (size_t)TCP_STAGE_BYTES;
}

int zt_tcp_stage_meet(struct tcp_op *t)
{
    t->n_staged++;
    return zt_shm_part(t->op);
}

/* ---- sums that go on from a partial one ---- */

enum zt_dtype zt_tcp_partial_dtype(enum zt_dtype t)
{
    return t == ZT_BF16 || t == ZT_F16 ? ZT_F32 : t;
}

/* Elements [at, at + n): 16-bit sources are widened one by one onto the fp32 partial sum. */
static void combine_block(const struct shm_op *op, const float *partial, const struct zt_combine *a,
                          int64_t at, int64_t n)
{
    enum { BLOCK = 1024 };
    float acc[BLOCK], wide[BLOCK];
    const void *both[2] = {acc, wide};
    void *to_acc = acc, *to_wide = wide, *dst[ZT_SHM_MAX_RANKS];
    ZT_ASSERT_CMP(n, <=, BLOCK);
    memcpy(acc, partial + at, (size_t)n * sizeof *acc);
    for (int i = 0; i < a->n_src; i++) {
        const void *src = (const char *)a->src[i] + (size_t)at * zt_dtype_bytes(a->dtype);
        const struct zt_combine widen = {1, 1, &src, &to_wide, a->dtype, ZT_F32, a->op, n};
        const struct zt_combine add = {2, 1, both, &to_acc, ZT_F32, ZT_F32, a->op, n};
        op->c->combine(&widen);
        op->c->combine(&add);
    }
    for (int d = 0; d < a->n_dst; d++)
        dst[d] = (char *)a->dst[d] + (size_t)at * zt_dtype_bytes(a->dst_dtype);
    const struct zt_combine round = {1, a->n_dst, both, dst, ZT_F32, a->dst_dtype, a->op, n};
    op->c->combine(&round);
}

void zt_tcp_combine(const struct shm_op *op, const void *partial, const struct zt_combine *a)
{
    enum { BLOCK = 1024 };
    const void *src[ZT_SHM_MAX_RANKS + 1] = {partial};
    if (!partial) {
        op->c->combine(a);
    } else if (zt_tcp_partial_dtype(a->dtype) == a->dtype) {
        struct zt_combine all = *a;
        memcpy(src + 1, a->src, (size_t)a->n_src * sizeof *src);
        all.src = src;
        all.n_src++;
        op->c->combine(&all);
    } else {
        for (int64_t at = 0; at < a->count; at += BLOCK)
            combine_block(op, partial, a, at, ZT_MIN((int64_t)BLOCK, a->count - at));
    }
}

/* ---- small calls ---- */

/* One hop: what every member sends goes to all nodes. */
static bool is_small(const struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    return (k->kind == ZT_ALL_REDUCE || k->kind == ZT_REDUCE_SCATTER || k->kind == ZT_ALL_GATHER) &&
           t->op->send_bytes <= TCP_SMALL_BYTES &&
           t->op->send_bytes * (size_t)t->g->n <= TCP_STAGE_BYTES / 2;
}

/* Bytes of the result that member i here finds in a block, and where in it. */
static size_t small_result(const struct tcp_op *t, int i, size_t *at)
{
    const struct zt_call *k = t->op->call;
    *at = k->kind == ZT_REDUCE_SCATTER ? (size_t)i * t->op->recv_bytes : 0;
    return t->op->recv_bytes;
}

static void combine_small(const struct tcp_op *t, const void **all, char *result)
{
    const struct shm_op *op = t->op;
    const struct zt_call *k = op->call;
    const struct tcp_part *ours = &t->g->parts[t->g->me];
    struct zt_combine sum = {
        .n_src = t->g->n,
        .n_dst = 1,
        .src = all,
        .dtype = k->dtype,
        .dst_dtype = k->recv_dtype,
        .op = k->redop,
        .count = k->count,
    };
    if (k->kind == ZT_ALL_GATHER) {
        for (int i = 0; i < t->g->n; i++)
            memcpy(result + (size_t)i * op->send_bytes, all[i], op->send_bytes);
        return;
    }
    int n_results = k->kind == ZT_REDUCE_SCATTER ? ours->n : 1;
    for (int r = 0; r < n_results; r++) {
        const void *src[ZT_TCP_MAX_RANKS];
        size_t skip = n_results == 1 && k->kind == ZT_ALL_REDUCE ? 0 : (size_t)(ours->first + r);
        void *dst = result + (size_t)r * op->recv_bytes;
        for (int i = 0; i < t->g->n; i++)
            src[i] = (const char *)all[i] + skip * (size_t)k->count * zt_dtype_bytes(k->dtype);
        sum.src = src;
        sum.dst = &dst;
        op->c->combine(&sum);
    }
}

static int run_small(struct tcp_op *t)
{
    const struct zt_call *k = t->op->call;
    const void *all[ZT_TCP_MAX_RANKS];
    bool alone = t->op->n == 1;
    char *block = alone ? k->recv : zt_tcp_stage(t);
    size_t at, bytes = small_result(t, t->op->me, &at);
    if (t->g->speaks) {
        int rc = zt_tcp_exchange(t, (const void *const *)t->src, all, t->op->send_bytes);
        if (rc)
            return rc;
        combine_small(t, all, block);
    }
    if (alone)
        return ZT_OK;
    int rc = zt_tcp_stage_meet(t);
    if (!rc)
        memcpy(k->recv, block + at, bytes);
    return rc;
}

/* ---- all calls ---- */

static int (*const large[ZT_N_CALL_KINDS])(struct tcp_op *t) = {
    [ZT_ALL_REDUCE] = zt_tcp_all_reduce, [ZT_REDUCE_SCATTER] = zt_tcp_reduce_scatter,
    [ZT_ALL_GATHER] = zt_tcp_all_gather, [ZT_BROADCAST] = zt_tcp_broadcast,
    [ZT_ALL_TO_ALL] = zt_tcp_all_to_all,
};

/* Buffers of the members here. Those that only the root reads from may lie anywhere elsewhere. */
static int find_buffers(struct tcp_op *t)
{
    struct shm_op *op = t->op;
    const struct zt_call *k = op->call;
    int root = k->kind == ZT_BROADCAST ? k->root - t->g->parts[t->g->me].first : -1;
    t->direct = true;
    for (int i = 0; i < op->n; i++) {
        if ((k->kind != ZT_BROADCAST || i == root) &&
            !zt_shm_source(op, op->ranks[i], op->calls[i], op->send_bytes,
                           (const void **)&t->src[i]))
            return ZT_EPROTO;
        t->dst[i] = i == op->me
                        ? k->recv
                        : zt_shm_at(op->c, op->ranks[i], op->calls[i]->recv, op->recv_bytes);
        t->direct = t->direct && (i == 0 || t->dst[i]) &&
                    (i == 0 || op->calls[i]->recv.segment || !op->recv_bytes);
    }
    return ZT_OK;
}

static int run_large(struct tcp_op *t)
{
    int rc = t->g->speaks ? zt_tcp_exchange(t, NULL, NULL, 0) : ZT_OK;
    if (!rc)
        rc = large[t->op->call->kind](t);
    return rc ? rc : zt_shm_part(t->op);
}

/* The members here do not agree. All nodes are told before this one gives up, so that all say the same. */
static int tell_mismatch(struct tcp_op *t)
{
    int rc = t->g->speaks ? zt_tcp_exchange(t, NULL, NULL, 0) : zt_shm_part(t->op);
    ZT_ASSERT_CMP(rc, !=, ZT_OK);
    return rc;
}

int zt_tcp_run(struct shm_op *op)
{
    struct tcp_net *net = op->c->net;
    struct tcp_op t = {.op = op, .g = &net->groups[op->call->group]};
    t.stage = zt_tcp_shared(op->c, op->ranks[0], t.g);
    if (op->call->kind == ZT_ALL_TO_ALL)
        zt_tcp_publish_counts(&t);
    int rc = zt_shm_meet(op, ZT_OK);
    if (rc == ZT_EPROTO)
        return tell_mismatch(&t);
    if (!rc)
        rc = find_buffers(&t);
    if (!rc)
        rc = is_small(&t) ? run_small(&t) : run_large(&t);
    if (rc && t.g->speaks) {
        uint32_t not_asked = SHM_NOT_ASKED;
        atomic_compare_exchange_strong(&zt_shm_slot_of(op, op->c->base.rank)->verdict.found,
                                       &not_asked, SHM_NO_MISMATCH);
    }
    return rc;
}

int zt_tcp_agree(struct shm_op *op, int *status, int *rank)
{
    struct tcp_op t = {.op = op, .g = &op->c->net->host};
    const int32_t mine[2] = {*status, *rank};
    const void *list[ZT_SHM_MAX_RANKS], *all[ZT_TCP_MAX_RANKS];
    for (int i = 0; i < ZT_TCP_MAX_RANKS; i++)
        all[i] = mine;
    for (int i = 0; i < op->n; i++)
        list[i] = mine;
    int rc = zt_tcp_exchange(&t, list, all, sizeof mine);
    for (int i = 0; !rc && i < t.g->n; i++) {
        int32_t one[2];
        memcpy(one, all[i], sizeof one);
        if (one[0]) {
            *status = one[0];
            *rank = one[1];
            break;
        }
    }
    return rc;
}
