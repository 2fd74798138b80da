#include "launch/srun.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "hosts/hosts.h"
#include "launch/supervisor.h"

enum {
    STEP_MS = 50,
    END_MS = 10 * 1000, /* srun has this long to see its tasks end, */
    LOST_MS = 1000,     /* this long where it will not, or for what ended tasks have said, */
    TERM_MS = 3000,     /* and this long to end when told to */
};

static const char secret_var[] = "ZT_JOB_SECRET_FILE";

const char *const *zt_srun_argv(const char *program, const char *const *hosts, int n_hosts,
                                struct zt_arena *arena)
{
    static const char *const fixed[] = {
        "srun",
        "--ntasks-per-node=1",
        "--overlap", /* also where a batch script or another step holds the CPUs */
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0", /* others may still tell that they are well; we end them */
        "--wait=0",
        "--no-kill", /* nor when a host dies */
        "--input=all",
        "--export=PATH,HOME,USER,LOGNAME,LANG,LD_LIBRARY_PATH,ZT_JOB_SECRET_FILE",
    };
    enum { OURS = 6 };
    struct zt_str list = {0};
    size_t n = ZT_ARRAY_LEN(fixed);
    const char **argv = zt_arena_alloc(arena, n + OURS, sizeof *argv);
    memcpy(argv, fixed, sizeof fixed);
    for (int i = 0; i < n_hosts; i++)
        zt_str_printf(&list, "%s%s", i ? "," : "", hosts[i]);
    argv[n++] = zt_arena_printf(arena, "--nodes=%d", n_hosts);
    argv[n++] = zt_arena_printf(arena, "--ntasks=%d", n_hosts);
    argv[n++] = zt_arena_printf(arena, "--nodelist=%s", list.buf);
    argv[n++] = zt_arena_strdup(arena, program);
    argv[n++] = "member";
    argv[n] = NULL;
    zt_str_release(&list);
    return argv;
}

/* ---- the ticket ---- */

static int send_ticket(int sock, const struct zt_meeting *m, struct zt_err *err)
{
    struct zt_str text = {0};
    zt_ticket_put(m, &text);
    /* A new socket takes as much at once. */
    int rc = send(sock, text.buf, text.len, MSG_NOSIGNAL) == (ssize_t)text.len
                 ? 0
                 : zt_err_errno(err, ZT_ESYS, "srun does not read its input");
    explicit_bzero(text.buf, text.cap);
    zt_str_release(&text);
    shutdown(sock, SHUT_WR);
    return rc;
}

int zt_srun_read_ticket(int fd, struct zt_meeting *out, const char **host, struct zt_err *err)
{
    int64_t task;
    const char *number = getenv("SLURM_PROCID");
    *host = getenv("SLURMD_NODENAME");
    if (zt_ticket_read(fd, out, err))
        return zt_err_set(err, ZT_EINPUT,
                          "`member` is started by zerotrain --launcher=slurm, not "
                          "by hand");
    if (!*host || !number || !zt_parse_i64(number, &task) || task < 0 || task >= out->world)
        return zt_err_set(err, ZT_EINPUT, "srun has not set SLURM_PROCID and SLURMD_NODENAME");
    out->by = "srun";
    out->rank = (int)task;
    if (zt_meeting_add_file(out, getenv(secret_var), err))
        return zt_err_wrap(err, "on %s", *host);
    return 0;
}

/* ---- srun ---- */

static int find_host(const struct zt_srun *s, const char *name)
{
    int i = 0;
    while (i < s->n_hosts && strcasecmp(s->hosts[i], name) != 0)
        i++;
    return i;
}

static int count(const struct zt_srun *s, enum zt_srun_host state)
{
    int n = 0;
    for (int i = 0; i < s->n_hosts; i++)
        n += s->state[i] == state;
    return n;
}

