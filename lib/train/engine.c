#include "train/engine.h"

#include <sys/mman.h>

#include "base/clock.h"
#include "base/size.h"
#include "dev/queue.h"
#include "offload/disk.h"
#include "optim/groups.h"

enum { CANARY = 0xff }; /* NaN as fp32, bf16 and fp16 */

/* A view of the disk begins at a block. */
enum { STAGE_BYTES = ZT_VIEW_BYTES + ZT_DISK_ALIGN };

_Static_assert(ZT_DISK_BUF_ALIGN % ZT_DISK_ALIGN == 0, "a buffer on the disk begins at a block");

/* The canary goes over the bus once for a stage, from there on by doubling. */
static int fill_on_device(struct zt_engine *e, unsigned char *p, size_t bytes, struct zt_err *err)
{
    const struct zt_dev_ops *ops = e->dev->ops;
    struct zt_stream *s = e->streams[ZT_ST_COMPUTE];
    memset(e->stage, CANARY, ZT_VIEW_BYTES);
    size_t done = ZT_MIN(bytes, (size_t)ZT_VIEW_BYTES);
    ops->copy(s, &(struct zt_copy){p, e->stage, done});
    for (size_t n; done < bytes; done += n) {
        n = ZT_MIN(done, bytes - done);
        ops->copy(s, &(struct zt_copy){p + done, p, n});
    }
    return ops->sync(ops->record(s), err);
}

/*
 * The disk's bytes get addresses, so that an operand of any arena is one; but no memory: whoever follows
 * one is stopped.
 */
static int reserve_addresses(size_t bytes, void **out, struct zt_err *err)
{
    *out = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED)
        return zt_err_errno(err, ZT_ENOMEM, "addresses for %zu bytes of the disk", bytes);
    return 0;
}

/*
 * By all threads, and by them first: what alloc() gives may not be there before it is written, and clearing
 * pages takes most of a start. A piece stays in the cache between the two.
 */
static void fill_here(unsigned char *p, size_t bytes, int n_threads)
{
    enum { PIECE = 2 << 20 };
    int64_t n_pieces = zt_ceil_div_i64((int64_t)bytes, PIECE);
    (void)n_threads; /* ThreadSanitizer builds have no OpenMP */
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (n_pieces > 1)
    for (int64_t i = 0; i < n_pieces; i++)
        memset(p + i * PIECE, CANARY, ZT_MIN(bytes - (size_t)i * PIECE, (size_t)PIECE));
}

static int alloc_arena(struct zt_engine *e, enum zt_arena_id a, struct zt_err *err)
{
    size_t bytes = e->plan->ledger.peak[a];
    void *p = NULL;
    int rc = 0;
    switch (a) {
    case ZT_AR_DEVICE:
        rc = e->dev->ops->alloc(e->dev, bytes, &p, err);
        break;
    case ZT_AR_SHARED:
        rc = e->coll->ops->alloc_shared(e->coll, bytes, &p, err);
        break;
    case ZT_AR_HOST:
        rc = e->dev->ops->alloc_host(e->dev, bytes, &p, err);
        break;
    default:
        rc = reserve_addresses(bytes, &p, err);
    }
    if (rc)
        return rc;
    e->base[a] = p;
    if (a == ZT_AR_DISK)
        return 0;
    /* Any read of a byte that nothing wrote turns into a NaN; and the high-water mark shows. */
    if (a != ZT_AR_HOST && e->dev->ops->kind != ZT_DEV_CPU)
        return fill_on_device(e, p, bytes, err);
    fill_here(p, bytes, ZT_MAX(e->plan->cfg.n_threads, 1));
    return 0;
}

/* The HOST and DISK streams belong to a CPU, whatever computes. */
static int create_devices(struct zt_engine *e, struct zt_dev *dev, struct zt_err *err)
{
    const bool cpu = dev->ops->kind == ZT_DEV_CPU;
    void *stage;
    e->dev = dev;
    e->host_dev = cpu ? dev : NULL;
    if (cpu && !e->plan->ledger.peak[ZT_AR_DISK])
        return 0;
    int rc = dev->ops->alloc_host(dev, STAGE_BYTES, &stage, err);
    if (rc)
        return rc;
    e->stage = stage;
    return cpu ? 0 : zt_cpu_dev_create(&e->host_dev, NULL, 0, err);
}

static bool runs_on_cpu(int stream)
{
    return stream == ZT_ST_HOST || stream == ZT_ST_DISK_IN || stream == ZT_ST_DISK_OUT;
}

