#include "harness.h"

#include <sys/stat.h>
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

/* A pipe is written into, and a link is followed: neither gives way to a regular file. */
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
