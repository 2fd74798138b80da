#include "model_in.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "ckpt/folder.h"
#include "ckpt/llmc.h"
#include "train/train.h"

/* The model of a folder or file, by a recipe that asks for nothing else. */
static int recipe_of_weights(const char *path, struct model_in *in, struct zt_err *err)
{
    char *whole = realpath(path, NULL);
    const char *set[] = {zt_arena_printf(&in->arena, "model.from=%s", whole ? whole : path)};
    struct zt_recipe_opts opts = {
        .path = path,
        .text = "data: {train: none, seq_len: 1}\ntrain_batch_size: 1\ntrain: {steps: 1}\n",
        .set = {1, set},
        .n_ranks = 1};
    free(whole);
    return zt_recipe_load(&opts, &in->r, err);
}

/* What it is not, in words of its own: a recipe would speak of model.from. */
static int check_weights(const char *path, const struct stat *st, struct zt_err *err)
{
    struct zt_mapped map = {0};
    struct zt_str config = {0};
    bool good;
    int rc = 0;
    if (S_ISDIR(st->st_mode)) {
        zt_str_printf(&config, "%s/config.json", path);
        good = access(config.buf, F_OK) == 0;
        zt_str_release(&config);
    } else {
        rc = zt_map_file(path, &map, err);
        good = !rc && zt_is_llmc_model(map.data, map.bytes);
        zt_unmap_file(&map);
    }
    if (rc || good)
        return rc;
    return zt_err_set(
        err, ZT_EINPUT,
        S_ISDIR(st->st_mode)
            ? "%s: holds no model: neither a checkpoint nor a config.json"
            : "%s: is no model file of llm.c; of a checkpoint or a Hugging Face model, "
              "name the folder",
        path);
}

static int open_weights(const char *path, const struct stat *st, struct model_in *in,
                        struct zt_err *err)
{
    int rc = check_weights(path, st, err);
    if (!rc)
        rc = recipe_of_weights(path, in, err);
    if (!rc)
        rc = zt_train_model(in->r, &in->arena, &in->model, err);
    return rc ? rc : zt_weights_open(path, in->model, &in->weights, err);
}

/* The recipe that a checkpoint was made by. What its training began with may be gone or changed meanwhile. */
static int recipe_of_checkpoint(struct model_in *in, struct zt_err *err)
{
    const struct zt_recipe_opts opts = {
        .path = zt_arena_printf(&in->arena, "%s: recipe", in->ckpt.path),
        .text = in->ckpt.m.recipe,
        .n_ranks = zt_mesh_world(&in->ckpt.m.mesh),
        .resolved = true,
        .for_plan = true};
    return zt_recipe_load(&opts, &in->r, err);
}

static int open_checkpoint(const char *path, int64_t step, struct zt_export_tried *tried,
                           struct model_in *in, struct zt_str *notes, struct zt_err *err)
{
    int rc = zt_export_pick(path, step, tried, &in->ckpt, notes, err);
    in->is_ckpt = rc == 0;
    if (!rc)
        rc = recipe_of_checkpoint(in, err);
    if (!rc)
        rc = zt_train_model(in->r, &in->arena, &in->model, err);
    if (rc)
        return rc;
    in->tensors = zt_arena_alloc(&in->arena, (size_t)in->model->n_params, sizeof *in->tensors);
    return zt_export_match(&in->ckpt, in->model, in->tensors, err);
}

int model_in_open(const char *path, int64_t step, struct zt_export_tried *tried,
                  struct model_in *in, struct zt_str *notes, struct zt_err *err)
{
    struct stat st;
    int rc;
    memset(in, 0, sizeof *in);
    if (stat(path, &st))
        return zt_err_errno(err, ZT_EINPUT, "%s", path);
    if (zt_ckpt_is_one(path) || zt_export_is_run(path))
        rc = open_checkpoint(path, step, tried, in, notes, err);
    else if (step != ZT_EXPORT_NEWEST)
        rc = zt_err_set(err, ZT_EINPUT, "%s: holds no checkpoints, so there is no step %lld", path,
                        (long long)step);
    else
        rc = open_weights(path, &st, in, err);
    if (rc)
        model_in_close(in);
    return rc;
}

void model_in_close(struct model_in *in)
{
    if (in->is_ckpt)
        zt_ckpt_close(&in->ckpt);
    zt_weights_close(&in->weights);
    if (in->r)
        zt_recipe_free(in->r);
    zt_arena_release(&in->arena);
    memset(in, 0, sizeof *in);
}

void model_in_read_ahead(struct model_in *in, const struct zt_model *m)
{
    if (!in->is_ckpt)
        return;
    for (int i = 0; i < m->n_params; i++)
        zt_ckpt_expect(&in->ckpt, in->tensors[i], ZT_CKPT_PARAM, 0, m->params[i].n_elems);
    zt_ckpt_read_ahead(&in->ckpt);
}

int model_in_read(void *ctx, int param, int64_t begin, int64_t n, float *out, struct zt_err *err)
{
    struct model_in *in = ctx;
    if (in->is_ckpt) {
        int rc = zt_ckpt_read_f32(&in->ckpt, in->tensors[param], ZT_CKPT_PARAM, begin, n, out, err);
        in->failed |= rc != 0;
        return rc;
    }
    zt_weights_read_f32(&in->weights, param, begin, n, out);
    return 0;
}

const char *model_in_value(const struct model_in *in, const char *key)
{
    for (int i = 0; i < in->r->n_values; i++) {
        if (strcmp(in->r->values[i].key, key) == 0)
            return in->r->values[i].value;
    }
    return NULL;
}
