/*
 * engine.h: arenas, streams and the loop that submits ops. Internal to lib/train (and its tests).
 */
#ifndef ZT_TRAIN_ENGINE_H
#define ZT_TRAIN_ENGINE_H

#include "coll/coll.h"
#include "plan/plan.h"

struct zt_disk;
struct zt_feed;
struct zt_span;
struct zt_source;

/* What a step ended with, and when it reached the host. */
struct zt_step_outcome {
    struct zt_step_result result;
    int64_t done_ns;
};

/* When an op ran, ns of the monotonic clock: for the overlap tests and wall_clock_breakdown. */
struct zt_op_time {
    int64_t begin_ns, end_ns;
};

/* Two under way, the one that is read, and the one before it. */
enum { ZT_TRACED_RUNS = 4 };

struct zt_engine {
    const struct zt_plan *plan;
    struct zt_dev *dev;
    struct zt_dev *host_dev; /* of the plan's HOST and DISK streams: dev itself where it is a CPU */
    struct zt_coll *coll;
    struct zt_disk *disk; /* whose bytes are those of the DISK arena; of whoever runs the engine */
    const struct zt_feed *feed_train, *feed_eval;
    const struct zt_source *source;
    /* (n_units): of this rank's slice, or of the full unit */
    const struct zt_update_range **ranges;
    int *n_ranges;
    const struct zt_span **spans; /* (n_units): parts of this rank's slice in the gradient norm */
    int *n_spans;
    struct zt_arena memory; /* of the tables above */

    unsigned char *base[ZT_N_ARENAS];        /* of DISK: addresses alone, which nobody may follow */
    unsigned char *stage;                    /* pinned, for zt_engine_view(); NULL: not needed */
    struct zt_stream *streams[ZT_N_STREAMS]; /* NULL: the plan does not use it */
    struct zt_event *events[2];              /* by op: of this and of the previous iteration */
    int now;                                 /* which of the two is this iteration's */
    enum zt_program_kind last_program;
    bool has_run;
    unsigned ran; /* 1 << kind of the programs that were run */

    /* What the host tells the program that it submits next; copied into tasks. */
    int64_t next_batch; /* LOAD_BATCH: which global batch of its feed */
    int64_t logits_at;  /* GENERATE: position whose logits are wanted */
    const int32_t *prompt;
    struct zt_vote_request request;
    struct zt_step_block initial; /* INIT copies it: constant until that is over */

    struct zt_step_outcome outcomes[2]; /* TRAIN: the host reads one step behind */
    struct zt_event outcome_events[2];
    int64_t n_train_runs;

    bool trace;               /* TRAIN runs submitted now stamp their ops; only after trace_init */
    struct zt_op_time *times; /* (ZT_TRACED_RUNS, n_ops) */
    bool serial; /* debug: one op at a time, alone with the bytes that it declared (sanitizers) */
};

/*
 * Allocate arenas (filled with a canary, a NaN in every floating type) and create streams. The
 * engine keeps the pointers; dev and coll outlive it. Before a program runs, whoever runs it gives it the
 * feeds, the source and, where the plan has a DISK arena, the disk.
 */
int zt_engine_init(struct zt_engine *e, const struct zt_plan *plan, struct zt_dev *dev,
                   struct zt_coll *coll, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Waits for what is under way: after a failure abort the transport first. Accepts a zeroed
 * engine.
 */
void zt_engine_release(struct zt_engine *e);

/* Make room for the times of ops. Without it, and while `trace` is false, nothing is stamped. */
void zt_engine_trace_init(struct zt_engine *e);

/*
 * When the ops of TRAIN run number `run` ran, (n_ops): of the last ZT_TRACED_RUNS runs, and complete
 * once the outcome of the run after it is known, or after a drain.
 */
const struct zt_op_time *zt_engine_times(const struct zt_engine *e, int64_t run);

/* Submit one run of a program. Returns at once; failures come out of sync and drain. */
void zt_engine_run(struct zt_engine *e, enum zt_program_kind k);

/* Wait until everything submitted is done. The first failure of any stream. */
int zt_engine_drain(struct zt_engine *e, struct zt_err *err) ZT_MUST_CHECK;

/* Wait for what TRAIN run number `run` ended with (0-based; the last run or the one before). */
int zt_engine_outcome(struct zt_engine *e, int64_t run, struct zt_step_outcome *out,
                      struct zt_err *err) ZT_MUST_CHECK;

/* Address of an operand; NULL when the op has none with that role. */
void *zt_engine_operand(const struct zt_engine *e, const struct zt_program *prog,
                        const struct zt_op *op, enum zt_role role, int nth);
static inline void *zt_engine_buf(const struct zt_engine *e, int buf)
{
    const struct zt_buf *b = &e->plan->bufs[buf];
    return e->base[b->arena] + b->offset;
}

/* Where the bytes of an access begin. */
static inline unsigned char *zt_engine_at(const struct zt_engine *e, const struct zt_access *a)
{
    return (unsigned char *)zt_engine_buf(e, a->buf) + a->begin;
}

/*
 * Bytes [at, at + bytes) of an arena where the host can read them; nothing may be running. Those on the
 * disk, or on a device whose memory the host cannot read, are copied to the stage and valid until the next
 * view, so at most ZT_VIEW_BYTES come at once. Walk more with a loop of zt_view_bytes().
 */
enum { ZT_VIEW_BYTES = 4 << 20 };
int zt_engine_view(struct zt_engine *e, const void *at, size_t bytes, const unsigned char **out,
                   struct zt_err *err) ZT_MUST_CHECK;
static inline size_t zt_view_bytes(size_t done, size_t bytes)
{
    return ZT_MIN(bytes - done, (size_t)ZT_VIEW_BYTES);
}

/*
 * Bytes of an arena that no longer hold the canary, in blocks of ZT_BUF_ALIGN; of the disk, that were ever
 * written. Nothing may run.
 */
int zt_engine_touched(struct zt_engine *e, enum zt_arena_id a, size_t *touched,
                      struct zt_err *err) ZT_MUST_CHECK;

/* handlers.c: enqueue the op's work on its stream. */
void zt_engine_submit(struct zt_engine *e, const struct zt_program *prog, const struct zt_op *op);

/* ---- feed.c: which samples a batch holds ---- */

struct zt_dataset;

/*
 * Global batch k of a feed holds samples k * batch + skew .. of its order. Row b of micro-batch m of
 * rank r is sample (m * world + r) * micro + b of it. A feed with an end (evaluation) fills rows
 * beyond it with masked targets.
 */
struct zt_feed {
    const struct zt_dataset *data;
    int rank, world, accum;
    int64_t micro, seq_len;
    int64_t end;  /* samples; -1: goes round for ever */
    int64_t skew; /* samples to add: a run that goes on may have had another batch before */
};

/* Where micro-batch m of rank r begins in it: (m * world + r) * micro. */
int64_t zt_feed_first(const struct zt_feed *f, int micro_batch);

int zt_feed_fill(const struct zt_feed *f, int64_t batch, int32_t *hbatch,
                 struct zt_err *err) ZT_MUST_CHECK;

/* ---- source.c: where parameters come from ---- */

struct zt_weights;
struct zt_load;

struct zt_source {
    const struct zt_model *model;
    const struct zt_weights *weights; /* NULL: initialise */
    uint64_t seed;
    struct zt_load *load; /* LOAD: a checkpoint (save.h) */
};

/* Elements [begin, begin + n) of a unit, fp32; padding is zero. */
void zt_source_fill(const struct zt_source *s, const struct zt_plan *p, int unit, int64_t begin,
                    int64_t n, float *out);

#endif
