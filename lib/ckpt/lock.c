#include "ckpt/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/dir.h"
#include "base/io.h"
#include "base/str.h"
#include "base/thread.h"

#define NAME ".lock-"
#define HELD "held by "
#define LEFT "left by " /* as long as the other */

enum {
    BEAT_S = 3,
    STALE_S = 30,
    RETRY_MS = 50,
    TEXT_BYTES = 512,
    WHO_BYTES = 256,
};

struct zt_ckpt_lock {
    int64_t n;
    char *dir, *path, *next; /* next: that of who takes it from us */
    int fd;
    pthread_t thread;
    pthread_mutex_t mutex; /* of `ends`, and of changing fd */
    pthread_cond_t cond;
    bool has_thread, ends;
};

static char *path_of(const char *dir, int64_t n)
{
    struct zt_str path = {0};
    zt_str_printf(&path, "%s/" NAME "%lld", dir, (long long)n);
    return path.buf;
}

/* ---- who ---- */

/* What tells a process from all others, wherever they are. */
struct holder {
    char boot[40];
    unsigned long long pid_ns, start;
    long pid;
};

/* When it was started, in ticks since the boot; 0: it cannot be told, or there is no such living process. */
static unsigned long long start_of(long pid)
{
    struct zt_str path = {0}, text = {0};
    struct zt_err err;
    unsigned long long start = 0;
    zt_str_printf(&path, "/proc/%ld/stat", pid);
    const char *p =
        zt_read_file(path.buf, 4096, &text, &err) ? NULL : strrchr(zt_str_get(&text), ')');
    if (p && strncmp(p, ") Z", 3) == 0)
        p = NULL;
    for (int field = 2; p && field < 22;
         field++) /* proc(5); names may hold blanks, so from the ')' */
        p = strchr(p + 1, ' ');
    if (p)
        start = strtoull(p, NULL, 10);
    zt_str_release(&path);
    zt_str_release(&text);
    return start;
}

/* Other users' processes may be hidden in /proc, but not from kill(2). */
static bool lives(const struct holder *h)
{
    const unsigned long long start = start_of(h->pid);
    if (start)
        return h->start == 0 || start == h->start;
    return kill((pid_t)h->pid, 0) && errno == EPERM;
}

static void this_process(struct holder *h)
{
    struct zt_str boot = {0};
    struct zt_err err;
    struct stat st;
    *h = (struct holder){.boot = "unknown", .pid = (long)getpid()};
    if (zt_read_file("/proc/sys/kernel/random/boot_id", 100, &boot, &err) == 0) {
        snprintf(h->boot, sizeof h->boot, "%.*s", (int)strcspn(zt_str_get(&boot), "\n"),
                 zt_str_get(&boot));
        if (stat("/proc/self/ns/pid", &st) == 0)
            h->pid_ns = st.st_ino;
    }
    h->start = start_of(h->pid);
    zt_str_release(&boot);
}

static int sign(const struct zt_ckpt_lock *l, struct zt_err *err)
{
    struct holder us;
    char host[256] = "", when[32], text[TEXT_BYTES];
    time_t now = time(NULL);
    struct tm tm;
    this_process(&us);
    gethostname(host, sizeof host - 1);
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    int n = snprintf(text, sizeof text, HELD "process %ld on %.*s since %s\n%s %llu %llu\n", us.pid,
                     100, host, when, us.boot, us.pid_ns, us.start);
    return pwrite(l->fd, text, (size_t)n, 0) == n ? 0 : zt_err_errno(err, ZT_EIO, "%s", l->path);
}

/* ---- looking ---- */

enum state { IS_FREE, IS_HELD, IS_GONE, TIME_WILL_TELL };

/* A lock that somebody else has, as it was seen before. */
struct watch {
    int64_t stale_ns;
    int64_t n, since_ns; /* when it was first seen as it is */
    struct timespec touched;
    bool moves;          /* it was touched since it was first seen */
    char who[WHO_BYTES]; /* "process 71 on zt1 since ..." */
};

/* A process of this host lives or not; of others that cannot be seen. */
static enum state state_of(const char *text)
{
    struct holder h, us;
    const char *second = strchr(text, '\n');
    if (strncmp(text, LEFT, sizeof LEFT - 1) == 0)
        return IS_FREE;
    if (!second || sscanf(text, HELD "process %ld", &h.pid) != 1 ||
        sscanf(second, "%39s %llu %llu", h.boot, &h.pid_ns, &h.start) != 3)
        return TIME_WILL_TELL;
    this_process(&us);
    if (strcmp(h.boot, us.boot) || h.pid_ns != us.pid_ns || us.pid_ns == 0)
        return TIME_WILL_TELL;
    return lives(&h) ? IS_HELD : IS_FREE;
}

