#include "train/save.h"

#include <unistd.h>

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

/* At least one can be opened; which one it will be is seen when the files are read. */
static int check_candidates(const struct zt_recipe *r, const struct zt_model *m,
                            struct zt_str *from, struct zt_str *notes, struct zt_err *err)
{
    char **paths;
    int n, rc = zt_load_candidates(r, &paths, &n, err);
    bool good = false;
    if (rc)
        return rc;
    if (n == 0)
        zt_str_printf(
            notes,
            "note: checkpoint.dir: %s has no checkpoint yet: training begins at its first "
            "step\n",
            r->checkpoint.dir);
    for (int i = n - 1; i >= 0 && !good; i--) {
        struct zt_load l;
        struct zt_err why;
        good = zt_load_open(&l, paths[i], r, m, notes, &why) == 0;
        if (good) {
            zt_load_close(&l);
            zt_str_puts(from, paths[i]);
        } else if (i == n - 1) {
            *err = why; /* the newest one's */
        }
    }
    zt_load_free_candidates(paths, n);
    if (n == 0 || good)
        return 0;
    return n == 1 ? err->code : zt_err_wrap(err, "none of %d checkpoints can be used", n);
}

/* Is `path` in `dir`, or `dir` itself, however they are spelled? */
static bool is_inside(const char *path, const char *dir)
{
    char *p = realpath(path, NULL), *d = realpath(dir, NULL);
    const size_t n = d ? strlen(d) : 0;
    const bool inside = p && d && strncmp(p, d, n) == 0 && (p[n] == '/' || p[n] == '\0');
    free(p);
    free(d);
    return inside;
}

int zt_train_check_checkpoints(const struct zt_recipe *r, const struct zt_model *m, bool fresh,
                               const struct zt_ckpt_wait *wait, struct zt_str *from,
                               struct zt_str *notes, struct zt_err *err)
{
    const struct zt_recipe_checkpoint *c = &r->checkpoint;
    const bool newest = strcmp(c->resume, "newest") == 0, resumes = strcmp(c->resume, "never") != 0;
    const bool here = newest || (resumes && c->dir && is_inside(c->resume, c->dir));
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
