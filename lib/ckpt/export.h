/*
 * export.h: which checkpoint a path means, and its tensors as the parameters of a model.
 */
#ifndef ZT_CKPT_EXPORT_H
#define ZT_CKPT_EXPORT_H

#include "base/str.h"
#include "ckpt/checkpoint.h"
#include "model/model.h"

enum { ZT_EXPORT_NEWEST = -1 };

/* The folder holds folders step-N, the checkpoints of a run. */
bool zt_export_is_run(const char *path);

/* The folders step-N that were tried, by N; zeroed: none yet. Free `steps`. */
struct zt_export_tried {
    int64_t *steps;
    int n;
    size_t cap;
};

/*
 * Open the checkpoint of `step` in the folder of a run; with ZT_EXPORT_NEWEST the newest valid one that was not
 * tried, and it was now; or the one whose own folder `path` is. Newer ones that are not valid are told in
 * `notes`, a line each; those that a run removes meanwhile, as it makes newer ones, are not.
 */
int zt_export_pick(const char *path, int64_t step, struct zt_export_tried *tried, struct zt_ckpt *c,
                   struct zt_str *notes, struct zt_err *err) ZT_MUST_CHECK;

/*
 * tensors[i] (of m->n_params) becomes the checkpoint's tensor of parameter i. ZT_EINPUT: one is missing, has
 * another shape, or belongs to no parameter.
 */
int zt_export_match(const struct zt_ckpt *c, const struct zt_model *m,
                    const struct zt_ckpt_tensor **tensors, struct zt_err *err) ZT_MUST_CHECK;

#endif
