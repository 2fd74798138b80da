/*
 * staged.h: collectives for a device whose memory peers cannot read: from the device into shared
 * host memory, through an inner transport there, and back. Made of the device's copies and events and of
 * the inner transport's calls on streams of the CPU, so it knows no particular device, and gives the
 * bits that the inner transport gives: its sums are element by element, whatever the chunks.
 *
 * A call is cut into chunks that fit a slot. Each stream has two slots, so that while one chunk is
 * under way between the ranks, the next one comes from the device and the last one goes back:
 *
 *     stream   load 0 | load 1 | wait 0, store 0 | load 2 | wait 1, store 1 | ...
 *     inner           wait, run 0 | wait, run 1 |          wait, run 2 | ...
 *
 * What is moved between device and host, for a group of n: all_reduce count elements in, count out;
 * reduce_scatter n * recv_count in, recv_count out; all_gather send_count in, n * send_count out;
 * broadcast, send and recv their count; all_to_all n * stride twice in (the counts are on the device, and
 * what lies behind them in recv must stay) and once out. A group of one is a copy on the device.
 *
 * Matching is the inner transport's, chunk by chunk. A call of several chunks first compares its
 * count: so ZT_EPROTO on all members; of a message in several chunks the receiver finds it, and the
 * sender gets ZT_EPEER.
 *
 * Failure: as the inner transport's. A device that fails fails its stream; peers then wait until the
 * job is aborted, as with any rank that ends.
 */
#ifndef ZT_COLL_STAGED_H
#define ZT_COLL_STAGED_H

#include "coll/coll.h"

struct zt_staged_opts {
    size_t slot_bytes; /* 0: ZT_STAGED_SLOT_BYTES; the same on all ranks */
    int n_streams;     /* whose calls may be made through it; 0: 1 */
};

enum { ZT_STAGED_SLOT_BYTES = 16 << 20, ZT_STAGED_MAX_STREAMS = 8 };

/* Host memory that a rank stages in: two slots a stream, and some counts. */
size_t zt_staged_bytes(const struct zt_staged_opts *opts, int n_ranks);

/*
 * Blocking, and collective over the world. `inner` runs on the CPU device and belongs to the result
 * from then on; after a failure it is the caller's still. alloc_shared() gives memory of `dev`. Nothing is
 * allocated after this.
 *
 * *pinned: the device has page-locked the slots. Where it cannot (the limit on locked memory), copies
 * are slower and wait for each other, and all else is the same.
 */
int zt_staged_coll_create(struct zt_coll *inner, struct zt_dev *dev,
                          const struct zt_staged_opts *opts, struct zt_coll **out, bool *pinned,
                          struct zt_err *err) ZT_MUST_CHECK;

#endif
