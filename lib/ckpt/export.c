#include "ckpt/export.h"

#include <unistd.h>

#include "ckpt/folder.h"

bool zt_export_is_run(const char *path)
{
    int64_t *steps;
    int n;
    struct zt_err err;
    if (zt_ckpt_steps(path, &steps, &n, &err))
        return false;
    free(steps);
    return n > 0;
}

/* Is `step` there? Without one, that is an error which says which there are. */
static int check_step(const char *path, int64_t step, const int64_t *steps, int n,
                      struct zt_err *err)
{
    for (int i = 0; i < n; i++) {
        if (steps[i] == step)
            return 0;
    }
    return zt_err_set(err, ZT_EINPUT,
                      "%s: no checkpoint of step %lld; there are %d, from %lld to %lld", path,
                      (long long)step, n, (long long)steps[0], (long long)steps[n - 1]);
}

static int open_step(const char *path, int64_t step, struct zt_ckpt *c, struct zt_err *err)
{
    struct zt_str folder = {0};
    zt_ckpt_step_path(path, step, &folder);
    int rc = zt_ckpt_open(folder.buf, c, err);
    zt_str_release(&folder);
    return rc;
}

static bool is_there(const char *path, int64_t step)
{
    struct zt_str folder = {0};
    zt_ckpt_step_path(path, step, &folder);
    const bool there = access(folder.buf, F_OK) == 0;
    zt_str_release(&folder);
    return there;
}

static bool was_tried(const struct zt_export_tried *tried, int64_t step)
{
    for (int i = 0; i < tried->n; i++)
        if (tried->steps[i] == step)
            return true;
    return false;
}

/* Of those that are there now; -1: all were tried. */
static int next_to_try(const char *path, const struct zt_export_tried *tried, int64_t *next,
                       struct zt_err *err)
{
    int64_t *steps;
    int n, rc = zt_ckpt_steps(path, &steps, &n, err);
    if (rc)
        return rc;
    while (n > 0 && was_tried(tried, steps[n - 1]))
        n--;
    *next = n > 0 ? steps[n - 1] : -1;
    free(steps);
    return 0;
}

static int open_newest(const char *path, struct zt_export_tried *tried, struct zt_ckpt *c,
                       struct zt_str *notes, struct zt_err *err)
{
    for (;;) {
        int64_t step;
        int rc = next_to_try(path, tried, &step, err);
        if (rc)
            return rc;
        if (step < 0)
            break;
        ZT_GROW(tried->steps, (size_t)tried->n + 1, tried->cap);
        tried->steps[tried->n++] = step;
        rc = open_step(path, step, c, err);
        if (!rc || (rc != ZT_EINPUT && is_there(path, step)))
            return rc;
        if (is_there(path, step))
            zt_str_printf(notes, "%s%s; it is passed over", notes->len ? "\n" : "", err->msg);
    }
    return zt_err_set(err, ZT_EINPUT, "%s: none of its %d checkpoints is valid", path, tried->n);
}

int zt_export_pick(const char *path, int64_t step, struct zt_export_tried *tried, struct zt_ckpt *c,
                   struct zt_str *notes, struct zt_err *err)
{
    int64_t *steps;
    int n, rc;
    if (zt_ckpt_is_one(path)) {
        rc = zt_ckpt_open(path, c, err);
        if (!rc && step != ZT_EXPORT_NEWEST && step != c->m.at.step) {
            rc = zt_err_set(err, ZT_EINPUT, "%s: is the checkpoint of step %lld, not of %lld", path,
                            (long long)c->m.at.step, (long long)step);
            zt_ckpt_close(c);
        }
        return rc;
    }
    rc = zt_ckpt_steps(path, &steps, &n, err);
    if (rc)
        return rc;
    if (n == 0 && tried->n == 0)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: no checkpoint: it has neither " ZT_CKPT_MANIFEST " nor folders step-N",
                        path);
    else if (step == ZT_EXPORT_NEWEST)
        rc = open_newest(path, tried, c, notes, err);
    else if (!(rc = check_step(path, step, steps, n, err)))
        rc = open_step(path, step, c, err);
    free(steps);
    return rc;
}

int zt_export_match(const struct zt_ckpt *c, const struct zt_model *m,
                    const struct zt_ckpt_tensor **tensors, struct zt_err *err)
{
    for (int i = 0; i < m->n_params; i++) {
        const struct zt_param_spec *s = &m->params[i];
        const struct zt_ckpt_tensor *t = zt_manifest_find(&c->m, s->name);
        if (!t)
            return zt_err_set(err, ZT_EINPUT, "%s: no tensor %s, which the model of its recipe has",
                              c->path, s->name);
        if (t->n_dims != s->n_dims ||
            memcmp(t->dims, s->dims, (size_t)s->n_dims * sizeof *s->dims) != 0)
            return zt_err_set(err, ZT_EINPUT,
                              "%s: tensor %s has another shape than in the model of its recipe",
                              c->path, s->name);
        tensors[i] = t;
    }
    if (c->m.n_tensors != m->n_params)
        return zt_err_set(err, ZT_EINPUT, "%s: %d tensors, but the model of its recipe has %d",
                          c->path, c->m.n_tensors, m->n_params);
    return 0;
}
