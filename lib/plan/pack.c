#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Packing is two-dimensional bin packing of intervals: NP-hard, and on training plans very easy.
 * Buffers are placed one after another at an offset where no buffer placed before, alive at the
 * same time, lies; by size, largest first. A few orders and the two ways to choose the gap are
 * tried, then repairs, until one is near the bound of live bytes.
 */

struct item {
    size_t bytes;
    struct zt_life life;
    int buf;
};

struct placed {
    size_t begin, end;
    struct zt_life life;
};

enum order { BY_BYTES, BY_AREA, BY_LENGTH, N_ORDERS };

static int compare_sizes(double a, double b)
{
    return (a < b) - (a > b); /* larger first */
}

static int length(const struct item *x)
{
    return x->life.hi - x->life.lo + 1;
}

/*
 * Ties are broken by position in the program, then by buffer: the result depends on nothing else.
 */
static int compare_ties(const struct item *x, const struct item *y)
{
    if (x->life.lo != y->life.lo)
        return x->life.lo < y->life.lo ? -1 : 1;
    return (x->buf > y->buf) - (x->buf < y->buf);
}

static int by_bytes(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int c = compare_sizes((double)x->bytes, (double)y->bytes);
    return c ? c : compare_ties(x, y);
}

static int by_area(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int c = compare_sizes((double)x->bytes * length(x), (double)y->bytes * length(y));
    return c ? c : compare_ties(x, y);
}

static int by_length(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int c = compare_sizes(length(x), length(y));
    return c ? c : by_bytes(a, b);
}

/* Alive at the same time, modulo a program of n ops. */
static bool meet(struct zt_life a, struct zt_life b, int n)
{
    return (a.lo <= b.hi && b.lo <= a.hi) || a.lo <= b.hi - n || b.lo <= a.hi - n;
}

/* Where to put `it` among the buffers placed, sorted by offset: the first gap, or the smallest. */
static size_t choose_offset(const struct placed *placed, int n_placed, const struct item *it,
                            int n_ops, bool smallest_gap)
{
    size_t cursor = 0, offset = 0, best_gap = SIZE_MAX;
    for (int i = 0; i < n_placed; i++) {
        const struct placed *q = &placed[i];
        if (q->end <= cursor || !meet(q->life, it->life, n_ops))
            continue;
        if (q->begin > cursor && q->begin - cursor >= it->bytes && q->begin - cursor < best_gap) {
            offset = cursor;
            best_gap = q->begin - cursor;
            if (!smallest_gap)
                return offset;
        }
        cursor = q->end;
    }
    return best_gap < SIZE_MAX ? offset : cursor;
}

static void insert(struct placed *placed, int n_placed, struct placed q)
{
    int lo = 0, hi = n_placed;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (placed[mid].begin < q.begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(placed + lo + 1, placed + lo, (size_t)(n_placed - lo) * sizeof *placed);
    placed[lo] = q;
}

/* One arena of one program being packed. */
struct packing {
    struct zt_plan *p;
    struct item *items;
    int n, n_ops;
    size_t base, bound; /* where transients begin; no packing is lower than base + bound */
    size_t best;        /* peak above the base of the offsets kept; SIZE_MAX: none yet */
    struct placed *placed;
    size_t *offsets; /* (n) of the order under way */
};

/* Place the items in their order, all below the best peak: the first that fails, or n. */
static int place(struct packing *k, bool smallest_gap)
{
    for (int i = 0; i < k->n; i++) {
        const struct item *it = &k->items[i];
        size_t at = choose_offset(k->placed, i, it, k->n_ops, smallest_gap);
        if (at + it->bytes >= k->best)
            return i;
        insert(k->placed, i, (struct placed){at, at + it->bytes, it->life});
        k->offsets[i] = at;
    }
    return k->n;
}

static void keep(struct packing *k)
{
    k->best = 0;
    for (int i = 0; i < k->n; i++) {
        k->p->bufs[k->items[i].buf].offset = k->base + k->offsets[i];
        k->best = ZT_MAX(k->best, k->offsets[i] + k->items[i].bytes);
    }
}

/* Within 0.1 % of the arena: not worth another try. */
static bool good_enough(const struct packing *k)
{
    return k->best < SIZE_MAX && k->best - k->bound <= (k->base + k->bound) / 1024;
}

/*
 * Largest first fails on chains such as gradients of alternating blocks with a larger unit at both
 * ends: the last block finds neither of its two places free. What did not fit goes first next time.
 */
static void repair(struct packing *k)
{
    enum { MAX_TRIES = 32, MAX_TESTS = 1 << 25 };
    int64_t tests = (int64_t)k->n * k->n / 2; /* of one try */
    qsort(k->items, k->n, sizeof *k->items, by_bytes);
    for (int t = 0; t < MAX_TRIES && t * tests < MAX_TESTS && !good_enough(k); t++) {
        int failed = place(k, true);
        if (failed == k->n) {
            keep(k);
            continue;
        }
        struct item it = k->items[failed];
        memmove(k->items + 1, k->items, (size_t)failed * sizeof *k->items);
        k->items[0] = it;
    }
}

static void pack_items(struct packing *k)
{
    static int (*const orders[N_ORDERS])(const void *, const void *) = {by_bytes, by_area,
                                                                        by_length};
    k->placed = zt_xcalloc(k->n, sizeof *k->placed);
    k->offsets = zt_xcalloc(k->n, sizeof *k->offsets);
    for (int t = 0; t < 2 * N_ORDERS && !good_enough(k); t++) {
        qsort(k->items, k->n, sizeof *k->items, orders[t / 2]);
        if (place(k, t % 2 == 0) == k->n)
            keep(k);
    }
    repair(k);
    free(k->placed);
    free(k->offsets);
}

void zt_pack(struct zt_plan *p, enum zt_program_kind k, const struct zt_life *life,
             const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS])
{
    struct item *items = zt_xcalloc(p->n_bufs, sizeof *items);
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        size_t persistent = 0;
        int n = 0;
        for (int b = 0; b < p->n_bufs; b++) {
            struct zt_buf *buf = &p->bufs[b];
            if (buf->arena != (enum zt_arena_id)arena)
                continue;
            if (buf->program < 0)
                persistent += buf->bytes;
            else if (zt_is_transient(buf, k) && life[b].hi >= life[b].lo)
                items[n++] = (struct item){buf->bytes, life[b], b};
        }
        peak[arena] = ZT_MAX(peak[arena], base[arena]);
        if (!n)
            continue;
        struct packing packing = {.p = p,
                                  .items = items,
                                  .n = n,
                                  .n_ops = p->programs[k].n_ops,
                                  .base = base[arena],
                                  .bound = zt_live_bound(p, k, life, arena) - persistent,
                                  .best = SIZE_MAX};
        pack_items(&packing);
        peak[arena] = ZT_MAX(peak[arena], base[arena] + packing.best);
    }
    free(items);
}
