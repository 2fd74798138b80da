#include "model_in.h"

#include <sys/stat.h>

#include "train/train.h"

/* The model of a folder or file, by a recipe that asks for nothing else. */
static int load_recipe(const char *path, struct model_in *in, struct zt_err *err)
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

int model_in_open(const char *path, struct model_in *in, struct zt_err *err)
{
    struct stat st;
    memset(in, 0, sizeof *in);
    if (stat(path, &st))
        return zt_err_errno(err, ZT_EINPUT, "%s", path);
    int rc = load_recipe(path, in, err);
    if (!rc)
        rc = zt_train_model(in->r, &in->arena, &in->model, err);
    if (!rc)
        rc = zt_weights_open(path, in->model, &in->weights, err);
    if (rc)
        model_in_close(in);
    return rc;
}

void model_in_close(struct model_in *in)
{
    zt_weights_close(&in->weights);
    if (in->r)
        zt_recipe_free(in->r);
    zt_arena_release(&in->arena);
    memset(in, 0, sizeof *in);
}

int model_in_read(void *ctx, int param, int64_t begin, int64_t n, float *out, struct zt_err *err)
{
    const struct model_in *in = ctx;
    (void)err;
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
