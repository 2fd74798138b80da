/*
 * interpose.c: LD_PRELOAD for tests. Counts the calls of one process that change files below a folder, and
 * at the n-th kills the process, lets the call fail, or lets it wait.
 *
 *   ZT_FAULT_DIR   the folder
 *   ZT_FAULT_RANK  the process: its RANK; "front" for the one that has none
 *   ZT_FAULT_AT    n, from 1; 0: only count
 *   ZT_FAULT_ERRNO 0: SIGKILL, before a call, and of a write after half of it; else the errno of the call
 *   ZT_FAULT_LOG   a line for each call
 *   ZT_FAULT_WAIT  part of a path: a call that changes such a file goes on once there is a file ZT_FAULT_GO
 *   ZT_FAULT_SEES  A=B: who opens a file in the folder A to read it, or asks for it, gets that of the folder B
 *   ZT_FAULT_HIDES a name that is in no list of a folder
 *   ZT_FAULT_LISTS errno of listing a folder that is or is in ZT_FAULT_DIR
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int count;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_ours(const char *path)
{
    const char *dir = getenv("ZT_FAULT_DIR"), *want = getenv("ZT_FAULT_RANK"),
               *rank = getenv("RANK");
    size_t n = dir ? strlen(dir) : 0;
    return n && want && path && strcmp(want, rank ? rank : "front") == 0 &&
           strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static void note(const char *call, const char *path, int at)
{
    char line[PATH_MAX + 64];
    const char *log = getenv("ZT_FAULT_LOG");
    int fd = log ? NEXT(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0)
        return;
    int n = snprintf(line, sizeof line, "%d %s %s\n", at, call, path);
    if (NEXT(write)(fd, line, (size_t)n) != n)
        abort();
    close(fd);
}

/* 0: go on; 1: this is the call. Does not return when it is to be killed before it. */
static int hit(const char *call, const char *path, int half)
{
    if (!is_ours(path))
        return 0;
    const char *waits = getenv("ZT_FAULT_WAIT");
    while (waits && strstr(path, waits) && NEXT(access)(getenv("ZT_FAULT_GO"), F_OK))
        usleep(10000);
    int at = atomic_fetch_add(&count, 1) + 1;
    note(call, path, at);
    if (at != atoi(getenv("ZT_FAULT_AT")))
        return 0;
    errno = atoi(getenv("ZT_FAULT_ERRNO"));
    if (errno == 0 && !half)
        kill(getpid(), SIGKILL);
    return 1;
}

static const char *path_of(int fd, char *buf)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, buf, PATH_MAX - 1);
    buf[n > 0 ? n : 0] = '\0';
    return buf;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    char buf[PATH_MAX];
    if (hit("write", path_of(fd, buf), 1)) {
        if (errno)
            return -1;
        if (NEXT(write)(fd, bytes, n / 2) >= 0)
            kill(getpid(), SIGKILL);
    }
    return NEXT(write)(fd, bytes, n);
}

/* Half of it is whole blocks, so that a direct write can do it. */
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    enum { BLOCK = 4096 };
    char buf[PATH_MAX];
    if (hit("pwrite", path_of(fd, buf), 1)) {
        if (errno)
            return -1;
        if (NEXT(pwrite)(fd, bytes, n / 2 / BLOCK * BLOCK, at) >= 0)
            kill(getpid(), SIGKILL);
    }
    return NEXT(pwrite)(fd, bytes, n, at);
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    char buf[PATH_MAX];
    return hit("fallocate", path_of(fd, buf), 0) ? -1 : NEXT(fallocate)(fd, mode, at, n);
}

int fsync(int fd)
{
    char buf[PATH_MAX];
    return hit("fsync", path_of(fd, buf), 0) ? -1 : NEXT(fsync)(fd);
}

int rename(const char *from, const char *to)
{
    return hit("rename", to, 0) ? -1 : NEXT(rename)(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    return hit("mkdir", path, 0) ? -1 : NEXT(mkdir)(path, mode);
}

int rmdir(const char *path)
{
    return hit("rmdir", path, 0) ? -1 : NEXT(rmdir)(path);
}

int unlink(const char *path)
{
    return hit("unlink", path, 0) ? -1 : NEXT(unlink)(path);
}

int unlinkat(int dir, const char *path, int flags)
{
    char buf[PATH_MAX];
    return hit("unlinkat", path_of(dir, buf), 0) ? -1 : NEXT(unlinkat)(dir, path, flags);
}

struct dirent *readdir(DIR *d)
{
    const char *hides = is_ours(getenv("ZT_FAULT_DIR")) ? getenv("ZT_FAULT_HIDES") : NULL;
    const char *lists = getenv("ZT_FAULT_LISTS");
    struct dirent *e;
    char buf[PATH_MAX];
    if (lists && is_ours(path_of(dirfd(d), buf))) {
        errno = atoi(lists);
        return NULL;
    }
    do {
        e = NEXT(readdir)(d);
    } while (e && hides && strcmp(e->d_name, hides) == 0);
    return e;
}

static const char *seen(const char *path, char *buf)
{
    const char *sees = getenv("ZT_FAULT_SEES"), *to = sees ? strchr(sees, '=') : NULL;
    const size_t n = to ? (size_t)(to - sees) : 0;
    if (!is_ours(path) || !to || strncmp(path, sees, n) != 0 || path[n] != '/')
        return path;
    snprintf(buf, PATH_MAX, "%s%s", to + 1, path + n);
    return buf;
}

int access(const char *path, int mode)
{
    char buf[PATH_MAX];
    return NEXT(access)(seen(path, buf), mode);
}

int open(const char *path, int flags, ...)
{
    char buf[PATH_MAX];
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    if ((flags & O_CREAT) && hit("open", path, 0))
        return -1;
    return NEXT(open)(flags & O_CREAT ? path : seen(path, buf), flags, mode);
}
