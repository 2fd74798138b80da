/*
 * ops.h: what a plan is written in: streams and arenas, units, buffers, and the rows with their operands. Which
 * rows a program has is decided by emit.c; what they do, by the engine's handlers (lib/train).
 */
#ifndef ZT_PLAN_OPS_H
#define ZT_PLAN_OPS_H

#include "base/mesh.h"
#include "model/model.h"

/* Elements inside a unit; bytes in an arena, and in that of the disk, where direct I/O moves whole blocks. */
enum { ZT_ELEM_ALIGN = 64, ZT_BUF_ALIGN = 512, ZT_DISK_BUF_ALIGN = 4096 };

/* ---- streams, arenas, categories ---- */

enum zt_stream_id {
    ZT_ST_COMPUTE,
    ZT_ST_COMM,
    ZT_ST_COPY_IN,
    ZT_ST_COPY_OUT,
    ZT_ST_HOST,
    ZT_ST_DISK_IN,
    ZT_ST_DISK_OUT,
    ZT_N_STREAMS,
};

/*
 * SHARED is device memory that peers read (a transport that reads no peer memory folds it away). DISK is a
 * file: only READ and WRITE touch its bytes.
 */
enum zt_arena_id { ZT_AR_DEVICE, ZT_AR_SHARED, ZT_AR_HOST, ZT_AR_DISK, ZT_N_ARENAS };

enum zt_cat {
    ZT_CAT_PARAM,      /* parameters in the training type (full or slice) */
    ZT_CAT_GRAD,       /* full gradients */
    ZT_CAT_GRAD_SHARD, /* reduced slices */
    ZT_CAT_MASTER,     /* fp32 master weights */
    ZT_CAT_OPT_M,
    ZT_CAT_OPT_V,
    ZT_CAT_GATHER,    /* gathered parameters (stage 3) */
    ZT_CAT_REDUCE,    /* reduce staging */
    ZT_CAT_ACT,       /* residual stream, saved activations and their gradients */
    ZT_CAT_WORKSPACE, /* scratch of one op */
    ZT_CAT_BATCH,     /* tokens, targets, ... on device and host */
    ZT_CAT_CONTROL,   /* step block, counts, votes, partials, results */
    ZT_CAT_STAGING,   /* host copies on their way: offload, loading */
    ZT_CAT_SNAPSHOT,  /* host copy of the state that a checkpoint is written from */
    /* No buffer has these: the ledger's, so that categories add up to the arena. */
    ZT_CAT_PADDING,   /* of units: zeros */
    ZT_CAT_ALIGNMENT, /* of buffers, and of tensors inside them: never touched */
    ZT_CAT_UNUSED,    /* free at that moment, between the buffers */
    ZT_N_CATS,
};

/* ---- units ---- */

/*
 * A unit: what is gathered, reduced and updated together; a run of parameters. Tensor i starts at
 * `param_off[i - first_param]`, a multiple of 64 elements; the unit is padded so that its equal
 * slices are multiples of 64 too. Member r of the shard group owns elements [r, r+1) * slice_elems.
 * Padding stays zero.
 */
struct zt_unit {
    const char *name;
    int first_param, n_params;
    const int64_t *param_off; /* (n_params) elements */
    int64_t n_elems;          /* real ones */
    int64_t padded_elems, slice_elems;
    bool tied;      /* used by more than one segment */
    bool grad_fp32; /* contributions add up in fp32: tied or scattered */
    bool frozen;    /* no tensor of it is trained: no gradient, no state, no update */
    int partial;    /* its place among the norm partials; -1: frozen */
    zt_axes shard_group, replica_group;
};

/* ---- buffers, accesses, ops ---- */

struct zt_buf {
    const char *name; /* "grad h.3", "x h.2 mb1" */
    enum zt_cat cat;
    enum zt_arena_id arena;
    size_t bytes;   /* multiple of ZT_BUF_ALIGN, on the disk of ZT_DISK_BUF_ALIGN */
    size_t used;    /* of bytes: what ops touch, padding of units included */
    size_t padding; /* buffers of units: bytes that hold no parameter's value; else 0 */
    const struct zt_extent *gaps; /* (n_gaps) of [0, used): alignment inside, never touched */
    int n_gaps;
    size_t offset;
    enum zt_dtype dtype;
    int unit, mb;    /* -1: none */
    int program;     /* transient of that program; -1: persistent */
    int first, last; /* op indices in its program; transients only */
};

