#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Packing is two-dimensional bin packing of intervals: NP-hard, and on training plans very easy.
 * Buffers are placed one after another at an offset where no buffer placed before, alive at the
 * same time, lies; by size, largest first. A few orders and the two ways to choose the gap are
 * tried, then repairs, until one is near the bound of live bytes.
 */

/* Ops [lo, hi] at which an item is alive; a life that wraps is two. */
struct stretch {
    int lo, hi;
};

/* A buffer or, of a folded program, all of a chain: they have one place. */
struct item {
    size_t bytes;
    int first_stretch, n_stretches; /* no two share an op */
    int lo, length;                 /* where it begins; how many ops it is alive at */
    int buf;                        /* the first of them */
};

/*
 * The bytes [begin, end) and when they are taken, by items of just these bytes one after another. Where many
 * are alike there are few shelves, and who is alive beside an item is found by bisection.
 */
struct shelf {
    size_t begin, end;
    struct stretch *taken; /* (n) in order; no two share an op */
    int n;
    size_t cap;
};

enum order { BY_BYTES, BY_AREA, BY_LENGTH, N_ORDERS };

static int compare_sizes(double a, double b)
{
    return (a < b) - (a > b); /* larger first */
}

/*
 * Ties are broken by position in the program, then by buffer: the result depends on nothing else.
 */
static int compare_ties(const struct item *x, const struct item *y)
{
    if (x->lo != y->lo)
        return x->lo < y->lo ? -1 : 1;
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
    int c = compare_sizes((double)x->bytes * x->length, (double)y->bytes * y->length);
    return c ? c : compare_ties(x, y);
}

static int by_length(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int c = compare_sizes(x->length, y->length);
    return c ? c : by_bytes(a, b);
}

/* One arena of one program being packed. */
struct packing {
    struct zt_plan *p;
    struct item *items;
    struct stretch *stretches; /* (n_stretches) of the items */
    int n, n_stretches, n_ops;
    size_t base, bound;    /* where transients begin; no packing is lower than base + bound */
    size_t best;           /* peak above the base of the offsets kept; SIZE_MAX: none yet */
    struct shelf *shelves; /* (n_shelves) by begin, then end; (n) with room for what they hold */
    int n_shelves;
    size_t *offsets; /* (n) of the order under way */
};

/* How many stretches of the shelf are over before op `lo`; without branches, which no one could foresee. */
static int n_over(const struct shelf *s, int lo)
{
    const struct stretch *x = s->taken;
    int n = s->n;
    while (n > 1) {
        const int half = n / 2;
        x += x[half - 1].hi < lo ? half : 0;
        n -= half;
    }
    return n ? (int)(x - s->taken) + (x->hi < lo) : 0;
}

/* Is something of the shelf alive with the item? */
static bool meets(const struct packing *k, const struct shelf *s, const struct item *it)
{
    const struct stretch *x = k->stretches + it->first_stretch;
    for (int i = 0; i < it->n_stretches; i++) {
        const int at = n_over(s, x[i].lo);
        if (at < s->n && s->taken[at].lo <= x[i].hi)
            return true;
    }
    return false;
}

/* Where to put `it` among the shelves: the first gap, or the smallest. */
static size_t choose_offset(const struct packing *k, const struct item *it, bool smallest_gap)
{
    size_t cursor = 0, offset = 0, best_gap = SIZE_MAX;
    for (int i = 0; i < k->n_shelves; i++) {
        const struct shelf *s = &k->shelves[i];
        if (s->end <= cursor || !meets(k, s, it))
            continue;
        if (s->begin > cursor && s->begin - cursor >= it->bytes && s->begin - cursor < best_gap) {
            offset = cursor;
            best_gap = s->begin - cursor;
            if (!smallest_gap || best_gap == it->bytes)
                return offset;
        }
        cursor = s->end;
    }
    return best_gap < SIZE_MAX ? offset : cursor;
}

/* The shelf of these bytes, put among the others if there is none. */
static struct shelf *shelf_at(struct packing *k, size_t begin, size_t end)
{
    int lo = 0, hi = k->n_shelves;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const struct shelf *s = &k->shelves[mid];
        if (s->begin < begin || (s->begin == begin && s->end < end))
            lo = mid + 1;
        else
            hi = mid;
    }
    struct shelf *s = &k->shelves[lo];
    if (lo < k->n_shelves && s->begin == begin && s->end == end)
        return s;
    const struct shelf unused = k->shelves[k->n_shelves];
    memmove(s + 1, s, (size_t)(k->n_shelves++ - lo) * sizeof *s);
    *s = (struct shelf){.begin = begin, .end = end, .taken = unused.taken, .cap = unused.cap};
    return s;
}

