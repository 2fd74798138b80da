#include "base/size.h"
#include "coll/staged_internal.h"

/* ---- moving ---- */

static char *slot_of(const struct staged_call *a, const struct staged_chunk *k)
{
    return a->lane->slots[k->slot];
}

/* Where a slot's second part begins: behind a chunk of every in-piece. */
static char *second_of(const struct staged_call *a, const struct staged_chunk *k)
{
    int pieces = a->kind->in_pieces < 0 ? a->n : a->kind->in_pieces;
    size_t first = (size_t)pieces * (size_t)k->n * a->elem_bytes;
    return slot_of(a, k) + zt_align_size(first, STAGED_ALIGN_BYTES);
}

/* The chunk of piece i of a buffer whose pieces lie `count` elements apart. */
static size_t piece_at(const struct staged_call *a, const struct staged_chunk *k, int i,
                       size_t elem_bytes)
{
    return (size_t)(i * a->count + k->at) * elem_bytes;
}

static void load_pieces(const struct staged_call *a, const struct staged_chunk *k, char *to,
                        const char *from, int n_pieces)
{
    size_t bytes = (size_t)k->n * a->elem_bytes;
    for (int i = 0; i < n_pieces; i++)
        zt_staged_copy(a, to + (size_t)i * bytes, from + piece_at(a, k, i, a->elem_bytes), bytes);
}

static void store_pieces(const struct staged_call *a, const struct staged_chunk *k,
                         const char *from, int n_pieces)
{
    size_t bytes = (size_t)k->n * a->recv_elem_bytes;
    for (int i = 0; i < n_pieces; i++)
        zt_staged_copy(a, a->recv + piece_at(a, k, i, a->recv_elem_bytes), from + (size_t)i * bytes,
                       bytes);
}

static void load_one(const struct staged_call *a, const struct staged_chunk *k)
{
    load_pieces(a, k, slot_of(a, k), a->send, 1);
}

static void store_one(const struct staged_call *a, const struct staged_chunk *k)
{
    store_pieces(a, k, slot_of(a, k), 1);
}

static void load_all(const struct staged_call *a, const struct staged_chunk *k)
{
    load_pieces(a, k, slot_of(a, k), a->send, a->n);
}

static void store_all(const struct staged_call *a, const struct staged_chunk *k)
{
    store_pieces(a, k, slot_of(a, k), a->n);
}

static void move_none(const struct staged_call *a, const struct staged_chunk *k)
{
    (void)a;
    (void)k;
}

/* ---- the calls ---- */

static void run_all_reduce(const struct staged_call *a, const struct staged_chunk *k)
{
    char *slot = slot_of(a, k);
    a->c->inner->ops->all_reduce(a->c->inner, a->lane->inner, a->group, slot, slot, k->n, a->dtype,
                                 a->redop);
}

/* In place, or behind the input when the output is wider. */
static char *reduced_at(const struct staged_call *a, const struct staged_chunk *k)
{
    return a->dtype == a->recv_dtype ? slot_of(a, k) + (size_t)(a->me * k->n) * a->elem_bytes
                                     : second_of(a, k);
}

static void run_reduce_scatter(const struct staged_call *a, const struct staged_chunk *k)
{
    a->c->inner->ops->reduce_scatter(a->c->inner, a->lane->inner, a->group, slot_of(a, k), a->dtype,
                                     reduced_at(a, k), a->recv_dtype, k->n);
}

static void store_reduced(const struct staged_call *a, const struct staged_chunk *k)
{
    store_pieces(a, k, reduced_at(a, k), 1);
}

static char *own_piece(const struct staged_call *a, const struct staged_chunk *k)
{
    return slot_of(a, k) + (size_t)(a->me * k->n) * a->elem_bytes;
}

static void load_own(const struct staged_call *a, const struct staged_chunk *k)
{
    load_pieces(a, k, own_piece(a, k), a->send, 1);
}

static void run_all_gather(const struct staged_call *a, const struct staged_chunk *k)
{
    a->c->inner->ops->all_gather(a->c->inner, a->lane->inner, a->group, own_piece(a, k),
                                 slot_of(a, k), k->n, a->dtype);
}

static void load_root(const struct staged_call *a, const struct staged_chunk *k)
{
    if (a->me == a->root)
        load_one(a, k);
}

static void run_broadcast(const struct staged_call *a, const struct staged_chunk *k)
{
    a->c->inner->ops->broadcast(a->c->inner, a->lane->inner, a->group, slot_of(a, k), k->n,
                                a->dtype, a->root);
}

