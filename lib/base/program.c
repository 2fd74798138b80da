#include "base/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    SAYS_MS = 50, /* how often it is looked whether it may go on while it has nothing to say, */
    ENDS_MS = 2,  /* and when it ends */
};

struct program {
    const char *name;
    pid_t pid;
    int fd; /* both of its streams */
    double limit_s;
    int64_t end_ns;
    const sigset_t *heed;
};

static bool has_come(const sigset_t *heed)
{
    sigset_t come, both;
    sigpending(&come);
    sigandset(&both, &come, heed);
    return !sigisemptyset(&both);
}

static int check_time(const struct program *p, struct zt_err *err)
{
    if (has_come(p->heed))
        return zt_err_set(err, ZT_EPEER, "%s was ended as a signal came", p->name);
    if (zt_now_ns() > p->end_ns)
        return zt_err_set(err, ZT_ESYS, "%s has not ended within %g s", p->name, p->limit_s);
    return 0;
}

static int start(struct program *p, const char *const *argv, int out_fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, out_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, out_fd, STDERR_FILENO);
    int rc = posix_spawnp(&p->pid, argv[0], &files, &attr, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return rc;
}

static int read_all(const struct program *p, struct zt_str *out, struct zt_err *err)
{
    enum { MAX_BYTES = 1 << 20 };
    char chunk[4096];
    int rc;
    while ((rc = check_time(p, err)) == 0) {
        struct pollfd in = {.fd = p->fd, .events = POLLIN};
        if (poll(&in, 1, SAYS_MS) <= 0)
            continue;
        ssize_t n = read(p->fd, chunk, sizeof chunk);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return zt_err_errno(err, ZT_EIO, "reading from %s", p->name);
        if (n > 0 && out->len < MAX_BYTES)
            zt_str_add(out, chunk, (size_t)n);
    }
    return rc;
}

static int wait_for_end(const struct program *p, int *status, struct zt_err *err)
{
    pid_t ended;
    while ((ended = waitpid(p->pid, status, WNOHANG)) == 0) {
        if (check_time(p, err))
            return err->code;
        poll(NULL, 0, ENDS_MS);
    }
    ZT_ASSERT_CMP(ended, ==, p->pid);
    return 0;
}

int zt_program_output(const char *const *argv, double limit_s, const sigset_t *heed,
                      struct zt_str *out, struct zt_err *err)
{
    struct program p = {.name = argv[0],
                        .limit_s = limit_s,
                        .end_ns = zt_now_ns() + (int64_t)(limit_s * 1e9),
                        .heed = heed};
    int fds[2], status = 0;
    if (pipe2(fds, O_CLOEXEC))
        return zt_err_errno(err, ZT_ESYS, "pipe");
    p.fd = fds[0];
    int rc = start(&p, argv, fds[1]);
    close(fds[1]);
    if (rc) {
        close(p.fd);
        errno = rc;
        return zt_err_errno(err, ZT_ESYS, "%s", argv[0]);
    }
    rc = read_all(&p, out, err);
    if (!rc)
        rc = wait_for_end(&p, &status, err);
    close(p.fd);
    if (!rc)
        return status;
    kill(p.pid, SIGKILL);
    waitpid(p.pid, NULL, 0);
    return rc;
}
