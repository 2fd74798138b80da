/*
 * dev.h: the device seam. A device is a table of documented functions: memory, streams, events,
 * copies, and the kernels that the models need. lib/dev/cpu is complete, fast, and the oracle for
 * cuda/ (which is handed over by a shared object as this same table).
 *
 * Streams. A stream is a queue of tasks carried out in order by a thread of its own; calls that
 * take a stream enqueue and return at once (they block only while the queue is full). On the CPU
 * the thread runs the kernel, on CUDA it launches it on a cudaStream. Streams run against each
 * other without any order but that of events: a missing wait is a real race on both devices.
 *
 * Events are values: (stream, position). zt_dev_record() names everything enqueued so far;
 * zt_dev_wait() makes a stream wait for an event of another stream, also of another device (then
 * the waiting stream's thread blocks, never the caller).
 *
 * Errors are asynchronous: a task that fails puts its stream into the failed state with the
 * message; later tasks of the stream are skipped, its events complete, streams that wait on it fail
 * with the same message. zt_dev_sync() returns it. Enqueueing never fails.
 *
 * Arguments are copied when enqueued; the memory they point to must stay valid and untouched until
 * the task is done (the plan guarantees it). Pointers are device pointers, except where said.
 *
 * Elements are row-major. Sizes are in elements (int64_t) or bytes (size_t). A `struct zt_ref` with
 * ptr NULL stands for "absent" where the field says optional. 16-bit inputs are widened to fp32,
 * sums are fp32 or better, results are rounded once on the way out. Every kernel is deterministic:
 * the same arguments and thread count give the same bits, whatever other streams do.
 */
#ifndef ZT_DEV_DEV_H
#define ZT_DEV_DEV_H

#include "base/dtype.h"
#include "base/err.h"
#include "dev/dropout.h"
#include "dev/optimizer.h"
#include "dev/rope.h"
#include "dev/step.h"

enum { ZT_DEV_ABI = 1 };

enum zt_dev_kind { ZT_DEV_CPU, ZT_DEV_CUDA };

struct zt_dev;
struct zt_stream;

struct zt_event {
    struct zt_stream *stream; /* NULL: already complete */
    uint64_t seq;
};

struct zt_ref {
    void *ptr;
    enum zt_dtype dtype;
};

/* ---- kernel arguments: shapes, then in, then out, then workspace ---- */

/*
 * Token embedding plus learned positions: out[i] = wte[tokens[i]] + wpe[positions[i]].
 * tokens, positions: (rows) int32, values in range (the loader checks). wpe optional.
 */
struct zt_embed_fwd {
    int64_t rows, cols;
    const int32_t *tokens, *positions;
    struct zt_ref wte; /* (vocab, cols) */
    struct zt_ref wpe; /* (max positions, cols), optional */
    struct zt_ref out; /* (rows, cols) */
};

/*
 * Scatter-add of dout into dwte and dwpe, in the order of the rows for each element. With
 * accumulate_* false the tensor is zeroed first. Gradients are fp32 (a plan rule: units with
 * scattered gradients hold them in fp32).
 */
struct zt_embed_bwd {
    int64_t rows, cols, vocab, max_positions;
    const int32_t *tokens, *positions;
    struct zt_ref dout; /* (rows, cols) */
    struct zt_ref dwte; /* (vocab, cols) fp32 */
    struct zt_ref dwpe; /* (max positions, cols) fp32, optional */
    bool accumulate_wte, accumulate_wpe;
    void *ws;
    size_t ws_bytes; /* >= zt_ws_embed_bwd() */
};

/*
 * LayerNorm (Ba et al. 2016): y = (x - mean) * rstd * gamma + beta; with `rms` RMSNorm (Zhang and
 * Sennrich 2019): y = x * rstd * gamma, mean not written, beta absent. rstd = 1 / sqrt(var + eps).
 */
struct zt_norm_fwd {
    int64_t rows, cols;
    float eps;
    bool rms;
    struct zt_ref x;     /* (rows, cols) */
    struct zt_ref gamma; /* (cols) */
    struct zt_ref beta;  /* (cols), optional */
    struct zt_ref y;     /* (rows, cols); may be x */
    float *mean, *rstd;  /* (rows) */
};

/*
 * dx = dresidual + d(norm)/dx . dy; dgamma and dbeta summed over rows. dx may be dresidual or dy.
 */
