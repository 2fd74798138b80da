#include "train/save.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/thread.h"
#include "base/version.h"
#include "ckpt/folder.h"
#include "ckpt/lock.h"
#include "train/agree.h"
#include "train/report.h"

/*
 * A save goes through two phases: every rank writes its file (WRITE), then, when all have said that they
 * are done, rank 0 makes the checkpoint visible (COMMIT). Each phase may run on a thread of its own, which
 * touches the snapshot, the layout and the result, and nothing of the training thread until it is joined.
 */
enum phase { IDLE, WRITE, WRITTEN, COMMIT };

struct zt_saver {
    const struct zt_recipe *r;
    const struct zt_train_env *env;
    struct zt_engine *engine;
    const char *dir;
    struct zt_ckpt_lock *lock; /* rank 0's */
    struct zt_layout layout;
    bool snapshot; /* the plan has a copy that is written from while training goes on */

    enum phase phase;
    bool threaded; /* the phase has a thread, which is not joined */
    pthread_t thread;
    atomic_bool thread_done;
    int rc; /* of this rank's part of the save, and of the commit */
    struct zt_err err;
    struct zt_str warnings; /* of the commit: what failed when the checkpoint was made */
    bool others_failed;
    int64_t last_good; /* step of the last checkpoint that this run made; -1: none */

    /* training waited stall_ns; this rank wrote for write_ns, snapshot included; end_ns: of the commit */
    int64_t asked_ns, start_ns, stall_ns, write_ns, end_ns;
};

/* ---- the file of this rank ---- */

