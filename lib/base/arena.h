/*
 * arena.h: memory of one lifetime, released as a whole (host-side structures: recipe, model, plan).
 * Not for tensors; those live in device arenas (dev/dev.h).
 *
 * zt_arena_alloc() never returns NULL: running out of memory for our own small structures ends the
 * process with a message, as in git. Allocations are zeroed and 16-byte aligned. One thread at a
 * time.
 */
#ifndef ZT_BASE_ARENA_H
#define ZT_BASE_ARENA_H

#include "base/compat.h"

struct zt_arena_chunk;

struct zt_arena {
    struct zt_arena_chunk *chunks; /* zero-initialised is a valid empty arena */
};

void *zt_arena_alloc(struct zt_arena *a, size_t n, size_t elem_bytes);
char *zt_arena_strdup(struct zt_arena *a, const char *s);
char *zt_arena_printf(struct zt_arena *a, const char *fmt, ...) ZT_PRINTF(2, 3);
void zt_arena_release(struct zt_arena *a);

/* malloc family that ends the process instead of returning NULL; n * elem_bytes is checked. */
void *zt_xcalloc(size_t n, size_t elem_bytes);
void *zt_xrealloc(void *p, size_t n, size_t elem_bytes);
char *zt_xstrdup(const char *s);

/*
 * Grow a heap array to hold `n` elements: ZT_GROW(ptr, n, cap). Amortised doubling; new elements are
 * not zeroed.
 */
#define ZT_GROW(ptr, n, cap)                                                                       \
    do {                                                                                           \
        if ((size_t)(n) > (size_t)(cap)) {                                                         \
            (cap) = (size_t)(n) < 16 ? 16 : (size_t)(n) + (size_t)(n) / 2;                         \
            (ptr) = zt_xrealloc((ptr), (cap), sizeof *(ptr));                                      \
        }                                                                                          \
    } while (0)

#endif
