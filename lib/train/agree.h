/*
 * agree.h: what ranks have to say to each other outside of a step: runs of AGREE, which every plan has. Internal to
 * lib/train (and its tests). All of it is collective, with nothing running.
 */
#ifndef ZT_TRAIN_AGREE_H
#define ZT_TRAIN_AGREE_H

#include "base/mark.h"
#include "train/engine.h"

/* The vote of all ranks now. vote->saving is ZT_SAVING_FAILED when any says so; the lowest is rank world - vote->save. */
int zt_run_agree(struct zt_engine *e, enum zt_saving mine, struct zt_vote *vote,
                 struct zt_err *err) ZT_MUST_CHECK;

/* The highest of what the ranks give, each from 0 to below 2^62. */
int zt_run_highest(struct zt_engine *e, int64_t mine, int64_t *highest,
                   struct zt_err *err) ZT_MUST_CHECK;

/*
 * Each rank has files of its own, which must be those of rank 0: `what` they are, and their marks, which are read
 * here. Else ZT_EINPUT of the lowest rank that has others, which says in what, and ZT_EPEER without a message of all others.
 */
int zt_run_check_same(struct zt_engine *e, const char *what, struct zt_marks *mine,
                      struct zt_err *err) ZT_MUST_CHECK;

/* "rank 3 on node2", for messages about this host. */
struct zt_rank_name {
    char text[288];
};
struct zt_rank_name zt_rank_name(int rank);

#endif
