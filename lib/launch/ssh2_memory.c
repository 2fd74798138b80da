#include "launch/ssh2_host.h"

/*
 * What libssh2 allocates for a session. Version 1.10 forgets what belongs to an exchange that was under way when
 * the session is freed; and it leaves keys behind in memory.
 */
struct ssh2_block {
    struct ssh2_block *next, *prev;
    size_t n_bytes;
    max_align_t bytes[];
};

static void wipe_block(struct ssh2_block *b)
{
    explicit_bzero(b->bytes, b->n_bytes);
    free(b);
}

static void unlink_block(struct ssh2_block **first, struct ssh2_block *b)
{
    if (b->next)
        b->next->prev = b->prev;
    if (b->prev)
        b->prev->next = b->next;
    else
        *first = b->next;
    wipe_block(b);
}

void *ssh2_alloc(struct ssh2_host *h, size_t n)
{
    struct ssh2_block *b = zt_xcalloc(1, sizeof *b + n);
    b->n_bytes = n;
    b->next = h->blocks;
    if (b->next)
        b->next->prev = b;
    h->blocks = b;
    return b->bytes;
}

static struct ssh2_block *block_of(void *p)
{
    return (struct ssh2_block *)(void *)((char *)p - offsetof(struct ssh2_block, bytes));
}

static void *take(size_t n, void **abstract)
{
    return ssh2_alloc(*abstract, n);
}

static void give(void *p, void **abstract)
{
    struct ssh2_host *h = *abstract;
    if (p)
        unlink_block(&h->blocks, block_of(p));
}

static void *take_more(void *p, size_t n, void **abstract)
{
    void *more = take(n, abstract);
    if (p)
        memcpy(more, p, ZT_MIN(n, block_of(p)->n_bytes));
    give(p, abstract);
    return more;
}

LIBSSH2_SESSION *ssh2_new_session(struct ssh2_host *h)
{
    return libssh2_session_init_ex(take, give, take_more, h);
}

void ssh2_free_session(struct ssh2_host *h)
{
    enum { TRIES = 16 };
    for (int i = 0; h->session && i < TRIES; i++)
        if (libssh2_session_free(h->session) != LIBSSH2_ERROR_EAGAIN)
            break;
    h->session = NULL;
    h->channel = NULL;
    for (struct ssh2_block *b = h->blocks, *next; b; b = next) {
        next = b->next;
        wipe_block(b);
    }
    h->blocks = NULL;
}
