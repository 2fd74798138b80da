#include "coll/staged.h"

#include "base/arena.h"
#include "base/size.h"
#include "coll/staged_internal.h"

void zt_staged_copy(const struct staged_call *a, void *dst, const void *src, size_t bytes)
{
    const struct zt_copy c = {dst, src, bytes};
    if (bytes)
        a->c->base.dev->ops->copy(a->s, &c);
}

/* ---- counts of calls in several chunks ---- */

struct total_task {
    struct staged_coll *c;
    int64_t *at;
    int64_t count;
    const char *name;
    zt_axes group;
    int n, peer; /* peer -1: at is (n), of the members; else of this member */
};

static int put_total(void *arg, struct zt_err *err)
{
    const struct total_task *t = arg;
    (void)err;
    *t->at = t->count;
    return ZT_OK;
}

static int compare_totals(void *arg, struct zt_err *err)
{
    const struct total_task *t = arg;
    const struct zt_coll *base = &t->c->base;
    int n = t->peer < 0 ? t->n : 1;
    for (int i = 0; i < n; i++) {
        if (t->at[i] == t->count)
            continue;
        int member = t->peer < 0 ? i : t->peer;
        t->c->inner->ops->abort(t->c->inner);
        return zt_err_set(err, ZT_EPROTO,
                          "%s over the axes %#x: rank %d has %lld elements where rank %d has "
                          "%lld; all members of a group must make the same calls in the same order",
                          t->name, t->group, base->rank, (long long)t->count,
                          zt_group_member(&base->mesh, t->group, base->rank, member),
                          (long long)t->at[i]);
    }
    return ZT_OK;
}

/*
 * The inner transport compares chunks. Ranks that have equal chunks and not equally many of them
 * would wait for each other; so their counts go ahead.
 */
static void check_total(const struct staged_call *a)
{
    struct staged_coll *c = a->c;
    struct staged_lane *l = a->lane;
    const struct zt_call *call = a->call;
    const struct zt_dev_ops *cpu = c->inner->dev->ops;
    struct total_task t = {
        .c = c,
        .at = l->message,
        .count = call->count,
        .name = zt_call_name(call->kind),
        .group = call->group,
        .n = a->n,
        .peer = call->root,
    };
    if (call->kind == ZT_SEND) {
        cpu->host_call(l->inner, put_total, &t, sizeof t);
        zt_send(c->inner, l->inner, call->group, l->message, 1, ZT_I64, call->root);
    } else if (call->kind == ZT_RECV) {
        zt_recv(c->inner, l->inner, call->group, l->message, 1, ZT_I64, call->root);
        cpu->host_call(l->inner, compare_totals, &t, sizeof t);
    } else {
        t.peer = -1;
        t.at = l->total + a->me;
        cpu->host_call(l->inner, put_total, &t, sizeof t);
        zt_all_gather(c->inner, l->inner, call->group, t.at, l->total, 1, ZT_I64);
        t.at = l->total;
        cpu->host_call(l->inner, compare_totals, &t, sizeof t);
    }
}

/* ---- enqueueing ---- */

/* The lane of a stream; on its first call a free one. */
static struct staged_lane *lane_of(struct staged_coll *c, struct zt_stream *s)
{
    int i;
    for (i = 0; i < c->n_lanes; i++) {
        struct zt_stream *owner = NULL;
        if (atomic_compare_exchange_strong(&c->lanes[i].owner, &owner, s) || owner == s)
            break;
    }
    ZT_ASSERT_CMP(i, <, c->n_lanes); /* no more streams than zt_staged_coll_create() was told of */
    return &c->lanes[i];
}

/* Elements of each piece that fit a slot. */
static int64_t chunk_elems(const struct staged_call *a)
{
    int64_t fit = (int64_t)((a->c->slot_bytes - STAGED_ALIGN_BYTES) / zt_staged_slot_elem_bytes(a));
    return fit / STAGED_ALIGN_ELEMS * STAGED_ALIGN_ELEMS;
}

static void enqueue_chunks(const struct staged_call *a)
{
    struct staged_coll *c = a->c;
    const struct zt_dev_ops *dev = c->base.dev->ops, *cpu = c->inner->dev->ops;
    const int64_t count = a->call->count, size = chunk_elems(a);
    const int64_t n = ZT_MAX(zt_ceil_div_i64(count, size), (int64_t)1);
    struct zt_event done[STAGED_SLOTS];
    struct staged_chunk chunks[STAGED_SLOTS];
    if (n > 1)
        check_total(a);
    for (int64_t i = 0; i <= n; i++) {
        int now = (int)(i % STAGED_SLOTS), last = (int)((i + 1) % STAGED_SLOTS);
        if (i < n) {
            chunks[now] = (struct staged_chunk){now, i * size, ZT_MIN(size, count - i * size)};
            zt_staged_load(a, &chunks[now]);
            /* Also: what was stored from this slot before has left it. */
            cpu->wait(a->lane->inner, dev->record(a->s));
            zt_staged_run(a, &chunks[now]);
            done[now] = cpu->record(a->lane->inner);
        }
        if (i > 0) {
            dev->wait(a->s, done[last]);
            zt_staged_store(a, &chunks[last]);
        }
    }
}

