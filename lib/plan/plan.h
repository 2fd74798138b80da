/*
 * plan.h: the plan is the program.
 *
 * For one rank, a plan is a few *programs* (init, train step, eval, generate, ...), each an
 * immutable list of *ops* on *streams*, reading and writing byte ranges of *buffers* at fixed
 * offsets in a few *arenas*. It is made from a model, a configuration and (rank, mesh) alone; no
 * device is needed.
 *
 *     zt_plan_build:  units -> emission -> lifetimes -> packing -> hazards -> verifier -> ledger
 *
 *   units.c     tensors -> units with aligned slices
 *   emit*.c     the rows; the stage table is in emit.c and nowhere else; emit_save.c: checkpoints
 *   gather.c    prefetch window of stage 3
 *   lifetime.c  when each transient is live, widened by a simulated schedule
 *   pack.c      offsets
 *   hazard.c    waits, pruned with vector clocks
 *   verify.c    proof by happens-before and provenance; written apart from hazard.c
 *   verify_ranks.c  the same across ranks
 *   simulate.c  list simulator: step time, stream use, critical path
 *   profile.c   rates of the simulator
 *   schedule.c  the passes in order, choice of the backlog
 *   ledger.c    bytes by category, bytes sent, FLOPs
 *   touched.c   which bytes of an arena a run touches
 *   fit*.c, largest.c, deepspeed.c  what fits, and what to give up so that it does (fit.h, largest.h)
 *   plan.c, build.c  checks, names; everything in order
 *   print*.c    --schedule, tables, JSON
 *
 * Rules kept everywhere (DESIGN 1):
 *  - Every op declares every byte range it touches. The ranges of one op are disjoint unless they
 *    are the same buffer. The first access of a transient is a write; accumulating is READ|WRITE.
 *  - Emission depends on the coordinates of a rank only through its slice index, so that all ranks
 *    of a group issue the same collectives in the same order.
 *  - A plan that does not verify is never run.
 */
#ifndef ZT_PLAN_PLAN_H
#define ZT_PLAN_PLAN_H

#include "base/arena.h"
#include "base/mesh.h"
#include "base/str.h"
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
    const struct zt_extent
        *gaps; /* (n_gaps) of [0, used): alignment of what lies in it, never touched */
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
 *   ALLGATHER   COMM      in place: r PARAM or GRAD own, w others; or r GSHARD, w GRAD
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
 * on the host) r MASTER, PARAM, SHARD, M or V, this rank's slice, w SNAPSHOT. LOAD is INIT whose moments are
 * loaded too: after the rows of the values, LOAD_UNIT w HM, FETCH r HM, w M; the same for V; on the host
 * LOAD_UNIT w M. AGREE: VOTE, and RESULT r VOTE, w RESULT: what all ranks have to say between two steps.
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
    ZT_OP_ALLGATHER, /* parameters (stages 1, 2), gradients (stage 0) */
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

/* ---- configuration ---- */

enum zt_offload { ZT_OFFLOAD_NONE, ZT_OFFLOAD_CPU, ZT_OFFLOAD_NVME };

/*
 * What a train step keeps of its blocks between FORWARD and BACKWARD, beside what goes in (model.h has
 * bytes and FLOPs of each): all; nothing; act's kept part; or nothing, and of what goes in only that of
 * every recompute_every-th block. Runs of blocks are counted from the first that is trained, and the last
 * may be shorter. The same bits in all cases.
 */
enum zt_recompute {
    ZT_RECOMPUTE_NONE,
    ZT_RECOMPUTE_BLOCK,
    ZT_RECOMPUTE_SELECTIVE,
    ZT_RECOMPUTE_EVERY,
};

/* Rates for the simulator: bytes or FLOPs a second, seconds. */
struct zt_profile {
    const char *name;
    double flops, net, pcie, host, hbm, disk;
    double latency; /* of a transfer */
    double launch;  /* of any other op */
};

extern const struct zt_profile zt_profiles[]; /* "fast", "slow", "cpu"; the last has name NULL */
const struct zt_profile *zt_profile_find(const char *name);

