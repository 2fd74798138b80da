/*
 * plan.h: the plan is the program.
 *
 * For one rank, a plan is a few *programs* (init, train step, eval, generate, ...), each an
 * immutable list of *ops* on *streams*, reading and writing byte ranges of *buffers* at fixed
 * offsets in a few *arenas* (ops.h). It is made from a model, a configuration and (rank, mesh) alone;
 * no device is needed.
 *
 *     zt_plan_build:  units -> emission -> lifetimes -> packing -> hazards -> ledger -> verifier
 *
 *   ops.h       streams, units, buffers, and the table of rows with their operands
 *   units.c     tensors -> units with aligned slices
 *   emit*.c     the rows; the stage table is in emit.c and nowhere else; emit_save.c, emit_load.c: checkpoints
 *   gather.c    prefetch window of stage 3
 *   fold.c      many micro-batches planned by a few of them, and made whole
 *   lifetime.c  when each transient is live, widened by a simulated schedule
 *   pack.c      offsets
 *   hazard.c    waits, pruned with vector clocks
 *   verify.c    proof by happens-before and provenance; written apart from hazard.c
 *   verify_fold.c  that micro-batches which are not listed are proven, too
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
#include "plan/ops.h"

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

enum { ZT_PLAN_MAX_SEQUENCES = 1 << 20 /* of a micro-batch */, ZT_PLAN_MAX_ACCUM = 1 << 16 };

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
    /* From a copy of the state: SAVE; not of what is too large for the host, on NVMe. */
    bool snapshot;
    bool loads;        /* training goes on from one: LOAD */
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

/*
 * Planning with a few micro-batches of many (fold.c). The rows [begin, end) of the train program stand for
 * 1 + n_repeats micro-batches in a row; [before, begin) are those of the one before, which is like them.
 */
struct zt_fold {
    int n_repeats; /* 0: every micro-batch is listed */
    int period;    /* micro-batches */
    int before, begin, end;
    int n_bufs;
    const int *next, *prev; /* (n_bufs) the buffer of the next and the last micro-batch; -1: none */
};

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
    struct zt_fold fold;                       /* until the program is whole */
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
 * The same plan for those who never run it: proven as whole, but its train program stays folded where micro-batches
 * are many, so that time and memory do not grow with them. plan->fold says what is not listed.
 */
int zt_plan_build_folded(const struct zt_model *model, const struct zt_plan_config *cfg, int rank,
                         struct zt_plan **out, struct zt_err *err) ZT_MUST_CHECK;

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

/* The most micro-batches of a step: its rows are listed one by one. */
int zt_plan_max_accum(const struct zt_model *model);

/*
 * Emit all programs of the configuration (offsets and waits not set); folded where micro-batches are many
 * and alike.
 */
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
 * List n more repetitions of an arranged plan that is folded, or as many as it has, and derive the waits of
 * what is listed then. With all of them the train program is whole.
 */
void zt_plan_unroll(struct zt_plan *p, int n);

/* What a folded program says of the whole: the number there of a row listed, and how many waits there are. */
int zt_plan_row(const struct zt_plan *p, enum zt_program_kind k, int op);
int zt_plan_n_waits(const struct zt_plan *p, enum zt_program_kind k);
static inline int zt_plan_n_rows(const struct zt_plan *p, enum zt_program_kind k)
{
    return zt_plan_row(p, k, p->programs[k].n_ops);
}

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
 * buffers. Of a folded program what is listed is proven and that every repetition left out is as
 * safe (verify_fold.c); where that does not follow, ZT_EVERIFY: then it must be whole to be proven.
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

/*
 * The same for who holds two plans at a time: does `p` list the collectives that `first` does, in its order,
 * with its peaks? No op waits for one listed behind it, so ranks that all do never wait for each other for
 * ever. For `first` itself zt_verify_ranks() of it alone.
 */
int zt_verify_like(const struct zt_plan *first, const struct zt_plan *p,
                   struct zt_err *err) ZT_MUST_CHECK;

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