/* What an operand is for: how the engine finds it. */
enum zt_role {
    ZT_R_PARAM,  /* the unit's parameters as compute reads them (full or gathered) */
    ZT_R_SHARD,  /* this rank's slice of parameters */
    ZT_R_GRAD,   /* full gradient */
    ZT_R_GSHARD, /* reduced slice */
    ZT_R_CAST,   /* full gradient in the type that travels */
    ZT_R_STAGE,  /* reduced slice on its way into a GSHARD that accumulates */
    ZT_R_MASTER,
    ZT_R_M,
    ZT_R_V,
    ZT_R_X_IN,
    ZT_R_X_OUT,
    ZT_R_ACT,    /* saved activations; with selective recomputation the part that is kept */
    ZT_R_INNER,  /* the other part, where it is a buffer of its own */
    ZT_R_HX,     /* host copy of an x, with cpu_checkpointing */
    ZT_R_DX_OUT, /* gradient coming in (of x_out) */
    ZT_R_DX_IN,  /* gradient going out (of x_in) */
    ZT_R_TMP,
    ZT_R_BATCH,
    ZT_R_HBATCH,
    ZT_R_COUNT,
    ZT_R_LOSS,
    ZT_R_PARTIAL, /* norm partials: this rank's, or all after NORM */
    ZT_R_PARTIALS_ALL,
    ZT_R_STEP,
    ZT_R_VOTE,
    ZT_R_REQUEST,
    ZT_R_RESULT, /* host: struct zt_step_result, zt_eval_record per rank, or logits */
    ZT_R_LOGITS,
    ZT_R_HGRAD, /* host copies of offload */
    ZT_R_HPARAM,
    ZT_R_HM, /* host copies of the moments, loading */
    ZT_R_HV,
    ZT_R_SNAPSHOT,
    ZT_N_ROLES,
};

enum { ZT_READ = 1, ZT_WRITE = 2 }; /* accumulate: both */

struct zt_access {
    int buf;
    uint8_t mode;
    uint8_t role;
    size_t begin, end; /* bytes inside the buffer */
};