struct zt_plan_config {
    int stage; /* 0..3 */
    struct zt_mesh mesh;
    enum zt_dtype dtype; /* ZT_F32, ZT_BF16, ZT_F16: parameters, activations, 16-bit gradients */
    int64_t micro_batch, seq_len;
    int accum;                /* micro-batches of a step */
    int64_t eval_micro_batch; /* 0: no eval program */
    bool generate;            /* a program for text samples (batch 1) */
    enum zt_recompute recompute;
    int recompute_every;    /* ZT_RECOMPUTE_EVERY: blocks in a run, 1 to the model's number */
    bool cpu_checkpointing; /* inputs of runs wait on the host; not with ZT_RECOMPUTE_NONE */
    enum zt_optimizer optimizer;
    enum zt_offload offload_optimizer, offload_param;
    bool saves; /* checkpoints are written */
    bool
        snapshot; /* from a copy of the state: SAVE; not of what is too large for the host, on NVMe */
    bool loads;   /* training goes on from one: LOAD */
    int disk_buffers;  /* NVMe: units with copies in host memory at the step's end; 0: 3 */
    bool overlap_comm; /* false: collectives run on the compute stream */
    bool reduce_every_micro_batch; /* stages 0 and 1 reduce like stage 2: bit-identical with it */
    int comm_dtype;                /* enum zt_dtype, or -1: the gradient's own type */
    size_t prefetch_bytes;         /* 0: the larger of 3 largest units and 200 MB */
    enum zt_dev_kind dev_kind;
    int n_threads;
    bool shared_arena; /* the transport reads peers' memory */
    const struct zt_profile *profile;
    bool profile_known; /* false: widen lifetimes without a profile (one compute op, D = 1) */
    int backlog;        /* D; 0: smallest of 1, 2, 4, 8 within 3 % of unlimited memory */
};

/* ---- the plan ---- */

/* The host's copy of what a step decided: RESULT of the train program. */
struct zt_step_result {
    struct zt_step_block sb;
    struct zt_vote vote;
};

/* One rank's share of an evaluation batch; the host adds them up in rank order. */
struct zt_eval_record {
    double loss_sum;
    struct zt_count count; /* of this rank; inv_tokens unused */
};

struct zt_ledger {
    size_t peak[ZT_N_ARENAS]; /* arena bytes: what will be allocated */
    /*
     * Bytes by category at the op where the arenas of the device (device + shared) are fullest, and at that
     * where the host's is: they add up to the peaks.
     */
    size_t device[ZT_N_CATS], host[ZT_N_CATS];
    enum zt_program_kind fullest_program; /* of the device */
    int fullest_op;
    double sent[ZT_N_OP_KINDS]; /* bytes this rank sends in a train step, by op kind */
    double flops;               /* of a train step, this rank */
    double model_flops;         /* without recomputation */
    /* The closed formula: 2-byte (or 4-byte) parameters and gradients, fp32 master and optimizer state. */
    double formula_bytes;
};

/*
 * About what a worker on the CPU takes of the host outside its arenas, mapped data apart: program, oneDNN,
 * heap, stacks. Measured from 10 to 17 MB; test/parity/run.py holds it. What a run took, it shows at its end.
 */
enum { ZT_OUTSIDE_BYTES = 20 * 1000 * 1000 };

struct zt_plan {
    struct zt_arena arena; /* holds everything below but the model */
    const struct zt_model *model;
    struct zt_plan_config cfg;
    int rank, world;
    int shard_rank, n_shards;
    int n_units;
    int n_partials; /* units that are not frozen */
    struct zt_unit *units;
    int *unit_of_param; /* (n_params) */
    int n_bufs;
    struct zt_buf *bufs; /* persistent ones first */
    size_t bufs_cap;
    struct zt_program programs[ZT_N_PROGRAMS]; /* n_ops 0: not there */
    struct zt_ledger ledger;
};

/*
 * Build and verify. The plan keeps pointers to model and profile. ZT_EINPUT: the configuration
 * cannot be planned; ZT_EVERIFY: our mistake.
 */
int zt_plan_build(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                  struct zt_plan **out, struct zt_err *err) ZT_MUST_CHECK;
void zt_plan_free(struct zt_plan *p);

/*
 * PARTIAL and LOSS lie in the norm record, zt_norm_record_bytes(n_partials, accum): the partial of a
 * unit is double zt_unit.partial, the loss sum of micro-batch m double n_partials + m. PARTIALS_ALL
 * holds one record per rank of the data group, in its order.
 *
 * BATCH and HBATCH hold, for each micro-batch: tokens, targets, positions, seg_start, each
 * (sequences, seq_len) int32.
 */

/* The op's operand with a role, the nth such (0 first); NULL when it has none. */
const struct zt_access *zt_op_operand(const struct zt_program *prog, const struct zt_op *op,
                                      enum zt_role role, int nth);

const char *zt_op_kind_name(enum zt_op_kind k);
const char *zt_stream_name(enum zt_stream_id s);
const char *zt_arena_name(enum zt_arena_id a);
const char *zt_cat_name(enum zt_cat c);
const char *zt_program_name(enum zt_program_kind k);
const char *zt_recompute_name(enum zt_recompute r); /* as in the recipe */

