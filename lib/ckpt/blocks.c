#include "ckpt/blocks.h"

#include <pthread.h>

#include "base/ring.h"
#include "base/size.h"
#include "ckpt/direct.h"

enum {
    MAX_OPEN = 64,  /* files, each of up to two descriptors */
    MAX_AHEAD = 16, /* blocks */
    MAX_THREADS = 4,
};

struct open_file {
    int file; /* -1: none */
    int users;
    uint64_t used; /* when last, by zt_blocks.uses */
    char *path;
    struct zt_direct d;
};

struct want {
    int file;
    size_t block;
    size_t bytes; /* of it that will be used */
};

struct zt_blocks {
    const char *path;
    const struct zt_manifest *m;
    pthread_mutex_t lock; /* of the next three */
    struct open_file open[MAX_OPEN];
    int *slot_of; /* (n_files) in `open`; -1: none */
    uint64_t uses;

    struct want *wants; /* in the order of reading */
    int64_t n_wants;
    size_t cap;
    struct zt_ring *ring;
    int64_t at; /* the want that is held, and those before it are over; -1: none yet */

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
    b->wants[b->n_wants++] = (struct want){file, block, bytes};
}

static int read_wanted(void *ctx, int64_t i, unsigned char *slot, struct zt_err *err)
{
    struct zt_blocks *b = ctx;
    return read_checked(b, &b->wants[i], slot, err);
}

/* Where no thread can be started, each block is read when it is asked for. */
void zt_blocks_read_ahead(struct zt_blocks *b)
{
    const size_t most = ZT_MAX(ZT_CKPT_READ_BYTES / b->m->block_bytes, (size_t)2);
    const int n = (int)ZT_MIN(ZT_MIN(most, (size_t)MAX_AHEAD), (size_t)b->n_wants);
    const struct zt_ring_opts o = {.name = "ckpt-read",
                                   .n_threads = ZT_MIN(n, MAX_THREADS),
                                   .n_slots = n,
                                   .slot_bytes = b->m->block_bytes,
                                   .work = read_wanted,
                                   .ctx = b};
    struct zt_err ignored;
    ZT_ASSERT(!b->ring);
    if (n == 0)
        return;
    if (zt_ring_create(&o, &b->ring, &ignored) == 0)
        zt_ring_allow(b->ring, n);
}

/* The next want becomes the one that is held, and the buffer of the one before is free. */
static int take_next(struct zt_blocks *b, struct zt_err *err)
{
    b->at++;
    b->held_file = -1;
    zt_ring_allow(b->ring, ZT_MIN(b->at + zt_ring_n_slots(b->ring), b->n_wants));
    b->held = zt_ring_slot(b->ring, b->at);
    return zt_ring_wait(b->ring, b->at, err);
}

static bool is_next(const struct zt_blocks *b, int file, size_t block)
{
    return b->ring && b->at + 1 < b->n_wants && b->wants[b->at + 1].file == file &&
           b->wants[b->at + 1].block == block;
}

int zt_blocks_get(struct zt_blocks *b, int file, size_t block, const unsigned char **out,
                  struct zt_err *err)
{
    int rc = 0;
    if (is_next(b, file, block)) {
        rc = take_next(b, err);
    } else if (b->held_file != file || b->held_block != block) {
        const struct want w = {file, block, 0};
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
