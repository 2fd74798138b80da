#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Hazards. The arenas are cut at every end of an access into elementary segments; each remembers
 * its last writer and, per stream, the last reader since. Walking the list twice (this run and the
 * next) gives, for each op and other stream, the latest op there that it conflicts with: streams
 * are in order, so that one stands for all before it. Of these candidates, taken latest first, one
 * is dropped when the vector clock joined so far covers it. What is kept in the second run is what
 * every run waits for; conflicts two runs apart follow, since every run touches the same bytes.
 */

struct clock {
    int n[ZT_N_STREAMS]; /* ops known to have ended, counted from the start of the first run */
};

struct segment {
    int writer;               /* op number run * n_ops + i, or -1 */
    int reader[ZT_N_STREAMS]; /* since the last write; -1: none */
};

struct span {
    int begin, end; /* segments of one access */
};

struct hazards {
    const struct zt_plan *p;
    const struct zt_program *prog;
    bool unlimited;
    int n_segments;
    struct span *spans;       /* (n_accesses) */
    struct segment *segments; /* (n_segments), or 2 x in unlimited memory: transients of each run */
    int *pos;                 /* (n_ops) position of the op on its stream */
    int n_pos[ZT_N_STREAMS];  /* ops of each stream */
    struct clock *end;        /* (runs * n_ops) what is known when the op has ended */
    struct clock now[ZT_N_STREAMS];
};

void zt_wait_list_release(struct zt_wait_list *l)
{
    free(l->first);
    free(l->waits);
    memset(l, 0, sizeof *l);
}

void zt_wait_list_begin(struct zt_wait_list *l, int n_ops)
{
    memset(l, 0, sizeof *l);
    l->first = zt_xcalloc((size_t)n_ops + 1, sizeof *l->first);
}

void zt_wait_list_add(struct zt_wait_list *l, struct zt_wait w)
{
    ZT_GROW(l->waits, l->n + 1, l->cap);
    l->waits[l->n++] = w;
}

void zt_wait_list_close_op(struct zt_wait_list *l, int op)
{
    l->first[op + 1] = (int)l->n;
}