static void note_failed(struct zt_srun *s, const char *list, const char *end)
{
    struct zt_hosts failed = {0};
    struct zt_err ignored;
    char text[sizeof s->why];
    snprintf(text, sizeof text, "%.*s", (int)(end - list), list);
    if (zt_hosts_of_nodelist("srun", text, &failed, &ignored) == 0)
        for (int i = 0; i < failed.n; i++) {
            const int k = find_host(s, failed.v[i].name);
            if (k < s->n_hosts)
                s->state[k] = ZT_SRUN_FAILED;
        }
    zt_hosts_release(&failed);
}

/*
 * "srun: error: n[2-3]: tasks 1-2: Exited with exit code 2"
 * "srun: error: Task launch for StepId=5.0 failed on node n2: Communication connection failure"
 * "srun: Job step aborted: Waiting up to 12 seconds for job step to finish."
 */
static void understand(struct zt_srun *s, const char *line)
{
    static const char prefix[] = "srun: error: ", where[] = " failed on node ";
    static const char gives_up[] = "srun: Job step aborted";
    const char *launch = strstr(line, where), *task = strstr(line, ": task");
    s->aborts = s->aborts || strncmp(line, gives_up, sizeof gives_up - 1) == 0;
    if (!s->hosts || s->aborts || strncmp(line, prefix, sizeof prefix - 1) != 0)
        return;
    if (launch) {
        launch += sizeof where - 1;
        note_failed(s, launch, launch + strcspn(launch, ":"));
    } else if (task) {
        note_failed(s, line + sizeof prefix - 1, task);
    }
}

static void on_line(void *ctx, const char *line, size_t len)
{
    struct zt_srun *s = ctx;
    char text[sizeof s->why];
    snprintf(text, sizeof text, "%.*s", (int)ZT_MIN(len, sizeof text), line);
    if (!strstr(s->why, "error:"))
        memcpy(s->why, text, sizeof text);
    understand(s, text);
    s->say(s->ctx, line, len);
}

void zt_srun_read(struct zt_srun *s)
{
    char chunk[4096];
    ssize_t n;
    while (s->sock >= 0 && recv(s->sock, chunk, sizeof chunk, MSG_DONTWAIT) > 0)
        ; /* our tasks say nothing there */
    while (s->err_fd >= 0 && (n = read(s->err_fd, chunk, sizeof chunk)) != 0) {
        if (n < 0)
            return;
        zt_lines_feed(&s->lines, chunk, (size_t)n, on_line, s);
    }
    zt_lines_end(&s->lines, on_line, s);
    if (s->err_fd >= 0)
        close(s->err_fd);
    s->err_fd = -1;
}

static bool has_ended(struct zt_srun *s)
{
    if (s->pid && waitpid(s->pid, &s->status, WNOHANG) == s->pid)
        s->pid = 0;
    return s->pid == 0;
}

