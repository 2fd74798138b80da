/*
 * folder.h: the folder that a run keeps its checkpoints in, and the only ways to change it.
 *
 *     DIR/step-000200/       a checkpoint: complete, since it got that name by one rename
 *     DIR/tmp-step-N/        what is being written (tmp-old-N: removed; tmp-probe-N: a sign of rank N);
 *                            whoever holds the lock may remove it
 *     DIR/before-1/          what another run left, moved out of the way
 *     DIR/latest             a line with the newest one's name, for people and other programs; a convenience:
 *                            no checkpoint fails for it
 *     DIR/.lock-N            held by rank 0 of the run that writes here (lock.h)
 *
 * Writing one: every rank makes its file and FILE.sums in tmp-step-N and fsyncs them and the folder; when all
 * have said so, rank 0 calls zt_ckpt_commit(). A checkpoint is never changed after that.
 */
#ifndef ZT_CKPT_FOLDER_H
#define ZT_CKPT_FOLDER_H

#include "ckpt/checkpoint.h"
#include "ckpt/lock.h"

/* What has a larger number is no checkpoint's folder: ranks tell each other steps in 62 bits. */
#define ZT_CKPT_STEPS 1000000000000000000LL

/* DIR/step-000200, and DIR/tmp-step-000200. */
void zt_ckpt_step_path(const char *dir, int64_t step, struct zt_str *out);
void zt_ckpt_temp_path(const char *dir, int64_t step, struct zt_str *out);

/* The folder holds a manifest, so it is a checkpoint, valid or not. */
bool zt_ckpt_is_one(const char *path);

/* The step of a folder that is called like a checkpoint, wherever it is; false: it has another name. */
bool zt_ckpt_named_step(const char *path, int64_t *step);

/*
 * The steps that DIR has checkpoints of, valid or not, by number; free *steps. None when there is no such
 * folder.
 */
int zt_ckpt_steps(const char *dir, int64_t **steps, int *n, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Under the lock, from here on. Remove what no run finished, and make `latest` right. What cannot be removed stays,
 * and is told in `warnings`, which parts with "; ".
 */
int zt_ckpt_clean(const char *dir, struct zt_str *warnings, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Move the checkpoints of steps above `step` to DIR/before-N, so that the newest by number is this run's.
 * *moved: how many; `where` becomes the folder's name. Nothing is removed, but a `latest` that named none any more.
 */
int zt_ckpt_set_aside(const char *dir, int64_t step, int *moved, struct zt_str *where,
                      struct zt_err *err) ZT_MUST_CHECK;

/*
 * All files are there: write the manifest, rename tmp-step-N to step-N, let `latest` say so. `sums` of the
 * manifest's files are read from FILE.sums. After a failure what was there before is there still. Once the
 * folder has its name the checkpoint is made, and *synced tells whether it will be there after a crash as well:
 * what fails from then on is told in `warnings`. `lock` (NULL: not looked at) is looked at again before each change:
 * any of them may have taken minutes.
 */
int zt_ckpt_commit(const char *dir, struct zt_ckpt_lock *lock, struct zt_manifest *m, bool *synced,
                   struct zt_str *warnings, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Of the checkpoints up to that of `step`, which was just made, remove all but the newest `keep` (0: none) and
 * the multiples of keep_every (0: no such). What is called step-N and has no manifest is no checkpoint.
 */
void zt_ckpt_retain(const char *dir, struct zt_ckpt_lock *lock, int64_t step, int64_t keep,
                    int64_t keep_every, struct zt_str *warnings);

/*
 * A folder with files in it; one that is not there is no error. A folder in it is nothing of ours (a model that
 * was exported there): it stays, with the folder, and is an error once the files are gone.
 */
int zt_ckpt_remove(const char *path, struct zt_err *err) ZT_MUST_CHECK;

/* PATH.sums: the n checksums of the file PATH. Written and fsynced. */
int zt_ckpt_write_sums(const char *path, const struct zt_ckpt_sum *sums, size_t n,
                       struct zt_err *err) ZT_MUST_CHECK;

#endif
