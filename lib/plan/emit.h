/*
 * emit.h: how the rows of a program are written down. Inside lib/plan only.
 *
 * A program is written front to back: zt_emit_op() starts a row, zt_emit_access() and
 * zt_emit_whole() add its operands, and a buffer's first and last row follow from them. Persistent
 * buffers are created first, before any program (struct zt_emit.prog NULL).
 */
#ifndef ZT_PLAN_EMIT_H
#define ZT_PLAN_EMIT_H

#include "plan/plan.h"

/* What a ZeRO stage keeps whole, and what it does at the boundary; one row of the stage table. */
struct zt_stage_rows {
    bool params_full;  /* resident parameters; false: a slice, and GATHER/RELEASE around each use */
    bool grads_full;   /* gradients accumulate in full; false: reduced after every micro-batch */
    bool state_full;   /* master, m, v and UPDATE; false: this rank's slice */
    bool gather_grads; /* boundary: all-gather the reduced gradients */
    bool gather_params; /* boundary: all-gather the parameters after UPDATE */
};

/* Element types of a unit's gradient on its way. */
struct zt_grad_types {
    enum zt_dtype full, travel, reduced;
    bool cast;     /* travel differs from full: CAST makes a copy */
    bool in_place; /* the reduced slice replaces this rank's part of the full gradient */
};

/* Host copies of a unit's state; -1: none. What lives on the host is its own. */
struct zt_host_copy {
    int param, master, m, v;
};

struct zt_unit_state {
    struct zt_grad_types types;
    int64_t slice_real; /* elements of this rank's slice that are no padding */
    int param;          /* persistent: full, or this rank's slice at stage 3 */
    int master, m,
        v; /* persistent; -1: fp32 parameters beside m are their own master; no v; frozen */
    struct zt_host_copy copy;       /* of those of them that live on a disk: of this step */
    int grad;                       /* full gradient being built; -1: none yet */
    int cast;                       /* CAST's copy of it */
    int reduced;                    /* buffer that holds the reduced slice; may be grad */
    int final;                      /* what UPDATE reads: reduced, or the all-gathered gradient */
    int hgrad;                      /* host copy of the reduced slice, with offload */
    int snap_param, snap_m, snap_v; /* persistent: copies of this rank's slices; -1: none */
};

/* Units that a segment uses, in the order of its parameters. */
struct zt_seg_units {
    int n;
    const int *units;
};

struct zt_batch_bufs {
    int host, dev;
    size_t mb_bytes; /* of one micro-batch */
};

/* One gathered copy of a unit and the steps that use it (gather.c). */
struct zt_gather {
    int unit;
    int first, last; /* steps */
    int issue;       /* the step before which it is gathered */
    int buf;
};

enum zt_pass { ZT_PASS_FORWARD, ZT_PASS_RECOMPUTE, ZT_PASS_BACKWARD, ZT_N_PASSES };

/* A step: one pass of a segment. */
struct zt_step {
    int segment, mb;
    enum zt_pass pass;
    int n_uses;
    const int *uses; /* indices into zt_gathers.gathers, as zt_seg_units.units; stage 3 only */
};

struct zt_gathers {
    int n;
    struct zt_gather *gathers; /* by first use */
    int next;                  /* not yet emitted */
};

struct zt_emit {
    struct zt_plan *p;
    struct zt_program *prog; /* being written; NULL: buffers are persistent */
    struct zt_stage_rows rows;
    enum zt_arena_id peer_arena;  /* where buffers that peers read lie */
    enum zt_arena_id state_arena; /* of master, m, v: where they live */
    enum zt_arena_id param_arena; /* of the parameters; SHARED counts as DEVICE */
    bool params_on_host; /* they or their copies: every gathered copy begins with a FETCH */
    bool update_on_host;
    struct zt_segment_size *sizes; /* (n_segments) at this program's shape */
    struct zt_seg_units *seg;      /* (n_segments) */
    struct zt_unit_state *units;   /* (n_units) */
    int lowest;                    /* first segment with anything to train: backward ends there */
    int n_listed; /* micro-batches of the train program that are listed: all, or those of a fold */
    struct zt_batch_bufs train_batch, eval_batch, sample_batch;
    int step, count, vote, record, request, result;
    int eval_record, eval_result, logits_result;
    struct zt_arena scratch; /* released when emission ends */
};

/* ---- writing (emit.c) ---- */

/* A buffer: the caller gives name, cat, arena, used, padding, dtype, unit and mb. */
int zt_emit_buf(struct zt_emit *e, struct zt_buf b);

/* A buffer of unit u: padded (full) or one slice; used and padding follow. */
int zt_emit_unit_buf(struct zt_emit *e, int u, bool full, struct zt_buf b);

/* Start a row; unit, segment and mb are -1 where there is none. Valid until the next row. */
struct zt_op *zt_emit_op(struct zt_emit *e, enum zt_op_kind kind, enum zt_stream_id stream,
                         int unit, int segment, int mb);
void zt_emit_access(struct zt_emit *e, enum zt_role role, int mode, int buf, size_t begin,
                    size_t end);
void zt_emit_whole(struct zt_emit *e, enum zt_role role, int mode, int buf);

