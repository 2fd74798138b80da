#include "launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"

enum { JOB_OWN = 1, JOB_DEVICES = 2, JOB_CPUS = 4 };

void zt_device_put(const struct zt_worker_device *d, struct zt_str *out)
{
    zt_put_u32(out, d->gpu);
    zt_put_u32(out, (uint32_t)d->ranks_per_gpu);
    zt_put_u32(out, d->transport);
}

void zt_device_get(struct zt_worker_device *d, struct zt_cursor *c)
{
    uint32_t gpu = zt_get_u32(c), ranks = zt_get_u32(c), transport = zt_get_u32(c);
    if (gpu > 1 || ranks > ZT_LAUNCH_MAX_WORKERS || transport >= ZT_N_TRANSPORTS)
        c->bad = true;
    *d = (struct zt_worker_device){gpu, (int)ranks, (enum zt_transport)transport};
}

void zt_nodes_put(const struct zt_nodes *nodes, int world, struct zt_str *out)
{
    int n = ZT_MAX(nodes->n, 1);
    zt_put_u32(out, (uint32_t)nodes->node);
    zt_put_u32(out, (uint32_t)n);
    for (int i = 1; i < n; i++)
        zt_put_u32(out, (uint32_t)nodes->first[i]);
    zt_put_u32(out, (uint32_t)world);
    const char *towards = nodes->towards ? nodes->towards : "";
    zt_put_blob(out, towards, strlen(towards));
}

static char *get_text(struct zt_cursor *c, size_t *len)
{
    const unsigned char *p = zt_get_blob(c, len);
    char *text = zt_xcalloc(*len + 1, 1);
    if (p)
        memcpy(text, p, *len);
    return text;
}

void zt_nodes_get(struct zt_nodes *nodes, uint32_t world, struct zt_cursor *c)
{
    size_t len;
    uint32_t node = zt_get_u32(c), n = zt_get_u32(c);
    memset(nodes, 0, sizeof *nodes);
    if (n < 1 || n > ZT_LAUNCH_MAX_NODES || node >= n || world > INT32_MAX) {
        c->bad = true;
        return;
    }
    nodes->node = (int)node;
    nodes->n = (int)n;
    nodes->first = zt_xcalloc((size_t)n + 1, sizeof *nodes->first);
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t first = zt_get_u32(c);
        if (first <= (uint32_t)nodes->first[i - 1] || first > world)
            c->bad = true;
        nodes->first[i] = c->bad ? 0 : (int)first;
    }
    if (nodes->first[n] != (int)world)
        c->bad = true;
    nodes->towards = get_text(c, &len);
}

static void release_nodes(struct zt_nodes *nodes)
{
    free(nodes->first);
    free(nodes->towards);
    memset(nodes, 0, sizeof *nodes);
}

void zt_job_put(const struct zt_job *job, struct zt_str *out)
{
    zt_put_u32(out, (uint32_t)job->n_workers);
    zt_put_u32(out, (uint32_t)job->first_rank);
    zt_put_u32(out, (uint32_t)job->world);
    zt_put_u32(out, (uint32_t)job->threads);
    zt_put_u32(out, (job->own ? JOB_OWN : 0) | (job->devices ? JOB_DEVICES : 0) |
                        (job->cpus ? JOB_CPUS : 0));
    zt_put_u32(out, (uint32_t)(job->grace_ns / 1000000));
    zt_put_u32(out, (uint32_t)(job->silence_ns / 1000000));
    zt_device_put(&job->device, out);
    zt_nodes_put(&job->nodes, job->world, out);
    zt_str_add(out, job->secret, sizeof job->secret);
    zt_put_blob(out, job->recipe, job->recipe_len);
    const char *const texts[] = {job->dir, job->command, job->claim};
    for (size_t i = 0; i < ZT_ARRAY_LEN(texts); i++)
        zt_put_blob(out, texts[i] ? texts[i] : "", texts[i] ? strlen(texts[i]) : 0);
    for (int i = 0; job->devices && i < job->n_workers; i++)
        zt_put_blob(out, job->devices[i], strlen(job->devices[i]));
    for (int i = 0; job->cpus && i < job->n_workers; i++)
        zt_put_blob(out, zt_str_get(&job->cpus[i]), job->cpus[i].len);
    uint32_t n_args = 0;
    while (job->argv && job->argv[n_args])
        n_args++;
    zt_put_u32(out, n_args);
    for (uint32_t i = 0; i < n_args; i++)
        zt_put_blob(out, job->argv[i], strlen(job->argv[i]));
}

