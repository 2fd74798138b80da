#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Packing is two-dimensional bin packing of intervals: NP-hard, and on training plans very easy.
 * Buffers are placed one after another at an offset where no buffer placed before, alive at the
 * same time, lies; by size, largest first. A few orders and the two ways to choose the gap are
 * tried, then repairs, until one is near the bound of live bytes.
 */

/* A buffer or, of a folded program, all of a chain: they have one place. */
struct item {
    size_t bytes;
    int first_life, n_lives; /* in order */
    int lo, length;          /* where it begins; how many ops it is alive at */
    int buf;                 /* the first of them */
    int id;                  /* its number in any order */
};

/* One of an item's lives, at its place. */
struct placed {
    size_t begin, end;
    struct zt_life life;
    int id;
};

/* A stretch of ops at which an item is alive; a life that wraps is two. */
struct stretch {
    int lo, hi, id;
};

enum { MAX_MET = (64 << 20) / sizeof(int) /* listed in all: 64 MB */ };

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

static int by_lo(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
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
    struct zt_life *lives; /* (n_lives) of the items */
    int n, n_lives, n_ops;
    size_t base, bound; /* where transients begin; no packing is lower than base + bound */
    size_t best;        /* peak above the base of the offsets kept; SIZE_MAX: none yet */
    size_t *first_met;  /* (n + 1) item `id` is alive with met[first_met[id]] and on, each once */
    int *met;           /* NULL: not listed */
    int *mark, n_marks; /* (n) the last time that an item was marked */
    struct placed *placed;
    size_t *offsets; /* (n) of the order under way */
};

/* Stretches of all lives, by their beginnings; how many. */
static int list_stretches(const struct packing *k, struct stretch *out)
{
    int n = 0;
    for (int i = 0; i < k->n; i++) {
        const struct item *it = &k->items[i];
        for (int j = it->first_life; j < it->first_life + it->n_lives; j++) {
            const struct zt_life l = k->lives[j];
            out[n++] = (struct stretch){l.lo, ZT_MIN(l.hi, k->n_ops - 1), it->id};
            if (l.hi >= k->n_ops)
                out[n++] = (struct stretch){0, l.hi - k->n_ops, it->id};
        }
    }
    qsort(out, n, sizeof *out, by_lo);
    return n;
}

/*
 * Walk over the stretches and count who meets whom, in first_met[id + 1]; or list them, in met[]. Twice, if they
 * meet again. Stops and returns false when there are more than MAX_MET.
 */
static bool meet(struct packing *k, const struct stretch *s, int n, struct stretch *alive,
                 size_t *at)
{
    int n_alive = 0;
    size_t n_met = 0;
    for (int i = 0; i < n && n_met <= MAX_MET; i++) {
        int kept = 0;
        for (int j = 0; j < n_alive; j++) {
            if (alive[j].hi < s[i].lo)
                continue;
            alive[kept++] = alive[j];
            if (at) {
                k->met[at[s[i].id]++] = alive[j].id;
                k->met[at[alive[j].id]++] = s[i].id;
            } else {
                k->first_met[s[i].id + 1]++;
                k->first_met[alive[j].id + 1]++;
            }
        }
        n_met += 2 * (size_t)kept;
        alive[kept++] = s[i];
        n_alive = kept;
    }
    return n_met <= MAX_MET;
}

/* Keep each in a list once. */
static void drop_repeated(struct packing *k)
{
    size_t n = 0, begin = 0;
    for (int id = 0; id < k->n; id++) {
        const size_t end = k->first_met[id + 1];
        const int mark = ++k->n_marks;
        for (size_t i = begin; i < end; i++) {
            if (k->mark[k->met[i]] == mark)
                continue;
            k->mark[k->met[i]] = mark;
            k->met[n++] = k->met[i];
        }
        begin = end;
        k->first_met[id + 1] = n;
    }
}

/*
 * Who is alive at the same time, modulo the program: it is the same for every order. Not listed if they are
 * too many.
 */
static void list_meetings(struct packing *k)
{
    struct stretch *all = zt_xcalloc(2 * (size_t)k->n_lives, sizeof *all);
    struct stretch *alive = zt_xcalloc(2 * (size_t)k->n_lives, sizeof *alive);
    size_t *at = zt_xcalloc(k->n, sizeof *at);
    const int n = list_stretches(k, all);
    k->first_met = zt_xcalloc((size_t)k->n + 1, sizeof *k->first_met);
    if (meet(k, all, n, alive, NULL)) {
        for (int i = 0; i < k->n; i++) {
            at[i] = k->first_met[i];
            k->first_met[i + 1] += k->first_met[i];
        }
        k->met = zt_xcalloc(k->first_met[k->n] + 1, sizeof *k->met);
        meet(k, all, n, alive, at);
        drop_repeated(k);
    }
    free(all);
    free(alive);
    free(at);
}

