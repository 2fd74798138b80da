/* The workers of a node: how they start, what they say and how they end. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "coll/coll.h"
#include "launch/agent.h"
#include "launch/blame.h"
#include "launch/proctree.h"

enum {
    LEFTOVER_MS = 1000,     /* helpers of a worker that ended well may take this long to go */
    KILL_GIVE_UP_MS = 5000, /* a process in an uninterruptible wait cannot be killed: say so */
    CLAIM_MS = 40 * 1000,   /* an earlier attempt ends its processes here in half of that */
};

static int64_t ms_to_ns(int64_t ms)
{
    return ms * 1000000;
}

/* ---- to the front end ---- */

static ZT_PRINTF(2, 3) void notice(struct agent *a, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    zt_frame_put(&a->front.out, ZT_FRAME_NOTICE, text, strlen(text));
}

struct log_target {
    struct agent *a;
    int rank;
    enum zt_log_stream stream;
};

static void send_line(void *ctx, const char *line, size_t len)
{
    const struct log_target *t = ctx;
    struct zt_str *out = &t->a->front.out;
    size_t at = zt_frame_begin(out, ZT_FRAME_LOG);
    zt_put_u32(out, (uint32_t)t->rank);
    zt_put_u32(out, t->stream);
    zt_str_add(out, line, len);
    zt_frame_end(out, at);
}

/* ---- from the workers ---- */

bool zt_agent_read_log(struct agent *a, struct zt_proc *p, enum zt_log_stream stream)
{
    char chunk[ZT_LINK_CHUNK];
    struct log_target t = {a, p->rank, stream};
    if (p->log_fd[stream] < 0)
        return false;
    ssize_t n = read(p->log_fd[stream], chunk, sizeof chunk);
    if (n > 0) {
        zt_lines_feed(&p->lines[stream], chunk, (size_t)n, send_line, &t);
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    zt_lines_end(&p->lines[stream], send_line, &t);
    close(p->log_fd[stream]);
    p->log_fd[stream] = -1;
    return false;
}

/* With its rank before it. */
static void pass_up(struct agent *a, const struct zt_proc *p, const struct zt_frame *f)
{
    struct zt_str *out = &a->front.out;
    size_t at = zt_frame_begin(out, (enum zt_frame_type)f->type);
    zt_put_u32(out, (uint32_t)p->rank);
    zt_str_add(out, f->data, f->len);
    zt_frame_end(out, at);
}

bool zt_agent_read_reports(struct agent *a, struct zt_proc *p)
{
    struct zt_frame f;
    struct zt_err err;
    if (!p->link.open || zt_link_read(&p->link) <= 0)
        return false;
    int rc;
    while ((rc = zt_frame_next(&p->link.in, &f, &err)) > 0) {
        if ((f.type == ZT_FRAME_REPORT && f.len <= ZT_REPORT_MAX_BYTES) ||
            (f.type == ZT_FRAME_APART && f.len == 4)) {
            pass_up(a, p, &f);
        } else if (f.type == ZT_FRAME_GATHER && !p->gathers && f.len <= ZT_SHARE_MAX_BYTES) {
            p->gathers = true;
            pass_up(a, p, &f);
        } else if (f.type != ZT_FRAME_HELLO) {
            rc =
                zt_err_set(&err, ZT_EPROTO, "unexpected frame (type %u, %zu bytes)", f.type, f.len);
            break;
        }
    }
    if (rc == 0)
        return true;
    notice(a, "rank %d is ended: its messages make no sense: %s", p->rank, err.msg);
    zt_link_close(&p->link);
    if (p->pid)
        kill(p->pid, SIGKILL);
    return false;
}

/* Everything a dead worker said before it died; a child of it may go on writing, so only so much. */
static void drain(struct agent *a, struct zt_proc *p)
{
    enum { READS_MAX = 64 };
    for (int i = 0; i < READS_MAX && zt_agent_read_reports(a, p); i++)
        ;
    for (int s = 0; s < 2; s++) {
        struct log_target t = {a, p->rank, (enum zt_log_stream)s};
        for (int i = 0; i < READS_MAX && zt_agent_read_log(a, p, t.stream); i++)
            ;
        zt_lines_end(&p->lines[s], send_line, &t);
    }
}

static void bury(struct agent *a, struct zt_proc *p, int status)
{
    struct zt_death d = {
        .rank = p->rank,
        .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
        .code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
        .dumped_core = WIFSIGNALED(status) && WCOREDUMP(status),
        .stop = a->stop,
    };
    bool well = zt_death_kind(&d) == ZT_DEATH_WELL;
    if (!well && a->arena_fds)
        zt_shm_job_abort(a->shm_control_fd); /* first of all: the others wait for it */
    d.oom = d.signal == SIGKILL && a->oom_before >= 0 && zt_oom_kills() > a->oom_before;
    p->pid = 0;
    if (--a->n_alive == 0)
        a->idle_ns = zt_now_ns();
    drain(a, p);
    size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_EXIT);
    zt_death_put(&d, &a->front.out);
    zt_frame_end(&a->front.out, at);
}

/* Returns true when no process is left below us. */
static bool reap(struct agent *a)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return pid < 0 && errno == ECHILD;
        for (int i = 0; i < a->n_procs; i++) {
            if (a->procs[i].pid == pid)
                bury(a, &a->procs[i], status);
        }
    }
}

/* ---- starting ---- */