/* HOST updates parameters with as many threads as a CPU computes with, or loads batches with one. */
static int create_streams(struct zt_engine *e, struct zt_err *err)
{
    bool used[ZT_N_STREAMS] = {[ZT_ST_COMPUTE] = true};
    bool wide[ZT_N_STREAMS] = {[ZT_ST_COMPUTE] = true};
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        for (int i = 0; i < e->plan->programs[k].n_ops; i++) {
            const struct zt_op *op = &e->plan->programs[k].ops[i];
            used[op->stream] = true;
            wide[op->stream] |= op->kind == ZT_OP_UPDATE;
        }
    }
    for (int s = 0; s < ZT_N_STREAMS; s++) {
        if (!used[s])
            continue;
        int threads = wide[s] ? e->plan->cfg.n_threads : 1;
        struct zt_dev *dev = runs_on_cpu(s) ? e->host_dev : e->dev;
        int rc = dev->ops->stream_create(dev, zt_stream_name((enum zt_stream_id)s), threads,
                                         &e->streams[s], err);
        if (rc)
            return rc;
    }
    return 0;
}

static int max_ops(const struct zt_plan *p)
{
    int n = 1;
    for (int k = 0; k < ZT_N_PROGRAMS; k++)
        n = ZT_MAX(n, p->programs[k].n_ops);
    return n;
}

/* Which part of each unit this rank updates, cut by optimizer setting; and what its norm is of. */
static void make_ranges(struct zt_engine *e)
{
    const struct zt_plan *p = e->plan;
    size_t n = (size_t)p->n_units;
    e->ranges = zt_arena_alloc(&e->memory, n, sizeof *e->ranges);
    e->n_ranges = zt_arena_alloc(&e->memory, n, sizeof *e->n_ranges);
    e->spans = zt_arena_alloc(&e->memory, n, sizeof *e->spans);
    e->n_spans = zt_arena_alloc(&e->memory, n, sizeof *e->n_spans);
    bool whole = p->cfg.stage == 0 || p->n_shards == 1;
    for (int u = 0; u < p->n_units; u++) {
        const int64_t slice = p->units[u].slice_elems, mine = p->shard_rank * slice;
        int64_t begin = whole ? 0 : mine;
        int64_t end = whole ? p->units[u].padded_elems : mine + slice;
        e->n_ranges[u] = zt_update_ranges(p, u, begin, end, &e->memory, &e->ranges[u]);
        e->n_spans[u] = zt_norm_spans(p, u, mine, mine + slice, &e->memory, &e->spans[u]);
    }
}

int zt_engine_init(struct zt_engine *e, const struct zt_plan *plan, struct zt_dev *dev,
                   struct zt_coll *coll, struct zt_err *err)
{
    memset(e, 0, sizeof *e);
    e->plan = plan;
    e->coll = coll;
    int rc = create_devices(e, dev, err);
    if (!rc)
        rc = create_streams(e, err);
    for (int a = 0; a < ZT_N_ARENAS && !rc; a++)
        if (plan->ledger.peak[a])
            rc = alloc_arena(e, (enum zt_arena_id)a, err);
    if (rc) {
        zt_engine_release(e);
        return rc;
    }
    make_ranges(e);
    size_t n = (size_t)max_ops(plan);
    for (int i = 0; i < 2; i++)
        e->events[i] = zt_arena_alloc(&e->memory, n, sizeof **e->events);
    return 0;
}

static int sync_stream(struct zt_stream *s, struct zt_err *err)
{
    return s->dev->ops->sync(s->dev->ops->record(s), err);
}

/* Streams wait for each other's events: none may go before all are done. What failed is known. */
static void finish_streams(struct zt_engine *e)
{
    struct zt_err ignored;
    for (int s = 0; s < ZT_N_STREAMS; s++)
        if (e->streams[s])
            (void)!sync_stream(e->streams[s], &ignored);
    if (e->coll->ops->drain)
        e->coll->ops->drain(e->coll);
}

void zt_engine_release(struct zt_engine *e)
{
    if (!e->dev)
        return;
    finish_streams(e);
    for (int s = 0; s < ZT_N_STREAMS; s++)
        if (e->streams[s])
            e->streams[s]->dev->ops->stream_free(e->streams[s]);
    if (e->base[ZT_AR_DEVICE])
        e->dev->ops->free(e->dev, e->base[ZT_AR_DEVICE], e->plan->ledger.peak[ZT_AR_DEVICE]);
    if (e->base[ZT_AR_HOST])
        e->dev->ops->free_host(e->dev, e->base[ZT_AR_HOST], e->plan->ledger.peak[ZT_AR_HOST]);
    if (e->base[ZT_AR_DISK])
        munmap(e->base[ZT_AR_DISK], e->plan->ledger.peak[ZT_AR_DISK]);
    if (e->stage)
        e->dev->ops->free_host(e->dev, e->stage, STAGE_BYTES);
    if (e->host_dev && e->host_dev != e->dev)
        zt_cpu_dev_free(e->host_dev);
    zt_arena_release(&e->memory);
    memset(e, 0, sizeof *e);
}