static void store_others(const struct staged_call *a, const struct staged_chunk *k)
{
    if (a->me != a->root)
        store_one(a, k);
}

/*
 * How much is received is known on the device only. So the chunk of recv is fetched, overwritten as
 * far as the counts say, and written back whole.
 */
static void load_all_to_all(const struct staged_call *a, const struct staged_chunk *k)
{
    if (k->at == 0) {
        zt_staged_copy(a, a->lane->counts[0], a->send_counts,
                       (size_t)a->n * sizeof *a->send_counts);
        zt_staged_copy(a, a->lane->counts[1], a->recv_counts,
                       (size_t)a->n * sizeof *a->recv_counts);
    }
    load_pieces(a, k, slot_of(a, k), a->send, a->n);
    load_pieces(a, k, second_of(a, k), a->recv, a->n);
}

struct split_task {
    struct zt_coll *inner;
    const int64_t *counts[2];
    int64_t *parts[2];
    int n;
    int64_t stride, at, chunk;
};

/* A chunk's part of the counts. */
static int split_counts(void *arg, struct zt_err *err)
{
    const struct split_task *t = arg;
    for (int side = 0; side < 2; side++) {
        for (int j = 0; j < t->n; j++) {
            int64_t count = t->counts[side][j];
            if (count < 0 || count > t->stride) {
                t->inner->ops->abort(t->inner);
                return zt_err_set(err, ZT_EPROTO,
                                  "all_to_all: rank %d %s member %d %lld elements, at most %lld "
                                  "are possible",
                                  t->inner->rank, side ? "expects of" : "sends to", j,
                                  (long long)count, (long long)t->stride);
            }
            t->parts[side][j] = ZT_MIN(ZT_MAX(count - t->at, 0), t->chunk);
        }
    }
    return ZT_OK;
}

static void run_all_to_all(const struct staged_call *a, const struct staged_chunk *k)
{
    struct staged_lane *l = a->lane;
    const struct split_task t = {
        .inner = a->c->inner,
        .counts = {l->counts[0], l->counts[1]},
        .parts = {l->chunk_counts[0][k->slot], l->chunk_counts[1][k->slot]},
        .n = a->n,
        .stride = a->count,
        .at = k->at,
        .chunk = k->n,
    };
    t.inner->dev->ops->host_call(l->inner, split_counts, &t, sizeof t);
    t.inner->ops->all_to_all(t.inner, l->inner, a->group, slot_of(a, k), t.parts[0],
                             second_of(a, k), t.parts[1], k->n, a->dtype);
}

static void store_received(const struct staged_call *a, const struct staged_chunk *k)
{
    store_pieces(a, k, second_of(a, k), a->n);
}

static void run_send(const struct staged_call *a, const struct staged_chunk *k)
{
    a->c->inner->ops->send(a->c->inner, a->lane->inner, a->group, slot_of(a, k), k->n, a->dtype,
                           a->root);
}

static void run_recv(const struct staged_call *a, const struct staged_chunk *k)
{
    a->c->inner->ops->recv(a->c->inner, a->lane->inner, a->group, slot_of(a, k), k->n, a->dtype,
                           a->root);
}

const struct staged_kind zt_staged_all_reduce = {
    .name = "all_reduce",
    .load = load_one,
    .run = run_all_reduce,
    .store = store_one,
    .in_pieces = 1,
};
const struct staged_kind zt_staged_reduce_scatter = {
    .name = "reduce_scatter",
    .load = load_all,
    .run = run_reduce_scatter,
    .store = store_reduced,
    .in_pieces = -1,
    .out_pieces = 1,
};
const struct staged_kind zt_staged_all_gather = {
    .name = "all_gather",
    .load = load_own,
    .run = run_all_gather,
    .store = store_all,
    .in_pieces = -1,
};
const struct staged_kind zt_staged_broadcast = {
    .name = "broadcast",
    .load = load_root,
    .run = run_broadcast,
    .store = store_others,
    .in_pieces = 1,
};
const struct staged_kind zt_staged_all_to_all = {
    .name = "all_to_all",
    .load = load_all_to_all,
    .run = run_all_to_all,
    .store = store_received,
    .in_pieces = -1,
    .out_pieces = -1,
};
const struct staged_kind zt_staged_send = {
    .name = "send",
    .load = load_one,
    .run = run_send,
    .store = move_none,
    .in_pieces = 1,
};
const struct staged_kind zt_staged_recv = {
    .name = "recv",
    .load = move_none,
    .run = run_recv,
    .store = store_one,
    .in_pieces = 1,
};