/* A group of one: a copy on the device. An empty call of the inner transport sees an abort. */
static void enqueue_alone(const struct staged_call *a)
{
    struct zt_coll *inner = a->c->inner;
    const struct zt_call *call = a->call;
    const struct zt_dev_ops *dev = a->c->base.dev->ops;
    char *slot = a->lane->slots[0];
    zt_all_reduce(inner, a->lane->inner, call->group, slot, slot, 0, ZT_I32, ZT_SUM);
    dev->wait(a->s, inner->dev->ops->record(a->lane->inner));
    if (call->dtype != call->recv_dtype) {
        const struct zt_cast cast = {
            .n = call->count,
            .src = {(void *)call->send, call->dtype},
            .dst = {call->recv, call->recv_dtype},
        };
        dev->cast(a->s, &cast);
    } else if (call->send != call->recv) {
        zt_staged_copy(a, call->recv, call->send, (size_t)call->count * a->elem_bytes);
    }
}

static void enqueue(struct zt_coll *base, struct zt_stream *s, const struct zt_call *call)
{
    struct staged_coll *c = (struct staged_coll *)base;
    const struct staged_call a = {
        .c = c,
        .s = s,
        .lane = lane_of(c, s),
        .call = call,
        .n = zt_group_size(&base->mesh, call->group),
        .me = zt_group_index(&base->mesh, call->group, base->rank),
        .elem_bytes = zt_dtype_bytes(call->dtype),
        .recv_elem_bytes = zt_dtype_bytes(call->recv_dtype),
    };
    if (a.n == 1 && call->kind != ZT_ALL_TO_ALL)
        enqueue_alone(&a);
    else
        enqueue_chunks(&a);
}

/* ---- host calls and lifetime ---- */

/* Who cannot have its memory ends the job's collectives; the others find that at the barrier. */
static int alloc_shared(struct zt_coll *base, size_t bytes, void **out, struct zt_err *err)
{
    struct staged_coll *c = (struct staged_coll *)base;
    struct staged_arena *arena = &c->arenas[c->n_arenas];
    int rc = ZT_OK;
    if (c->n_arenas == STAGED_MAX_ARENAS)
        rc =
            zt_err_set(err, ZT_EUNSUPPORTED, "alloc_shared: more than %d calls", STAGED_MAX_ARENAS);
    else if (bytes == 0 || bytes > SIZE_MAX / 4)
        rc = zt_err_set(err, ZT_EINPUT, "alloc_shared: cannot be %zu bytes", bytes);
    else
        rc = base->dev->ops->alloc(base->dev, bytes, &arena->p, err);
    if (rc) {
        c->inner->ops->abort(c->inner);
        return rc;
    }
    arena->bytes = bytes;
    c->n_arenas++;
    *out = arena->p;
    rc = c->inner->ops->barrier(c->inner, err);
    return rc ? zt_err_wrap(err, "alloc_shared") : ZT_OK;
}

static int barrier(struct zt_coll *base, struct zt_err *err)
{
    struct zt_coll *inner = ((struct staged_coll *)base)->inner;
    return inner->ops->barrier(inner, err);
}

static void abort_all(struct zt_coll *base)
{
    struct zt_coll *inner = ((struct staged_coll *)base)->inner;
    inner->ops->abort(inner);
}

/* After a failure a stream skips its waits for the inner one, which then may be behind it. */
static void drain(struct zt_coll *base)
{
    struct staged_coll *c = (struct staged_coll *)base;
    const struct zt_dev_ops *cpu = c->inner->dev->ops;
    struct zt_err ignored; /* the callers' streams have it */
    for (int i = 0; i < c->n_lanes; i++) {
        cpu->sync(cpu->record(c->lanes[i].inner), &ignored);
        atomic_store(&c->lanes[i].owner, NULL); /* the stream may be freed now */
    }
}

/* All but the inner transport. */
static void release(struct staged_coll *c)
{
    struct zt_dev *dev = c->base.dev;
    for (int i = 0; i < c->n_lanes; i++)
        if (c->lanes[i].inner)
            c->inner->dev->ops->stream_free(c->lanes[i].inner);
    if (c->pinned)
        dev->ops->unpin(dev, c->staging);
    for (int i = 0; i < c->n_arenas; i++)
        dev->ops->free(dev, c->arenas[i].p, c->arenas[i].bytes);
    free(c);
}