/* Two different programs share arenas but know nothing of each other's ops: join all streams. */
static void join_streams(struct zt_engine *e)
{
    struct zt_event last[ZT_N_STREAMS];
    for (int s = 0; s < ZT_N_STREAMS; s++)
        if (e->streams[s])
            last[s] = e->streams[s]->dev->ops->record(e->streams[s]);
    for (int s = 0; s < ZT_N_STREAMS; s++)
        for (int t = 0; t < ZT_N_STREAMS; t++)
            if (s != t && e->streams[s] && e->streams[t])
                e->streams[s]->dev->ops->wait(e->streams[s], last[t]);
}

void zt_engine_trace_init(struct zt_engine *e)
{
    size_t n = (size_t)e->plan->programs[ZT_PROG_TRAIN].n_ops;
    e->times = zt_arena_alloc(&e->memory, ZT_TRACED_RUNS * n, sizeof *e->times);
}

static struct zt_op_time *times_of(const struct zt_engine *e, int64_t run)
{
    ZT_ASSERT(e->times);
    return e->times + run % ZT_TRACED_RUNS * e->plan->programs[ZT_PROG_TRAIN].n_ops;
}

const struct zt_op_time *zt_engine_times(const struct zt_engine *e, int64_t run)
{
    ZT_ASSERT_CMP(run, <, e->n_train_runs);
    ZT_ASSERT_CMP(run, >=, e->n_train_runs - ZT_TRACED_RUNS);
    return times_of(e, run);
}

struct stamp {
    int64_t *where;
};

static int write_stamp(void *arg, struct zt_err *err)
{
    (void)err;
    *((struct stamp *)arg)->where = zt_now_ns();
    return 0;
}

static void stamp(struct zt_engine *e, const struct zt_op *op, int64_t *where)
{
    struct stamp a = {where};
    struct zt_stream *s = e->streams[op->stream];
    s->dev->ops->host_call(s, write_stamp, &a, sizeof a);
}

/*
 * Tell the sanitizer what the op says it touches, so that races in foreign code are seen as well.
 */
static void announce(struct zt_engine *e, const struct zt_program *prog, const struct zt_op *op)
{
    if (e->streams[op->stream]->dev->ops->kind != ZT_DEV_CPU)
        return; /* the thread that submits touches nothing */
    for (int i = 0; i < op->n_accesses; i++) {
        const struct zt_access *a = &prog->accesses[op->first_access + i];
        struct zt_range r = {zt_engine_at(e, a), a->end - a->begin, (a->mode & ZT_WRITE) != 0};
        zt_dev_announce(e->streams[op->stream], &r, 1);
    }
}

/*
 * In AddressSanitizer builds, one op at a time: every byte of our arenas that the op did not
 * declare is poisoned while it runs.
 */
static void finish_alone(struct zt_engine *e, struct zt_event done, struct zt_err *err)
{
    (void)done.stream->dev->ops->sync(
        done, err);                      /* a failure stays in the stream and comes out of drain */
    for (int a = 0; a < ZT_AR_DISK; a++) /* no code can touch what lies behind */
        if (e->base[a])
            zt_dev_unpoison(e->base[a], e->plan->ledger.peak[a]);
}

static void expose_operands(struct zt_engine *e, const struct zt_program *prog,
                            const struct zt_op *op)
{
    for (int a = 0; a < ZT_AR_DISK; a++)
        if (e->base[a])
            zt_dev_poison(e->base[a], e->plan->ledger.peak[a]);
    for (int i = 0; i < op->n_accesses; i++) {
        const struct zt_access *a = &prog->accesses[op->first_access + i];
        zt_dev_unpoison(zt_engine_at(e, a), a->end - a->begin);
    }
}

