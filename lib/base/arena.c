#include "base/arena.h"

#include <stdarg.h>

#include "base/size.h"

struct zt_arena_chunk {
    struct zt_arena_chunk *next;
    size_t used, cap;
    _Alignas(16) unsigned char data[];
};

enum { CHUNK_BYTES = 64 << 10 };

static ZT_NORETURN void die_oom(void)
{
    static const char msg[] = "zerotrain: out of host memory\n";
    fputs(msg, stderr);
    exit(71);
}

static size_t checked_bytes(size_t n, size_t elem_bytes)
{
    size_t bytes;
    if (!zt_mul_size(n, elem_bytes, &bytes) || bytes > SIZE_MAX / 2)
        die_oom();
    return bytes;
}

void *zt_arena_alloc(struct zt_arena *a, size_t n, size_t elem_bytes)
{
    size_t bytes = zt_align_size(checked_bytes(n, elem_bytes), 16);
    struct zt_arena_chunk *c = a->chunks;
    if (!c || c->cap - c->used < bytes) {
        size_t cap = ZT_MAX(bytes, (size_t)CHUNK_BYTES);
        c = zt_xcalloc(1, sizeof *c + cap);
        c->cap = cap;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    return p;
}

char *zt_arena_strdup(struct zt_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = zt_arena_alloc(a, n, 1);
    memcpy(p, s, n);
    return p;
}

char *zt_arena_printf(struct zt_arena *a, const char *fmt, ...)
{
    /* Written where the next allocation begins; again, if it is too long for that chunk. */
    struct zt_arena_chunk *c = a->chunks;
    const size_t room = c ? c->cap - c->used : 0;
    char *at = c ? (char *)c->data + c->used : NULL;
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(at, room, fmt, ap);
    va_end(ap);
    const size_t bytes = (size_t)(n < 0 ? 0 : n) + 1;
    char *p = zt_arena_alloc(a, bytes, 1);
    if (p != at)
        vsnprintf(p, bytes, fmt, ap2);
    va_end(ap2);
    return p;
}

void zt_arena_release(struct zt_arena *a)
{
    while (a->chunks) {
        struct zt_arena_chunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
}

void *zt_xcalloc(size_t n, size_t elem_bytes)
{
    size_t bytes = checked_bytes(n, elem_bytes);
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        die_oom();
    return p;
}

void *zt_xrealloc(void *p, size_t n, size_t elem_bytes)
{
    size_t bytes = checked_bytes(n, elem_bytes);
    p = realloc(p, bytes ? bytes : 1);
    if (!p)
        die_oom();
    return p;
}

char *zt_xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = zt_xcalloc(n, 1);
    memcpy(p, s, n);
    return p;
}