/*
 * The rows and their operands. r, w, rw are modes; "own" is this rank's slice of a unit's buffer
 * and comes before "others", the one or two ranges around it; [x] is there only when the plan says
 * so. N is the size of the shard group. Rows on COMM run on COMPUTE when overlap_comm is false.
 *
 *   row         stream    operands
 *   LOAD_BATCH  HOST      w HBATCH
 *   COPY_BATCH  COPY_IN   r HBATCH, w BATCH
 *   COUNT       COMM      r BATCH, w COUNT. Eval: this rank's tokens only (group 0)
 *   GATHER      COMM      r SHARD, w PARAM
 *   RELEASE     COMPUTE   r PARAM
 *   FORWARD     COMPUTE   r PARAM per unit of the segment, r BATCH, [r X_IN], [w X_OUT], [w ACT],
 *                         [w INNER], [w TMP]; head: [r COUNT, r STEP, w LOSS], [w LOGITS];
 *                         dropout: r STEP
 *   RECOMPUTE   COMPUTE   as FORWARD: w ACT, and w X_OUT unless the block is the last that is
 *                         made again before the next BACKWARD; selective: r ACT, w INNER
 *   BACKWARD    COMPUTE   [r PARAM per unit], r BATCH, [r X_IN], [rw ACT], [rw INNER], [r DX_OUT],
 *                         GRAD per unit, [w DX_IN], [w TMP]; head: r COUNT, r STEP, [w LOSS];
 *                         dropout: r STEP
 *                         GRAD with mode w: overwrite the whole buffer (zero what the segment has
 *                         no gradient for, and the padding); rw: add
 *   CAST        COMPUTE   r GRAD, w CAST
 *   REDUCE      COMM      in place: rw GRAD own, r GRAD others; or r CAST, w GRAD own
 *                         else: r GRAD or CAST, [w STAGE], GSHARD (w: overwrite, rw: add STAGE)
 *                         N = 1: r GRAD (group 0, nothing travels)
 *                         last_use: w PARTIAL of the unit, from the reduced slice
 *   ALLGATHER   COMM      in place: r PARAM or GRAD own, w others; or r GSHARD, w GRAD. LOAD: MASTER, M and V
 *                         too, or r a slice of the same role, w it whole
 *   NORM        COMM      r PARTIAL (the whole norm record), r COUNT, w PARTIALS_ALL, rw STEP
 *                         Eval: r LOSS (zt_eval_record), w PARTIALS_ALL
 *   VOTE        COMM      w REQUEST (the host's wish, then sent), w VOTE, rw STEP
 *   RESULT      COPY_OUT  r STEP, r VOTE, w RESULT. Eval: r PARTIALS_ALL, generate: r LOGITS
 *   UPDATE      COMPUTE   r STEP, r GRAD or GSHARD, rw M, [rw V], then fp32: rw PARAM or SHARD;
 *                         16 bits: rw MASTER, w PARAM or SHARD. Ranges are the same elements in
 *                         all of them
 *   STEP        COMPUTE   rw STEP
 *   LOAD_UNIT   HOST      w HPARAM: fp32 values of the elements of PARAM or SHARD in the next row
 *   FETCH       COPY_IN   init: r HPARAM, w PARAM or SHARD, [w MASTER], w M, [w V] (zeroed); MASTER
 *                         may be a part ("own") of HPARAM. unit -1: w STEP
 *
 * With offload_optimizer: LOAD_UNIT also w MASTER, w M, [w V], instead of INIT's FETCH; EVICT
 * (COPY_OUT) r GRAD or GSHARD, w HGRAD after the last REDUCE; UPDATE on HOST: r STEP (inside RESULT),
 * r HGRAD, rw M, [rw V], rw MASTER, w HPARAM (also in a step that is not applied: master's values);
 * FETCH r HPARAM, w PARAM or SHARD.
 *
 * With offload_param (stage 3) the slice of parameters is on the host: LOAD_UNIT also w SHARD, and no
 * FETCH; before each GATHER a FETCH r HPARAM, w SHARD, which GATHER reads. N = 1: FETCH w PARAM, and no
 * GATHER. UPDATE on HOST writes that slice itself (fp32: rw, its own master), and no FETCH follows;
 * UPDATE on COMPUTE w SHARD, a new buffer, and EVICT r SHARD, w HPARAM.
 *
 * What is offloaded to NVMe has its home on the disk, and what stands above about host memory holds for
 * copies of it there: READ (DISK_IN) brings them before the UPDATE or FETCH that reads them, WRITE
 * (DISK_OUT) sends them back after the UPDATE, EVICT or LOAD_UNIT that wrote them. Operands of both come in
 * pairs of the same role (MASTER, M, V, HPARAM) and size: r the source, w the destination. At most
 * cfg.disk_buffers units are between their READ and their WRITE, or between UPDATE and WRITE.
 *
 * Recomputation (enum zt_recompute) makes runs of blocks again before their BACKWARDs, from the input of
 * the first of them. With cpu_checkpointing that input goes to the host: EVICT r X_IN, w HX behind the
 * FORWARD that reads it, of every run but the last, whose BACKWARD comes first; FETCH r HX, w X_IN into a
 * new buffer, before the run behind it is made again: two inputs are on the device at a time.
 *
 * Checkpoints. SAVE, one row for each part of a unit's state: SAVE_UNIT (COPY_OUT; HOST where the state is
 * on the host) r MASTER, PARAM, SHARD, M or V, this rank's slice, w SNAPSHOT. LOAD has INIT's rows for the
 * values, but of this rank's slice, without M and V, and each followed by the ALLGATHER of what is held whole;
 * behind those of all units, for each LOAD_UNIT w HM, FETCH r HM, w M, [ALLGATHER M]; then the same for V; on
 * the host LOAD_UNIT w M. AGREE: VOTE, and RESULT r VOTE, w RESULT: what all ranks have to say between two steps.
 */
