#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef ZT_HAVE_URING
#include <liburing.h>
#endif

#include "../broken_list.h"
#include "base/arena.h"
#include "base/rng.h"
#include "dev/queue.h"
#include "harness.h"
#include "offload/disk.h"

/*
 * What the kernel does only when it is short of something is made to happen here: the transfers of this
 * program are cut in half, or fail. These functions stand before those of the C library and liburing.
 */
static struct {
    bool cut;     /* every transfer is cut in half */
    int fail_at;  /* the fail_at-th transfer from now on fails; 0: none */
    int n_faults; /* so far */
} fault;

/* Bytes to move instead of n, whole blocks; -1: fail. One transfer at a time counts. */
static int64_t planned(size_t n)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int64_t out = (int64_t)n;
    pthread_mutex_lock(&lock);
    if (fault.fail_at > 0 && --fault.fail_at == 0) {
        out = -1;
        fault.n_faults++;
    } else if (fault.cut && n > ZT_DISK_ALIGN) {
        out = (int64_t)(n / 2 / ZT_DISK_ALIGN + 1) * ZT_DISK_ALIGN;
        out = out < (int64_t)n ? out : (int64_t)n;
        fault.n_faults += out < (int64_t)n;
    }
    pthread_mutex_unlock(&lock);
    return out;
}

ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    int64_t m = planned(n);
    if (m < 0)
        errno = EIO;
    return m < 0 ? -1 : syscall(SYS_pread64, fd, buf, (size_t)m, at);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    int64_t m = planned(n);
    if (m < 0)
        errno = ENOSPC;
    return m < 0 ? -1 : syscall(SYS_pwrite64, fd, buf, (size_t)m, at);
}

#ifdef ZT_HAVE_URING
int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
    int (*real)(struct io_uring *, unsigned) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit_and_wait");
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
        int64_t m = planned(sqe->len);
        if (m < 0)
            sqe->fd = -1; /* fails with EBADF */
        else
            sqe->len = (unsigned)m;
    }
    return real(ring, n);
}
#endif

/* ---- a folder, and stores in it ---- */

enum { KIB = 1 << 10, MIB = 1 << 20 };

static char dir[64];
static struct zt_err err;

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/zt-disk-XXXXXX");
    CHECK(mkdtemp(dir));
}

static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2; /* . and .. */
}

static void remove_dir(void)
{
    CHECK_INT(count_entries(dir), 0); /* stores leave nothing behind */
    CHECK_INT(rmdir(dir), 0);
}

static struct zt_disk_opts opts(enum zt_disk_backend b, size_t bytes)
{
    return (struct zt_disk_opts){.dir = dir,
                                 .bytes = bytes,
                                 .backend = b,
                                 .block_bytes = 64 * KIB,
                                 .queue_depth = 3,
                                 .n_threads = 3};
}

static struct zt_disk *open_store(enum zt_disk_backend b, size_t bytes)
{
    struct zt_disk_opts o = opts(b, bytes);
    struct zt_disk *d;
    return zt_disk_open(&o, &d, &err) ? NULL : d;
}

/* Both ways, where both work; a test runs once with each. */
static int ways(enum zt_disk_backend out[2])
{
    int n = 0;
    struct zt_disk *d = open_store(ZT_DISK_URING, 1);
    if (d)
        out[n++] = ZT_DISK_URING;
    zt_disk_close(d);
    out[n++] = ZT_DISK_THREADS;
    return n;
}

static void fill(unsigned char *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (unsigned char)(seed >> 24);
    }
}

static bool is_filled(const unsigned char *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        if (p[i] != (unsigned char)(seed >> 24))
            return false;
    }
    return true;
}

/* ---- transfers ---- */