static void get_lists(struct zt_job *job, struct zt_cursor *c, uint32_t flags)
{
    size_t len;
    if (flags & JOB_DEVICES) {
        job->devices = zt_xcalloc((size_t)job->n_workers, sizeof *job->devices);
        for (int i = 0; i < job->n_workers; i++)
            job->devices[i] = get_text(c, &len);
    }
    if (flags & JOB_CPUS) {
        job->cpus = zt_xcalloc((size_t)job->n_workers, sizeof *job->cpus);
        for (int i = 0; i < job->n_workers; i++) {
            const unsigned char *mask = zt_get_blob(c, &len);
            if (mask)
                zt_str_add(&job->cpus[i], mask, len);
        }
    }
    uint32_t n_args = zt_get_u32(c);
    if (n_args > c->left / 4) /* each has a length of its own */
        c->bad = true;
    if (c->bad || n_args == 0)
        return;
    job->argv = zt_xcalloc((size_t)n_args + 1, sizeof *job->argv);
    for (uint32_t i = 0; i < n_args; i++)
        job->argv[i] = get_text(c, &len);
}

int zt_job_get(struct zt_job *job, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    memset(job, 0, sizeof *job);
    uint32_t n = zt_get_u32(&c), first = zt_get_u32(&c), world = zt_get_u32(&c);
    uint32_t threads = zt_get_u32(&c), flags = zt_get_u32(&c);
    size_t dir_len, command_len, claim_len;
    job->grace_ns = (int64_t)zt_get_u32(&c) * 1000000;
    job->silence_ns = (int64_t)zt_get_u32(&c) * 1000000;
    zt_device_get(&job->device, &c);
    zt_nodes_get(&job->nodes, world, &c);
    const unsigned char *secret = zt_get_bytes(&c, sizeof job->secret);
    if (c.bad || n < 1 || n > ZT_LAUNCH_MAX_WORKERS || world > INT32_MAX || first > world ||
        n > world - first || threads > ZT_JOB_THREADS_MAX ||
        job->nodes.first[job->nodes.node] != (int)first ||
        job->nodes.first[job->nodes.node + 1] != (int)(first + n)) {
        zt_job_release(job);
        return zt_err_set(err, ZT_EPROTO, "malformed JOB frame");
    }
    memcpy(job->secret, secret, sizeof job->secret);
    job->n_workers = (int)n;
    job->first_rank = (int)first;
    job->world = (int)world;
    job->threads = (int)threads;
    job->own = flags & JOB_OWN;
    job->recipe = get_text(&c, &job->recipe_len);
    job->dir = get_text(&c, &dir_len);
    job->command = get_text(&c, &command_len);
    job->claim = get_text(&c, &claim_len);
    get_lists(job, &c, flags);
    if (!zt_cursor_done(&c) || job->own == (job->argv != NULL)) {
        zt_job_release(job);
        return zt_err_set(err, ZT_EPROTO, "malformed JOB frame");
    }
    return 0;
}

void zt_job_release(struct zt_job *job)
{
    for (int i = 0; job->devices && i < job->n_workers; i++)
        free(job->devices[i]);
    for (int i = 0; job->cpus && i < job->n_workers; i++)
        zt_str_release(&job->cpus[i]);
    free(job->cpus);
    for (char **arg = job->argv; arg && *arg; arg++)
        free(*arg);
    release_nodes(&job->nodes);
    free(job->devices);
    free(job->argv);
    free(job->recipe);
    free(job->dir);
    free(job->command);
    free(job->claim);
    explicit_bzero(job->secret, sizeof job->secret);
    memset(job, 0, sizeof *job);
}

/* CPUs that this process may use. */
static int n_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t holds */
    return n > 0 ? (int)n : 1;
}

static void set_variables(struct zt_env *env, const struct zt_job *job, int local)
{
    zt_env_setf(env, "RANK=%d", job->first_rank + local);
    zt_env_setf(env, "LOCAL_RANK=%d", local);
    zt_env_setf(env, "WORLD_SIZE=%d", job->world);
    zt_env_setf(env, "LOCAL_WORLD_SIZE=%d", job->n_workers);
    zt_env_unset(env, "ZT_JOB_FD");
    if (job->devices) {
        struct zt_str s = {0};
        zt_str_printf(&s, "CUDA_VISIBLE_DEVICES=%s", job->devices[local]);
        zt_env_set(env, s.buf, s.len);
        zt_str_release(&s);
    }
    if (job->threads > 0) {
        zt_env_setf(env, "OMP_NUM_THREADS=%d", job->threads);
        /*
         * libgomp's default spin (milliseconds) keeps the CPU from the very thread that is waited for
         * as soon as anything else runs: measured 10 times slower on a busy machine. It reads this
         * when it is loaded, so it must be set before exec.
         */
        bool crowded = job->threads * job->n_workers > n_cpus();
        if (!zt_env_get(env, "GOMP_SPINCOUNT"))
            zt_env_setf(env, "GOMP_SPINCOUNT=%d", crowded ? 2000 : 10000);
    }
}