enum zt_op_kind {
    ZT_OP_LOAD_BATCH,
    ZT_OP_COPY_BATCH,
    ZT_OP_COUNT,
    ZT_OP_GATHER,  /* all-gather of parameters into a gather buffer (stage 3) */
    ZT_OP_RELEASE, /* the gathered bytes are free from here on */
    ZT_OP_FORWARD,
    ZT_OP_RECOMPUTE,
    ZT_OP_BACKWARD,
    ZT_OP_CAST,      /* gradient -> communication type */
    ZT_OP_REDUCE,    /* reduce-scatter, accumulation and norm partial */
    ZT_OP_ALLGATHER, /* parameters (stages 1, 2), gradients (stage 0); LOAD: all that is whole */
    ZT_OP_NORM,
    ZT_OP_VOTE,
    ZT_OP_UPDATE,
    ZT_OP_STEP,
    ZT_OP_RESULT, /* step block and vote -> host */
    ZT_OP_FETCH,  /* host -> device */
    ZT_OP_EVICT,  /* device -> host */
    ZT_OP_READ,   /* disk -> host */
    ZT_OP_WRITE,  /* host -> disk */
    ZT_OP_SEND,
    ZT_OP_RECV,
    ZT_OP_LOAD_UNIT, /* host: fill staging with initial or loaded values of the unit */
    ZT_OP_SAVE_UNIT, /* copy of a slice of the state that a checkpoint is written from */
    ZT_N_OP_KINDS,
};

enum zt_cost_kind {
    ZT_COST_NONE,
    ZT_COST_FLOP,
    ZT_COST_NET, /* bytes before the ring's factor (group-1)/group: the whole unit, not a slice */
    ZT_COST_PCIE,
    ZT_COST_HOST, /* host memory bytes */
    ZT_COST_HBM,  /* device memory bytes */
    ZT_COST_DISK,
    ZT_N_COSTS,
};

enum zt_predicate { ZT_ALWAYS, ZT_IF_APPLY };

struct zt_wait {
    uint8_t delta; /* 0: this iteration, 1: the previous one */
    int op;
};

struct zt_op {
    enum zt_op_kind kind;
    enum zt_stream_id stream;
    enum zt_predicate predicate;
    int unit, segment, mb; /* -1: none */
    bool first_use;        /* BACKWARD, REDUCE: no operand is added to */
    bool last_use;         /* REDUCE: last micro-batch, write the norm partial */
    zt_axes group;         /* of a collective, else 0 */
    enum zt_dtype dtype;   /* type that travels */
    int64_t count;         /* elements per rank of a collective: what peers must agree on */
    enum zt_cost_kind cost_kind;
    double cost;
    double bytes_sent; /* by this rank, in this op */
    int first_access, n_accesses;
    int first_wait, n_waits;
};

enum zt_program_kind {
    ZT_PROG_INIT,
    ZT_PROG_TRAIN,
    ZT_PROG_EVAL,
    ZT_PROG_GENERATE,
    ZT_PROG_SAVE,
    ZT_PROG_LOAD, /* instead of INIT */
    ZT_PROG_AGREE,
    ZT_N_PROGRAMS,
};

struct zt_program {
    enum zt_program_kind kind;
    bool repeats; /* may follow itself: waits and lifetimes wrap around */
    int n_ops, n_accesses, n_waits;
    struct zt_op *ops; /* these three are heap arrays (ZT_GROW); zt_plan_free frees them */
    struct zt_access *accesses;
    struct zt_wait *waits; /* zt_op.first_wait, .n_waits index it */
    size_t ops_cap, accesses_cap, waits_cap;
    int backlog; /* D chosen by the planner */
    double time_s, time_unlimited_s, busiest_s, critical_path_s;
    int raw_waits; /* before pruning */
};

const char *zt_op_kind_name(enum zt_op_kind k);
const char *zt_stream_name(enum zt_stream_id s);
const char *zt_arena_name(enum zt_arena_id a);
const char *zt_cat_name(enum zt_cat c);
const char *zt_program_name(enum zt_program_kind k);

#endif