/* Sizes around every border, memory at odd addresses; nothing beside a range is touched. */
static void check_sizes(enum zt_disk_backend b)
{
    static const size_t sizes[] = {1,        255,          4095,         4096,          4097,
                                   64 * KIB, 64 * KIB - 1, 64 * KIB + 1, 200 * KIB + 13};
    enum { N = ZT_ARRAY_LEN(sizes), ROOM = 256 * KIB, GUARD = 64 };
    unsigned char *memory = aligned_alloc(4096, ROOM + 4096);
    struct zt_disk *d = open_store(b, N * ROOM);
    if (!d)
        FAIL("%s", err.msg);
    for (int shift = 0; shift < 3; shift++) {
        const size_t odd = shift == 0 ? 0 : shift == 1 ? 512 : 3;
        for (int i = 0; i < N; i++) {
            struct zt_disk_range r = {(size_t)i * ROOM, memory + odd, sizes[i]};
            fill(r.host, r.bytes, (uint32_t)(i + 100 * shift));
            CHECK_OK(zt_disk_move(d, ZT_DISK_WRITE, &r, 1, &err), err);
        }
        for (int i = N - 1; i >= 0; i--) {
            struct zt_disk_range r = {(size_t)i * ROOM, memory + odd, sizes[i]};
            memset(memory, 0xee, ROOM + 4096);
            CHECK_OK(zt_disk_move(d, ZT_DISK_READ, &r, 1, &err), err);
            CHECK(is_filled(r.host, r.bytes, (uint32_t)(i + 100 * shift)));
            for (int k = 0; k < GUARD; k++)
                CHECK(memory[odd + r.bytes + k] == 0xee);
            CHECK(odd == 0 || memory[odd - 1] == 0xee);
        }
    }
    zt_disk_close(d);
    free(memory);
}

TEST(disk_any_size_and_address)
{
    enum zt_disk_backend w[2];
    make_dir();
    for (int i = 0, n = ways(w); i < n; i++) {
        check_sizes(w[i]);
        RETURN_IF_FAILED();
    }
    remove_dir();
}

/* Several ranges in one call, of several requests each: more than can be in flight. */
static void write_and_read(struct zt_disk *d, uint32_t seed, bool expect_faults)
{
    enum { N = ZT_DISK_MAX_RANGES, EACH = 700 * KIB + 1 };
    const size_t room = EACH / ZT_DISK_ALIGN * ZT_DISK_ALIGN + ZT_DISK_ALIGN;
    unsigned char *memory = aligned_alloc(4096, N * room);
    struct zt_disk_range r[N];
    for (int i = 0; i < N; i++) {
        r[i] = (struct zt_disk_range){(size_t)(N - 1 - i) * room, memory + (size_t)i * room, EACH};
        fill(r[i].host, EACH, seed + (uint32_t)i);
    }
    fault.n_faults = 0;
    CHECK_OK(zt_disk_move(d, ZT_DISK_WRITE, r, N, &err), err);
    CHECK(!expect_faults || fault.n_faults >= N);
    memset(memory, 0, N * room);
    fault.n_faults = 0;
    CHECK_OK(zt_disk_move(d, ZT_DISK_READ, r, N, &err), err);
    CHECK(!expect_faults || fault.n_faults >= N);
    for (int i = 0; i < N; i++)
        CHECK(is_filled(r[i].host, EACH, seed + (uint32_t)i));
    free(memory);
}

TEST(disk_short_transfers_are_continued)
{
    enum zt_disk_backend w[2];
    make_dir();
    for (int i = 0, n = ways(w); i < n; i++) {
        struct zt_disk *d = open_store(w[i], 4 * MIB);
        CHECK(d);
        write_and_read(d, 1, false);
        fault.cut = true;
        write_and_read(d, 77, true);
        fault.cut = false;
        zt_disk_close(d);
        RETURN_IF_FAILED();
    }
    remove_dir();
}

/* An error in the middle ends the call with the path and what was done; the next call works. */
TEST(disk_errors_are_reported)
{
    enum zt_disk_backend w[2];
    make_dir();
    unsigned char *memory = aligned_alloc(4096, MIB);
    fill(memory, MIB, 5);
    for (int i = 0, n = ways(w); i < n; i++) {
        struct zt_disk *d = open_store(w[i], 4 * MIB);
        CHECK(d);
        for (int dir_of = 0; dir_of < ZT_N_DISK_DIRS; dir_of++) {
            const struct zt_disk_range r = {0, memory, MIB};
            const bool reads = dir_of == ZT_DISK_READ;
            const char *why = w[i] == ZT_DISK_URING ? "Bad file descriptor"
                              : reads               ? "Input/output error"
                                                    : "No space left on device";
            fault.fail_at = 7;
            CHECK_INT(zt_disk_move(d, (enum zt_disk_dir)dir_of, &r, 1, &err), ZT_EIO);
            CHECK(strstr(err.msg, zt_disk_path(d)) == err.msg);
            CHECK(strstr(err.msg, reads ? ": reading 65536 bytes at" : ": writing 65536 bytes at"));
            CHECK(strstr(err.msg, why));
        }
        write_and_read(d, 3, false);
        RETURN_IF_FAILED();
        zt_disk_close(d);
    }
    free(memory);
    remove_dir();
}

