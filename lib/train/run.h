/*
 * run.h: pieces of one worker's life, shared by the files of lib/train. Internal.
 */
#ifndef ZT_TRAIN_RUN_H
#define ZT_TRAIN_RUN_H

#include "train/engine.h"
#include "train/train.h"

struct zt_dataset;
struct zt_disk;

/* The file for the plan's DISK arena; NULL where it has none. */
int zt_run_disk_open(const struct zt_recipe *r, const struct zt_plan *p, struct zt_disk **out,
                     struct zt_err *err) ZT_MUST_CHECK;

/* The training set, and the validation set where there is one. */
struct zt_run_data {
    struct zt_dataset *train, *val;
};

int zt_run_data_open(const struct zt_recipe *r, struct zt_run_data *d,
                     struct zt_err *err) ZT_MUST_CHECK;

/* Samples that the training data ends after (train.epochs); -1: it goes round for ever. */
int64_t zt_run_data_end(const struct zt_recipe *r, const struct zt_run_data *d);
void zt_run_data_close(struct zt_run_data *d);

/* Mean validation loss over all ranks' batches, and the targets it is the mean of; NAN of none. */
int zt_run_eval(struct zt_engine *e, int64_t max_batches, double *loss, int64_t *tokens,
                struct zt_err *err) ZT_MUST_CHECK;

/*
 * Continue a prompt, whose bytes are taken as tokens (zt_train_check has seen that the vocabulary
 * has them). Every rank computes the same logits and draws the same numbers, so none has to tell
 * the others. Tokens of text are bytes; other ids are shown as <id>. `text` becomes printable.
 */
struct zt_sampling {
    const char *prompt; /* not empty */
    bool is_text;
    int64_t n_tokens;
    double temperature;
    int top_k;
    uint64_t seed;
};

int zt_run_sample(struct zt_engine *e, const struct zt_sampling *s, int64_t step,
                  struct zt_str *text, struct zt_err *err) ZT_MUST_CHECK;

/* Append bytes so that they are UTF-8 and no terminal's commands: what is not so becomes \xNN. */
void zt_printable(const void *bytes, size_t n, struct zt_str *out);

/*
 * Pick a token from fp32 logits; `u` uniform in (0, 1). top_k 0: all; temperature 0: the largest.
 */
int32_t zt_pick_token(const float *logits, int64_t vocab, double temperature, int top_k, double u);

/*
 * Digest of this rank's slices of parameters, master and moments; nothing may be running. The XOR
 * over all ranks is the digest of the training state, the same for every stage and rank count.
 */
int zt_run_digest(struct zt_engine *e, uint64_t *digest, struct zt_err *err) ZT_MUST_CHECK;

/* ---- fit.c: does the plan fit ---- */

/*
 * Compare the plan with what the recipe allows, and with what is free now on the device and the host of
 * every rank: the least of all, so that they agree. Collective, before any arena is allocated. When it
 * does not fit, rank 0 returns ZT_ENOMEM with all that makes it fit, the others ZT_EPEER without a
 * message.
 */
int zt_run_check_fit(const struct zt_recipe *r, const struct zt_train_env *env,
                     const struct zt_plan *p, struct zt_err *err) ZT_MUST_CHECK;

/* ---- memory.c: what a run has used ---- */

/* An arena in bytes, all but the first in blocks of ZT_BUF_ALIGN. */
struct zt_arena_use {
    size_t peak;        /* allocated, as planned */
    size_t touched;     /* measured: what no longer holds the canary */
    size_t least, most; /* planned for the programs that ran: what must and what may be touched */
};

/* All 0 where the plan has no such arena. Nothing may be running. */
int zt_run_arena_use(struct zt_engine *e, enum zt_arena_id a, struct zt_arena_use *out,
                     struct zt_err *err) ZT_MUST_CHECK;

/* This process's proportional share of the host's memory, in bytes, by what it is of. */
struct zt_pss {
    int64_t arenas; /* private ones */
    int64_t shared; /* between ranks: arenas of the CPU, else what collectives stage in */
    int64_t files;  /* program, libraries, mapped data, the control block */
    int64_t rest;   /* heap, stacks, what libraries allocate */
};

/* Measured now; it walks all pages: not for every step. All 0 when not known. */
void zt_run_pss(const struct zt_engine *e, struct zt_pss *out);

/* The same from the text of /proc/PID/smaps; `arenas` (n) are ranges of addresses. */
void zt_pss_read(FILE *smaps, const struct zt_extent *arenas, int n, struct zt_pss *out);

/* Resident high-water mark of this process, bytes; 0 when not known. */
int64_t zt_process_rss_peak(void);

/*
 * Measured matmul rate of one worker, FLOP/s: what MFU is measured against. *dtype: in, what is trained in; out, what the rate
 * is of: on a CPU fp32 may be faster. For the matrices there must be room beside the arenas of a GPU: before they are
 * allocated. 0: not known.
 */
double zt_run_peak_flops(struct zt_dev *dev, int n_threads, enum zt_dtype *dtype);

#endif
