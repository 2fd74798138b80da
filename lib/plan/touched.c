#include "plan/plan.h"

#include "base/err.h"
#include "plan/passes.h"

/*
 * Which bytes of an arena the ops of a run write, from what they declare. A byte that a peer reads was
 * written by its owner, so reads add nothing.
 */

struct list {
    struct zt_extent *at;
    int n;
    size_t cap;
};

static void add(struct list *l, size_t begin, size_t end)
{
    ZT_GROW(l->at, l->n + 1, l->cap);
    l->at[l->n++] = (struct zt_extent){begin, end};
}

/* Bytes [begin, end) of a buffer, less its gaps. */
static void add_written(struct list *l, const struct zt_buf *b, size_t begin, size_t end)
{
    for (int i = 0; i < b->n_gaps; i++) {
        if (b->gaps[i].begin > begin && begin < end)
            add(l, b->offset + begin, b->offset + ZT_MIN(b->gaps[i].begin, end));
        begin = ZT_MAX(begin, b->gaps[i].end);
    }
    if (begin < end)
        add(l, b->offset + begin, b->offset + end);
}

static int by_begin(const void *a, const void *b)
{
    const struct zt_extent *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sort, and join what overlaps or adjoins; the bytes of all. */
static size_t join(struct list *l)
{
    size_t bytes = 0;
    int n = 0;
    if (l->n)
        qsort(l->at, (size_t)l->n, sizeof *l->at, by_begin);
    for (int i = 0; i < l->n; i++) {
        if (n && l->at[i].begin <= l->at[n - 1].end)
            l->at[n - 1].end = ZT_MAX(l->at[n - 1].end, l->at[i].end);
        else
            l->at[n++] = l->at[i];
    }
    l->n = n;
    for (int i = 0; i < n; i++)
        bytes += l->at[i].end - l->at[i].begin;
    return bytes;
}

void zt_plan_touched(const struct zt_plan *p, enum zt_arena_id arena, unsigned programs,
                     struct zt_touched *out)
{
    struct list written = {0}, touchable = {0};
    for (int k = 0; k < ZT_N_PROGRAMS; k++) {
        const struct zt_program *prog = &p->programs[k];
        for (int i = 0; i < prog->n_accesses && (programs & 1u << k); i++) {
            const struct zt_access *a = &prog->accesses[i];
            const struct zt_buf *b = &p->bufs[a->buf];
            if (b->arena != arena || !(a->mode & ZT_WRITE))
                continue;
            add_written(&touchable, b, a->begin, a->end);
            if (b->cat != ZT_CAT_WORKSPACE)
                add_written(&written, b, a->begin, a->end);
        }
    }
    out->written_bytes = join(&written);
    out->scratch_bytes = join(&touchable) - out->written_bytes;
    out->written = written.at;
    out->n_written = written.n;
    out->touchable = touchable.at;
    out->n_touchable = touchable.n;
}

size_t zt_extent_blocks(const struct zt_extent *x, int n, size_t block)
{
    size_t blocks = 0, next = 0; /* the first block that is not counted */
    for (int i = 0; i < n; i++) {
        const size_t first = ZT_MAX(x[i].begin / block, next);
        next = (x[i].end - 1) / block + 1;
        blocks += next - first;
    }
    return blocks * block;
}

void zt_touched_release(struct zt_touched *t)
{
    free(t->written);
    free(t->touchable);
    memset(t, 0, sizeof *t);
}