TEST(disk_cut_off_file)
{
    enum zt_disk_backend w[2];
    make_dir();
    unsigned char *memory = aligned_alloc(4096, MIB);
    for (int i = 0, n = ways(w); i < n; i++) {
        struct zt_disk *d = open_store(w[i], MIB);
        const struct zt_disk_range r = {0, memory, MIB};
        CHECK(d);
        CHECK_INT(truncate(zt_disk_path(d), MIB / 2), 0);
        CHECK_INT(zt_disk_move(d, ZT_DISK_READ, &r, 1, &err), ZT_EIO);
        CHECK(strstr(err.msg, "the file was cut off"));
        zt_disk_close(d);
    }
    free(memory);
    remove_dir();
}

/* Reads and writes of other ranges at the same time, on streams; a failure is the stream's. */
TEST(disk_streams)
{
    enum { ROOM = 512 * KIB, ROUNDS = 20 };
    enum zt_disk_backend w[2];
    struct zt_dev *dev;
    struct zt_stream *in, *out;
    make_dir();
    unsigned char *memory = aligned_alloc(4096, 3 * ROOM);
    CHECK_OK(zt_cpu_dev_create(&dev, NULL, 0, &err), err);
    for (int i = 0, n = ways(w); i < n; i++) {
        struct zt_disk *d = open_store(w[i], 2 * ROOM);
        CHECK(d);
        CHECK_OK(dev->ops->stream_create(dev, "disk-in", 1, &in, &err), err);
        CHECK_OK(dev->ops->stream_create(dev, "disk-out", 1, &out, &err), err);
        fill(memory, 2 * ROOM, 9);
        const struct zt_disk_range first = {0, memory, ROOM}, second = {ROOM, memory + ROOM, ROOM},
                                   back = {0, memory + 2 * ROOM, ROOM};
        zt_disk_enqueue(d, out, ZT_DISK_WRITE, &first, 1);
        dev->ops->wait(in, dev->ops->record(out));
        for (int k = 0; k < ROUNDS; k++) {
            zt_disk_enqueue(d, in, ZT_DISK_READ, &back, 1);
            zt_disk_enqueue(d, out, ZT_DISK_WRITE, &second, 1);
        }
        CHECK_OK(dev->ops->sync(dev->ops->record(in), &err), err);
        CHECK_OK(dev->ops->sync(dev->ops->record(out), &err), err);
        CHECK(memcmp(memory, memory + 2 * ROOM, ROOM) == 0);
        fault.fail_at = 1;
        zt_disk_enqueue(d, out, ZT_DISK_WRITE, &second, 1);
        CHECK_INT(dev->ops->sync(dev->ops->record(out), &err), ZT_EIO);
        CHECK(strstr(err.msg, zt_disk_path(d)));
        dev->ops->stream_free(in);
        dev->ops->stream_free(out);
        zt_disk_close(d);
    }
    zt_cpu_dev_free(dev);
    free(memory);
    remove_dir();
}

TEST(disk_written_bytes_are_counted)
{
    make_dir();
    struct zt_disk *d = open_store(ZT_DISK_THREADS, 2 * MIB);
    unsigned char *memory = aligned_alloc(4096, MIB);
    size_t before, after;
    CHECK(d);
    fill(memory, MIB, 2);
    CHECK_OK(zt_disk_written(d, &before, &err), err);
    const struct zt_disk_range r = {MIB / 2, memory, 300 * KIB};
    CHECK_OK(zt_disk_move(d, ZT_DISK_WRITE, &r, 1, &err), err);
    CHECK_OK(zt_disk_written(d, &after, &err), err);
    zt_disk_close(d);
    free(memory);
    remove_dir();
    if (before > 0)
        SKIP("the file system of /tmp does not tell what was never written");
    CHECK_INT(after, 300 * KIB);
}

/* ---- the file ---- */

TEST(disk_file_is_private_and_allocated)
{
    struct stat st;
    char folder[256];
    make_dir();
    mode_t old = umask(0);
    struct zt_disk *d = open_store(ZT_DISK_AUTO, 3 * MIB + 1);
    umask(old);
    CHECK(d);
    CHECK_INT(stat(zt_disk_path(d), &st), 0);
    CHECK(S_ISREG(st.st_mode));
    CHECK_INT(st.st_mode & 07777, 0600);
    CHECK_INT(st.st_size, 3 * MIB + 4096);
    CHECK(st.st_blocks * 512 >= st.st_size);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(zt_disk_path(d), '/') - zt_disk_path(d)),
             zt_disk_path(d));
    CHECK_INT(stat(folder, &st), 0);
    CHECK_INT(st.st_mode & 07777, 0700);
    CHECK(strstr(folder, dir) == folder);
    zt_disk_close(d);
    remove_dir();
}

