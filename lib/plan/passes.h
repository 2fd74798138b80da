/*
 * passes.h: what the passes of the planner share; not for other layers. The verifier (verify.c,
 * verify_ranks.c) uses nothing of this but the accessors and the names of ops: it must not repeat
 * the mistakes of the passes that it checks.
 */
#ifndef ZT_PLAN_PASSES_H
#define ZT_PLAN_PASSES_H

#include "plan/plan.h"

static inline const struct zt_access *zt_op_accesses(const struct zt_program *prog, int op)
{
    return prog->accesses + prog->ops[op].first_access;
}

/* Waits of an op: of the list, or of the program itself when list is NULL. NULL where it has none. */
static inline const struct zt_wait *zt_waits_of(const struct zt_program *prog,
                                                const struct zt_wait_list *list, int op, int *n)
{
    if (!list) {
        *n = prog->ops[op].n_waits;
        return *n ? prog->waits + prog->ops[op].first_wait : NULL;
    }
    *n = list->first[op + 1] - list->first[op];
    return *n ? list->waits + list->first[op] : NULL;
}

static inline bool zt_is_transient(const struct zt_buf *b, enum zt_program_kind k)
{
    return b->program == (int)k;
}

/*
 * Fold the train program if the rows [begin[1], begin[2]) are like [begin[0], begin[1]), and so are their
 * buffers; does nothing and returns false if not.
 */
bool zt_fold(struct zt_plan *p, const int begin[3], int period, int n_repeats);

#define ZT_NO_FOLD ((struct zt_fold){0})

/* The buffer that is at the same place one micro-batch on; -1: none. */
static inline int zt_fold_next(const struct zt_fold *f, int buf)
{
    return f->n_repeats > 0 && buf < f->n_bufs ? f->next[buf] : -1;
}

static inline bool zt_fold_is_first(const struct zt_fold *f, int buf)
{
    return f->n_repeats == 0 || buf >= f->n_bufs || f->prev[buf] < 0;
}

/* Repetitions listed to let waits settle: the last two are then alike, and prove all that is left out. */
enum { ZT_FOLD_SETTLED = 3 };

/* How often a row runs in a step. */
static inline int zt_fold_times(const struct zt_plan *p, enum zt_program_kind k, int op)
{
    const struct zt_fold *f = &p->fold;
    return k == ZT_PROG_TRAIN && op >= f->begin && op < f->end ? 1 + f->n_repeats : 1;
}

/* Lists are written op by op: begin, then for each op its waits, then close it. */
void zt_wait_list_begin(struct zt_wait_list *l, int n_ops);
void zt_wait_list_add(struct zt_wait_list *l, struct zt_wait w);
void zt_wait_list_close_op(struct zt_wait_list *l, int op);

/*
 * Unlimited memory with the windows that the plan declares: a GATHER, FETCH or READ does not start before
 * the compute op that it is listed after has ended, nor what fills a buffer that a WRITE sends to the disk
 * before the WRITE that it is listed after, in the run before if need be; with backlog > 0, an op that
 * begins a gradient waits for every REDUCE listed before the `backlog`-th last such op.
 */
void zt_windowed_waits(const struct zt_plan *p, enum zt_program_kind k,
                       const struct zt_wait_list *unlimited, int backlog, struct zt_wait_list *out);

/* zt_lifetimes_widened() for waits of unlimited memory that are known already. */
void zt_lifetimes_by_waits(const struct zt_plan *p, enum zt_program_kind k,
                           const struct zt_wait_list *unlimited, int backlog, struct zt_life *out);

/* Duration of every op, (n_ops) out; what is not compute takes `slack` times as long. */
void zt_durations(const struct zt_plan *p, enum zt_program_kind k, const struct zt_profile *profile,
                  double slack, double *out);

/*
 * Start and finish of every op in `n_runs` runs one after another, (n_runs * n_ops) out; of a row that stands
 * for many, of the last of them.
 */
void zt_run_list(const struct zt_program *prog, const struct zt_fold *fold,
                 const struct zt_wait_list *waits, const double *duration_s, int n_runs,
                 double *start_s, double *finish_s);

/* "BACKWARD h.3 mb 0 (op 17 on compute)" for messages; returns buf. */
const char *zt_op_text(const struct zt_plan *p, enum zt_program_kind k, int op, char *buf,
                       size_t buf_bytes);

/* The parts of the verifier that need no order: where buffers lie, what ops declare. */
int zt_verify_layout(const struct zt_plan *p, enum zt_program_kind k,
                     struct zt_err *err) ZT_MUST_CHECK;
int zt_verify_ops(const struct zt_plan *p, enum zt_program_kind k,
                  struct zt_err *err) ZT_MUST_CHECK;

/* What a program reads of persistent buffers before it writes it, INIT has written. */
int zt_verify_start(const struct zt_plan *p, struct zt_err *err) ZT_MUST_CHECK;

#endif