static void send_task(struct agent *a, struct zt_proc *p, int local)
{
    struct zt_str *out = &p->link.out;
    size_t at = zt_frame_begin(out, ZT_FRAME_TASK);
    zt_put_u32(out, (uint32_t)p->rank);
    zt_put_u32(out, (uint32_t)a->job.world);
    zt_put_u32(out, (uint32_t)local);
    zt_put_u32(out, (uint32_t)a->job.threads);
    zt_put_u32(out, (uint32_t)a->shm_control_fd);
    zt_put_u32(out, (uint32_t)a->job.n_workers);
    for (int i = 0; i < a->job.n_workers; i++)
        zt_put_u32(out, (uint32_t)a->arena_fds[i]);
    zt_device_put(&a->job.device, out);
    zt_nodes_put(&a->job.nodes, a->job.world, out);
    zt_str_add(out, a->job.secret, sizeof a->job.secret);
    zt_put_blob(out, a->job.recipe, a->job.recipe_len);
    zt_frame_end(out, at);
}

static int start_workers(struct agent *a, struct zt_err *err)
{
    int n = a->job.n_workers;
    a->procs = zt_xcalloc((size_t)n, sizeof *a->procs);
    a->oom_before = zt_oom_kills();
    if (a->job.own) {
        int *fds = zt_xcalloc((size_t)n, sizeof *fds);
        int rc = zt_shm_job_create(n, &a->shm_control_fd, fds, err);
        if (rc) {
            free(fds);
            return rc;
        }
        a->arena_fds = fds; /* inherited by every worker under the same numbers */
    }
    for (int i = 0; i < n; i++) {
        int rc = zt_proc_start(&a->procs[i], &a->job, i, &a->env, err);
        a->n_procs++;
        a->n_alive += a->procs[i].pid > 0;
        if (rc)
            return rc;
        if (a->job.own)
            send_task(a, &a->procs[i], i);
    }
    return 0;
}

/* ---- stopping ---- */

void zt_agent_signal(struct agent *a, int sig)
{
    int n = sig == SIGKILL ? zt_tree_kill(NULL) : zt_tree_signal(NULL, sig);
    for (int i = 0; n < 0 && i < a->n_procs; i++) {
        if (a->procs[i].pid)
            kill(-a->procs[i].pid, sig);
    }
}

void zt_agent_stop(struct agent *a, enum zt_stop level)
{
    if (level <= a->stop)
        return;
    if (level == ZT_STOP_TERM && a->aside)
        level = ZT_STOP_KILL; /* workers of ours have nothing to tidy up */
    a->stop = level;
    a->stop_ns = zt_now_ns();
    if (level == ZT_STOP_SOFT) {
        for (int i = 0; i < a->n_procs; i++) {
            if (a->procs[i].link.open)
                zt_frame_put(&a->procs[i].link.out, ZT_FRAME_STOP, NULL, 0);
        }
        return;
    }
    zt_agent_signal(a, level == ZT_STOP_KILL ? SIGKILL : SIGTERM);
    if (level == ZT_STOP_TERM) /* one that is suspended would not see it */
        zt_agent_signal(a, SIGCONT);
}

static void finish(struct agent *a)
{
    for (int i = 0; i < a->n_procs; i++)
        drain(a, &a->procs[i]);
    size_t at = zt_frame_begin(&a->front.out, ZT_FRAME_END);
    zt_put_u32(&a->front.out, (uint32_t)a->end_signal);
    zt_frame_end(&a->front.out, at);
    a->finished = true;
}

void zt_agent_begin(struct agent *a)
{
    struct zt_err err;
    int rc = 0;
    if (!zt_claim(a->job.claim)) {
        const int64_t now_ns = zt_now_ns();
        if (!a->claims_ns) {
            notice(
                a,
                "processes of the attempt before this one are still there: waiting for their end");
            a->claims_ns = now_ns;
        }
        if (now_ns - a->claims_ns < ms_to_ns(CLAIM_MS))
            return;
        rc = zt_err_set(&err, ZT_ESYS, "processes of the attempt before this one do not end there");
    }
    a->claims_ns = 0;
    a->started = true;
    if (!rc && a->job.dir[0] && chdir(a->job.dir))
        rc = zt_err_errno(&err, ZT_EIO,
                          "the folder %s, which training was started in and every host needs",
                          a->job.dir);
    if (!rc)
        rc = start_workers(a, &err);
    if (rc) { /* not the link's fault: say it over the link */
        struct zt_str *out = &a->front.out;
        size_t at = zt_frame_begin(out, ZT_FRAME_FAIL);
        zt_put_u32(out, (uint32_t)rc);
        zt_str_puts(out, err.msg);
        zt_frame_end(out, at);
        zt_agent_stop(a, ZT_STOP_KILL);
    }
}

void zt_agent_advance(struct agent *a, int64_t now_ns)
{
    if (a->claims_ns && a->stop == ZT_STOP_NONE)
        zt_agent_begin(a);
    bool empty = reap(a);
    if (a->finished)
        return;
    if (!a->started ? a->stop != ZT_STOP_NONE : empty) {
        finish(a);
    } else if (a->started && a->n_alive == 0 && a->stop < ZT_STOP_TERM) {
        if (now_ns - a->idle_ns > ms_to_ns(LEFTOVER_MS)) {
            notice(a, "all ranks have ended; ending the processes that they left behind");
            zt_agent_stop(a, ZT_STOP_TERM);
        }
    } else if (a->stop == ZT_STOP_TERM && now_ns - a->stop_ns > a->job.grace_ns) {
        zt_agent_stop(a, ZT_STOP_KILL);
    } else if (a->stop == ZT_STOP_KILL) {
        if (now_ns - a->stop_ns > ms_to_ns(KILL_GIVE_UP_MS)) {
            notice(a,
                   "some processes do not die of SIGKILL (a disk or driver holds them); they are "
                   "left behind");
            a->rc = 1;
            finish(a);
        } else {
            zt_agent_signal(a, SIGKILL);
        }
    }
}
