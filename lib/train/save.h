/*
 * save.h: checkpoints of a training run: what they hold of a plan, writing and loading them. Internal to
 * lib/train (and its tests).
 *
 *   layout.c  plan -> which elements of which tensors lie where in which file; the same on all ranks
 *   save.c    one worker's part in writing them
 *   load.c    a checkpoint as the source of a plan's values
 */
#ifndef ZT_TRAIN_SAVE_H
#define ZT_TRAIN_SAVE_H

#include "ckpt/checkpoint.h"
#include "train/engine.h"
#include "train/train.h"

/* Where the bytes of a piece come from: a buffer of the plan. */
struct zt_save_source {
    int state;           /* the buffer that training uses */
    size_t state_offset; /* bytes in it */
    int snapshot;        /* SAVE's copy of this rank's slice of it; -1: the plan has none */
    size_t slice_offset; /* bytes in that */
    size_t bytes;
};

/* A checkpoint of this plan, without its checksums, progress and recipe. */
struct zt_layout {
    struct zt_manifest m;
    struct zt_str header; /* of this rank's file */
    int n;
    struct zt_shard_piece *pieces;  /* of this rank's file, in its order */
    struct zt_save_source *sources; /* (n) */
};

void zt_layout_make(const struct zt_plan *p, struct zt_layout *l);
void zt_layout_release(struct zt_layout *l);

/* ---- save.c ---- */

struct zt_saver;

struct zt_saver_opts {
    const struct zt_recipe *r;
    const struct zt_train_env *env;
    struct zt_engine *engine;
};

/*
 * Rank 0 takes the folder's lock and removes what an unfinished save left; all ranks see that they share
 * the folder. Collective. NULL in *out: the recipe saves nothing.
 */
int zt_saver_create(const struct zt_saver_opts *o, struct zt_saver **out,
                    struct zt_err *err) ZT_MUST_CHECK;
/* Rank 0, before it changes the folder: it is still this run's. */
int zt_saver_check(struct zt_saver *s, struct zt_err *err) ZT_MUST_CHECK;

void zt_saver_free(struct zt_saver *s); /* waits for its thread; accepts NULL */

/*
 * Save the state as it is now. Collective; nothing is running. First waits for the end of the save before.
 * Writes all, or copies it aside and returns (checkpoint.async). A save that fails is reported and no
 * error: training goes on, and the checkpoint before it is what there is.
 */
int zt_saver_start(struct zt_saver *s, const struct zt_ckpt_progress *at,
                   struct zt_err *err) ZT_MUST_CHECK;

/* What to send with the next VOTE. */
enum zt_saving zt_saver_state(const struct zt_saver *s);

/* The VOTE of a step is known: when all ranks have written their part, the checkpoint becomes visible. */
int zt_saver_voted(struct zt_saver *s, const struct zt_vote *vote,
                   struct zt_err *err) ZT_MUST_CHECK;

/* Wait until the last save is over. Collective; nothing is running. ZT_EIO when it failed. */
int zt_saver_finish(struct zt_saver *s, struct zt_err *err) ZT_MUST_CHECK;

/* ---- load.c ---- */

struct zt_load {
    struct zt_ckpt ckpt;
    bool open;
    const struct zt_ckpt_tensor **tensors; /* (n_params) by the model's parameter */
    struct zt_err err;                     /* code 0: all that was read was good */
};

/*
 * A checkpoint for this model and recipe: each parameter is there with its shape, and the optimizer is the
 * one that made the moments. What is not continued exactly is appended to `notes` (or NULL), a line each.
 */
int zt_load_open(struct zt_load *l, const char *path, const struct zt_recipe *r,
                 const struct zt_model *m, struct zt_str *notes, struct zt_err *err) ZT_MUST_CHECK;
void zt_load_close(struct zt_load *l); /* accepts a zeroed one */

/* From now on read what the rows of LOAD will ask for before they do, in their order (handlers_move.c). */
void zt_load_read_ahead(struct zt_load *l, const struct zt_plan *p);
void zt_load_expect(struct zt_load *l, const struct zt_plan *p, int unit,
                    enum zt_ckpt_part_kind part, int64_t begin, int64_t n);

/*
 * Elements [begin, begin + n) of a unit, fp32; padding is zero, and so are moments that the checkpoint has
 * not. The first failure stays in l->err, and what was not read is zero.
 */
void zt_load_fill(struct zt_load *l, const struct zt_plan *p, int unit, enum zt_ckpt_part_kind part,
                  int64_t begin, int64_t n, float *out);

/* In a step's place: the path that was given, which is a checkpoint itself. Another will not do. */
enum { ZT_LOAD_NAMED = -1 };

/*
 * The steps of the checkpoints that checkpoint.resume allows, ascending, or ZT_LOAD_NAMED alone; free *steps. n is 0
 * where `newest` finds none, and training begins afresh; where a path was given that has none, ZT_EINPUT. As this
 * host sees the folder: of several, one must decide for all.
 */
int zt_load_candidates(const struct zt_recipe *r, int64_t **steps, int *n,
                       struct zt_err *err) ZT_MUST_CHECK;

/* Where that one is. */
void zt_load_path(const struct zt_recipe *r, int64_t step, struct zt_str *out);

#endif
