#include "train/save.h"

#include <errno.h>
#include <unistd.h>

#include "base/size.h"
#include "ckpt/folder.h"
#include "optim/groups.h"

static bool same_shape(const struct zt_ckpt_tensor *t, const struct zt_param_spec *s)
{
    return t->n_dims == s->n_dims &&
           memcmp(t->dims, s->dims, (size_t)s->n_dims * sizeof *s->dims) == 0;
}

static int match(struct zt_load *l, const struct zt_recipe *r, const struct zt_model *m,
                 struct zt_err *err)
{
    const struct zt_manifest *c = &l->ckpt.m;
    char ours[160], theirs[160];
    for (int i = 0; i < m->n_params; i++) {
        const struct zt_param_spec *s = &m->params[i];
        const struct zt_ckpt_tensor *t = zt_manifest_find(c, s->name);
        if (!t)
            return zt_err_set(err, ZT_EINPUT,
                              "it has no tensor %s, which the recipe's model has: it is of another "
                              "model",
                              s->name);
        if (!same_shape(t, s))
            return zt_err_set(err, ZT_EINPUT,
                              "tensor %s has shape [%s], and the recipe's model wants [%s]",
                              s->name, zt_fmt_dims(theirs, sizeof theirs, t->n_dims, t->dims),
                              zt_fmt_dims(ours, sizeof ours, s->n_dims, s->dims));
        l->tensors[i] = t;
    }
    if (c->n_tensors != m->n_params)
        return zt_err_set(err, ZT_EINPUT,
                          "it has %d tensors, and the recipe's model %d: it is of another model",
                          c->n_tensors, m->n_params);
    int64_t samples; /* steps of this batch: take_progress() counts from there */
    if (!zt_mul_i64(c->at.step, r->batch.train, &samples))
        return zt_err_set(err, ZT_EINPUT, "its step, %lld, is too large for a batch of %lld",
                          (long long)c->at.step, (long long)r->batch.train);
    if ((strcmp(c->optimizer, "Lion") == 0) != (r->optimizer.kind == ZT_LION))
        return zt_err_set(err, ZT_EINPUT,
                          "its moments are those of %s, and the recipe's optimizer is %s; take the "
                          "weights alone: zerotrain export, then model.from",
                          c->optimizer, r->optimizer.type);
    return 0;
}

/* What will not go on exactly as it would have. */
static void note_changes(const struct zt_load *l, const struct zt_recipe *r,
                         const struct zt_model *m, struct zt_str *notes)
{
    const struct zt_ckpt_progress *at = &l->ckpt.m.at;
    int n_new = 0;
    if ((uint64_t)at->seed != r->train.seed)
        zt_str_printf(notes,
                      "note: train.seed was %lld and is %llu: the order of the data and dropout go "
                      "on differently\n",
                      (long long)at->seed, (unsigned long long)r->train.seed);
    if (at->seq_len != r->data.seq_len)
        zt_str_printf(notes,
                      "note: data.seq_len was %lld and is %lld: the place in the data counts "
                      "sequences, and goes on at the same number\n",
                      (long long)at->seq_len, (long long)r->data.seq_len);
    for (int i = 0; i < m->n_params; i++)
        n_new += m->params[i].trainable && !l->tensors[i]->parts[ZT_CKPT_M].n;
    if (n_new)
        zt_str_printf(notes,
                      "note: %d tensors were frozen and are trained now: their moments begin at "
                      "zero\n",
                      n_new);
}

int zt_load_open(struct zt_load *l, const char *path, const struct zt_recipe *r,
                 const struct zt_model *m, struct zt_str *notes, struct zt_err *err)
{
    memset(l, 0, sizeof *l);
    int rc = zt_ckpt_open(path, &l->ckpt, err);
    if (rc)
        return rc;
    l->open = true;
    l->tensors = zt_xcalloc((size_t)m->n_params, sizeof *l->tensors);
    if (match(l, r, m, err)) {
        zt_load_close(l);
        return zt_err_wrap(err, "%s", path);
    }
    if (notes)
        note_changes(l, r, m, notes);
    return 0;
}

void zt_load_close(struct zt_load *l)
{
    if (l->open)
        zt_ckpt_close(&l->ckpt);
    free(l->tensors);
    memset(l, 0, sizeof *l);
}

