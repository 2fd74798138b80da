/*
 * verify_internal.h: what the files of the verifier share.
 */
#ifndef ZT_PLAN_VERIFY_INTERNAL_H
#define ZT_PLAN_VERIFY_INTERNAL_H

#include "plan/passes.h"

struct vclock {
    int done[ZT_N_STREAMS]; /* ops of each stream known to have ended, over all runs */
};

/* Bytes [at, next cell's at) of one arena. */
struct cell {
    uint64_t at;
    int last_touch[ZT_N_STREAMS]; /* position + 1 over all runs; 0: none */
    int last_write[ZT_N_STREAMS];
    int owner;     /* buffer whose bytes these are: the last one written here; -1: none */
    int owner_run; /* the run that wrote it */
    int owner_op;
};

struct verifier_cells {
    int n[ZT_N_ARENAS];
    struct cell *cells[ZT_N_ARENAS];
};

/* An op, counted over all runs, and the stream of an op that it needs and does not wait for. */
struct race {
    int op, stream;
};

struct zt_verifier {
    const struct zt_plan *p;
    enum zt_program_kind k;
    const struct zt_program *prog;
    int n_runs;
    int *pos; /* (n_ops) position on its stream */
    int stream_len[ZT_N_STREAMS];
    int *wait_owner;         /* (n_waits) op that has the wait */
    struct vclock *required; /* (n_runs * n_ops) */
    struct vclock *end;      /* with all waits */
    struct vclock *changed;  /* with one left out */
    struct race race;        /* the first, with all waits; op -1: none */
};

/* The clock of each stream after the ops before number `from`. */
void zt_verify_clocks_before(const struct zt_verifier *v, int from,
                             struct vclock now[ZT_N_STREAMS]);

/* ---- folded programs (verify_fold.c) ---- */

static inline bool zt_verify_is_folded(const struct zt_plan *p, enum zt_program_kind k)
{
    return k == ZT_PROG_TRAIN && p->fold.n_repeats > 0;
}

/*
 * The bytes of its buffer that operand `nth` of an op counts as touching: its own, or in the last repetitions
 * listed, where one after another moves along a buffer, those of all that follow, too.
 */
struct zt_extent zt_verify_reach(const struct zt_plan *p, enum zt_program_kind k, int op, int nth);

/* Are the rows of the last two repetitions alike, and can the others tell them apart? Before the steps below. */
int zt_verify_fold_rows(const struct zt_plan *p, struct zt_err *err) ZT_MUST_CHECK;

/* `cells` behind the second last repetition of a run and behind the last: did they only move on? */
int zt_verify_fold_cells(const struct zt_verifier *v, int run, const struct verifier_cells *before,
                         const struct verifier_cells *after, struct zt_err *err) ZT_MUST_CHECK;

/* The same of the clocks, once it is known that there is no race. */
int zt_verify_fold_clocks(const struct zt_verifier *v, struct zt_err *err) ZT_MUST_CHECK;

#endif