static void put(struct packing *k, size_t at, const struct item *it)
{
    struct shelf *s = shelf_at(k, at, at + it->bytes);
    ZT_GROW(s->taken, s->n + it->n_stretches, s->cap);
    for (int i = it->first_stretch; i < it->first_stretch + it->n_stretches; i++) {
        const int n = n_over(s, k->stretches[i].lo);
        memmove(s->taken + n + 1, s->taken + n, (size_t)(s->n++ - n) * sizeof *s->taken);
        s->taken[n] = k->stretches[i];
    }
}

/* Place the items in their order, all below the best peak: the first that fails, or n. */
static int place(struct packing *k, bool smallest_gap)
{
    k->n_shelves = 0;
    for (int i = 0; i < k->n; i++) {
        const struct item *it = &k->items[i];
        size_t at = choose_offset(k, it, smallest_gap);
        if (at + it->bytes >= k->best)
            return i;
        put(k, at, it);
        k->offsets[i] = at;
    }
    return k->n;
}

static void keep(struct packing *k)
{
    k->best = 0;
    for (int i = 0; i < k->n; i++) {
        for (int b = k->items[i].buf; b >= 0; b = zt_fold_next(&k->p->fold, b))
            k->p->bufs[b].offset = k->base + k->offsets[i];
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
    k->shelves = zt_xcalloc(k->n, sizeof *k->shelves);
    k->offsets = zt_xcalloc(k->n, sizeof *k->offsets);
    for (int t = 0; t < 2 * N_ORDERS && !good_enough(k); t++) {
        qsort(k->items, k->n, sizeof *k->items, orders[t / 2]);
        if (place(k, t % 2 == 0) == k->n)
            keep(k);
    }
    repair(k);
    for (int i = 0; i < k->n; i++)
        free(k->shelves[i].taken);
    free(k->shelves);
    free(k->offsets);
}

/* Add the buffer and what has its place, if it is the first of them. */
static void add_item(struct packing *k, int buf, const struct zt_life *life)
{
    const struct zt_fold *fold = &k->p->fold;
    struct item it = {.bytes = k->p->bufs[buf].bytes,
                      .first_stretch = k->n_stretches,
                      .lo = life[buf].lo,
                      .buf = buf};
    if (!zt_fold_is_first(fold, buf))
        return;
    for (int b = buf; b >= 0; b = zt_fold_next(fold, b)) {
        const struct zt_life l = life[b];
        k->stretches[k->n_stretches++] = (struct stretch){l.lo, ZT_MIN(l.hi, k->n_ops - 1)};
        if (l.hi >= k->n_ops)
            k->stretches[k->n_stretches++] = (struct stretch){0, l.hi - k->n_ops};
        it.length += l.hi - l.lo + 1;
    }
    it.n_stretches = k->n_stretches - it.first_stretch;
    k->items[k->n++] = it;
}

void zt_pack(struct zt_plan *p, enum zt_program_kind k, const struct zt_life *life,
             const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS])
{
    struct packing packing = {.p = p, .n_ops = p->programs[k].n_ops};
    packing.items = zt_xcalloc(p->n_bufs, sizeof *packing.items);
    packing.stretches = zt_xcalloc(2 * (size_t)p->n_bufs, sizeof *packing.stretches);
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        size_t persistent = 0;
        packing.n = packing.n_stretches = 0;
        for (int b = 0; b < p->n_bufs; b++) {
            struct zt_buf *buf = &p->bufs[b];
            if (buf->arena != (enum zt_arena_id)arena)
                continue;
            if (buf->program < 0)
                persistent += buf->bytes;
            else if (zt_is_transient(buf, k) && life[b].hi >= life[b].lo)
                add_item(&packing, b, life);
        }
        peak[arena] = ZT_MAX(peak[arena], base[arena]);
        if (!packing.n)
            continue;
        packing.base = base[arena];
        packing.bound = zt_live_bound(p, k, life, arena) - persistent;
        packing.best = SIZE_MAX;
        pack_items(&packing);
        peak[arena] = ZT_MAX(peak[arena], base[arena] + packing.best);
    }
    free(packing.items);
    free(packing.stretches);
}