static void observe(struct watch *w, int64_t n, const struct stat *st, const char *text)
{
    const bool same = w->n == n && w->since_ns != 0;
    const bool touched =
        w->touched.tv_sec != st->st_mtim.tv_sec || w->touched.tv_nsec != st->st_mtim.tv_nsec;
    const char *who = strstr(text, "process");
    w->moves = same && (w->moves || touched);
    if (!same || touched)
        w->since_ns = zt_now_ns();
    w->n = n;
    w->touched = st->st_mtim;
    snprintf(w->who, sizeof w->who, "%.*s", who ? (int)strcspn(who, "\n") : 0, who ? who : "");
}

/* The lock number n, opened anew: a network file system asks its server then. */
static int look(const char *dir, int64_t n, struct watch *w, enum state *state, struct zt_err *err)
{
    char text[TEXT_BYTES], *path = path_of(dir, n);
    struct stat st;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (got < 0 || fstat(fd, &st)) {
        const int no = errno;
        /* somebody has made the next one, and removes those before; or it is a link to nowhere */
        *state = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? IS_FREE : IS_GONE;
        errno = no;
        rc = no == ENOENT || no == ESTALE ? 0 : zt_err_errno(err, ZT_EIO, "%s", path);
    } else {
        text[got] = '\0';
        *state = state_of(text);
        observe(w, n, &st, text);
    }
    if (fd >= 0)
        close(fd);
    free(path);
    if (!rc && *state == TIME_WILL_TELL && zt_now_ns() - w->since_ns > w->stale_ns)
        *state = IS_FREE;
    return rc;
}

/* The number of a lock by its name, as path_of() spells it; 0: it is something else. */
static int64_t number_of(const char *name)
{
    char spelled[32];
    int64_t n;
    if (strncmp(name, NAME, sizeof NAME - 1) != 0 || !zt_parse_i64(name + sizeof NAME - 1, &n) ||
        n < 1 || n == INT64_MAX)
        return 0;
    snprintf(spelled, sizeof spelled, NAME "%lld", (long long)n);
    return strcmp(spelled, name) == 0 ? n : 0;
}

/* The newest number, 0: there is none; those below it are removed with `clean`. */
static int newest(const char *dir, bool clean, int64_t *out, struct zt_err *err)
{
    struct zt_dir d;
    int64_t *all = NULL;
    size_t n_all = 0, cap = 0;
    int rc = zt_dir_open(&d, dir, err);
    *out = 0;
    if (rc)
        return rc;
    for (const char *name; (name = zt_dir_next(&d));) {
        const int64_t n = number_of(name);
        ZT_GROW(all, n_all + 1, cap);
        all[n_all++] = n;
        *out = ZT_MAX(*out, n);
    }
    rc = zt_dir_close(&d, 0, err); /* somebody's lock may be among those that were not listed */
    for (size_t i = 0; i < n_all && clean && !rc; i++) {
        char *path = all[i] > 0 && all[i] < *out ? path_of(dir, all[i]) : NULL;
        if (path)
            (void)unlink(path); /* it counts no more, there or not */
        free(path);
    }
    free(all);
    return rc;
}

/* ---- holding ---- */

static void *beat(void *arg)
{
    struct zt_ckpt_lock *l = arg;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&l->mutex);
    while (!l->ends) {
        next.tv_sec += BEAT_S;
        while (!l->ends && pthread_cond_timedwait(&l->cond, &l->mutex, &next) != ETIMEDOUT)
            ;
        /* Should it fail, time runs out and zt_ckpt_lock_check() tells. */
        if (!l->ends && futimens(l->fd, NULL) == 0)
            clock_gettime(CLOCK_MONOTONIC, &next);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static int start_beat(struct zt_ckpt_lock *l, struct zt_err *err)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->cond, &attr);
    pthread_condattr_destroy(&attr);
    int rc = zt_thread_start(&l->thread, "ckpt-lock", beat, l, err);
    l->has_thread = !rc;
    return rc;
}