/* Alive at the same time, modulo a program of n ops. */
static bool lives_meet(struct zt_life a, struct zt_life b, int n)
{
    return (a.lo <= b.hi && b.lo <= a.hi) || a.lo <= b.hi - n || b.lo <= a.hi - n;
}

static bool is_met(const struct packing *k, const struct item *it, const struct placed *q)
{
    const struct zt_life *lives = k->lives + it->first_life;
    bool any = false;
    if (k->met)
        return k->mark[q->id] == k->n_marks;
    for (int i = 0; i < it->n_lives; i++)
        any |= lives_meet(q->life, lives[i], k->n_ops);
    return any;
}

static void mark_met(struct packing *k, const struct item *it)
{
    k->n_marks++;
    for (size_t i = k->first_met[it->id]; i < k->first_met[it->id + 1]; i++)
        k->mark[k->met[i]] = k->n_marks;
}

/* Where to put `it` among the items placed, sorted by offset: the first gap, or the smallest. */
static size_t choose_offset(struct packing *k, int n_placed, const struct item *it,
                            bool smallest_gap)
{
    size_t cursor = 0, offset = 0, best_gap = SIZE_MAX;
    if (k->met)
        mark_met(k, it);
    for (int i = 0; i < n_placed; i++) {
        const struct placed *q = &k->placed[i];
        if (!is_met(k, it, q) || q->end <= cursor)
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

/* Place the items in their order, all below the best peak: the first that fails, or n. */
static int place(struct packing *k, bool smallest_gap)
{
    int n_placed = 0;
    for (int i = 0; i < k->n; i++) {
        const struct item *it = &k->items[i];
        const struct zt_life *lives = k->lives + it->first_life;
        size_t at = choose_offset(k, n_placed, it, smallest_gap);
        if (at + it->bytes >= k->best)
            return i;
        for (int j = 0; j < (k->met ? 1 : it->n_lives); j++)
            insert(k->placed, n_placed++, (struct placed){at, at + it->bytes, lives[j], it->id});
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
    k->placed = zt_xcalloc(k->n_lives, sizeof *k->placed);
    k->offsets = zt_xcalloc(k->n, sizeof *k->offsets);
    k->mark = zt_xcalloc(k->n, sizeof *k->mark);
    k->n_marks = 0;
    k->first_met = NULL;
    k->met = NULL;
    list_meetings(k);
    for (int t = 0; t < 2 * N_ORDERS && !good_enough(k); t++) {
        qsort(k->items, k->n, sizeof *k->items, orders[t / 2]);
        if (place(k, t % 2 == 0) == k->n)
            keep(k);
    }
    repair(k);
    free(k->placed);
    free(k->offsets);
    free(k->mark);
    free(k->first_met);
    free(k->met);
}

/* Add the buffer and what has its place, if it is the first of them. */
static void add_item(struct packing *k, int buf, const struct zt_life *life)
{
    const struct zt_fold *fold = &k->p->fold;
    struct item it = {.bytes = k->p->bufs[buf].bytes,
                      .first_life = k->n_lives,
                      .lo = life[buf].lo,
                      .buf = buf,
                      .id = k->n};
    if (!zt_fold_is_first(fold, buf))
        return;
    for (int b = buf; b >= 0; b = zt_fold_next(fold, b)) {
        k->lives[k->n_lives++] = life[b];
        it.length += life[b].hi - life[b].lo + 1;
        it.n_lives++;
    }
    k->items[k->n++] = it;
}

void zt_pack(struct zt_plan *p, enum zt_program_kind k, const struct zt_life *life,
             const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS])
{
    struct packing packing = {.p = p, .n_ops = p->programs[k].n_ops};
    packing.items = zt_xcalloc(p->n_bufs, sizeof *packing.items);
    packing.lives = zt_xcalloc(p->n_bufs, sizeof *packing.lives);
    for (int arena = 0; arena < ZT_N_ARENAS; arena++) {
        size_t persistent = 0;
        packing.n = packing.n_lives = 0;
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
    free(packing.lives);
}
