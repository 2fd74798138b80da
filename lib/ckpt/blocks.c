#include "ckpt/blocks.h"

#include <pthread.h>

#include "base/ring.h"
#include "base/size.h"
#include "ckpt/direct.h"

enum {
    MAX_OPEN = 64,  /* files, each of up to two descriptors */
    MAX_AHEAD = 16, /* blocks */
    MAX_KEPT = 64,  /* blocks */
    MAX_THREADS = 4,
};

struct open_file {
    int file; /* -1: none */
    int users;
    uint64_t used; /* when last, by zt_blocks.uses */
    char *path;
    struct zt_direct d;
};

/* That a block will be asked for. */
struct want {
    int file;
    size_t block;
    size_t bytes;    /* of it that will be used */
    int64_t again;   /* the next want of the same block; -1: none */
    int64_t reading; /* that it is of */
};

/* Once from the disk, for one want or for several: until the last one is over its buffer has no other block. */
struct reading {
    int64_t first, last;
    size_t bytes; /* of it that will be used */
    int buffer;
    bool failed;
};

struct zt_blocks {
    const char *path;
    const struct zt_manifest *m;
    pthread_mutex_t lock; /* of the next three */
    struct open_file open[MAX_OPEN];
    int *slot_of; /* (n_files) in `open`; -1: none */
    uint64_t uses;

    struct want *wants; /* in the order of asking */
    int64_t n_wants;
    size_t cap;
    struct reading *readings; /* in the order of their first wants; the ring's jobs */
    int64_t n_readings;
    struct zt_ring *ring;
    int64_t ahead;   /* blocks that may be there before they are asked for, and the one held */
    int64_t at;      /* the want that is held, and those before it are over; -1: none yet */
    int64_t n_begun; /* readings whose first want is over, or held */

    int held_file; /* -1: none */
    size_t held_block;
    const unsigned char *held;
    unsigned char *own; /* for what was not expected */
};

int zt_blocks_create(const char *path, const struct zt_manifest *m, struct zt_blocks **out,
                     struct zt_err *err)
{
    const size_t n = (size_t)m->n_files;
    struct zt_blocks *b = zt_xcalloc(1, sizeof *b);
    *b = (struct zt_blocks){.path = path, .m = m, .at = -1, .held_file = -1};
    b->own = aligned_alloc(ZT_DIRECT_ALIGN, zt_align_size(m->block_bytes, ZT_DIRECT_ALIGN));
    pthread_mutex_init(&b->lock, NULL);
    b->slot_of = zt_xcalloc(n, sizeof *b->slot_of);
    for (size_t i = 0; i < n; i++)
        b->slot_of[i] = -1;
    for (int i = 0; i < MAX_OPEN; i++)
        b->open[i].file = -1;
    if (!b->own) {
        zt_blocks_free(b);
        return zt_err_set(err, ZT_ENOMEM, "%s: no memory for a block of %zu bytes", path,
                          m->block_bytes);
    }
    *out = b;
    return 0;
}

static void close_slot(struct zt_blocks *b, struct open_file *o)
{
    if (o->file < 0)
        return;
    (void)!zt_direct_close(&o->d);
    free(o->path);
    b->slot_of[o->file] = -1;
    o->file = -1;
}

void zt_blocks_free(struct zt_blocks *b)
{
    if (!b)
        return;
    zt_ring_free(b->ring);
    for (int i = 0; i < MAX_OPEN; i++)
        close_slot(b, &b->open[i]);
    pthread_mutex_destroy(&b->lock);
    free(b->slot_of);
    free(b->wants);
    free(b->readings);
    free(b->own);
    free(b);
}

/* ---- reading one ---- */

/* One that is free, else the one that nobody used for the longest time: readers are fewer than slots. */
static struct open_file *free_slot(struct zt_blocks *b)
{
    struct open_file *oldest = NULL;
    for (int i = 0; i < MAX_OPEN; i++) {
        struct open_file *o = &b->open[i];
        if (o->file < 0)
            return o;
        if (o->users == 0 && (!oldest || o->used < oldest->used))
            oldest = o;
    }
    ZT_ASSERT(oldest);
    close_slot(b, oldest);
    return oldest;
}