/* Which elements [lo, hi) of the i-th parameter of a unit lie in [begin, end) of it; NULL: there is no such part. */
static const struct zt_ckpt_tensor *overlap(const struct zt_load *l, const struct zt_plan *p,
                                            int unit, int i, enum zt_ckpt_part_kind part,
                                            int64_t begin, int64_t end, int64_t *lo, int64_t *hi)
{
    const struct zt_unit *u = &p->units[unit];
    const int param = u->first_param + i;
    const int64_t off = u->param_off[i], elems = p->model->params[param].n_elems;
    *lo = ZT_MAX(begin - off, (int64_t)0);
    *hi = ZT_MIN(end - off, elems);
    return *lo < *hi && l->tensors[param]->parts[part].n ? l->tensors[param] : NULL;
}

void zt_load_expect(struct zt_load *l, const struct zt_plan *p, int unit,
                    enum zt_ckpt_part_kind part, int64_t begin, int64_t n)
{
    const struct zt_unit *u = &p->units[unit];
    for (int i = 0; i < u->n_params; i++) {
        int64_t lo, hi;
        const struct zt_ckpt_tensor *t = overlap(l, p, unit, i, part, begin, begin + n, &lo, &hi);
        if (t)
            zt_ckpt_expect(&l->ckpt, t, part, lo, hi - lo);
    }
}

void zt_load_fill(struct zt_load *l, const struct zt_plan *p, int unit, enum zt_ckpt_part_kind part,
                  int64_t begin, int64_t n, float *out)
{
    const struct zt_unit *u = &p->units[unit];
    int64_t done = 0; /* elements up to here are what they should be */
    for (int i = 0; i < u->n_params && l->open && !l->err.code; i++) {
        int64_t lo, hi;
        struct zt_err err;
        const struct zt_ckpt_tensor *t = overlap(l, p, unit, i, part, begin, begin + n, &lo, &hi);
        if (!t)
            continue;
        const int64_t at = u->param_off[i] + lo - begin;
        memset(out + done, 0, (size_t)(at - done) * sizeof *out);
        done = at;
        if (zt_ckpt_read_f32(&l->ckpt, t, part, lo, hi - lo, out + at, &err))
            l->err = err;
        else
            done = at + hi - lo;
    }
    if (l->err.code)
        done = 0;
    memset(out + done, 0, (size_t)(n - done) * sizeof *out);
}

/* Of several checkpoints, one is taken. */
static const char *folder(const struct zt_recipe *r)
{
    const struct zt_recipe_checkpoint *c = &r->checkpoint;
    return strcmp(c->resume, "newest") == 0 ? c->dir : c->resume;
}

void zt_load_path(const struct zt_recipe *r, int64_t step, struct zt_str *out)
{
    zt_str_reset(out);
    if (step == ZT_LOAD_NAMED)
        zt_str_puts(out, r->checkpoint.resume);
    else
        zt_ckpt_step_path(folder(r), step, out);
}

/* Is `path` the folder `dir`, or a checkpoint in it, however they are spelled? What lies deeper was moved aside. */
static bool is_of(const char *path, const char *dir)
{
    char *p = realpath(path, NULL), *d = realpath(dir, NULL);
    const size_t n = d ? strlen(d) : 0;
    bool is = p && d && strncmp(p, d, n) == 0;
    if (is && p[n] != '\0') {
        const char *name = p + n + 1;
        is = p[n] == '/' && strncmp(name, "step-", 5) == 0 && !strchr(name, '/');
    }
    free(p);
    free(d);
    return is;
}

bool zt_train_goes_on_here(const struct zt_recipe *r)
{
    const struct zt_recipe_checkpoint *c = &r->checkpoint;
    if (!c->dir || strcmp(c->resume, "never") == 0)
        return false;
    return strcmp(c->resume, "newest") == 0 || is_of(c->resume, c->dir);
}

int zt_load_candidates(const struct zt_recipe *r, int64_t **steps, int *n, struct zt_err *err)
{
    const bool newest = strcmp(r->checkpoint.resume, "newest") == 0;
    if (!newest && zt_ckpt_is_one(r->checkpoint.resume)) {
        *steps = zt_xcalloc(1, sizeof **steps);
        **steps = ZT_LOAD_NAMED;
        *n = 1;
        return 0;
    }
    int rc = zt_ckpt_steps(folder(r), steps, n, err);
    if (rc || *n > 0 || newest)
        return rc;
    free(*steps);
    *steps = NULL;
    if (access(r->checkpoint.resume, F_OK))
        return zt_err_set(err, ZT_EINPUT, "%s: no checkpoint: %s", r->checkpoint.resume,
                          strerror(errno));
    return zt_err_set(err, ZT_EINPUT,
                      "%s: no checkpoint: it has neither " ZT_CKPT_MANIFEST " nor folders step-N",
                      r->checkpoint.resume);
}