/* 1: it is ours. 0: somebody was quicker. */
static int take(const char *dir, int64_t n, struct zt_ckpt_lock **out, struct zt_err *err)
{
    int64_t last = n;
    struct zt_ckpt_lock *l = zt_xcalloc(1, sizeof *l);
    l->n = n;
    l->dir = zt_xstrdup(dir);
    l->path = path_of(dir, n);
    l->next = path_of(dir, n + 1);
    l->fd = open(l->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = l->fd >= 0 ? 0 : errno == EEXIST ? 1 : zt_err_errno(err, ZT_EIO, "%s", l->path);
    if (!rc)
        rc = sign(l, err);
    if (!rc)
        rc = start_beat(l, err);
    if (!rc)
        rc = newest(dir, true, &last, err);
    if (!rc && last == n) {
        *out = l;
        return 1;
    }
    if (l->fd >= 0) /* not ours after all, or a failure */
        unlink(l->path);
    zt_ckpt_unlock(l);
    return rc < 0 ? rc : 0;
}

/* It is held, and its holder lives, or only time can tell. 0: it may be looked at again. */
static int wait_on(const char *dir, const struct zt_ckpt_wait *wait, const struct watch *w,
                   bool lives, int64_t give_up_ns, struct zt_err *err)
{
    const int64_t end_ns = lives ? give_up_ns : w->since_ns + w->stale_ns;
    const int64_t left_ns = ZT_MAX(end_ns - zt_now_ns(), 0);
    if (!(lives && left_ns == 0) &&
        (!wait->go_on || wait->go_on(wait->ctx, w->who, (double)left_ns * 1e-9)))
        return 0;
    return zt_err_set(err, ZT_EINPUT,
                      "%s: another run keeps its checkpoints there%s%s; wait for its end, or give "
                      "another checkpoint.dir",
                      dir, w->who[0] ? ": " : "", w->who);
}

int zt_ckpt_lock(const char *dir, const struct zt_ckpt_wait *wait, struct zt_ckpt_lock **out,
                 struct zt_err *err)
{
    const int64_t give_up_ns = zt_now_ns() + (int64_t)(wait->most_s * 1e9);
    struct watch w = {.stale_ns = (int64_t)((wait->stale_s > 0 ? wait->stale_s : STALE_S) * 1e9)};
    *out = NULL;
    int rc = zt_make_dirs(dir, err);
    while (!rc) {
        enum state state = IS_FREE;
        int64_t n;
        rc = newest(dir, false, &n, err);
        if (!rc && n > 0)
            rc = look(dir, n, &w, &state, err);
        if (!rc && state == IS_FREE)
            rc = take(dir, n + 1, out, err);
        if (!rc && (state == IS_HELD || state == TIME_WILL_TELL))
            rc = wait_on(dir, wait, &w, state == IS_HELD || w.moves, give_up_ns, err);
        if (!rc)
            poll(NULL, 0, RETRY_MS);
    }
    return rc > 0 ? 0 : rc;
}

/* Someone has removed its file, and nobody has the lock. 1: it is ours still. */
static int put_back(struct zt_ckpt_lock *l, struct zt_err *err)
{
    int64_t last;
    const int fd = open(l->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno == EEXIST ? 0 : zt_err_errno(err, ZT_EIO, "%s", l->path);
    pthread_mutex_lock(&l->mutex);
    close(l->fd);
    l->fd = fd;
    pthread_mutex_unlock(&l->mutex);
    int rc = sign(l, err);
    if (!rc)
        rc = newest(l->dir, true, &last, err); /* who took a lower number meanwhile finds out */
    return rc ? rc : last == l->n;
}

int zt_ckpt_lock_check(struct zt_ckpt_lock *l, struct zt_err *err)
{
    const int fd = open(l->path, O_RDONLY | O_CLOEXEC);
    int64_t last;
    int rc = 0;
    if (fd < 0 && errno != ENOENT && errno != ESTALE)
        return zt_err_errno(err, ZT_EIO, "%s", l->path);
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && access(l->next, F_OK))
        return 0;
    if (fd < 0)
        rc = newest(l->dir, false, &last, err);
    if (fd < 0 && !rc && last == 0)
        rc = put_back(l, err);
    if (rc)
        return rc > 0 ? 0 : rc;
    return zt_err_set(err, ZT_ESYS,
                      "%s: another run has taken over its checkpoints, since this one did not move "
                      "for %d s or its lock was removed; this one ends",
                      l->dir, STALE_S);
}

void zt_ckpt_unlock(struct zt_ckpt_lock *l)
{
    if (!l)
        return;
    if (l->has_thread) {
        pthread_mutex_lock(&l->mutex);
        l->ends = true;
        pthread_cond_signal(&l->cond);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
        pthread_cond_destroy(&l->cond);
        pthread_mutex_destroy(&l->mutex);
    }
    /* Should it not be written, the process's end tells as much on this host, and time on others. */
    if (l->has_thread)
        (void)!pwrite(l->fd, LEFT, sizeof LEFT - 1, 0);
    if (l->fd >= 0)
        close(l->fd);
    free(l->dir);
    free(l->path);
    free(l->next);
    free(l);
}
