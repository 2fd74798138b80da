/*
 * staged_internal.h: inside of the host-staged collectives. staged_kinds.c says where the chunks of each
 * call lie, and moves them; staged.c cuts calls into chunks, enqueues them, and owns the staging memory.
 */
#ifndef ZT_COLL_STAGED_INTERNAL_H
#define ZT_COLL_STAGED_INTERNAL_H

#include <stdatomic.h>

#include "coll/staged.h"

enum {
    STAGED_SLOTS = 2,
    STAGED_ALIGN_BYTES = 64,
    STAGED_ALIGN_ELEMS = 64, /* of chunks: pieces then begin at cache lines */
    STAGED_MAX_ARENAS = 16,
};

/* What the calls of one stream use. Its counts lie in the staging memory too. */
struct staged_lane {
    _Atomic(struct zt_stream *) owner; /* the stream, from its first call on */
    struct zt_stream *inner;
    char *slots[STAGED_SLOTS];
    int64_t *total;                         /* (n_ranks): counts of a call in chunks, compared */
    int64_t *message;                       /* the same of a message; what comes from the peer */
    int64_t *counts[2];                     /* (n_ranks): of an all_to_all: sent, received */
    int64_t *chunk_counts[2][STAGED_SLOTS]; /* (n_ranks): a chunk's part of them */
};

struct staged_arena {
    void *p;
    size_t bytes;
};

struct staged_coll {
    struct zt_coll base;
    struct zt_coll *inner;
    size_t slot_bytes, staging_bytes;
    char *staging;
    bool pinned;
    int n_arenas;
    struct staged_arena arenas[STAGED_MAX_ARENAS];
    int n_lanes;
    struct staged_lane lanes[ZT_STAGED_MAX_STREAMS];
};

/* A call while it is enqueued. Its count, the elements of a piece, is cut into chunks. */
struct staged_call {
    struct staged_coll *c;
    struct zt_stream *s;
    struct staged_lane *lane;
    const struct zt_call *call;
    int n, me;
    size_t elem_bytes, recv_elem_bytes;
};

/* Elements [at, at + n) of every piece of a call, in a slot. */
struct staged_chunk {
    int slot;
    int64_t at, n;
};

/* On the call's stream; nothing of 0 bytes. */
void zt_staged_copy(const struct staged_call *a, void *dst, const void *src, size_t bytes);

/* Bytes of a slot for each element of a chunk. */
size_t zt_staged_slot_elem_bytes(const struct staged_call *a);

/* A chunk's way: device to slot on the stream, between ranks on the inner stream, slot to device. */
void zt_staged_load(const struct staged_call *a, const struct staged_chunk *k);
void zt_staged_run(const struct staged_call *a, const struct staged_chunk *k);
void zt_staged_store(const struct staged_call *a, const struct staged_chunk *k);

#endif