static int by_address(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int segment_at(const uint64_t *cuts, int n, uint64_t address)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (cuts[mid] < address)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* One number line for all arenas; in unlimited memory every buffer has a stretch of its own. */
static uint64_t *buffer_addresses(const struct zt_plan *p, bool unlimited)
{
    uint64_t *at = zt_xcalloc(p->n_bufs, sizeof *at), next = 0;
    for (int i = 0; i < p->n_bufs; i++) {
        const struct zt_buf *b = &p->bufs[i];
        at[i] = unlimited ? next : (uint64_t)b->arena << 60 | b->offset;
        next += b->bytes;
    }
    return at;
}

/* Addresses at which an access begins or ends, in order, each once; returns how many. */
static int find_cuts(const struct hazards *h, const uint64_t *at, uint64_t *cuts)
{
    const struct zt_program *prog = h->prog;
    struct zt_extent *last = zt_xcalloc(h->p->n_bufs, sizeof *last); /* of each buffer */
    int n = 0, n_cuts = 0;
    for (int i = 0; i < prog->n_accesses; i++) {
        const struct zt_access *a = &prog->accesses[i];
        if (last[a->buf].begin == a->begin && last[a->buf].end == a->end)
            continue; /* most are the whole buffer, again */
        last[a->buf] = (struct zt_extent){a->begin, a->end};
        cuts[n++] = at[a->buf] + a->begin;
        cuts[n++] = at[a->buf] + a->end;
    }
    free(last);
    qsort(cuts, n, sizeof *cuts, by_address);
    for (int i = 0; i < n; i++)
        if (!i || cuts[i] != cuts[i - 1])
            cuts[n_cuts++] = cuts[i];
    return n_cuts;
}

static void cut_segments(struct hazards *h)
{
    const struct zt_program *prog = h->prog;
    uint64_t *at = buffer_addresses(h->p, h->unlimited);
    uint64_t *cuts = zt_xcalloc((size_t)prog->n_accesses * 2, sizeof *cuts);
    const int n_cuts = find_cuts(h, at, cuts);
    h->n_segments = n_cuts;
    h->spans = zt_xcalloc(prog->n_accesses, sizeof *h->spans);
    for (int i = 0; i < prog->n_accesses; i++) {
        const struct zt_access *a = &prog->accesses[i];
        h->spans[i].begin = segment_at(cuts, n_cuts, at[a->buf] + a->begin);
        h->spans[i].end = segment_at(cuts, n_cuts, at[a->buf] + a->end);
    }
    free(cuts);
    free(at);
}

static void hazards_init(struct hazards *h, const struct zt_plan *p, enum zt_program_kind k,
                         bool unlimited)
{
    memset(h, 0, sizeof *h);
    h->p = p;
    h->prog = &p->programs[k];
    h->unlimited = unlimited;
    cut_segments(h);
    size_t n_segments = (size_t)h->n_segments * (unlimited ? 2 : 1);
    h->segments = zt_xcalloc(n_segments, sizeof *h->segments);
    memset(h->segments, 0xff, n_segments * sizeof *h->segments); /* all -1 */
    h->pos = zt_xcalloc(h->prog->n_ops, sizeof *h->pos);
    for (int i = 0; i < h->prog->n_ops; i++)
        h->pos[i] = h->n_pos[h->prog->ops[i].stream]++;
    h->end = zt_xcalloc((size_t)h->prog->n_ops * 2, sizeof *h->end);
}

static void hazards_release(struct hazards *h)
{
    free(h->spans);
    free(h->segments);
    free(h->pos);
    free(h->end);
}

static struct segment *segments_of(const struct hazards *h, int access, int run)
{
    bool own_copy = h->unlimited && h->p->bufs[h->prog->accesses[access].buf].program >= 0;
    return h->segments + (own_copy ? (size_t)run * h->n_segments : 0);
}

/* The latest op on each stream that op i conflicts with; -1 for none. */
static void find_conflicts(const struct hazards *h, int run, int i, int latest[ZT_N_STREAMS])
{
    const struct zt_program *prog = h->prog;
    const struct zt_op *op = &prog->ops[i];
    for (int s = 0; s < ZT_N_STREAMS; s++)
        latest[s] = -1;
    for (int a = op->first_access; a < op->first_access + op->n_accesses; a++) {
        const struct segment *seg = segments_of(h, a, run);
        bool writes = prog->accesses[a].mode & ZT_WRITE;
        for (int j = h->spans[a].begin; j < h->spans[a].end; j++) {
            int w = seg[j].writer;
            if (w >= 0) {
                enum zt_stream_id s = prog->ops[w % prog->n_ops].stream;
                latest[s] = ZT_MAX(latest[s], w);
            }
            for (int s = 0; writes && s < ZT_N_STREAMS; s++)
                latest[s] = ZT_MAX(latest[s], seg[j].reader[s]);
        }
    }
    latest[op->stream] = -1; /* the stream itself is in order */
}

static void record_accesses(const struct hazards *h, int run, int i)
{
    const struct zt_program *prog = h->prog;
    const struct zt_op *op = &prog->ops[i];
    int g = run * prog->n_ops + i;
    /* Reads first: where an op also writes, its write is what others must wait for. */
    for (int mode = ZT_READ; mode <= ZT_WRITE; mode++) {
        for (int a = op->first_access; a < op->first_access + op->n_accesses; a++) {
            if (!(prog->accesses[a].mode & mode))
                continue;
            struct segment *seg = segments_of(h, a, run);
            for (int j = h->spans[a].begin; j < h->spans[a].end; j++) {
                if (mode == ZT_READ) {
                    seg[j].reader[op->stream] = g;
                } else {
                    memset(&seg[j], 0xff, sizeof seg[j]);
                    seg[j].writer = g;
                }
            }
        }
    }
}

/* Join the clocks of the candidates, latest first; keep those that are news. */
static void choose_waits(struct hazards *h, int run, int i, int latest[ZT_N_STREAMS],
                         struct zt_wait_list *out)
{
    const struct zt_program *prog = h->prog;
    int n = prog->n_ops;
    enum zt_stream_id stream = prog->ops[i].stream;
    struct clock *clock = &h->now[stream];
    for (;;) {
        int s = 0;
        for (int t = 1; t < ZT_N_STREAMS; t++)
            if (latest[t] > latest[s])
                s = t;
        int g = latest[s];
        if (g < 0)
            break;
        latest[s] = -1;
        if (out)
            out->n_raw++;
        if (clock->n[s] > g / n * h->n_pos[s] + h->pos[g % n])
            continue;
        for (int t = 0; t < ZT_N_STREAMS; t++)
            clock->n[t] = ZT_MAX(clock->n[t], h->end[g].n[t]);
        if (out)
            zt_wait_list_add(out, (struct zt_wait){.delta = (uint8_t)(run - g / n), .op = g % n});
    }
    clock->n[stream] = run * h->n_pos[stream] + h->pos[i] + 1;
    h->end[run * n + i] = *clock;
}

static void derive(const struct zt_plan *p, enum zt_program_kind k, bool unlimited,
                   struct zt_wait_list *out)
{
    struct hazards h;
    hazards_init(&h, p, k, unlimited);
    zt_wait_list_begin(out, h.prog->n_ops);
    int n_runs = h.prog->repeats ? 2 : 1;
    for (int run = 0; run < n_runs; run++) {
        bool last = run == n_runs - 1;
        for (int i = 0; i < h.prog->n_ops; i++) {
            int latest[ZT_N_STREAMS];
            find_conflicts(&h, run, i, latest);
            choose_waits(&h, run, i, latest, last ? out : NULL);
            record_accesses(&h, run, i);
            if (last)
                zt_wait_list_close_op(out, i);
        }
    }
    hazards_release(&h);
}

void zt_derive_waits_unlimited(const struct zt_plan *p, enum zt_program_kind k,
                               struct zt_wait_list *out)
{
    derive(p, k, true, out);
}

void zt_derive_waits(struct zt_plan *p, enum zt_program_kind k)
{
    struct zt_program *prog = &p->programs[k];
    struct zt_wait_list l;
    derive(p, k, false, &l);
    for (int i = 0; i < prog->n_ops; i++) {
        prog->ops[i].first_wait = l.first[i];
        prog->ops[i].n_waits = l.first[i + 1] - l.first[i];
    }
    free(prog->waits);
    prog->waits = l.waits;
    prog->waits_cap = l.cap;
    prog->n_waits = (int)l.n;
    prog->raw_waits = l.n_raw;
    l.waits = NULL;
    zt_wait_list_release(&l);
}
