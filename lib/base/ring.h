/*
 * ring.h: numbered jobs, carried out in their order by a few threads, each job with a buffer: how blocks of a
 * file are moved with several on their way at once.
 *
 * Job i has buffer i % n_slots. The caller, one thread, says up to which number jobs may begin, and waits for
 * single ones; it must not allow job i + n_slots before job i is over and it is done with the buffer. A caller that
 * keeps some buffers for longer gives them out itself: its jobs leave the one they get, and take zt_ring_slot(r, k).
 *
 *   writing: fill the buffer of job i, allow i + 1; before filling it for i + n_slots, wait for i
 *   reading: allow n_slots; wait for i, use its buffer, allow i + n_slots + 1
 *
 * A job that takes long holds up those n_slots behind it: with more slots than threads, the others go on.
 */
#ifndef ZT_BASE_RING_H
#define ZT_BASE_RING_H

#include "base/err.h"

enum { ZT_RING_ALIGN = 4096 };

struct zt_ring;

/* Job i, on one of the ring's threads. */
typedef int zt_ring_work(void *ctx, int64_t i, unsigned char *slot, struct zt_err *err);

struct zt_ring_opts {
    const char *name; /* of the threads (thread.h) */
    int n_threads, n_slots;
    size_t slot_bytes; /* of each buffer, at a multiple of ZT_RING_ALIGN; no memory until used */
    zt_ring_work *work;
    void *ctx;
};

/* ZT_ENOMEM, ZT_ESYS. */
int zt_ring_create(const struct zt_ring_opts *o, struct zt_ring **out,
                   struct zt_err *err) ZT_MUST_CHECK;

/* What has not begun is not done; returns when nothing is under way. Accepts NULL. */
void zt_ring_free(struct zt_ring *r);

int zt_ring_n_slots(const struct zt_ring *r);
unsigned char *zt_ring_slot(struct zt_ring *r, int64_t i); /* of job i */

/* Jobs below `end` may begin. It never goes back. */
void zt_ring_allow(struct zt_ring *r, int64_t end);

/* Blocks until job i is over: what it returned. One of the last n_slots that were allowed. */
int zt_ring_wait(struct zt_ring *r, int64_t i, struct zt_err *err) ZT_MUST_CHECK;

#endif
