#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "../broken_list.h"
#include "base/dir.h"
#include "base/io.h"

static char dir[64];
static struct zt_err err;

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/zt-dir-XXXXXX");
    CHECK(mkdtemp(dir));
}

static void put(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_OK(zt_write_file_atomic(path, "x", 1, &err), err);
}

static void remove_dir(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", dir);
    CHECK_INT(system(cmd), 0);
}

/* How many names, of which each is removed that begins with an x; what closing returned. */
static int walk(int *n, int rc)
{
    struct zt_dir d;
    *n = 0;
    int opened = zt_dir_open(&d, dir, &err);
    if (opened)
        return opened;
    for (const char *name; (name = zt_dir_next(&d)); ++*n)
        if (name[0] == 'x')
            (void)unlinkat(zt_dir_fd(&d), name, 0);
    return zt_dir_close(&d, rc, &err);
}

TEST(dir_lists_all_but_itself_and_its_parent)
{
    int n;
    make_dir();
    CHECK_INT(walk(&n, 0), 0);
    CHECK_INT(n, 0);
    put("x1");
    put(".hidden");
    put("..more");
    CHECK_INT(walk(&n, 0), 0);
    CHECK_INT(n, 3);
    CHECK_INT(walk(&n, ZT_EPEER), ZT_EPEER);
    CHECK_INT(n, 2);
    remove_dir();
}

TEST(dir_that_is_not_there)
{
    struct zt_dir d;
    CHECK_INT(zt_dir_open(&d, "/nosuch/folder", &err), ZT_EINPUT);
    CHECK(d.missing && strstr(err.msg, "/nosuch/folder: No such file"));
    make_dir();
    put("file");
    char path[128];
    snprintf(path, sizeof path, "%s/file", dir);
    CHECK_INT(zt_dir_open(&d, path, &err), ZT_EINPUT);
    CHECK(!d.missing);
    remove_dir();
}

/* Wherever it breaks off, closing tells, unless something else has failed before. */
TEST(dir_whose_list_breaks_off)
{
    int n;
    make_dir();
    put("a");
    put("b");
    for (int after = 0; after < 4; after++) {
        list_breaks_after = after;
        CHECK_INT(walk(&n, 0), ZT_EIO);
        CHECK(strstr(err.msg, dir) && strstr(err.msg, "its files cannot be listed: Input/output"));
        list_breaks_after = after;
        (void)!zt_err_set(&err, ZT_EPEER, "before");
        CHECK_INT(walk(&n, ZT_EPEER), ZT_EPEER);
        CHECK_STR(err.msg, "before");
    }
    list_breaks_after = -1;
    CHECK_INT(walk(&n, 0), 0);
    CHECK_INT(n, 2);
    remove_dir();
}

TEST_MAIN()
