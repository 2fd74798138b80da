#include "base/program.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static int read_all(int fd, struct zt_str *out)
{
    enum { MAX_BYTES = 1 << 20 };
    char chunk[4096];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && out->len < MAX_BYTES)
            zt_str_add(out, chunk, (size_t)n);
    return n < 0 ? -1 : 0;
}

int zt_program_output(const char *const *argv, struct zt_str *out, struct zt_err *err)
{
    posix_spawn_file_actions_t files;
    int fds[2], status = 0;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC))
        return zt_err_errno(err, ZT_ESYS, "pipe");
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, fds[1], STDERR_FILENO);
    errno = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    close(fds[1]);
    int rc = errno ? zt_err_errno(err, ZT_ESYS, "%s", argv[0]) : 0;
    if (!rc && read_all(fds[0], out))
        rc = zt_err_errno(err, ZT_EIO, "reading from %s", argv[0]);
    close(fds[0]);
    while (!rc && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            rc = zt_err_errno(err, ZT_ESYS, "waiting for %s", argv[0]);
    return rc ? rc : status;
}