/* From the state itself, in pieces; nothing may run. */
static int put_state(struct zt_saver *s, struct zt_shard_writer *w,
                     const struct zt_save_source *src, struct zt_err *err)
{
    const unsigned char *at =
        (const unsigned char *)zt_engine_buf(s->engine, src->state) + src->state_offset;
    for (size_t done = 0, n; done < src->bytes; done += n) {
        const unsigned char *p;
        n = zt_view_bytes(done, src->bytes);
        int rc = zt_engine_view(s->engine, at + done, n, &p, err);
        if (!rc)
            rc = zt_shard_put(w, p, n, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int put_pieces(struct zt_saver *s, struct zt_shard_writer *w, struct zt_err *err)
{
    const struct zt_layout *l = &s->layout;
    int rc = zt_shard_put(w, l->header.buf, l->header.len, err);
    for (int i = 0; i < l->n && !rc; i++) {
        const struct zt_save_source *src = &l->sources[i];
        if (src->snapshot < 0)
            rc = put_state(s, w, src, err);
        else
            rc = zt_shard_put(
                w, (unsigned char *)zt_engine_buf(s->engine, src->snapshot) + src->slice_offset,
                src->bytes, err);
    }
    return rc;
}

static int write_file(struct zt_saver *s, const char *path, struct zt_err *err)
{
    struct zt_shard_writer *w;
    struct zt_ckpt_sum *sums = NULL;
    size_t n_sums;
    const size_t bytes = s->layout.m.files[s->engine->plan->shard_rank].bytes;
    int rc = zt_shard_create(path, bytes, &w, err);
    if (rc)
        return rc;
    rc = put_pieces(s, w, err);
    if (rc) {
        zt_shard_abandon(w);
        return rc;
    }
    rc = zt_shard_finish(w, &sums, &n_sums, err);
    if (rc)
        return rc;
    rc = zt_ckpt_write_sums(path, sums, n_sums, err);
    free(sums);
    return rc;
}

/* Every rank makes the folder: whoever comes first. */
static int write_part(struct zt_saver *s, struct zt_err *err)
{
    struct zt_str temp = {0}, path = {0};
    int rc = 0;
    zt_ckpt_temp_path(s->dir, s->layout.m.at.step, &temp);
    zt_str_printf(&path, "%s/%s", temp.buf, s->layout.m.files[s->engine->plan->shard_rank].name);
    if (mkdir(temp.buf, 0777) && errno != EEXIST)
        rc = zt_err_errno(err, ZT_EIO, "%s: mkdir", temp.buf);
    if (!rc)
        rc = write_file(s, path.buf, err);
    if (!rc)
        rc = zt_fsync_dir(temp.buf, err);
    s->write_ns = zt_now_ns() - s->start_ns;
    zt_str_release(&temp);
    zt_str_release(&path);
    return rc;
}

int zt_saver_check(struct zt_saver *s, struct zt_err *err)
{
    return zt_ckpt_lock_check(s->lock, err);
}

/* Rank 0: all parts are there. */
static int commit(struct zt_saver *s, struct zt_err *err)
{
    const struct zt_recipe_checkpoint *c = &s->r->checkpoint;
    bool synced;
    zt_str_reset(&s->warnings);
    int rc = zt_ckpt_commit(s->dir, s->lock, &s->layout.m, &synced, &s->warnings, err);
    if (!rc && synced) /* else the older ones may be what a crash leaves */
        zt_ckpt_retain(s->dir, s->lock, s->layout.m.at.step, c->keep, c->keep_every, &s->warnings);
    return rc;
}

/* ---- phases ---- */

static void work(struct zt_saver *s)
{
    s->rc = s->phase == WRITE ? write_part(s, &s->err) : commit(s, &s->err);
    s->end_ns = zt_now_ns();
}

static void *run_thread(void *arg)
{
    struct zt_saver *s = arg;
    work(s);
    atomic_store(&s->thread_done, true);
    return NULL;
}

/* Without a snapshot, or a thread, the work is done here and now. */
static void begin_phase(struct zt_saver *s, enum phase phase)
{
    struct zt_err ignored;
    s->phase = phase;
    atomic_store(&s->thread_done, false);
    s->threaded =
        s->snapshot && zt_thread_start(&s->thread, "ckpt-save", run_thread, s, &ignored) == 0;
    if (!s->threaded) {
        work(s);
        atomic_store(&s->thread_done, true);
    }
}

static void join_thread(struct zt_saver *s)
{
    if (s->threaded)
        pthread_join(s->thread, NULL);
    s->threaded = false;
}

static int report_saved(struct zt_saver *s, struct zt_err *err)
{
    const struct zt_manifest *m = &s->layout.m;
    struct zt_str path = {0};
    int64_t bytes = 0;
    for (int i = 0; i < m->n_files; i++)
        bytes += (int64_t)m->files[i].bytes;
    if (!s->snapshot) /* training has waited for all of it */
        s->stall_ns = zt_now_ns() - s->asked_ns;
    zt_ckpt_step_path(s->dir, m->at.step, &path);
    int rc = zt_report(s->env,
                       json_pack("{s:s, s:I, s:s, s:I, s:f, s:f, s:f}", "type", "save", "step",
                                 (json_int_t)m->at.step, "path", path.buf, "bytes",
                                 (json_int_t)bytes, "stall_ms", (double)s->stall_ns * 1e-6,
                                 "write_ms", (double)s->write_ns * 1e-6, "total_ms",
                                 (double)(s->end_ns - s->start_ns) * 1e-6),
                       err);
    zt_str_release(&path);
    return rc;
}

static int report_warnings(const struct zt_saver *s, const char *what,
                           const struct zt_str *warnings, struct zt_err *err)
{
    struct zt_str text = {0};
    if (warnings->len == 0)
        return 0;
    zt_str_printf(&text, "WARNING: %s: %s", what, warnings->buf);
    int rc = zt_report_notice(s->env, text.buf, err);
    zt_str_release(&text);
    return rc;
}

/* Rank 0 says what it means, the rank that failed says why. */
static int report_failed(struct zt_saver *s, struct zt_err *err)
{
    struct zt_str text = {0};
    int rc = 0;
    if (s->rc) {
        zt_str_printf(&text, "WARNING: rank %d: %s", s->env->rank, s->err.msg);
        rc = zt_report_notice(s->env, text.buf, err);
    }
    if (!rc && s->env->rank == 0) {
        zt_str_reset(&text);
        zt_str_printf(&text, "WARNING: step %lld could not be saved; ",
                      (long long)s->layout.m.at.step);
        if (s->last_good >= 0)
            zt_str_printf(&text, "the last checkpoint of this run is that of step %lld",
                          (long long)s->last_good);
        else
            zt_str_puts(&text, "this run has no checkpoint");
        rc = zt_report_notice(s->env, text.buf, err);
    }
    zt_str_release(&text);
    return rc;
}

/* The save is over, well or not; what it left unfinished goes. */
static int conclude(struct zt_saver *s, struct zt_err *err)
{
    const bool failed = s->rc || s->others_failed;
    s->phase = IDLE;
    if (failed && s->lock && zt_ckpt_lock_check(s->lock, err))
        return err->code; /* the folder is another run's */
    if (failed && s->env->rank == 0) {
        struct zt_str temp = {0};
        struct zt_err ignored;
        zt_ckpt_temp_path(s->dir, s->layout.m.at.step, &temp);
        (void)!zt_ckpt_remove(temp.buf, &ignored);
        zt_str_release(&temp);
    }
    if (failed)
        return report_failed(s, err);
    s->last_good = s->layout.m.at.step;
    if (s->env->rank != 0)
        return 0;
    int rc = report_saved(s, err);
    return rc ? rc : report_warnings(s, "the checkpoint is whole, but", &s->warnings, err);
}

enum zt_saving zt_saver_state(const struct zt_saver *s)
{
    if (s->phase != WRITE)
        return s->phase == WRITTEN && s->rc ? ZT_SAVING_FAILED : ZT_SAVING_DONE;
    if (!atomic_load(&((struct zt_saver *)s)->thread_done))
        return ZT_SAVING_WRITES;
    return s->rc ? ZT_SAVING_FAILED : ZT_SAVING_DONE;
}

int zt_saver_voted(struct zt_saver *s, const struct zt_vote *vote, struct zt_err *err)
{
    if (s->phase == COMMIT && atomic_load(&s->thread_done)) {
        join_thread(s);
        return conclude(s, err);
    }
    if ((s->phase != WRITE && s->phase != WRITTEN) || vote->saving == ZT_SAVING_WRITES)
        return 0;
    join_thread(s);
    s->others_failed = vote->saving == ZT_SAVING_FAILED;
    if (s->rc || s->others_failed || s->env->rank != 0)
        return conclude(s, err);
    begin_phase(s, COMMIT);
    return s->threaded ? 0 : conclude(s, err);
}

/* Wherever it is: to its end. All ranks are in the same phase, but that rank 0 may commit. */
static int end_save(struct zt_saver *s, struct zt_err *err)
{
    struct zt_vote vote = {0};
    int rc = 0;
    if (s->phase == WRITE) {
        join_thread(s);
        s->phase = WRITTEN;
        rc = zt_run_agree(s->engine, zt_saver_state(s), &vote, err);
        if (!rc)
            rc = zt_saver_voted(s, &vote, err);
    }
    if (!rc && s->phase == COMMIT) {
        join_thread(s);
        rc = conclude(s, err);
    }
    return rc;
}

int zt_saver_start(struct zt_saver *s, const struct zt_ckpt_progress *at, struct zt_err *err)
{
    const int64_t asked_ns = zt_now_ns();
    int rc = end_save(s, err); /* its report is still of that one */
    if (rc)
        return rc;
    s->layout.m.at = *at;
    s->rc = 0;
    s->others_failed = false;
    s->asked_ns = asked_ns;
    s->start_ns = zt_now_ns();
    if (s->snapshot) {
        zt_engine_run(s->engine, ZT_PROG_SAVE);
        rc = zt_engine_drain(s->engine, err);
        if (rc)
            return rc;
    }
    begin_phase(s, WRITE);
    s->stall_ns = zt_now_ns() - s->asked_ns;
    return s->snapshot ? 0 : end_save(s, err);
}

int zt_saver_finish(struct zt_saver *s, struct zt_err *err)
{
    int rc = end_save(s, err);
    if (rc || !(s->rc || s->others_failed))
        return rc;
    if (s->rc)
        return zt_err_set(err, ZT_EIO, "the last checkpoint could not be written: %s", s->err.msg);
    return zt_err_set(err, ZT_EPEER, "the last checkpoint could not be written by another rank");
}

/* ---- the folder ---- */

/* Where it begins anew, there may be nothing: the front end has seen to that, but let go of the lock since. */
static int check_still_empty(const struct zt_recipe *r, struct zt_err *err)
{
    int64_t *steps;
    int n;
    if (zt_train_goes_on_here(r))
        return 0;
    int rc = zt_ckpt_steps(r->checkpoint.dir, &steps, &n, err);
    if (rc)
        return rc;
    free(steps);
    return n == 0 ? 0
                  : zt_err_set(err, ZT_EINPUT,
                               "%s: another run has put checkpoints there meanwhile; give this one "
                               "another checkpoint.dir",
                               r->checkpoint.dir);
}

static void probe_path(const struct zt_saver *s, int rank, struct zt_str *out)
{
    zt_str_reset(out);
    zt_str_printf(out, "%s/tmp-probe-%d", s->dir, rank);
}

/* Each rank leaves a sign that rank 0 must see: else the folder is not the same one on all hosts. */
static int probe(struct zt_saver *s, struct zt_err *err)
{
    const struct zt_coll *coll = s->env->coll;
    struct zt_str path = {0};
    probe_path(s, s->env->rank, &path);
    int rc = coll->ops->barrier(s->env->coll, err); /* rank 0 has the lock, and has cleaned up */
    if (!rc && mkdir(path.buf, 0777) && errno != EEXIST)
        rc = zt_err_set(err, errno == EIO || errno == ENOSPC ? ZT_EIO : ZT_EINPUT,
                        "checkpoint.dir: %s: rank %d can make no folder there: %s; it must be one "
                        "that all hosts share, and that each can write",
                        s->dir, s->env->rank, strerror(errno));
    if (!rc)
        rc = coll->ops->barrier(s->env->coll, err);
    for (int r = 0; r < s->env->world && s->env->rank == 0 && !rc; r++) {
        probe_path(s, r, &path);
        if (access(path.buf, F_OK))
            rc = zt_err_set(err, ZT_EINPUT,
                            "checkpoint.dir: %s: what rank %d writes there is not seen by rank 0; "
                            "the folder must be one that all hosts share",
                            s->dir, r);
    }
    if (!rc)
        rc = coll->ops->barrier(s->env->coll, err);
    probe_path(s, s->env->rank, &path);
    rmdir(path.buf);
    zt_str_release(&path);
    return rc;
}

int zt_saver_create(const struct zt_saver_opts *o, struct zt_saver **out, struct zt_err *err)
{
    enum { WAIT_S = 10 }; /* for the front end to let go, and for a killed run's last process */
    struct zt_saver *s = zt_xcalloc(1, sizeof *s);
    *out = NULL;
    s->r = o->r;
    s->env = o->env;
    s->engine = o->engine;
    s->dir = o->r->checkpoint.dir;
    s->snapshot = o->engine->plan->programs[ZT_PROG_SAVE].n_ops > 0;
    s->last_good = -1;
    int rc = 0;
    if (s->env->rank == 0) {
        rc = zt_ckpt_lock(s->dir, &(struct zt_ckpt_wait){.most_s = WAIT_S}, &s->lock, err);
        if (!rc)
            rc = check_still_empty(s->r, err);
        if (!rc)
            rc = zt_ckpt_clean(s->dir, &s->warnings, err);
        if (!rc)
            rc = report_warnings(s, "checkpoint.dir", &s->warnings, err);
    }
    if (!rc)
        rc = probe(s, err);
    if (rc) {
        zt_saver_free(s);
        return rc;
    }
    zt_layout_make(s->engine->plan, &s->layout);
    struct zt_str recipe = {0};
    zt_recipe_print(s->r, &recipe);
    s->layout.m.recipe = zt_arena_strdup(&s->layout.m.arena, zt_str_get(&recipe));
    s->layout.m.optimizer = s->r->optimizer.type;
    s->layout.m.program = "zerotrain " ZT_VERSION;
    zt_str_release(&recipe);
    *out = s;
    return 0;
}

void zt_saver_free(struct zt_saver *s)
{
    if (!s)
        return;
    join_thread(s);
    zt_ckpt_unlock(s->lock);
    zt_layout_release(&s->layout);
    zt_str_release(&s->warnings);
    free(s);
}