struct zt_norm_bwd {
    int64_t rows, cols;
    bool rms;
    struct zt_ref dy, x; /* (rows, cols) */
    const float *mean, *rstd;
    struct zt_ref gamma;
    struct zt_ref dresidual; /* (rows, cols), optional */
    struct zt_ref dx;        /* (rows, cols) */
    struct zt_ref dgamma;    /* (cols), optional */
    struct zt_ref dbeta;     /* (cols), optional */
    bool accumulate;         /* of dgamma and dbeta; false: they are overwritten */
    void *ws;
    size_t ws_bytes; /* >= zt_ws_norm_bwd() */
};

/*
 * C = epilogue(op(A) op(B)), op(A): (m, k), op(B): (k, n), C: (m, n); trans_a: A is stored (k, m).
 * Order of the epilogue: + C if accumulate; + bias over rows; then
 *   ZT_EPI_GELU  aux = x (optional), C = gelu_tanh(x)     (Hendrycks and Gimpel 2016, tanh form)
 *   ZT_EPI_DGELU C = x * gelu_tanh'(aux)
 * then + residual. accumulate goes with no other epilogue. aux and residual are (m, n) with ldc.
 * residual may be C's own memory when the epilogue is NONE. fp32 accumulation. k = 0 is a product
 * of zeros.
 *
 * A product that gives the gradient of a weight may give that of its bias along: the sums over k of op(A),
 * or of op(B) (+ what is there if accumulate). The one summed over is stored with k first: trans_a, or not
 * trans_b. The same numbers as zt_col_sum's.
 */
enum zt_epilogue { ZT_EPI_NONE, ZT_EPI_GELU, ZT_EPI_DGELU };
enum zt_bias_grad { ZT_BIAS_GRAD_NONE, ZT_BIAS_GRAD_A, ZT_BIAS_GRAD_B };

struct zt_matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    enum zt_epilogue epilogue;
    struct zt_ref a, b;
    struct zt_ref bias;     /* (n), optional */
    struct zt_ref residual; /* (m, n), optional */
    struct zt_ref aux;      /* (m, n): out of GELU (optional), in of DGELU */
    struct zt_ref c;
    enum zt_bias_grad bias_grad_of;
    struct zt_ref bias_grad; /* (m) of A, (n) of B */
    void *ws;
    size_t ws_bytes; /* >= zt_ws_matmul() */
};

/* out[j] = sum over rows of x[i][j] (+ out[j] if accumulate): the gradient of a bias. */
struct zt_col_sum {
    int64_t rows, cols, ld;
    struct zt_ref x;
    struct zt_ref out; /* (cols) */
    bool accumulate;
    void *ws;
    size_t ws_bytes; /* >= zt_ws_col_sum() */
};

/* What a product's bias_grad stands for, for devices that have no better way. */
static inline struct zt_col_sum zt_bias_grad_sum(const struct zt_matmul *a)
{
    const bool of_a = a->bias_grad_of == ZT_BIAS_GRAD_A;
    struct zt_col_sum s;
    s.rows = a->k;
    s.cols = of_a ? a->m : a->n;
    s.ld = of_a ? a->lda : a->ldb;
    s.x = of_a ? a->a : a->b;
    s.out = a->bias_grad;
    s.accumulate = a->accumulate;
    s.ws = a->ws;
    s.ws_bytes = a->ws_bytes;
    return s;
}

enum { ZT_CUDA_MAX_HEAD_DIM = 256 }; /* of attention on CUDA; who plans refuses more */

/*
 * Causal attention without a (T, T) matrix in memory (Dao et al., FlashAttention, 2022):
 * out = softmax(scale * q k^T + mask) v, per head. Query i of a sequence sits at position
 * q_offset + i and sees keys seg_start[q_offset + i] .. q_offset + i. Head h reads key/value head
 * h / (n_head / n_kv_head). Row i of sequence b of q starts at q + (b * q_len + i) * ldq, k and v
 * at (b * k_len + i) * ldkv; head h is head_dim elements from h * head_dim.
 *
 * drop: dropout of the probabilities, after their normalisation: out = (keep * drop.scale *
 * softmax) v, keep 0 or 1 by dropout.h with head h, row q_offset + i, column the key's position. lse
 * is that of the probabilities before it. Backward gets the same drop as forward.
 */