/* ---- the passes, public for tests ---- */

/*
 * A plan with its units and nothing emitted; checks the configuration. ZT_EINPUT, or
 * ZT_EUNSUPPORTED for what is understood but not carried out.
 */
int zt_plan_create(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                   struct zt_plan **out, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Units of the model for a shard group of n_shards; in plan->arena. Deterministic, rank not read.
 */
void zt_plan_units(struct zt_plan *p);

/* Emit all programs of the configuration (offsets and waits not set). */
int zt_plan_emit(struct zt_plan *p, struct zt_err *err) ZT_MUST_CHECK;

/*
 * zt_plan_build() in two steps and without proof and ledger, for those who want sizes only: outline has
 * units, rows and persistent buffers, whose bytes are ledger.peak[]; arrange places the transients and
 * sets peak[] to what the plan needs, and the programs' times. Exactly the run's plan, never to be run.
 */
int zt_plan_outline(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                    struct zt_plan **out, struct zt_err *err) ZT_MUST_CHECK;
void zt_plan_arrange(struct zt_plan *p);

/*
 * Offsets of the persistent buffers, one after the other from 0 in each arena; their ends in base.
 */
void zt_plan_layout(struct zt_plan *p, size_t base[ZT_N_ARENAS]);

/*
 * Life of a buffer in op indices, [lo, hi]. hi >= n_ops means that it wraps into the next run of a
 * program that repeats: up to op hi - n_ops there. Never longer than n_ops.
 */
struct zt_life {
    int lo, hi;
};

/*
 * Program-order lifetimes, (n_bufs) out: the program's transients from first to last touch,
 * persistent buffers the whole program, transients of other programs (or never touched) {0, -1}.
 */
void zt_lifetimes_plain(const struct zt_plan *p, enum zt_program_kind k, struct zt_life *out);

/*
 * Widened so that reusing bytes costs no time. Profile known: a buffer lives until its last user
 * has ended in a simulated schedule with unlimited memory, the declared prefetch window and a
 * gradient backlog of at most `backlog` BACKWARDs, in which all that is not compute takes a quarter
 * longer. Profile unknown: a buffer last touched off the compute stream outlives one compute op.
 */
void zt_lifetimes_widened(const struct zt_plan *p, enum zt_program_kind k, int backlog,
                          struct zt_life *out);

/* Sum of live bytes at the fullest op, persistent ones included: no packing can be smaller. */
size_t zt_live_bound(const struct zt_plan *p, enum zt_program_kind k, const struct zt_life *life,
                     enum zt_arena_id arena);

/*
 * Offsets of a program's transients above the persistent bytes `base` of each arena; raises peak[]
 * to what the program needs. No two transients share a byte while both live, modulo the program's
 * length.
 */
void zt_pack(struct zt_plan *p, enum zt_program_kind k, const struct zt_life *life,
             const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS]);

/* Waits of every op of a program, apart from the program. Zero-initialised is empty. */
struct zt_wait_list {
    int *first; /* (n_ops + 1): op i has waits [first[i], first[i + 1]) */
    struct zt_wait *waits;
    size_t n, cap;
    int n_raw; /* before pruning: one per op and other stream that it conflicts with */
};

void zt_wait_list_release(struct zt_wait_list *l);

/* Derive and prune the program's waits from its offsets; sets them in the program and its ops. */
void zt_derive_waits(struct zt_plan *p, enum zt_program_kind k);

/* The same as if no two buffers, and no two runs of a transient, shared bytes. */
void zt_derive_waits_unlimited(const struct zt_plan *p, enum zt_program_kind k,
                               struct zt_wait_list *out);

struct zt_sim {
    double step_s; /* steady state of a program that repeats; else one run */
    double busy_s[ZT_N_STREAMS];
    double critical_path_s;     /* longest chain through stream order and waits of one run */
    double *start_s, *finish_s; /* (n_ops) of one steady run, from its first start */
};

/* Run the list in time, with the waits given (NULL: the program's own). */
void zt_simulate(const struct zt_plan *p, enum zt_program_kind k, const struct zt_profile *profile,
                 const struct zt_wait_list *waits, struct zt_sim *out);
void zt_sim_release(struct zt_sim *s);

/*
 * The passes in order, for one emitted program whose persistent buffers have offsets below base[]:
 * widened lifetimes -> packing -> waits -> simulation by cfg.profile (never NULL). Sets offsets,
 * waits and results of the program, and raises peak[]. `backlog` 0 takes the smallest of 1, 2, 4, 8
 * whose time is within 3 % of unlimited memory, or else the fastest. May be called again.
 */