static int spawn(struct zt_srun *s, const char *const *argv, struct zt_err *err)
{
    int sock[2], errs[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
        return zt_err_errno(err, ZT_ESYS, "socketpair");
    s->sock = sock[0];
    if (pipe2(errs, O_CLOEXEC)) {
        close(sock[1]);
        return zt_err_errno(err, ZT_ESYS, "pipe");
    }
    s->err_fd = errs[0];
    fcntl(s->err_fd, F_SETFL, O_NONBLOCK);
    errno = zt_spawn_agent(&s->pid, argv, sock[1], errs[1], false);
    close(sock[1]);
    close(errs[1]);
    if (!errno)
        return 0;
    s->pid = 0;
    return zt_err_errno(err, ZT_ESYS, "cannot start srun");
}

static int explain_end(struct zt_srun *s, struct zt_err *err)
{
    zt_srun_read(s);
    if (WIFSIGNALED(s->status))
        return zt_err_set(err, ZT_ESYS, "srun was ended by signal %d (%s)", WTERMSIG(s->status),
                          strsignal(WTERMSIG(s->status)));
    return zt_err_set(err, ZT_ESYS, "srun ended with exit code %d before all hosts had joined%s%s",
                      WEXITSTATUS(s->status), s->why[0] ? ": " : "", s->why);
}

static int missing(const struct zt_srun *s, const struct zt_rendezvous *r, struct zt_err *err)
{
    return zt_err_set(
        err, ZT_EPEER,
        "%d of %d hosts have joined within %g s (ZT_JOIN_SECONDS): does `srun --overlap "
        "-N%d hostname` work here, and may those hosts connect to %s?",
        count(s, ZT_SRUN_CAME), s->n_hosts, r->m.limit_s, s->n_hosts, r->address);
}

static bool wait_for_end(struct zt_srun *s, int limit_ms)
{
    int64_t end_ns = zt_now_ns() + limit_ms * (int64_t)1000000;
    while (!has_ended(s)) {
        if (zt_now_ns() > end_ns)
            return false;
        zt_srun_read(s);
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

/* The others have come, but there is nobody to wait for. Why it ended may come behind srun's word that it did. */
static int some_ended(struct zt_srun *s, struct zt_err *err)
{
    struct zt_str names = {0};
    (void)wait_for_end(s, LOST_MS);
    zt_srun_read(s);
    for (int i = 0; i < s->n_hosts; i++)
        if (s->state[i] == ZT_SRUN_FAILED)
            zt_str_printf(&names, "%s%s", names.len ? ", " : "", s->hosts[i]);
    zt_err_set(err, ZT_EPEER, "%d of %d hosts have joined, but zerotrain has ended on %.300s: %s",
               count(s, ZT_SRUN_CAME), s->n_hosts, names.buf, s->why);
    zt_str_release(&names);
    return ZT_EPEER;
}

static void note_who_came(struct zt_srun *s, const struct zt_rendezvous *r)
{
    for (int i = 0; i < r->m.world; i++) {
        const int k = r->v[i].told ? find_host(s, r->v[i].host) : s->n_hosts;
        if (k < s->n_hosts && s->state[k] != ZT_SRUN_FAILED)
            s->state[k] = r->v[i].gone ? ZT_SRUN_FAILED : ZT_SRUN_CAME;
    }
}

static void spare_awaited(struct zt_srun *s)
{
    for (int i = 0; i < s->n_hosts; i++)
        if (s->state[i] == ZT_SRUN_AWAITED)
            s->state[i] = ZT_SRUN_SPARED;
}

/* Until all are there, srun ends, time is up, or somebody tells us to end. */
static int gather(struct zt_srun *s, struct zt_rendezvous *r, int *sig, struct zt_err *err)
{
    int64_t end_ns = zt_now_ns() + (int64_t)(r->m.limit_s * 1e9);
    for (;;) {
        int rc = zt_rendezvous_step(r, STEP_MS, err);
        zt_srun_read(s);
        note_who_came(s, r);
        *sig = zt_await_ending_signal(0);
        if (!*sig)
            *sig = r->told;
        if (*sig) /* before what may follow from it */
            return zt_err_set(err, ZT_EPEER, "stopped by signal %d (%s) while hosts joined", *sig,
                              strsignal(*sig));
        if (rc < 0)
            spare_awaited(s);
        if (rc)
            return rc < 0 ? rc : 0;
        if (has_ended(s))
            return explain_end(s, err);
        if (count(s, ZT_SRUN_FAILED) && !count(s, ZT_SRUN_AWAITED))
            return some_ended(s, err);
        if (zt_now_ns() > end_ns)
            return missing(s, r, err);
    }
}

/* Half of a secret goes through Slurm; the other half, where there is one, does not. */
static int make_meeting(int n_hosts, const char *towards, double limit_s, struct zt_meeting *m,
                        struct zt_err *err)
{
    *m = (struct zt_meeting){.by = "srun",
                             .world = n_hosts,
                             .rank = -1,
                             .limit_s = limit_s,
                             .half_a_secret = getenv(secret_var) != NULL};
    snprintf(m->host, sizeof m->host, "%s", towards);
    snprintf(m->towards, sizeof m->towards, "%s", towards);
    if (getrandom(m->secret, sizeof m->secret, 0) != sizeof m->secret ||
        getrandom(m->id, sizeof m->id, 0) != sizeof m->id)
        return zt_err_errno(err, ZT_ESYS, "getrandom");
    return 0;
}

/* *m: as the tasks are told of it. */
static int open_meeting(int n_hosts, const char *towards, double limit_s, struct zt_meeting *m,
                        struct zt_rendezvous *r, struct zt_err *err)
{
    int rc = make_meeting(n_hosts, towards, limit_s, m, err);
    struct zt_meeting ours = *m;
    if (!rc)
        rc = zt_meeting_add_file(&ours, getenv(secret_var), err);
    if (!rc)
        rc = zt_rendezvous_open(&ours, NULL, r, err);
    explicit_bzero(&ours, sizeof ours);
    if (rc) {
        explicit_bzero(m, sizeof *m);
        return rc;
    }
    snprintf(m->host, sizeof m->host, "%s", r->address);
    m->port = r->port;
    return 0;
}

/* Told meanwhile: known to the caller, or left to who had blocked it before. */
static void unblock(const sigset_t *before, bool failed, int *sig)
{
    if (failed && !sigismember(before, SIGTERM)) {
        if (!*sig)
            *sig = zt_await_ending_signal(0);
        zt_forget_ending_signals();
    }
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

int zt_srun_start(struct zt_srun *s, const char *program, const char *const *hosts, int n_hosts,
                  const char *towards, double limit_s, struct zt_rendezvous *r,
                  enum zt_srun_host *state, int *sig, struct zt_err *err)
{
    struct zt_arena arena = {0};
    struct zt_meeting m;
    sigset_t mask, before;
    memset(state, 0, (size_t)n_hosts * sizeof *state);
    *sig = 0;
    s->hosts = hosts;
    s->n_hosts = n_hosts;
    s->state = state;
    s->sock = s->err_fd = -1;
    int rc = open_meeting(n_hosts, towards, limit_s, &m, r, err);
    if (rc)
        return rc;
    zt_ending_signals(&mask);
    pthread_sigmask(SIG_BLOCK, &mask, &before); /* as long as srun would outlive us */
    rc = spawn(s, zt_srun_argv(program, hosts, n_hosts, &arena), err);
    if (!rc)
        rc = send_ticket(s->sock, &m, err);
    explicit_bzero(&m, sizeof m);
    if (!rc)
        rc = gather(s, r, sig, err);
    zt_arena_release(&arena);
    s->hosts = NULL;
    if (rc) {
        zt_rendezvous_leave(r, 1);
        if (s->pid)
            kill(s->pid, SIGTERM);
        zt_srun_end(s, false);
    }
    unblock(&before, rc != 0, sig);
    return rc;
}

static void say_nothing(void *ctx, const char *line, size_t len)
{
    (void)ctx, (void)line, (void)len;
}

void zt_srun_end(struct zt_srun *s, bool some_lost)
{
    if (!s->say)
        return;
    s->say = say_nothing; /* that its tasks have ended, and with which code */
    if (!wait_for_end(s, some_lost ? LOST_MS : END_MS)) {
        kill(s->pid, SIGTERM); /* it ends its tasks */
        if (!wait_for_end(s, TERM_MS)) {
            kill(s->pid, SIGKILL);
            waitpid(s->pid, &s->status, 0);
        }
    }
    zt_lines_release(&s->lines);
    if (s->sock >= 0)
        close(s->sock);
    if (s->err_fd >= 0)
        close(s->err_fd);
    memset(s, 0, sizeof *s);
}