/* This rank's slice of a unit's full buffer, and the bytes of it that the others own. */
void zt_emit_own_slice(struct zt_emit *e, enum zt_role role, int mode, int buf);
void zt_emit_other_slices(struct zt_emit *e, enum zt_role role, int mode, int buf);

/* Make the row a collective of `count` elements per rank; each sends `bytes` * (n - 1) / n. */
void zt_emit_collective(struct zt_emit *e, struct zt_op *op, zt_axes group, enum zt_dtype dtype,
                        int64_t count, double bytes);

/* Start a program at a shape of `batch` sequences: sets zt_emit.prog and sizes. */
void zt_emit_begin(struct zt_emit *e, enum zt_program_kind kind, int64_t batch, bool train);

/* ---- parts of programs ---- */

void zt_emit_state(struct zt_emit *e); /* persistent buffers (emit_state.c) */
void zt_emit_init(struct zt_emit *e);
void zt_emit_train(struct zt_emit *e); /* emit_train.c */

/* Optimizer offload: the reduced slice goes to the host (emit_update.c). */
void zt_emit_evict_grad(struct zt_emit *e, int u);

/* UPDATE of every unit in forward order, and how its results go where they live. */
void zt_emit_updates(struct zt_emit *e);
void zt_emit_eval(struct zt_emit *e); /* emit_eval.c */
void zt_emit_generate(struct zt_emit *e);
void zt_emit_snapshot(struct zt_emit *e); /* emit_save.c: the persistent buffers of SAVE */
void zt_emit_save(struct zt_emit *e);
void zt_emit_load(struct zt_emit *e); /* emit_load.c */
void zt_emit_agree(struct zt_emit *e);

/* The persistent buffer that holds a unit's values for UPDATE: master, or the parameters themselves. */
static inline int zt_emit_values(const struct zt_unit_state *s)
{
    return s->master >= 0 ? s->master : s->param;
}

/* What the rows of INIT and LOAD write of a unit on the host, used again for each: as large as the largest. */
struct zt_first_bufs {
    struct zt_host_copy copies; /* of what lives on a disk */
    int staging;                /* fp32 values as they come from the source */
};

/* Start INIT or LOAD; `full`: whole units are staged, else slices. And its end: the first batch. */
struct zt_first_bufs zt_emit_first_begin(struct zt_emit *e, enum zt_program_kind kind, bool full);
void zt_emit_first_end(struct zt_emit *e);

/* Write all of a buffer or, of one that lives on the disk, as many bytes of its copy; -1: nothing. */
void zt_emit_first(struct zt_emit *e, enum zt_role role, int home, int copy);

void zt_emit_vote(struct zt_emit *e); /* its row */

/* LOAD_BATCH and COPY_BATCH; COUNT of the global batch. */
void zt_emit_load_batch(struct zt_emit *e, const struct zt_batch_bufs *b);
void zt_emit_count(struct zt_emit *e);

/* ---- what lives on a disk (emit_disk.c) ---- */

/* The unit's operands of UPDATE on the host: where they live, or copies that a READ has brought. */
void zt_emit_read_state(struct zt_emit *e, int u);

/* After UPDATE, or EVICT of new parameters: the copies go back. */
void zt_emit_write_state(struct zt_emit *e, int u);

/* READ of this rank's slice of parameters; the copy. */
int zt_emit_read_param(struct zt_emit *e, int u, const char *name, int mb);

/*
 * INIT, LOAD: WRITE of first values, of those parts that `c` has; each copy lies at the front of a buffer of the
 * size of the largest unit.
 */
void zt_emit_write_first(struct zt_emit *e, int u, const struct zt_host_copy *c);

/* ---- rows of one segment (emit_compute.c) ---- */

/* Where the passes of a program find their operands. -1: the program has no such buffer. */
struct zt_compute {
    const struct zt_batch_bufs *batch;
    int loss, logits, count;
    size_t loss_begin, count_begin; /* bytes */
    bool train;                     /* what backward needs is kept, or made again by RECOMPUTE */
    int *x;     /* (n_segments) output of each segment of the micro-batch under way */
    int *act;   /* saved activations */
    int *inner; /* selective recomputation: their inner part */
    int *hx;    /* cpu_checkpointing: x on the host */
    int *dx;    /* gradient of x */
};

/*
 * Blocks that are made again together, before the backward of the last of them: segments [first, last].
 * first > last: the segment is not recomputed.
 */
struct zt_block_run {
    int first, last;
};
struct zt_block_run zt_block_run(const struct zt_emit *e, int segment);

struct zt_compute zt_compute_new(struct zt_emit *e, const struct zt_batch_bufs *batch, bool train);

/* The row of a step; of the first block of a run also the copies of its input from and to the host. */
void zt_emit_pass(struct zt_emit *e, struct zt_compute *c, const struct zt_step *s,
                  const struct zt_gathers *g);

/* ---- prefetch window of stage 3 (gather.c) ---- */

/* Which copies are gathered, kept and when they are issued. Fills steps[].uses. */
void zt_gathers_plan(struct zt_emit *e, struct zt_step *steps, int n_steps, struct zt_gathers *out);
void zt_emit_gathers(struct zt_emit *e, const struct zt_step *steps, int step,
                     struct zt_gathers *g);
void zt_emit_releases(struct zt_emit *e, const struct zt_step *s, int step,
                      const struct zt_gathers *g);
void zt_gathers_release(struct zt_gathers *g);

#endif
