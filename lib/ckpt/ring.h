/*
 * ring.h: numbered jobs, carried out by a few threads, each with a buffer of its own: how blocks of a file
 * are moved with several on their way at once. Internal to lib/ckpt.
 *
 * Job i has buffer i % n_slots. The caller says up to which number jobs may begin, and waits for single
 * ones; it must not allow job i + n_slots before it is done with the buffer of job i.
 *
 *   writing: fill the buffer of job i, allow i + 1; before filling it for i + n_slots, wait for i
 *   reading: allow n_slots; wait for i, use its buffer, allow i + n_slots + 1
 */
#ifndef ZT_CKPT_RING_H
#define ZT_CKPT_RING_H

#include "base/err.h"

enum { ZT_RING_ALIGN = 4096, ZT_RING_MAX_SLOTS = 16 };

struct zt_ring;

/* Job i, on one of the ring's threads. */
typedef int zt_ring_work(void *ctx, int64_t i, unsigned char *slot, struct zt_err *err);

struct zt_ring_opts {
    int n_threads, n_slots;
    size_t slot_bytes; /* of each buffer, which begins at a multiple of ZT_RING_ALIGN */
    zt_ring_work *work;
    void *ctx;
};

int zt_ring_create(const struct zt_ring_opts *o, struct zt_ring **out,
                   struct zt_err *err) ZT_MUST_CHECK;

/* What has not begun is not done; returns when nothing is under way. Accepts NULL. */
void zt_ring_free(struct zt_ring *r);

int zt_ring_n_slots(const struct zt_ring *r);
unsigned char *zt_ring_slot(struct zt_ring *r, int64_t i); /* of job i */

/* Jobs below `end` may begin. It never goes back. */
void zt_ring_allow(struct zt_ring *r, int64_t end);

/* Until job i, which is allowed, is over: what it returned. One of the last n_slots that were allowed. */
int zt_ring_wait(struct zt_ring *r, int64_t i, struct zt_err *err) ZT_MUST_CHECK;

#endif
