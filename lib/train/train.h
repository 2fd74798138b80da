/*
 * train.h: the engine. It executes the plan's programs and decides nothing that the plan has
 * decided.
 *
 *   fit.c      does the plan fit into what the device has free
 *   setup.c    recipe -> model description, plan configuration, checks before a start
 *   run*.c    one worker's life: set-up, the loop over steps, evaluation, samples, reports, the end
 *   engine.c   arenas, streams, and the one loop that submits a program's ops
 *   handlers*.c one handler per op kind, by family: operands by role -> kernels and collectives
 *   source.c   values of parameters: initial (counter-based) or from a folder of weights
 *   save.h     checkpoints: layout.c, save.c, load.c; check_resume.c before a start
 *   feed.c     batches: dataset positions -> host batch buffers
 *
 * What one training step does, in files: zt_train_run() calls zt_engine_run(TRAIN); engine.c walks
 * the op list in program order; for each op it makes the op's stream wait for the events that the
 * plan names and calls the handler; the handler enqueues kernels (dev/) or a collective (coll/) and
 * returns. The host meets the device only to read the RESULT of the step before.
 */
#ifndef ZT_TRAIN_TRAIN_H
#define ZT_TRAIN_TRAIN_H

#include "ckpt/lock.h"
#include "coll/coll.h"
#include "plan/plan.h"
#include "recipe/recipe.h"

/* Recipe -> model description. Rank-independent; in `arena`. */
int zt_train_model(const struct zt_recipe *r, struct zt_arena *arena, struct zt_model **out,
                   struct zt_err *err) ZT_MUST_CHECK;

/* Recipe -> plan configuration. `stage` < 0: the recipe's. */
int zt_train_plan_config(const struct zt_recipe *r, const struct zt_model *m, int n_ranks,
                         int n_threads, enum zt_dev_kind kind, int stage,
                         struct zt_plan_config *cfg, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Everything that can be known to be wrong before a process is started: the model can be
 * computed, data files open and hold enough, weights match the model, a prompt fits the
 * vocabulary. What is odd but not wrong is appended to `notes`, a line each. For runs whose files
 * are on this host.
 */
int zt_train_check(const struct zt_recipe *r, const struct zt_model *m, struct zt_str *notes,
                   struct zt_err *err) ZT_MUST_CHECK;

/*
 * Is there room on the drive for the n ranks of this host, which all need as much as this one? ZT_EINPUT says
 * how many bytes are needed and free.
 */
int zt_train_check_disk(const struct zt_recipe *r, const struct zt_plan *p, int n,
                        struct zt_err *err) ZT_MUST_CHECK;

/*
 * Checkpoints, likewise: the folder is free and no other run's (with `fresh`, what it holds is moved aside),
 * and there is one to go on from if the recipe says so; `from` becomes its path, or "". Takes and gives back
 * the folder's lock (ckpt/lock.h).
 */
int zt_train_check_checkpoints(const struct zt_recipe *r, const struct zt_model *m, bool fresh,
                               const struct zt_ckpt_wait *wait, struct zt_str *from,
                               struct zt_str *notes, struct zt_err *err) ZT_MUST_CHECK;

/* It goes on with what is in its own checkpoint.dir, where nothing else may be. Else that is empty once it begins. */
bool zt_train_goes_on_here(const struct zt_recipe *r);

/* Steps that train.epochs passes over data.train take; the last may be padded. Opens the data. */
int zt_train_epoch_steps(const struct zt_recipe *r, int64_t *steps,
                         struct zt_err *err) ZT_MUST_CHECK;

/* One worker's surroundings. */
struct zt_train_env {
    int rank, world, n_threads;
    int host_ranks, device_ranks; /* that share this one's host, and its device (a CPU: its host) */
    const char *device;           /* one line for a person: what this worker computes with */
    struct zt_dev *dev;
    struct zt_coll *coll;
    void *ctx;
    /* A JSON object (one line, no newline) for the front end. Rank 0's steps, everyone's memory. */
    int (*report)(void *ctx, const char *json, size_t len, struct zt_err *err);
    bool (*stop_requested)(void *ctx);
};

/*
 * Train to the end (or to a stop asked for). Blocks. Reports are objects with "type": "start",
 * "notice" (a text for the person), "step", "eval", "sample", "save", "profile" (a text), "times" (means of a
 * rank), "memory", "end"; metrics.h names the fields.
 */
int zt_train_run(const struct zt_recipe *r, const struct zt_train_env *env,
                 struct zt_err *err) ZT_MUST_CHECK;

#endif
