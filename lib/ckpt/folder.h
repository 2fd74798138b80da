/*
 * folder.h: the folder that a run keeps its checkpoints in, and the only ways to change it.
 *
 *     DIR/step-000200/       a checkpoint: complete, since it got that name by one rename
 *     DIR/tmp-step-N/        what is being written (tmp-old-N: removed; tmp-probe-N: a sign of rank N);
 *                            whoever holds the lock may remove it
 *     DIR/before-1/          what another run left, moved out of the way
 *     DIR/latest             a line with the newest one's name, for people and other programs
 *     DIR/.lock-N            held by rank 0 of the run that writes here (lock.h)
 *
 * Writing one: every rank makes its file and FILE.sums in tmp-step-N and fsyncs them and the folder; when all
 * have said so, rank 0 calls zt_ckpt_commit(). A checkpoint is never changed after that.
 */
#ifndef ZT_CKPT_FOLDER_H
#define ZT_CKPT_FOLDER_H

#include "ckpt/checkpoint.h"

/* DIR/step-000200, and DIR/tmp-step-000200. */
void zt_ckpt_step_path(const char *dir, int64_t step, struct zt_str *out);
void zt_ckpt_temp_path(const char *dir, int64_t step, struct zt_str *out);

/*
 * The steps that DIR has checkpoints of, valid or not, by number; free *steps. None when there is no such
 * folder.
 */
int zt_ckpt_steps(const char *dir, int64_t **steps, int *n, struct zt_err *err) ZT_MUST_CHECK;

/* Under the lock, from here on. Remove what no run finished. */
int zt_ckpt_clean(const char *dir, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Move the checkpoints of steps above `step` to DIR/before-N, so that the newest by number is this run's.
 * *moved: how many; `where` becomes the folder's name. Nothing is removed.
 */
int zt_ckpt_set_aside(const char *dir, int64_t step, int *moved, struct zt_str *where,
                      struct zt_err *err) ZT_MUST_CHECK;

/*
 * All files are there: write the manifest, rename tmp-step-N to step-N, let `latest` say so. `sums` of the
 * manifest's files are read from FILE.sums. After a failure what was there before is there still.
 */
int zt_ckpt_commit(const char *dir, struct zt_manifest *m, struct zt_err *err) ZT_MUST_CHECK;

/* Remove all but the newest `keep` checkpoints (0: none), and the multiples of keep_every (0: no such). */
int zt_ckpt_retain(const char *dir, int64_t keep, int64_t keep_every,
                   struct zt_err *err) ZT_MUST_CHECK;

/* A folder with files, and nothing else, in it. One that is not there is no error. */
int zt_ckpt_remove(const char *path, struct zt_err *err) ZT_MUST_CHECK;

int zt_fsync_dir(const char *path, struct zt_err *err) ZT_MUST_CHECK;

/* PATH.sums: checksums of the file PATH of that many bytes. Written and fsynced; read and checked. */
int zt_ckpt_write_sums(const char *path, const struct zt_ckpt_sum *sums, size_t n,
                       struct zt_err *err) ZT_MUST_CHECK;
int zt_ckpt_read_sums(const char *path, struct zt_ckpt_sum *sums, size_t n,
                      struct zt_err *err) ZT_MUST_CHECK;

#endif