/* A process that dies with a store open, by SIGKILL. */
static void leave_behind(void)
{
    int ready[2];
    char c;
    CHECK_INT(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct zt_disk *d = open_store(ZT_DISK_THREADS, MIB);
        c = d ? 'y' : 'n';
        if (write(ready[1], &c, 1) == 1)
            pause();
        _exit(1);
    }
    CHECK(pid > 0);
    CHECK_INT(read(ready[0], &c, 1), 1);
    CHECK_INT(c, 'y');
    kill(pid, SIGKILL);
    CHECK_INT(waitpid(pid, NULL, 0), pid);
    close(ready[0]);
    close(ready[1]);
}

TEST(disk_leftovers_are_removed)
{
    make_dir();
    struct zt_disk *alive = open_store(ZT_DISK_AUTO, 4 * MIB);
    CHECK(alive);
    leave_behind();
    RETURN_IF_FAILED();
    CHECK_INT(count_entries(dir), 2);
    struct zt_disk *next = open_store(ZT_DISK_AUTO, MIB);
    CHECK(next);
    CHECK_INT(count_entries(dir), 2);
    CHECK_INT(access(zt_disk_path(alive), F_OK), 0); /* somebody lives */
    CHECK_INT(zt_disk_n_leftovers(next), 1);
    CHECK_INT(zt_disk_n_leftovers(alive), 0);
    write_and_read(alive, 4, false);
    RETURN_IF_FAILED();
    zt_disk_close(alive);
    zt_disk_close(next);
    remove_dir();
}

static void make_file(const char *path, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    CHECK(fd >= 0);
    CHECK_INT(fchmod(fd, mode), 0);
    close(fd);
}

/* Of a drive that cannot be listed nothing is known. */
TEST(disk_whose_folder_cannot_be_listed)
{
    make_dir();
    list_breaks_after = 1;
    CHECK(!open_store(ZT_DISK_THREADS, MIB));
    CHECK_INT(err.code, ZT_EIO);
    CHECK(strstr(err.msg, dir) && strstr(err.msg, "its files cannot be listed"));
    list_breaks_after = -1;
    CHECK_INT(count_entries(dir), 0);
    remove_dir();
}

/* What only looks like a leftover stays: other names, rights, contents, links. */
TEST(disk_what_is_not_ours_stays)
{
    static const struct {
        const char *folder, *file;
        mode_t folder_mode, file_mode;
    } others[] = {{"zerotrain-nvme-AAAAAA", "store", 0755, 0600},
                  {"zerotrain-nvme-BBBBBB", "store", 0700, 0644},
                  {"zerotrain-nvme-CCCCCC", "notes.txt", 0700, 0600},
                  {"zerotrain-nvme-DDDDDDD", "store", 0700, 0600},
                  {"zerotrain-nvme", "store", 0700, 0600},
                  {"elsewhere", "store", 0700, 0600}};
    enum { N = ZT_ARRAY_LEN(others) };
    char path[N][128], folder[N][128], link[128], target[128];
    make_dir();
    for (int i = 0; i < N; i++) {
        snprintf(folder[i], sizeof folder[i], "%s/%s", dir, others[i].folder);
        CHECK_INT(mkdir(folder[i], 0700), 0);
        CHECK_INT(chmod(folder[i], others[i].folder_mode), 0);
        snprintf(path[i], sizeof path[i], "%s/%s", folder[i], others[i].file);
        make_file(path[i], others[i].file_mode);
    }
    snprintf(link, sizeof link, "%s/zerotrain-nvme-LLLLLL", dir);
    snprintf(target, sizeof target, "%s/elsewhere", dir);
    CHECK_INT(symlink(target, link), 0);
    struct zt_disk *d = open_store(ZT_DISK_AUTO, MIB);
    CHECK(d);
    zt_disk_close(d);
    CHECK_INT(unlink(link), 0);
    for (int i = 0; i < N; i++) {
        CHECK_INT(unlink(path[i]), 0);
        CHECK_INT(rmdir(folder[i]), 0);
    }
    remove_dir();
}

