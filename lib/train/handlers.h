/*
 * handlers.h: one function per op kind that enqueues an op's work on its stream, by family in
 * handlers_*.c. Internal to lib/train.
 *
 * A handler runs on the submitting thread and must not block: what the host has to compute goes through
 * host_call, with its arguments copied into the task. Failures come out of sync.
 */
#ifndef ZT_TRAIN_HANDLERS_H
#define ZT_TRAIN_HANDLERS_H

#include "train/engine.h"

/* One op under submission. */
struct zt_op_ctx {
    struct zt_engine *e;
    const struct zt_program *prog;
    const struct zt_op *op;
    const struct zt_dev_ops *dev; /* of the stream's device */
    struct zt_stream *s;
};

/* ---- operands (handlers.c) ---- */

/* Address of the nth operand of a role; NULL when the op has none. */
void *zt_op_arg(const struct zt_op_ctx *c, enum zt_role role, int nth);

/* The same with its type. */
struct zt_ref zt_op_ref(const struct zt_op_ctx *c, enum zt_role role, int nth);

/* The buffer of an operand from its start, whatever range of it the op names first. */
struct zt_ref zt_op_whole(const struct zt_op_ctx *c, enum zt_role role);

const struct zt_buf *zt_op_buf(const struct zt_op_ctx *c, const struct zt_access *a);
const struct zt_unit *zt_op_unit(const struct zt_op_ctx *c);
unsigned char *zt_elem_at(struct zt_ref r, int64_t i);

/* Tokens of one micro-batch of the program under way. */
int64_t zt_op_plane_elems(const struct zt_op_ctx *c);

/* INIT, or LOAD in its place. */
static inline bool zt_gives_values(const struct zt_program *prog)
{
    return prog->kind == ZT_PROG_INIT || prog->kind == ZT_PROG_LOAD;
}

/* ---- handlers ---- */

void zt_do_load_batch(const struct zt_op_ctx *c); /* handlers_batch.c */
void zt_do_copy_batch(const struct zt_op_ctx *c);
void zt_do_count(const struct zt_op_ctx *c);

void zt_do_segment(const struct zt_op_ctx *c); /* handlers_compute.c: all three passes */

void zt_do_gather(const struct zt_op_ctx *c); /* handlers_comm.c */
void zt_do_allgather(const struct zt_op_ctx *c);
void zt_do_release(const struct zt_op_ctx *c);
void zt_do_cast(const struct zt_op_ctx *c);
void zt_do_reduce(const struct zt_op_ctx *c);
void zt_do_norm(const struct zt_op_ctx *c);
void zt_do_vote(const struct zt_op_ctx *c);

void zt_do_update(const struct zt_op_ctx *c); /* handlers_step.c */
void zt_do_step(const struct zt_op_ctx *c);
void zt_do_result(const struct zt_op_ctx *c);

void zt_do_load_unit(const struct zt_op_ctx *c); /* handlers_move.c */
void zt_do_fetch(const struct zt_op_ctx *c);
void zt_do_move(const struct zt_op_ctx *c); /* EVICT, SAVE_UNIT */

void zt_do_disk(const struct zt_op_ctx *c); /* handlers_offload.c: READ and WRITE */

#endif