void zt_engine_run(struct zt_engine *e, enum zt_program_kind k)
{
    const struct zt_program *prog = &e->plan->programs[k];
    ZT_ASSERT_CMP(prog->n_ops, >, 0);
    ZT_ASSERT(!e->serial || e->dev->ops->kind == ZT_DEV_CPU);
    bool follows_itself = e->has_run && e->last_program == k;
    if (e->has_run && !(follows_itself && prog->repeats)) {
        join_streams(e);
        follows_itself = false;
    }
    e->now ^= 1;
    struct zt_event *now = e->events[e->now], *before = e->events[!e->now];
    struct zt_op_time *times = e->trace && k == ZT_PROG_TRAIN ? times_of(e, e->n_train_runs) : NULL;
    struct zt_err ignored;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct zt_op *op = &prog->ops[i];
        struct zt_stream *s = e->streams[op->stream];
        for (int w = 0; w < op->n_waits; w++) {
            const struct zt_wait *wait = &prog->waits[op->first_wait + w];
            if (wait->delta == 0)
                s->dev->ops->wait(s, now[wait->op]);
            else if (follows_itself)
                s->dev->ops->wait(s, before[wait->op]);
        }
        if (times)
            stamp(e, op, &times[i].begin_ns);
        announce(e, prog, op);
        if (e->serial)
            expose_operands(e, prog, op);
        zt_engine_submit(e, prog, op);
        if (times)
            stamp(e, op, &times[i].end_ns);
        now[i] = s->dev->ops->record(s);
        if (e->serial)
            finish_alone(e, now[i], &ignored);
    }
    e->last_program = k;
    e->has_run = true;
    e->ran |= 1u << k;
    if (k == ZT_PROG_TRAIN)
        e->n_train_runs++;
}

int zt_engine_drain(struct zt_engine *e, struct zt_err *err)
{
    int rc = 0;
    for (int s = 0; s < ZT_N_STREAMS; s++) {
        struct zt_err one;
        if (!e->streams[s] || !sync_stream(e->streams[s], &one))
            continue;
        if (!rc || (err->code == ZT_EPEER && one.code != ZT_EPEER))
            *err = one; /* a lost peer is the consequence, not the cause */
        rc = err->code;
    }
    return rc;
}

int zt_engine_outcome(struct zt_engine *e, int64_t run, struct zt_step_outcome *out,
                      struct zt_err *err)
{
    ZT_ASSERT_CMP(run, >=, e->n_train_runs - 2);
    ZT_ASSERT_CMP(run, <, e->n_train_runs);
    int rc = e->dev->ops->sync(e->outcome_events[run & 1], err);
    if (!rc)
        *out = e->outcomes[run & 1];
    return rc;
}

void *zt_engine_operand(const struct zt_engine *e, const struct zt_program *prog,
                        const struct zt_op *op, enum zt_role role, int nth)
{
    const struct zt_access *a = zt_op_operand(prog, op, role, nth);
    return a ? zt_engine_at(e, a) : NULL;
}

static bool lies_in(const struct zt_engine *e, enum zt_arena_id a, const unsigned char *p)
{
    return e->base[a] && p >= e->base[a] && p < e->base[a] + e->plan->ledger.peak[a];
}

static int view_disk(struct zt_engine *e, size_t at, size_t bytes, const unsigned char **out,
                     struct zt_err *err)
{
    const size_t before = at % ZT_DISK_ALIGN;
    const struct zt_disk_range r = {at - before, e->stage, before + bytes};
    *out = e->stage + before;
    return zt_disk_move(e->disk, ZT_DISK_READ, &r, 1, err);
}

int zt_engine_view(struct zt_engine *e, const void *at, size_t bytes, const unsigned char **out,
                   struct zt_err *err)
{
    const unsigned char *p = at;
    const bool on_disk = lies_in(e, ZT_AR_DISK, p);
    *out = p;
    if (!on_disk && (e->dev->ops->kind == ZT_DEV_CPU || lies_in(e, ZT_AR_HOST, p)))
        return 0;
    ZT_ASSERT_CMP(bytes, <=, ZT_VIEW_BYTES);
    if (on_disk)
        return view_disk(e, (size_t)(p - e->base[ZT_AR_DISK]), bytes, out, err);
    *out = e->stage;
    struct zt_stream *s = e->streams[ZT_ST_COMPUTE];
    s->dev->ops->copy(s, &(struct zt_copy){e->stage, at, bytes});
    return sync_stream(s, err);
}

int zt_engine_touched(struct zt_engine *e, enum zt_arena_id a, size_t *touched, struct zt_err *err)
{
    const size_t bytes = e->plan->ledger.peak[a] / ZT_BUF_ALIGN * ZT_BUF_ALIGN;
    if (a == ZT_AR_DISK)
        return zt_disk_written(e->disk, touched, err);
    unsigned char canary[ZT_BUF_ALIGN];
    memset(canary, CANARY, sizeof canary);
    *touched = 0;
    for (size_t done = 0, n; done < bytes; done += n) {
        const unsigned char *p;
        n = zt_view_bytes(done, bytes);
        int rc = zt_engine_view(e, e->base[a] + done, n, &p, err);
        if (rc)
            return rc;
        for (size_t at = 0; at < n; at += ZT_BUF_ALIGN)
            if (memcmp(p + at, canary, ZT_BUF_ALIGN) != 0)
                *touched += ZT_BUF_ALIGN;
    }
    return 0;
}
