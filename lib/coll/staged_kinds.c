#include "base/size.h"
#include "coll/staged_internal.h"

/* ---- where a chunk lies in its slot ---- */

static char *at_start(const struct staged_call *a, const struct staged_chunk *k)
{
    return a->lane->slots[k->slot];
}

/* This rank's among the pieces of all members. */
static char *at_own(const struct staged_call *a, const struct staged_chunk *k)
{
    return at_start(a, k) + (size_t)(a->me * k->n) * a->elem_bytes;
}

/* Behind the pieces of all members. */
static char *behind(const struct staged_call *a, const struct staged_chunk *k)
{
    return at_start(a, k) +
           zt_align_size((size_t)(a->n * k->n) * a->elem_bytes, STAGED_ALIGN_BYTES);
}

/* In place, or behind the input when the output is wider. */
static char *at_reduced(const struct staged_call *a, const struct staged_chunk *k)
{
    return a->call->dtype == a->call->recv_dtype ? at_own(a, k) : behind(a, k);
}

/* Numbers of pieces; OF_ALL: one for each member. */
enum { NONE = 0, ONE = 1, OF_ALL = -1 };

/*
 * What the inner transport's send and recv are in a slot: where, and how many pieces are loaded and stored. room:
 * the pieces that a slot holds of them together, and of results behind these.
 */
static const struct staged_kind {
    char *(*send)(const struct staged_call *a, const struct staged_chunk *k);
    char *(*recv)(const struct staged_call *a, const struct staged_chunk *k);
    int n_send, n_recv;
    int room, room_behind;
} kinds[ZT_BARRIER] = {
    [ZT_ALL_REDUCE] = {at_start, at_start, ONE, ONE, ONE, NONE},
    [ZT_REDUCE_SCATTER] = {at_start, at_reduced, OF_ALL, ONE, OF_ALL, ONE},
    [ZT_ALL_GATHER] = {at_own, at_start, ONE, OF_ALL, OF_ALL, NONE},
    [ZT_BROADCAST] = {at_start, at_start, ONE, ONE, ONE, NONE},
    [ZT_ALL_TO_ALL] = {at_start, behind, OF_ALL, OF_ALL, OF_ALL, OF_ALL},
    [ZT_SEND] = {at_start, NULL, ONE, NONE, ONE, NONE},
    [ZT_RECV] = {NULL, at_start, NONE, ONE, ONE, NONE},
};

static int pieces(const struct staged_call *a, int n)
{
    return n == OF_ALL ? a->n : n;
}

size_t zt_staged_slot_elem_bytes(const struct staged_call *a)
{
    const struct staged_kind *kind = &kinds[a->call->kind];
    return (size_t)pieces(a, kind->room) * a->elem_bytes +
           (size_t)pieces(a, kind->room_behind) * a->recv_elem_bytes;
}

/* ---- device to slot and back ---- */

/* The chunk of piece i of a buffer whose pieces lie `count` elements apart. */
static size_t piece_at(const struct staged_call *a, const struct staged_chunk *k, int i,
                       size_t elem_bytes)
{
    return (size_t)(i * a->call->count + k->at) * elem_bytes;
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
    char *to = a->call->recv;
    size_t bytes = (size_t)k->n * a->recv_elem_bytes;
    for (int i = 0; i < n_pieces; i++)
        zt_staged_copy(a, to + piece_at(a, k, i, a->recv_elem_bytes), from + (size_t)i * bytes,
                       bytes);
}

/*
 * How much is received is known on the device only. So the chunk of recv is fetched, overwritten as
 * far as the counts say, and written back whole.
 */
static void load_received(const struct staged_call *a, const struct staged_chunk *k)
{
    const size_t bytes = (size_t)a->n * sizeof(int64_t);
    if (k->at == 0) {
        zt_staged_copy(a, a->lane->counts[0], a->call->send_counts, bytes);
        zt_staged_copy(a, a->lane->counts[1], a->call->recv_counts, bytes);
    }
    load_pieces(a, k, behind(a, k), a->call->recv, a->n);
}

/* Of a broadcast the root only loads, and the others only store. */
void zt_staged_load(const struct staged_call *a, const struct staged_chunk *k)
{
    const struct staged_kind *kind = &kinds[a->call->kind];
    if (a->call->kind == ZT_ALL_TO_ALL)
        load_received(a, k);
    if (kind->send && (a->call->kind != ZT_BROADCAST || a->me == a->call->root))
        load_pieces(a, k, kind->send(a, k), a->call->send, pieces(a, kind->n_send));
}

void zt_staged_store(const struct staged_call *a, const struct staged_chunk *k)
{
    const struct staged_kind *kind = &kinds[a->call->kind];
    if (kind->recv && (a->call->kind != ZT_BROADCAST || a->me != a->call->root))
        store_pieces(a, k, kind->recv(a, k), pieces(a, kind->n_recv));
}

/* ---- between ranks ---- */

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

static void split(const struct staged_call *a, const struct staged_chunk *k, struct zt_call *part)
{
    struct staged_lane *l = a->lane;
    const struct split_task t = {
        .inner = a->c->inner,
        .counts = {l->counts[0], l->counts[1]},
        .parts = {l->chunk_counts[0][k->slot], l->chunk_counts[1][k->slot]},
        .n = a->n,
        .stride = a->call->count,
        .at = k->at,
        .chunk = k->n,
    };
    t.inner->dev->ops->host_call(l->inner, split_counts, &t, sizeof t);
    part->send_counts = t.parts[0];
    part->recv_counts = t.parts[1];
}

/* The same call, of a chunk. */
void zt_staged_run(const struct staged_call *a, const struct staged_chunk *k)
{
    const struct staged_kind *kind = &kinds[a->call->kind];
    struct zt_call part = *a->call;
    part.count = k->n;
    part.send = kind->send ? kind->send(a, k) : NULL;
    part.recv = kind->recv ? kind->recv(a, k) : NULL;
    if (part.kind == ZT_ALL_TO_ALL)
        split(a, k, &part);
    zt_coll_enqueue(a->c->inner, a->lane->inner, &part);
}