struct zt_attention {
    int64_t batch, q_len, k_len, q_offset;
    int n_head, n_kv_head, head_dim;
    int64_t ldq, ldkv, ldo;
    float scale;
    const int32_t *seg_start; /* (batch, k_len); NULL: all zero */
    struct zt_dropout drop;
    struct zt_ref q, k, v;
    struct zt_ref out; /* written by forward, read by backward */
    float *lse; /* (batch, n_head, q_len): log-sum-exp; written by forward, read by backward */
    struct zt_ref dout;       /* backward only, from here on; dout has ldo */
    struct zt_ref dq, dk, dv; /* dq has ldq, dk and dv have ldkv; overwritten */
    void *ws;
    size_t ws_bytes; /* >= zt_ws_attention() */
};

/*
 * out = residual + keep * drop.scale * x (keep 0 or 1 by dropout.h, head 0): dropout of a branch and
 * its sum with the residual stream; without a residual also its gradient, x then being that of out.
 * Row i is token i % seq_len of sequence i / seq_len of the micro-batch.
 */
struct zt_drop_add {
    int64_t rows, cols, seq_len;
    struct zt_dropout drop;
    struct zt_ref x;        /* (rows, cols) */
    struct zt_ref residual; /* (rows, cols), optional */
    struct zt_ref out;      /* (rows, cols); may be x or residual */
};

enum { ZT_IGNORE_TARGET = -100 };

/*
 * Softmax cross-entropy of a chunk of rows. Target ZT_IGNORE_TARGET is ignored (loss 0, gradient
 * 0); any other outside [0, vocab) fails the stream. losses[i] = log-sum-exp(logits[i]) -
 * logits[i][target]. With write_grad the gradient (softmax - onehot) * count->inv_tokens *
 * sb->loss_scale is written; its columns vocab..ld-1 are 0. *loss_sum += sum of losses, in double and
 * in a fixed order of the rows (overwritten when `first`).
 */
struct zt_cross_entropy {
    int64_t rows, vocab, ld;
    const int32_t *targets; /* (rows) */
    const struct zt_step_block *sb;
    const struct zt_count *count;
    struct zt_ref logits; /* (rows, ld) */
    float *losses;        /* (rows) scratch or result */
    double *loss_sum;
    bool first, write_grad;
    /*
     * (rows, ld), rows ld_grad apart. May begin where the logits do if its rows are as many bytes apart
     * and its elements no wider. ptr NULL: in place of the logits.
     */
    struct zt_ref grad;
    int64_t ld_grad;
};

/* tokens (+)= number of targets that are not ZT_IGNORE_TARGET. */
struct zt_count_targets {
    int64_t n;
    const int32_t *targets;
    struct zt_count *out; /* inv_tokens left alone */
    bool accumulate;      /* add to out->tokens (micro-batches of a step) */
};

/* After the all-reduce of tokens: inv_tokens = tokens ? 1 / tokens : 0. */
struct zt_count_finish {
    struct zt_count *count;
};

/* Part of a unit's slice that one optimizer setting covers. */
struct zt_update_range {
    int64_t begin, end; /* elements, relative to the buffers below */
    float weight_decay, lr_scale;
};

/*
 * UPDATE: one optimizer over ranges of flat buffers, one pass (dev/adam.h, dev/lion.h). Does nothing
 * when sb->apply is 0. With `master` absent the parameter is fp32 and its own master. `fresh`: param
 * is a buffer without values yet: it gets the master's, rounded, also when sb->apply is 0.
 */
struct zt_update {
    enum zt_optimizer optimizer;
    const struct zt_update_range *ranges; /* host memory, valid for the life of the plan */
    int n_ranges;
    const struct zt_step_block *sb;
    struct zt_ref grad;
    float *m, *v;         /* v NULL where the optimizer has none */
    struct zt_ref master; /* fp32, optional */
    struct zt_ref param;
    bool fresh; /* only with a master */
};

/*
 * out->sum_sq = sum of x[i]^2 in fixed blocks: fp32 within a block, double over blocks (+
 * out->sum_sq if accumulate).
 */
struct zt_sum_sq {
    int64_t n; /* may be 0 */
    struct zt_ref x;
    struct zt_norm_partial *out;
    bool accumulate;
};

/*
 * NORM: from the records of all ranks (zt_norm_record_bytes() each, in rank order) to the step
 * block: loss = sum * count->inv_tokens, tokens, grad_norm (divided by loss_scale), clip factor
 * min(1, max_norm / (norm + 1e-6)), grad_scale, bad_unit, bad_rank. The order of the sums is fixed and the same in
 * every stage: partials by unit, then rank; losses by rank, then micro-batch. A norm that is not
 * finite gives grad_scale 0, never NaN (and the vote keeps the step from being applied).
 */