/* ---- what cannot be had ---- */

static void check_refused(const char *where, size_t bytes, const char *message)
{
    struct zt_disk_opts o = opts(ZT_DISK_AUTO, bytes);
    struct zt_disk *d;
    o.dir = where;
    CHECK_INT(zt_disk_open(&o, &d, &err), ZT_EINPUT);
    if (!strstr(err.msg, message))
        FAIL("\"%s\" does not say \"%s\"", err.msg, message);
    CHECK_INT(zt_disk_check_room(where, bytes, &err), ZT_EINPUT);
    if (!strstr(err.msg, message))
        FAIL("\"%s\" does not say \"%s\"", err.msg, message);
}

TEST(disk_folder_that_cannot_be_used)
{
    char file[128];
    make_dir();
    snprintf(file, sizeof file, "%s/file", dir);
    make_file(file, 0600);
    check_refused("/nowhere/at/all", MIB,
                  "/nowhere/at/all: give an existing folder on the drive to use: No such");
    check_refused(file, MIB, "is no folder; give one on the drive to use");
    check_refused(dir, (size_t)1 << 60, "1152921504606846976 bytes (1152921504.61 GB) are needed");
    CHECK_INT(unlink(file), 0);
    CHECK_OK(zt_disk_check_room(dir, MIB, &err), err);
    remove_dir();
}

/* In a file system of 4 MiB, of this process alone. */
static void small_disk(void)
{
    unsigned char *memory = aligned_alloc(4096, MIB);
    const struct zt_disk_range r = {MIB, memory, MIB};
    fill(memory, MIB, 6);
    struct zt_disk *d = open_store(ZT_DISK_AUTO, 3 * MIB);
    if (!d)
        FAIL("%s", err.msg);
    CHECK_OK(zt_disk_move(d, ZT_DISK_WRITE, &r, 1, &err), err);
    check_refused(dir, 2 * MIB,
                  "2097152 bytes (2.10 MB) are needed there, but only 1048576 (1.05 MB)");
    RETURN_IF_FAILED();
    memset(memory, 0, MIB);
    CHECK_OK(zt_disk_move(d, ZT_DISK_READ, &r, 1, &err), err);
    CHECK(is_filled(memory, MIB, 6));
    zt_disk_close(d);
    CHECK_INT(count_entries(dir), 0);
    leave_behind(); /* its megabyte counts as free */
    RETURN_IF_FAILED();
    CHECK_OK(zt_disk_check_room(dir, 4 * MIB - 64 * KIB, &err), err);
    CHECK(zt_disk_check_room(dir, 4 * MIB + 64 * KIB, &err));
    d = open_store(ZT_DISK_AUTO, 4 * MIB - 64 * KIB);
    if (!d)
        FAIL("%s", err.msg);
    zt_disk_close(d);
    free(memory);
}

TEST(disk_full)
{
    make_dir();
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("zt-test", dir, "tmpfs", 0, "size=4m")) {
        remove_dir();
        SKIP("a file system cannot be mounted: %s", strerror(errno));
    }
    small_disk();
    CHECK_INT(umount(dir), 0);
    RETURN_IF_FAILED();
    remove_dir();
}

/* In a child: whatever happens to it, this program goes on. `ok` tells how it went. */
static bool in_child(bool (*check)(void))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(check() ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* As containers do it: io_uring_setup fails with EPERM. */
static bool without_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {ZT_ARRAY_LEN(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
        return false;
    struct zt_disk *d = open_store(ZT_DISK_URING, MIB);
    if (d || err.code != ZT_EUNSUPPORTED)
        return false;
    d = open_store(ZT_DISK_AUTO, 4 * MIB);
    if (!d)
        return false;
    write_and_read(d, 8, false);
    bool said =
        strstr(zt_disk_describe(d), "pread and pwrite by 3 threads each way, not io_uring (");
#ifdef ZT_HAVE_URING
    said = said && strstr(zt_disk_describe(d), "(it is not allowed here: Operation not permitted)");
#endif
    zt_disk_close(d);
    return said && !zt_test_failed;
}

TEST(disk_falls_back_to_threads)
{
    make_dir();
    CHECK(in_child(without_uring));
    struct zt_disk *d = open_store(ZT_DISK_THREADS, MIB);
    CHECK(d);
    CHECK(strstr(zt_disk_describe(d), "not io_uring (threads were asked for)"));
    zt_disk_close(d);
    remove_dir();
}

TEST_MAIN()
