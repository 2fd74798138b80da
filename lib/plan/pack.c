#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Packing is two-dimensional bin packing of intervals: NP-hard, and on training plans very easy.
 * Buffers are placed one after another at an offset where no buffer placed before, alive at the
 * same time, lies; by size, largest first. A few orders and the two ways to choose the gap are
 * tried until one reaches the bound of live bytes.
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

/* Ties are broken by position in the program, then by buffer: the result depends on nothing else.
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

/* Offsets of all items in their order, by buffer; returns the peak. Gives up where it is `limit`. */
static size_t place(const struct item *items, int n, int n_ops, bool smallest_gap, size_t limit,
                    struct placed *placed, size_t *offsets)
{
    size_t peak = 0;
    for (int i = 0; i < n && peak < limit; i++) {
        size_t at = choose_offset(placed, i, &items[i], n_ops, smallest_gap);
        insert(placed, i, (struct placed){at, at + items[i].bytes, items[i].life});
        offsets[items[i].buf] = at;
        peak = ZT_MAX(peak, at + items[i].bytes);
    }
    return peak;
}

/* Try the orders; leaves the best offsets in the buffers and returns the peak above the base. */
static size_t pack_items(struct zt_plan *p, struct item *items, int n, int n_ops, size_t base,
                         size_t bound)
{
    static int (*const orders[N_ORDERS])(const void *, const void *) = {by_bytes, by_area,
                                                                        by_length};
    struct placed *placed = zt_xcalloc(n, sizeof *placed);
    size_t *offsets = zt_xcalloc(p->n_bufs, sizeof *offsets), best = SIZE_MAX;
    for (int t = 0; t < 2 * N_ORDERS && best > bound; t++) {
        qsort(items, n, sizeof *items, orders[t / 2]);
        size_t peak = place(items, n, n_ops, t % 2 == 0, best, placed, offsets);
        if (peak >= best)
            continue;
        best = peak;
        for (int i = 0; i < n; i++)
            p->bufs[items[i].buf].offset = base + offsets[items[i].buf];
    }
    free(placed);
    free(offsets);
    return best;
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
        size_t bound = zt_live_bound(p, k, life, arena) - persistent;
        size_t top = pack_items(p, items, n, p->programs[k].n_ops, base[arena], bound);
        peak[arena] = ZT_MAX(peak[arena], base[arena] + top);
    }
    free(items);
}