struct zt_norm_finish {
    int n_ranks, n_units, n_losses;
    size_t record_bytes;
    const void *records; /* (n_ranks) records */
    const struct zt_count *count;
    struct zt_step_block *sb;
};

/* Before VOTE's all-reduce: vote = {grad_norm or loss not finite, request}. */
struct zt_vote_begin {
    const struct zt_step_block *sb;
    const struct zt_vote_request *request;
    struct zt_vote *vote;
};

/* apply = gradients finite and any token counted: a fully masked batch changes nothing. */
struct zt_vote_finish {
    const struct zt_vote *vote;
    struct zt_step_block *sb;
};

/* STEP: zt_step_next(). */
struct zt_step_advance {
    struct zt_step_block *sb;
};

struct zt_copy {
    void *dst;
    const void *src;
    size_t bytes;
};

struct zt_zero {
    void *dst;
    size_t bytes;
};

/* dst[i] = (dst type) src[i] (+ dst[i] if accumulate). */
struct zt_cast {
    int64_t n;
    struct zt_ref src, dst;
    bool accumulate;
};

/*
 * Rotary positions (Su et al. 2021), in place, in the half-split form of Hugging Face's files: of
 * each head, elements i and i + head_dim / 2 are a pair that turns by p = positions[row] *
 * zt_rope_frequency(i): (x, y) -> (x cos p - y sin p, y cos p + x sin p). `inverse` turns back,
 * which is the gradient. q has n_head heads a row, k n_kv_head; a row's heads lie side by side.
 */
struct zt_rope {
    int64_t rows, ldq, ldk;
    int n_head, n_kv_head, head_dim; /* head_dim is even */
    const int32_t *positions;        /* (rows), >= 0 */
    struct zt_rope_rule rule;
    bool inverse;
    struct zt_ref q, k;
};

/* SwiGLU (Shazeer 2020): out = silu(gate) * up, silu(x) = x / (1 + e^-x). out may be gate or up. */
struct zt_swiglu_fwd {
    int64_t n;
    struct zt_ref gate, up, out;
};

/* dgate = dout * up * silu'(gate), dup = dout * silu(gate). Each may be the memory of any input. */
struct zt_swiglu_bwd {
    int64_t n;
    struct zt_ref dout, gate, up;
    struct zt_ref dgate, dup;
};

/* A host function in stream order. arg is the stream's copy, valid during the call. */
typedef int (*zt_host_fn)(void *arg, struct zt_err *err);

/* Largest argument that a task may carry, bytes. */
enum { ZT_TASK_ARG_BYTES = 448 };

/* ---- the table ---- */

struct zt_dev_ops {
    uint32_t abi, struct_bytes; /* ZT_DEV_ABI, sizeof(struct zt_dev_ops): checked when loaded */
    enum zt_dev_kind kind;

    /*
     * Memory. alloc: zero-filled, 2 MiB aligned (CUDA: as cudaMalloc has it), huge pages where there are
     * any. On the CPU a page may come when it is first written: who must not wait for it then fills the
     * memory at once. Blocking.
     */
    int (*alloc)(struct zt_dev *d, size_t bytes, void **out, struct zt_err *err);
    void (*free)(struct zt_dev *d, void *p, size_t bytes);
    int (*alloc_host)(struct zt_dev *d, size_t bytes, void **out, struct zt_err *err); /* pinned */
    void (*free_host)(struct zt_dev *d, void *p, size_t bytes);
    int (*memory)(struct zt_dev *d, size_t *free_bytes, size_t *total_bytes, struct zt_err *err);

    /*
     * Optional (NULL: nothing to do). Page-lock host memory that lies elsewhere than alloc_host(), so
     * that copies run at full speed and beside other work. It may fail, and copies work without.
     */
    int (*pin)(struct zt_dev *d, void *p, size_t bytes, struct zt_err *err);
    void (*unpin)(struct zt_dev *d, void *p);

    /*
     * Streams. n_threads: OpenMP team of its kernels (CPU). free waits for the queue to empty; no other
     * stream may still come to a wait for an event of this one.
     */
    int (*stream_create)(struct zt_dev *d, const char *name, int n_threads, struct zt_stream **out,
                         struct zt_err *err);
    void (*stream_free)(struct zt_stream *s);
    struct zt_event (*record)(struct zt_stream *s);
    void (*wait)(struct zt_stream *s, struct zt_event e);
    int (*sync)(struct zt_event e, struct zt_err *err); /* blocks the caller; the stream's error */

