/*
 * model_in.h: a model that is read, wherever it is: a checkpoint, a Hugging Face folder, a model file of
 * llm.c.
 */
#ifndef ZT_CMD_MODEL_IN_H
#define ZT_CMD_MODEL_IN_H

#include "base/arena.h"
#include "ckpt/export.h"
#include "ckpt/safetensors.h"
#include "recipe/recipe.h"

struct model_in {
    struct zt_recipe *r;
    struct zt_model *model;
    bool is_ckpt; /* else `weights` */
    bool failed;  /* to read of the checkpoint */
    struct zt_ckpt ckpt;
    const struct zt_ckpt_tensor **tensors; /* (model->n_params) */
    struct zt_weights weights;
    struct zt_arena arena;
};

/*
 * The weights fit the model. `step` and `tried` are of the folder of a run (ckpt/export.h); of other things
 * step must be ZT_EXPORT_NEWEST. Newer checkpoints that are passed over are told in `notes`. A failed one leaves
 * nothing to close.
 */
int model_in_open(const char *path, int64_t step, struct zt_export_tried *tried,
                  struct model_in *in, struct zt_str *notes, struct zt_err *err) ZT_MUST_CHECK;
void model_in_close(struct model_in *in);

/*
 * All parameters of `m`, in->model or one with fewer tokens, will be read from begin to end, in order: do so
 * ahead.
 */
void model_in_read_ahead(struct model_in *in, const struct zt_model *m);

/* Elements [begin, begin + n) of a parameter in fp32; ctx is the model_in. For struct zt_hf_source. */
int model_in_read(void *ctx, int param, int64_t begin, int64_t n, float *out,
                  struct zt_err *err) ZT_MUST_CHECK;

/* The value of a key that the resolved recipe has; NULL: none. */
const char *model_in_value(const struct model_in *in, const char *key);

#endif
