/* The lock of a folder of checkpoints: among processes of this host, and holders that are elsewhere. */
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "ckpt/lock.h"
#include "dev/sanitize.h"

static char dir[64];
static struct zt_err err;

static int lock_folder(const char *path, double most_s, double stale_s, struct zt_ckpt_lock **out)
{
    const struct zt_ckpt_wait wait = {.most_s = most_s, .stale_s = stale_s};
    return zt_ckpt_lock(path, &wait, out, &err);
}

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "build/test-lock-XXXXXX");
    CHECK((mkdir("build", 0777) == 0 || access("build", W_OK) == 0) && mkdtemp(dir));
}

static void remove_dir(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    CHECK_INT(system(cmd), 0);
}

static void put(int n, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/.lock-%d", dir, n);
    CHECK_OK(zt_write_file_atomic(path, text, strlen(text), &err), err);
}

/* The only file .lock-N's N; 0: there is none, -1: there are several. */
static int the_number(void)
{
    DIR *d = opendir(dir);
    int number = 0, n;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (sscanf(e->d_name, ".lock-%d", &n) == 1)
            number = number ? -1 : n;
    closedir(d);
    return number;
}

TEST(lock_is_for_one)
{
    struct zt_ckpt_lock *lock, *other = NULL;
    char path[128];
    make_dir();
    CHECK_OK(lock_folder(dir, 0, 0, &lock), err);
    CHECK_INT(lock_folder(dir, 0.1, 0, &other), ZT_EINPUT);
    CHECK(strstr(err.msg, "another run keeps its checkpoints there: process "));
    CHECK(!other);
    CHECK_OK(zt_ckpt_lock_check(lock, &err), err);
    zt_ckpt_unlock(lock);
    CHECK_OK(lock_folder(dir, 0, 0, &lock), err);
    CHECK_INT(the_number(), 2);
    snprintf(path, sizeof path, "%s/.lock-2/x", dir);
    CHECK_INT(lock_folder(path, 0, 0, &other), ZT_EIO);
    CHECK(!other);
    zt_ckpt_unlock(lock);
    zt_ckpt_unlock(NULL);
    remove_dir();
}

/* Dead, reaped or not: it is not waited for, nor is its number used again. */
TEST(lock_of_a_dead_process_is_free)
{
    struct zt_ckpt_lock *lock;
    siginfo_t ended;
    if (ZT_TSAN)
        SKIP("its holder is a process of its own");
    make_dir();
    for (int reaped = 0; reaped < 2; reaped++) {
        pid_t child = fork();
        if (child == 0)
            _exit(lock_folder(dir, 5, 0, &lock) != 0);
        CHECK(child > 0 && waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT) == 0);
        CHECK_INT(ended.si_status, 0);
        if (reaped)
            CHECK(waitpid(child, NULL, 0) == child);
        CHECK_OK(lock_folder(dir, 0, 0, &lock), err);
        zt_ckpt_unlock(lock);
    }
    CHECK_INT(the_number(), 4);
    remove_dir();
}

static const char elsewhere[] = "held by process 1 on zt9 since 2026-01-01 00:00:00 UTC\n"
                                "01234567-0000-0000-0000-000000000000 4026531836 17\n";

/* Its process cannot be seen, so time tells: since we look, whatever its file's time says. */
TEST(lock_of_another_host_that_is_not_kept_up)
{
    static const char *const texts[] = {elsewhere, "", "held by a fool\n"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(texts); i++) {
        struct zt_ckpt_lock *lock;
        const int64_t begun_ns = zt_now_ns();
        make_dir();
        put(6, elsewhere);
        put(7, texts[i]);
        CHECK_OK(lock_folder(dir, 0, 0.3, &lock), err);
        CHECK(zt_now_ns() - begun_ns >= 300000000);
        CHECK_INT(the_number(), 8);
        zt_ckpt_unlock(lock);
        remove_dir();
    }
}

static atomic_bool keeps_up;

static void *keep_up(void *arg)
{
    char path[128];
    (void)arg;
    snprintf(path, sizeof path, "%s/.lock-7", dir);
    while (atomic_load(&keeps_up)) {
        utimensat(AT_FDCWD, path, NULL, 0);
        usleep(20000);
    }
    return NULL;
}

TEST(lock_of_another_host_that_is_kept_up)
{
    struct zt_ckpt_lock *lock;
    pthread_t thread;
    make_dir();
    put(7, elsewhere);
    atomic_store(&keeps_up, true);
    CHECK(pthread_create(&thread, NULL, keep_up, NULL) == 0);
    CHECK_INT(lock_folder(dir, 1, 10, &lock), ZT_EINPUT);
    CHECK(strstr(err.msg, "there: process 1 on zt9 since 2026-01-01 00:00:00 UTC; wait"));
    atomic_store(&keeps_up, false);
    pthread_join(thread, NULL);
    CHECK_INT(the_number(), 7);
    remove_dir();
}

/* What go_on() has heard. */
struct heard {
    int n, most;
    char who[128];
    double first_s, last_s;
};

static bool go_on(void *ctx, const char *who, double left_s)
{
    struct heard *h = ctx;
    if (h->n++ == 0)
        h->first_s = left_s;
    h->last_s = left_s;
    snprintf(h->who, sizeof h->who, "%s", who);
    return h->n < h->most;
}