static void free_all(struct zt_coll *base)
{
    if (!base)
        return;
    struct zt_coll *inner = ((struct staged_coll *)base)->inner;
    release((struct staged_coll *)base);
    inner->ops->free(inner);
}

static const struct zt_coll_ops staged_ops = {
    .abi = ZT_COLL_ABI,
    .struct_bytes = sizeof(struct zt_coll_ops),
    .name = "host-staged",
    .alloc_shared = alloc_shared,
    .barrier = barrier,
    .enqueue = enqueue,
    .abort = abort_all,
    .drain = drain,
    .free = free_all,
};

/* total, message (a line of its own), and 6 lists of counts. */
enum { N_LISTS = 8 };

static size_t list_bytes(int n_ranks)
{
    return zt_align_size((size_t)n_ranks * sizeof(int64_t), STAGED_ALIGN_BYTES);
}

static size_t lane_bytes(size_t slot_bytes, int n_ranks)
{
    return STAGED_SLOTS * slot_bytes + N_LISTS * list_bytes(n_ranks);
}

static void resolve(const struct zt_staged_opts *opts, size_t *slot_bytes, int *n_streams)
{
    *slot_bytes = zt_align_size(opts->slot_bytes ? opts->slot_bytes : ZT_STAGED_SLOT_BYTES,
                                STAGED_ALIGN_BYTES);
    *n_streams = opts->n_streams ? opts->n_streams : 1;
}

size_t zt_staged_bytes(const struct zt_staged_opts *opts, int n_ranks)
{
    size_t slot_bytes;
    int n_streams;
    resolve(opts, &slot_bytes, &n_streams);
    return (size_t)n_streams * lane_bytes(slot_bytes, n_ranks);
}

static int make_lane(struct staged_coll *c, int i, struct zt_err *err)
{
    struct staged_lane *l = &c->lanes[i];
    int n = zt_mesh_world(&c->base.mesh);
    char *at = c->staging + (size_t)i * lane_bytes(c->slot_bytes, n);
    for (int k = 0; k < STAGED_SLOTS; k++, at += c->slot_bytes)
        l->slots[k] = at;
    int64_t **lists[N_LISTS] = {
        &l->total,
        &l->message,
        &l->counts[0],
        &l->counts[1],
        &l->chunk_counts[0][0],
        &l->chunk_counts[0][1],
        &l->chunk_counts[1][0],
        &l->chunk_counts[1][1],
    };
    for (int k = 0; k < N_LISTS; k++, at += list_bytes(n))
        *lists[k] = (int64_t *)at;
    return c->inner->dev->ops->stream_create(c->inner->dev, "staging", 1, &l->inner, err);
}

int zt_staged_coll_create(struct zt_coll *inner, struct zt_dev *dev,
                          const struct zt_staged_opts *opts, struct zt_coll **out, bool *pinned,
                          struct zt_err *err)
{
    int n = zt_mesh_world(&inner->mesh);
    struct staged_coll *c = zt_xcalloc(1, sizeof *c);
    struct zt_err ignored;
    void *staging = NULL;
    c->base =
        (struct zt_coll){.ops = &staged_ops, .dev = dev, .mesh = inner->mesh, .rank = inner->rank};
    c->inner = inner;
    resolve(opts, &c->slot_bytes, &c->n_lanes);
    c->staging_bytes = zt_staged_bytes(opts, n);
    /* A chunk of the widest elements, from and to every rank. */
    size_t least = 2 * (size_t)n * STAGED_ALIGN_ELEMS * sizeof(int64_t) + STAGED_ALIGN_BYTES;
    int rc = ZT_OK;
    if (c->n_lanes < 1 || c->n_lanes > ZT_STAGED_MAX_STREAMS || c->slot_bytes < least)
        rc = zt_err_set(err, ZT_EINPUT,
                        "host-staged collectives: slots of %zu bytes for %d streams; at least %zu "
                        "bytes are needed for %d ranks, and 1 to %d streams",
                        c->slot_bytes, c->n_lanes, least, n, ZT_STAGED_MAX_STREAMS);
    if (!rc)
        rc = inner->ops->alloc_shared(inner, c->staging_bytes, &staging, err);
    c->staging = staging;
    c->pinned =
        !rc && dev->ops->pin && dev->ops->pin(dev, staging, c->staging_bytes, &ignored) == ZT_OK;
    for (int i = 0; i < c->n_lanes && !rc; i++)
        rc = make_lane(c, i, err);
    if (rc) {
        release(c);
        return rc;
    }
    *pinned = c->pinned;
    *out = &c->base;
    return ZT_OK;
}