    /* Copies: host/device in any combination, in stream order. */
    void (*copy)(struct zt_stream *s, const struct zt_copy *a);
    void (*zero)(struct zt_stream *s, const struct zt_zero *a);
    void (*host_call)(struct zt_stream *s, zt_host_fn fn, const void *arg, size_t arg_bytes);

    /* Kernels. */
    void (*embed_fwd)(struct zt_stream *s, const struct zt_embed_fwd *a);
    void (*embed_bwd)(struct zt_stream *s, const struct zt_embed_bwd *a);
    void (*norm_fwd)(struct zt_stream *s, const struct zt_norm_fwd *a);
    void (*norm_bwd)(struct zt_stream *s, const struct zt_norm_bwd *a);
    void (*matmul)(struct zt_stream *s, const struct zt_matmul *a);
    void (*col_sum)(struct zt_stream *s, const struct zt_col_sum *a);
    void (*attention_fwd)(struct zt_stream *s, const struct zt_attention *a);
    void (*attention_bwd)(struct zt_stream *s, const struct zt_attention *a);
    void (*drop_add)(struct zt_stream *s, const struct zt_drop_add *a);
    void (*cross_entropy)(struct zt_stream *s, const struct zt_cross_entropy *a);
    void (*count_targets)(struct zt_stream *s, const struct zt_count_targets *a);
    void (*count_finish)(struct zt_stream *s, const struct zt_count_finish *a);
    void (*update)(struct zt_stream *s, const struct zt_update *a);
    void (*sum_sq)(struct zt_stream *s, const struct zt_sum_sq *a);
    void (*norm_finish)(struct zt_stream *s, const struct zt_norm_finish *a);
    void (*vote_begin)(struct zt_stream *s, const struct zt_vote_begin *a);
    void (*vote_finish)(struct zt_stream *s, const struct zt_vote_finish *a);
    void (*step_advance)(struct zt_stream *s, const struct zt_step_advance *a);
    void (*cast)(struct zt_stream *s, const struct zt_cast *a);
    void (*rope)(struct zt_stream *s, const struct zt_rope *a);
    void (*swiglu_fwd)(struct zt_stream *s, const struct zt_swiglu_fwd *a);
    void (*swiglu_bwd)(struct zt_stream *s, const struct zt_swiglu_bwd *a);
};

struct zt_dev {
    const struct zt_dev_ops *ops;
};

/* The CPU device. `log` (optional) gets one line: which kernels were chosen and why. */
int zt_cpu_dev_create(struct zt_dev **out, char *log, size_t log_bytes,
                      struct zt_err *err) ZT_MUST_CHECK;
void zt_cpu_dev_free(struct zt_dev *d);

/*
 * For checking that ops touch what they declare. announce: in ThreadSanitizer builds a task that
 * reads and writes the ranges in the sanitizer's eyes, so that races inside libraries it does not
 * see are found; otherwise nothing. poison/unpoison: in AddressSanitizer builds make host memory
 * unreadable to instrumented code, and readable again (bounds are rounded to 8 bytes); otherwise
 * nothing. Poison only while no task runs.
 */
struct zt_range {
    void *ptr;
    size_t bytes;
    bool write;
};

void zt_dev_announce(struct zt_stream *s, const struct zt_range *ranges, int n);
void zt_dev_poison(const void *p, size_t bytes);
void zt_dev_unpoison(const void *p, size_t bytes);

/*
 * Workspace sizes in bytes, without a device, so that a plan for any device can be made anywhere.
 * Monotonic in every dimension. n_threads: of the compute stream (CPU).
 */
size_t zt_ws_matmul(enum zt_dev_kind kind, const struct zt_matmul *shape, int n_threads);
size_t zt_ws_embed_bwd(enum zt_dev_kind kind, int64_t rows, int64_t vocab, int64_t max_positions);
size_t zt_ws_norm_bwd(enum zt_dev_kind kind, int64_t rows, int64_t cols, int n_threads);
size_t zt_ws_col_sum(enum zt_dev_kind kind, int64_t rows, int64_t cols, int n_threads);
size_t zt_ws_attention(enum zt_dev_kind kind, const struct zt_attention *shape, bool backward,
                       int n_threads);

#endif