/* It is told what is waited for, and for how long, and may end that. */
TEST(lock_wait_is_the_callers)
{
    struct zt_ckpt_lock *lock, *other;
    struct heard h = {.most = 3};
    struct zt_ckpt_wait wait = {.most_s = 500, .stale_s = 1000, .go_on = go_on, .ctx = &h};
    make_dir();
    put(7, elsewhere); /* which may be alive */
    CHECK_INT(zt_ckpt_lock(dir, &wait, &lock, &err), ZT_EINPUT);
    CHECK(strstr(err.msg, "there: process 1 on zt9 since 2026-01-01 00:00:00 UTC; wait"));
    CHECK_INT(h.n, 3);
    CHECK(strcmp(h.who, "process 1 on zt9 since 2026-01-01 00:00:00 UTC") == 0);
    CHECK(h.first_s <= 1000 && h.first_s > 500 && h.last_s < h.first_s && h.last_s > 500);
    put(7, "left by process 1 on zt9 since ever\nx 1 1\n");
    h = (struct heard){.most = 2};
    CHECK_OK(zt_ckpt_lock(dir, &wait, &lock, &err), err); /* nobody has to be asked */
    CHECK_INT(h.n, 0);
    CHECK_INT(zt_ckpt_lock(dir, &wait, &other, &err), ZT_EINPUT); /* we live */
    CHECK_INT(h.n, 2);
    CHECK(strstr(h.who, "process ") && h.first_s <= 500 && h.first_s > 250);
    zt_ckpt_unlock(lock);
    remove_dir();
}

/* Who slept through it finds out, by the new number or by the lack of its own. */
TEST(lock_that_was_taken_over)
{
    struct zt_ckpt_lock *lock;
    char path[128];
    make_dir();
    put(3, "left by process 1 on zt9 since ever\nx 1 1\n");
    CHECK_OK(lock_folder(dir, 0, 0, &lock), err);
    put(5, elsewhere);
    CHECK_INT(zt_ckpt_lock_check(lock, &err), ZT_ESYS);
    CHECK(strstr(err.msg, "another run has taken over its checkpoints"));
    snprintf(path, sizeof path, "%s/.lock-5", dir);
    CHECK_INT(unlink(path), 0);
    CHECK_OK(zt_ckpt_lock_check(lock, &err), err);
    snprintf(path, sizeof path, "%s/.lock-4", dir);
    CHECK_INT(unlink(path), 0);
    put(1, elsewhere); /* numbers begin anew for who finds none */
    CHECK_INT(zt_ckpt_lock_check(lock, &err), ZT_ESYS);
    zt_ckpt_unlock(lock);
    remove_dir();
}

/* By hand, or by what cleans folders: that is no other run. */
TEST(lock_that_was_removed)
{
    struct zt_ckpt_lock *lock, *other = NULL;
    char path[128];
    make_dir();
    put(3, "left by process 1 on zt9 since ever\nx 1 1\n");
    CHECK_OK(lock_folder(dir, 0, 0, &lock), err);
    snprintf(path, sizeof path, "%s/.lock-4", dir);
    CHECK_INT(unlink(path), 0);
    CHECK_OK(zt_ckpt_lock_check(lock, &err), err);
    CHECK_INT(the_number(), 4);
    CHECK_INT(lock_folder(dir, 0, 0, &other), ZT_EINPUT);
    CHECK(strstr(err.msg, "another run keeps its checkpoints there: process "));
    zt_ckpt_unlock(lock);
    CHECK_OK(lock_folder(dir, 0, 0, &other), err);
    zt_ckpt_unlock(other);
    remove_dir();
}

/* Names that we would not give hold up nobody. */
TEST(lock_names_that_are_not_ours)
{
    static const char *const names[] = {".lock-007", ".lock-+9", ".lock-0",
                                        ".lock-9223372036854775807"};
    struct zt_ckpt_lock *lock;
    char path[128];
    make_dir();
    for (size_t i = 0; i < ZT_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        CHECK_OK(zt_write_file_atomic(path, elsewhere, strlen(elsewhere), &err), err);
    }
    snprintf(path, sizeof path, "%s/.lock-5", dir);
    CHECK_INT(symlink("nowhere", path), 0);
    CHECK_OK(lock_folder(dir, 0, 0, &lock), err);
    CHECK_OK(zt_ckpt_lock_check(lock, &err), err);
    snprintf(path, sizeof path, "%s/.lock-6", dir);
    CHECK_INT(access(path, F_OK), 0);
    zt_ckpt_unlock(lock);
    remove_dir();
}

/* Many want one that its holder left behind, and then each other's: one at a time has it. */
TEST(lock_among_many)
{
    enum { N = 5, TIMES = 6 };
    struct zt_ckpt_lock *lock;
    if (ZT_TSAN)
        SKIP("its holders are processes");
    make_dir();
    put(1, elsewhere);
    atomic_int *held =
        mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(held != MAP_FAILED);
    for (int i = 0; i < N; i++) {
        if (fork())
            continue;
        for (int k = 0; k < TIMES; k++) {
            if (lock_folder(dir, 60, 2, &lock) || atomic_fetch_add(held, 1))
                _exit(1);
            usleep(500);
            if (atomic_fetch_sub(held, 1) != 1)
                _exit(2);
            if (k == TIMES - 1) /* it dies with it */
                _exit(0);
            zt_ckpt_unlock(lock);
        }
    }
    for (int status; wait(&status) > 0;)
        CHECK_INT(status, 0);
    munmap(held, sizeof *held);
    remove_dir();
}

TEST_MAIN()
