#include "train/save.h"

#include <unistd.h>

#include "base/size.h"
#include "ckpt/folder.h"
#include "ckpt/lock.h"

/*
 * Before a run is started: may it write into its folder of checkpoints, and is there one to go on from?
 */

static int refuse_used(const char *dir, int64_t newest, struct zt_err *err)
{
    return zt_err_set(err, ZT_EINPUT,
                      "%s: holds the checkpoints of a run, the newest of step %lld; --resume=auto "
                      "goes on from it, --fresh moves them aside and begins anew",
                      dir, (long long)newest);
}

/* Nothing of another run may stay where the newest by number counts. */
static int begin_anew(const char *dir, bool fresh, struct zt_str *notes, struct zt_err *err)
{
    struct zt_str where = {0};
    int64_t *steps;
    int n, moved, rc = zt_ckpt_steps(dir, &steps, &n, err);
    if (!rc && n > 0 && !fresh)
        rc = refuse_used(dir, steps[n - 1], err);
    if (!rc && n > 0)
        rc = zt_ckpt_set_aside(dir, -1, &moved, &where, err);
    if (!rc && n > 0)
        zt_str_printf(notes,
                      "note: checkpoint.dir: %d checkpoint%s of an earlier run moved to %s\n",
                      moved, moved == 1 ? "" : "s", where.buf);
    free(steps);
    zt_str_release(&where);
    return rc;
}

/* Epochs end where their samples do, whatever the number of steps would be from the beginning with this batch. */
static bool nothing_is_left(const struct zt_recipe *r, const struct zt_ckpt_progress *at)
{
    int64_t end;
    const bool epochs = r->train.epochs > 0 && zt_mul_i64(r->train.epochs, at->samples, &end);
    if (epochs && r->train.steps >= (end - 1) / r->batch.train + 1)
        return at->step > r->train.steps && at->position >= end;
    return at->step > r->train.steps;
}

static bool can_open(const struct zt_recipe *r, const struct zt_model *m, int64_t step,
                     struct zt_str *from, struct zt_str *notes, struct zt_err *err)
{
    struct zt_load l;
    zt_load_path(r, step, from);
    if (zt_load_open(&l, from->buf, r, m, notes, err)) {
        zt_str_reset(from);
        return false;
    }
    if (nothing_is_left(r, &l.ckpt.m.at))
        zt_str_printf(
            notes,
            "note: %s is of step %lld, and train.steps is %lld: nothing is left to train; "
            "train.steps counts from a run's beginning\n",
            from->buf, (long long)l.ckpt.m.at.step, (long long)r->train.steps);
    if (r->profile.enabled && r->profile.step <= l.ckpt.m.at.step)
        zt_str_printf(
            notes,
            "note: flops_profiler.profile_step: %lld is not behind step %lld of %s: there "
            "will be no profile\n",
            (long long)r->profile.step, (long long)l.ckpt.m.at.step, from->buf);
    zt_load_close(&l);
    return true;
}

/* At least one can be opened; which one it will be is seen when the files are read. */
static int check_candidates(const struct zt_recipe *r, const struct zt_model *m,
                            struct zt_str *from, struct zt_str *notes, struct zt_err *err)
{
    int64_t *steps;
    int n, rc = zt_load_candidates(r, &steps, &n, err);
    if (rc)
        return rc;
    if (n == 0)
        zt_str_printf(
            notes,
            "note: checkpoint.dir: %s has no checkpoint yet: training begins at its first "
            "step\n",
            r->checkpoint.dir);
    bool good = n == 0;
    for (int i = n - 1; i >= 0 && !good; i--) {
        struct zt_err why;
        good = can_open(r, m, steps[i], from, notes, &why);
        if (!good && i == n - 1)
            *err = why; /* the newest one's */
    }
    free(steps);
    if (good)
        return 0;
    return n == 1 ? err->code : zt_err_wrap(err, "none of %d checkpoints can be used", n);
}

int zt_train_check_checkpoints(const struct zt_recipe *r, const struct zt_model *m, bool fresh,
                               const struct zt_ckpt_wait *wait, struct zt_str *from,
                               struct zt_str *notes, struct zt_err *err)
{
    const struct zt_recipe_checkpoint *c = &r->checkpoint;
    const bool resumes = strcmp(c->resume, "never") != 0, here = zt_train_goes_on_here(r);
    struct zt_ckpt_lock *lock = NULL;
    int rc = 0;
    zt_str_reset(from);
    if (fresh && (here || !c->dir))
        return zt_err_set(err, ZT_EUSAGE,
                          here ? "--fresh begins anew, and --resume goes on from what is there; "
                                 "choose one"
                               : "--fresh is about checkpoint.dir, which is not given");
    if (c->dir && zt_ckpt_lock(c->dir, wait, &lock, err)) {
        err->code = ZT_EINPUT; /* whatever is wrong with it, another folder will do */
        rc = zt_err_wrap(err, "%s: checkpoint.dir", zt_recipe_origin(r, "checkpoint.dir"));
    }
    if (!rc && resumes)
        rc = check_candidates(r, m, from, notes, err);
    if (!rc && c->dir && !here)
        rc = begin_anew(c->dir, fresh, notes, err);
    zt_ckpt_unlock(lock); /* rank 0 takes it again */
    return rc;
}