void zt_schedule_program(struct zt_plan *p, enum zt_program_kind k, int backlog,
                         const size_t base[ZT_N_ARENAS], size_t peak[ZT_N_ARENAS]);

/*
 * Proof for every program: no two conflicting ops can run at once, within a run or between a run
 * and the next; every read sees bytes that this run wrote there (or persistent ones); operands do
 * not alias; everything lies where it may (buffers inside ledger.peak, set before). Programs share
 * only persistent buffers (the engine drains all streams between two programs), and of those read
 * nothing that neither INIT nor they themselves have written. ZT_EVERIFY names the ops, streams and
 * buffers.
 */
int zt_verify(const struct zt_plan *p, struct zt_err *err) ZT_MUST_CHECK;
int zt_verify_program(const struct zt_plan *p, enum zt_program_kind k,
                      struct zt_err *err) ZT_MUST_CHECK;

/*
 * The same proof in two steps, for tests that change the waits: create makes every check that does
 * not depend on them; check_waits proves the order with the wait of index `omit_wait` in
 * prog->waits left out (-1: with all). A verifier reads the plan, which must not change under it.
 */
struct zt_verifier;
int zt_verifier_create(const struct zt_plan *p, enum zt_program_kind k, struct zt_verifier **out,
                       struct zt_err *err) ZT_MUST_CHECK;
int zt_verifier_check_waits(struct zt_verifier *v, int omit_wait, struct zt_err *err) ZT_MUST_CHECK;
void zt_verifier_free(struct zt_verifier *v);

/*
 * Across ranks: same order, kinds, counts and types of the collectives in every group, no cycle
 * among groups, and the same peaks. plans[i] is of any rank, no two of the same; a group is checked
 * among those of its members that are given.
 */
int zt_verify_ranks(const struct zt_plan *const *plans, int n, struct zt_err *err) ZT_MUST_CHECK;

void zt_plan_ledger(struct zt_plan *p);

/*
 * What runs of some programs leave in an arena, as lists of extents that grow and do not adjoin.
 * `written` is written by ops whatever happens. `touchable` is that and scratch (ZT_CAT_WORKSPACE), of
 * which a kernel takes what it needs. No other byte is ever touched: it is alignment, or lies between buffers.
 */
struct zt_touched {
    int n_written, n_touchable;
    struct zt_extent *written, *touchable;
    size_t written_bytes, scratch_bytes; /* scratch: touchable and not written */
};

/* `programs`: 1 << kind of those that run. Programs that the plan does not have touch nothing. */
enum { ZT_ALL_PROGRAMS = (1 << ZT_N_PROGRAMS) - 1 };
void zt_plan_touched(const struct zt_plan *p, enum zt_arena_id arena, unsigned programs,
                     struct zt_touched *out);

/* Bytes of the blocks, aligned and of `block` bytes each, that (n) such extents lie in. */
size_t zt_extent_blocks(const struct zt_extent *x, int n, size_t block);
void zt_touched_release(struct zt_touched *t);

/* The shape that micro-batches of `batch` sequences have under this configuration. */
static inline struct zt_shape zt_plan_shape(const struct zt_plan_config *cfg, int64_t batch,
                                            bool train)
{
    return (struct zt_shape){.batch = batch,
                             .seq_len = cfg->seq_len,
                             .dtype = cfg->dtype,
                             .dev_kind = cfg->dev_kind,
                             .n_threads = cfg->n_threads,
                             .train = train};
}

/* Bytes of the device: its own arena and the one that peers read. */
static inline size_t zt_plan_device_bytes(const struct zt_plan *p)
{
    return p->ledger.peak[ZT_AR_DEVICE] + p->ledger.peak[ZT_AR_SHARED];
}

/* ---- printing ---- */

void zt_plan_print_ledger(const struct zt_plan *const *stages, int n, struct zt_str *out);
void zt_plan_print_schedule(const struct zt_plan *p, struct zt_str *out);
void zt_plan_print_json(const struct zt_plan *const *stages, int n, bool schedule,
                        struct zt_str *out);

/* Resident-state table of P parameters on n ranks (params alone: no model is known). */
void zt_print_state_table(double n_params, int n_ranks, struct zt_str *out);

/*
 * Resident model state of a rank, bytes: stage 0 16P; 1: 4P + 12P/N; 2: 2P + 14P/N; 3: 16P/N
 * (Rajbhandari et al., ZeRO, SC 2020, section 3; 2-byte parameters and gradients, 12 bytes of
 * master, m, v).
 */
double zt_state_bytes(double n_params, int stage, int n_ranks);

#endif
