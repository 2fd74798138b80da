#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"

enum { PATH_BYTES = 128 };

static void in_dir(char path[PATH_BYTES], const char *dir, const char *name)
{
    snprintf(path, PATH_BYTES, "%s/%s", dir, name);
}

TEST(a_regular_file_is_replaced)
{
    char dir[] = "/tmp/zt-write-XXXXXX", path[PATH_BYTES];
    struct zt_str text = {0};
    struct zt_err err;
    CHECK(mkdtemp(dir));
    in_dir(path, dir, "file");
    CHECK_OK(zt_write_file_atomic(path, "long before", 11, &err), err);
    CHECK_OK(zt_write_file_atomic(path, "after", 5, &err), err);
    CHECK_OK(zt_read_file(path, 100, &text, &err), err);
    CHECK_STR(zt_str_get(&text), "after");
    zt_str_release(&text);
    unlink(path);
    CHECK(rmdir(dir) == 0); /* nothing else was left */
}

static void put_of(const char *dir, const char *name, pid_t pid, time_t age_s,
                   char path[PATH_BYTES])
{
    struct timespec t[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    snprintf(path, PATH_BYTES, "%s/%s%ld", dir, name, (long)pid);
    FILE *f = fopen(path, "w");
    CHECK(f && fclose(f) == 0 && utimensat(AT_FDCWD, path, t, 0) == 0);
}

/* Of the same file, by a process that is gone, for long. */
TEST(what_the_dead_left_is_removed)
{
    enum { LONG_AGO_S = 7200 };
    char dir[] = "/tmp/zt-write-XXXXXX", path[PATH_BYTES], left[PATH_BYTES], stays[4][PATH_BYTES];
    const pid_t gone = fork();
    if (gone == 0)
        _exit(0);
    CHECK(gone > 0 && waitpid(gone, NULL, 0) == gone);
    CHECK(mkdtemp(dir));
    in_dir(path, dir, "file");
    put_of(dir, "file.tmp.", gone, LONG_AGO_S, left);
    put_of(dir, "file.tmp.", getpid(), LONG_AGO_S, stays[0]);
    put_of(dir, "other.tmp.", gone, LONG_AGO_S, stays[1]);
    put_of(dir, "file.tmp.my", gone, LONG_AGO_S, stays[2]);
    zt_write_file_clean(path);
    CHECK(access(left, F_OK) && errno == ENOENT);
    put_of(dir, "file.tmp.", gone, 60, stays[3]); /* perhaps of another host */
    zt_write_file_clean(path);
    for (size_t i = 0; i < ZT_ARRAY_LEN(stays); i++)
        CHECK(unlink(stays[i]) == 0);
    CHECK(rmdir(dir) == 0);
    zt_write_file_clean(path); /* no such folder */
}

/* A pipe is written into, and a link is followed: neither gives way to a regular file. */
/* Nobody writes into it. */
TEST(a_pipe_is_refused_where_a_file_is_mapped)
{
    enum { LONG_S = 20 };
    char dir[] = "/tmp/zt-write-XXXXXX", path[PATH_BYTES];
    struct zt_mapped map;
    struct zt_err err;
    CHECK(mkdtemp(dir));
    in_dir(path, dir, "pipe");
    CHECK(mkfifo(path, 0600) == 0);
    alarm(LONG_S); /* it would be waited for */
    CHECK_INT(zt_map_file(path, &map, &err), ZT_EINPUT);
    alarm(0);
    CHECK(strstr(err.msg, "not a regular file"));
    unlink(path);
    CHECK(rmdir(dir) == 0);
}

TEST(other_files_stay_what_they_are)
{
    char dir[] = "/tmp/zt-write-XXXXXX", path[PATH_BYTES], file[PATH_BYTES], got[8] = "";
    struct stat st;
    struct zt_str text = {0};
    struct zt_err err;
    CHECK(mkdtemp(dir));
    in_dir(path, dir, "pipe");
    CHECK(mkfifo(path, 0600) == 0);
    FILE *reader = fopen(path, "r+"); /* so that no writer waits */
    CHECK(reader);
    CHECK_OK(zt_write_file_atomic(path, "bytes\n", 6, &err), err);
    CHECK(fgets(got, sizeof got, reader));
    fclose(reader);
    CHECK_STR(got, "bytes\n");
    CHECK(lstat(path, &st) == 0 && S_ISFIFO(st.st_mode));
    unlink(path);

    in_dir(path, dir, "link");
    in_dir(file, dir, "file");
    CHECK_OK(zt_write_file_atomic(file, "old and longer", 14, &err), err);
    CHECK(symlink("file", path) == 0);
    CHECK_OK(zt_write_file_atomic(path, "new", 3, &err), err);
    CHECK(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    CHECK_OK(zt_read_file(file, 100, &text, &err), err);
    CHECK_STR(zt_str_get(&text), "new");
    zt_str_release(&text);
    unlink(path);
    unlink(file);
    CHECK(rmdir(dir) == 0);
}

TEST_MAIN()