/* In the new process. Only the agent's single thread was copied, so any call is safe here. */
ZT_NORETURN static void become_worker(const struct zt_job *job, int local, struct zt_env *env,
                                      pid_t agent, const int *out_fds, int job_fd)
{
    static char own_name[] = "zerotrain", own_cmd[] = "worker";
    char *const own_argv[] = {own_name, job->own && job->command[0] ? job->command : own_cmd, NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) /* it died before prctl took effect */
        _exit(ZT_EXIT_PEER_LOST);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);

    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0 || dup2(out_fds[1], STDERR_FILENO) < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(out_fds[0], STDOUT_FILENO) < 0)
        _exit(126);
    if (job_fd >= 0) {
        fcntl(job_fd, F_SETFD, 0);
        zt_env_setf(env, "ZT_JOB_FD=%d", job_fd);
    }
    if (job->cpus && job->cpus[local].len &&
        sched_setaffinity(0, job->cpus[local].len, (const cpu_set_t *)job->cpus[local].buf))
        dprintf(STDERR_FILENO, "cannot be bound to the CPUs that the launcher gave: %s\n",
                strerror(errno));
    environ = env->v; /* execvp looks in the PATH of the environment that the program gets */
    if (job->own)
        execv("/proc/self/exe", own_argv);
    else
        execvp(job->argv[0], job->argv);
    int code = errno == ENOENT ? 127 : 126;
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", job->own ? "/proc/self/exe" : job->argv[0],
            strerror(errno));
    _exit(code);
}

static void close_pair(int fds[2])
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

int zt_proc_start(struct zt_proc *p, const struct zt_job *job, int local, const struct zt_env *base,
                  struct zt_err *err)
{
    int out[2] = {-1, -1}, errs[2] = {-1, -1}, sock[2] = {-1, -1};
    struct zt_env env = {0};
    int rc = 0;
    memset(p, 0, sizeof *p);
    p->rank = job->first_rank + local;
    p->log_fd[0] = p->log_fd[1] = -1;
    if (pipe2(out, O_CLOEXEC) || pipe2(errs, O_CLOEXEC) ||
        (job->own && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))) {
        rc = zt_err_errno(err, ZT_ESYS, "pipes of rank %d", p->rank);
        goto out;
    }
    if (base->n)
        zt_env_add_all(&env, base->v);
    set_variables(&env, job, local);
    pid_t agent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become_worker(job, local, &env, agent, (const int[]){out[1], errs[1]}, sock[1]);
    if (pid < 0) {
        rc = zt_err_errno(err, ZT_ESYS, "fork of rank %d", p->rank);
        goto out;
    }
    setpgid(pid, pid); /* here too: a signal to its group may come before it runs */
    p->pid = pid;
    p->log_fd[ZT_LOG_STDOUT] = out[0];
    p->log_fd[ZT_LOG_STDERR] = errs[0];
    out[0] = errs[0] = -1;
    fcntl(p->log_fd[0], F_SETFL, O_NONBLOCK);
    fcntl(p->log_fd[1], F_SETFL, O_NONBLOCK);
    if (job->own) {
        rc = zt_link_open(&p->link, sock[0], sock[0], err);
        if (!rc)
            sock[0] = -1;
    }
out:
    zt_env_release(&env);
    close_pair(out);
    close_pair(errs);
    close_pair(sock);
    return rc;
}

void zt_proc_release(struct zt_proc *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->log_fd[i] >= 0)
            close(p->log_fd[i]);
        zt_lines_release(&p->lines[i]);
    }
    zt_link_close(&p->link);
    memset(p, 0, sizeof *p);
    p->log_fd[0] = p->log_fd[1] = -1;
}

/* The name is taken by processes of ours, and not by another user who has seen it. */
static bool is_ours(const struct sockaddr_un *name, socklen_t len)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true;
    bool ours = connect(fd, (const struct sockaddr *)name, len) == 0
                    ? zt_is_same_user(fd)
                    : errno == EAGAIN; /* the queue is full of who asked before us */
    close(fd);
    return ours;
}

/*
 * A name of the kernel's, so no file is left of it. It listens, so that others learn whose it is; nobody accepts.
 */
bool zt_claim(const char *text)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const size_t n = ZT_MIN(strlen(text), sizeof name.sun_path - 1);
    const socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    if (n == 0)
        return true;
    memcpy(name.sun_path + 1, text, n);             /* behind a NUL: an abstract name */
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0); /* inherited; it ends with the last of us */
    if (fd < 0)
        return true;
    if (bind(fd, (struct sockaddr *)&name, len) == 0) {
        (void)!listen(fd, 0);
        return true;
    }
    const bool taken = errno == EADDRINUSE && is_ours(&name, len);
    close(fd);
    return !taken;
}
