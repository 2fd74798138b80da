#include "base/mark.h"

#include <sys/mman.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/err.h"

enum { BLOCK_BYTES = 4096, BLOCKS = 256, FEWEST_BLOCKS = 2 };

void zt_marks_add(struct zt_marks *m, const struct zt_mark *mark)
{
    ZT_GROW(m->items, m->n + 1, m->cap);
    m->items[m->n++] = *mark;
}

void zt_marks_release(struct zt_marks *m)
{
    free(m->items);
    memset(m, 0, sizeof *m);
}

/* One block may be all of it. */
static size_t n_blocks(const struct zt_mark *mark, size_t n_marks)
{
    const size_t most = ZT_MAX(BLOCKS / n_marks, (size_t)FEWEST_BLOCKS);
    return mark->bytes <= most * BLOCK_BYTES ? 1 : most;
}

struct block {
    const unsigned char *p;
    size_t bytes;
};

static struct block block_of(const struct zt_mark *mark, size_t k, size_t n)
{
    const unsigned char *p = mark->data;
    if (n == 1)
        return (struct block){p, mark->bytes};
    return (struct block){p + (mark->bytes - BLOCK_BYTES) * k / (n - 1), BLOCK_BYTES};
}

/* The disk, or a server, finds them in its own order, many at once. */
static void ask_for(struct block b)
{
    const uintptr_t inside = (uintptr_t)b.p % BLOCK_BYTES;
    if (b.bytes > 0)
        (void)madvise((void *)((uintptr_t)b.p - inside), b.bytes + inside, MADV_WILLNEED);
}

static int64_t in_62_bits(XXH64_hash_t h)
{
    return (int64_t)(h >> 2);
}

void zt_marks_read(struct zt_marks *m)
{
    for (size_t i = 0; i < m->n; i++)
        for (size_t k = 0, n = n_blocks(&m->items[i], m->n); k < n; k++)
            ask_for(block_of(&m->items[i], k, n));
    for (size_t i = 0; i < m->n; i++) {
        struct zt_mark *mark = &m->items[i];
        XXH64_hash_t h =
            XXH3_64bits_withSeed(mark->kind, strlen(mark->kind), (XXH64_hash_t)mark->n);
        h = XXH3_64bits_withSeed(&mark->bytes, sizeof mark->bytes, h);
        for (size_t k = 0, n = n_blocks(mark, m->n); k < n; k++) {
            const struct block b = block_of(mark, k, n);
            h = XXH3_64bits_withSeed(b.p, b.bytes, h);
        }
        mark->digest = in_62_bits(h);
    }
}

int64_t zt_marks_digest(const struct zt_marks *m, size_t n)
{
    XXH64_hash_t h = n;
    ZT_ASSERT(n <= m->n);
    for (size_t i = 0; i < n; i++)
        h = XXH3_64bits_withSeed(&m->items[i].digest, sizeof m->items[i].digest, h);
    return in_62_bits(h);
}

int64_t zt_mark_word(const char *word)
{
    return in_62_bits(XXH3_64bits(word, strlen(word)));
}