static int open_slot(struct zt_blocks *b, int file, struct open_file **out, struct zt_err *err)
{
    struct zt_str path = {0};
    struct open_file *o = free_slot(b);
    zt_str_printf(&path, "%s/%s", b->path, b->m->files[file].name);
    int rc = zt_direct_open(&o->d, path.buf, true, err);
    if (rc) {
        zt_str_release(&path);
        return rc;
    }
    o->file = file;
    o->path = path.buf; /* of malloc */
    b->slot_of[file] = (int)(o - b->open);
    *out = o;
    return 0;
}

/* Until let_go() nobody closes it. There may be more files than a process may open. */
static int hold(struct zt_blocks *b, int file, struct open_file **out, struct zt_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    if (b->slot_of[file] >= 0)
        *out = &b->open[b->slot_of[file]];
    else
        rc = open_slot(b, file, out, err);
    if (!rc) {
        (*out)->users++;
        (*out)->used = ++b->uses;
    }
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static void let_go(struct zt_blocks *b, struct open_file *o)
{
    pthread_mutex_lock(&b->lock);
    o->users--;
    pthread_mutex_unlock(&b->lock);
}

/* What is left of a block is for another time, or for another rank: it comes through the page cache. */
static int read_checked(struct zt_blocks *b, const struct want *w, unsigned char *to,
                        struct zt_err *err)
{
    const struct zt_ckpt_file *f = &b->m->files[w->file];
    const size_t begin = w->block * b->m->block_bytes;
    const size_t n = ZT_MIN(b->m->block_bytes, f->bytes - begin);
    struct open_file *o;
    int rc = hold(b, w->file, &o, err);
    if (rc)
        return rc;
    rc = zt_direct_read(&o->d, w->bytes < n, to, n, begin, err);
    let_go(b, o);
    if (rc)
        return rc;
    const struct zt_ckpt_sum sum = zt_ckpt_sum_of(to, n);
    if (memcmp(&sum, &f->sums[w->block], sizeof sum) != 0)
        return zt_err_set(err, ZT_EINPUT,
                          "%s/%s: the checksum of bytes %zu to %zu is wrong: the file was damaged",
                          b->path, f->name, begin, begin + n);
    return 0;
}

/* ---- ahead ---- */

void zt_blocks_expect(struct zt_blocks *b, int file, size_t block, size_t bytes)
{
    struct want *last = b->n_wants ? &b->wants[b->n_wants - 1] : NULL;
    ZT_ASSERT(!b->ring);
    if (last && last->file == file && last->block == block) {
        last->bytes += bytes;
        return;
    }
    ZT_GROW(b->wants, (size_t)b->n_wants + 1, b->cap);
    ZT_ASSERT(b->wants);
    b->wants[b->n_wants++] =
        (struct want){.file = file, .block = block, .bytes = bytes, .again = -1};
}

static int by_block(const void *a, const void *b)
{
    const struct want *x = *(const struct want *const *)a, *y = *(const struct want *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->block != y->block)
        return x->block < y->block ? -1 : 1;
    return x < y ? -1 : x > y; /* in the order of asking */
}

static void find_repeats(struct zt_blocks *b)
{
    struct want **sorted = zt_xcalloc((size_t)b->n_wants, sizeof *sorted);
    for (int64_t i = 0; i < b->n_wants; i++)
        sorted[i] = &b->wants[i];
    qsort(sorted, (size_t)b->n_wants, sizeof *sorted, by_block);
    for (int64_t i = 0; i + 1 < b->n_wants; i++)
        if (sorted[i]->file == sorted[i + 1]->file && sorted[i]->block == sorted[i + 1]->block)
            sorted[i]->again = sorted[i + 1] - b->wants;
    free(sorted);
}

/* The wants that blocks are kept for, while the order of asking is gone through. */
struct kept {
    int64_t wants[MAX_KEPT];
    int n, most;
};

static bool take_kept(struct kept *k, int64_t want)
{
    for (int i = 0; i < k->n; i++) {
        if (k->wants[i] != want)
            continue;
        k->wants[i] = k->wants[--k->n];
        return true;
    }
    return false;
}

/* Of too many, that goes which is wanted last (Belady 1966): no other choice reads less. */
static void keep_for(struct kept *k, int64_t want)
{
    int last = 0;
    if (want < 0 || k->most == 0)
        return;
    if (k->n < k->most) {
        k->wants[k->n++] = want;
        return;
    }
    for (int i = 1; i < k->n; i++)
        last = k->wants[i] > k->wants[last] ? i : last;
    k->wants[last] = ZT_MIN(k->wants[last], want);
}

static void list_readings(struct zt_blocks *b)
{
    struct kept k = {.most = (int)ZT_MIN(ZT_CKPT_KEPT_BYTES / b->m->block_bytes, (size_t)MAX_KEPT)};
    b->readings = zt_xcalloc((size_t)b->n_wants, sizeof *b->readings);
    find_repeats(b);
    for (int64_t i = 0; i < b->n_wants; i++) {
        struct want *w = &b->wants[i];
        if (!take_kept(&k, i)) {
            w->reading = b->n_readings++;
            b->readings[w->reading].first = i;
        }
        struct reading *r = &b->readings[w->reading];
        r->last = i;
        r->bytes += w->bytes;
        if (w->again >= 0)
            b->wants[w->again].reading = w->reading; /* if it is kept so long */
        keep_for(&k, w->again);
    }
}

/*
 * Reading i begins when that which is `ahead` - 1 before it is asked for: into the first buffer that is free by then.
 * Others have what is ahead, or kept. Returns how many buffers that takes.
 */
static int assign_buffers(struct zt_blocks *b)
{
    int64_t over[MAX_AHEAD + MAX_KEPT]; /* by buffer: the last want of what is in it */
    int n = 0;
    for (int64_t i = 0; i < b->n_readings; i++) {
        const int64_t from = i < b->ahead ? -1 : b->readings[i - b->ahead + 1].first;
        int k = 0;
        while (k < n && over[k] >= from)
            k++;
        ZT_ASSERT_CMP(k, <, MAX_AHEAD + MAX_KEPT);
        n = ZT_MAX(n, k + 1);
        over[k] = b->readings[i].last;
        b->readings[i].buffer = k;
    }
    return n;
}

static int read_wanted(void *ctx, int64_t i, unsigned char *slot, struct zt_err *err)
{
    struct zt_blocks *b = ctx;
    const struct reading *r = &b->readings[i];
    struct want w = b->wants[r->first];
    (void)slot;
    w.bytes = r->bytes;
    return read_checked(b, &w, zt_ring_slot(b->ring, r->buffer), err);
}

/* Where no thread can be started, each block is read when it is asked for. */
void zt_blocks_read_ahead(struct zt_blocks *b)
{
    const size_t most = ZT_MAX(ZT_CKPT_READ_BYTES / b->m->block_bytes, (size_t)2);
    struct zt_err ignored;
    ZT_ASSERT(!b->ring);
    if (b->n_wants == 0)
        return;
    list_readings(b);
    b->ahead = ZT_MIN((int64_t)ZT_MIN(most, (size_t)MAX_AHEAD), b->n_readings);
    const struct zt_ring_opts o = {.name = "ckpt-read",
                                   .n_threads = (int)ZT_MIN(b->ahead, (int64_t)MAX_THREADS),
                                   .n_slots = assign_buffers(b),
                                   .slot_bytes = b->m->block_bytes,
                                   .work = read_wanted,
                                   .ctx = b};
    if (zt_ring_create(&o, &b->ring, &ignored) == 0)
        zt_ring_allow(b->ring, b->ahead);
}

/* The next want becomes the one that is held. The buffer of the one before is free, if that was its reading's last. */
static int take_next(struct zt_blocks *b, struct zt_err *err)
{
    const int64_t i = b->wants[++b->at].reading;
    struct reading *r = &b->readings[i];
    b->held_file = -1;
    b->held = zt_ring_slot(b->ring, r->buffer);
    if (i < b->n_begun)
        return 0;
    b->n_begun = i + 1;
    zt_ring_allow(b->ring, ZT_MIN(i + b->ahead, b->n_readings));
    const int rc = zt_ring_wait(b->ring, i, err);
    r->failed = rc != 0;
    return rc;
}

static bool is_next(const struct zt_blocks *b, int file, size_t block)
{
    const struct want *next = b->at + 1 < b->n_wants ? &b->wants[b->at + 1] : NULL;
    return b->ring && next && next->file == file && next->block == block &&
           !b->readings[next->reading].failed;
}

int zt_blocks_get(struct zt_blocks *b, int file, size_t block, const unsigned char **out,
                  struct zt_err *err)
{
    int rc = 0;
    if (is_next(b, file, block)) {
        rc = take_next(b, err);
    } else if (b->held_file != file || b->held_block != block) {
        const struct want w = {.file = file, .block = block};
        b->held_file = -1;
        b->held = b->own;
        rc = read_checked(b, &w, b->own, err);
    }
    if (rc)
        return rc;
    b->held_file = file;
    b->held_block = block;
    *out = b->held;
    return 0;
}
