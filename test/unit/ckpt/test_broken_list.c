/* Folders whose lists break off: what was not listed may be what matters, and nothing is taken for all. */
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#include "../broken_list.h"
#include "base/io.h"
#include "ckpt/folder.h"
#include "ckpt/hf.h"
#include "ckpt/lock.h"

static char dir[64];
static struct zt_err err;

static const char *path_to(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name)
{
    CHECK_OK(zt_write_file_atomic(path_to(name), "x", 1, &err), err);
}

static void make_dir(void)
{
    list_breaks_after = -1;
    snprintf(dir, sizeof dir, "/tmp/zt-list-XXXXXX");
    CHECK(mkdtemp(dir));
}

static void remove_dir(void)
{
    char cmd[128];
    list_breaks_after = -1;
    snprintf(cmd, sizeof cmd, "rm -r '%s'", dir);
    CHECK_INT(system(cmd), 0);
}

#define CHECK_BROKEN(call)                                                                         \
    do {                                                                                           \
        CHECK_INT(call, ZT_EIO);                                                                   \
        CHECK(strstr(err.msg, "its files cannot be listed"));                                      \
    } while (0)

TEST(broken_list_of_steps)
{
    int64_t *steps;
    int n;
    make_dir();
    CHECK_INT(mkdir(path_to("step-000001"), 0777), 0);
    list_breaks_after = 2;
    CHECK_BROKEN(zt_ckpt_steps(dir, &steps, &n, &err));
    CHECK(n == 0 && !steps);
    remove_dir();
}

/* Not: "cannot be removed: Directory not empty". */
TEST(broken_list_of_what_is_removed)
{
    make_dir();
    put("a");
    put("b");
    list_breaks_after = 2;
    CHECK_BROKEN(zt_ckpt_remove(dir, &err));
    CHECK_INT(access(dir, F_OK), 0);
    list_breaks_after = -1;
    CHECK_OK(zt_ckpt_remove(dir, &err), err);
    CHECK(access(dir, F_OK));
}

TEST(broken_list_of_what_is_cleaned)
{
    struct zt_str warnings = {0};
    make_dir();
    put("step-000001"); /* a name among others */
    list_breaks_after = 1;
    CHECK_OK(zt_ckpt_clean(dir, &warnings, &err), err);
    CHECK(strstr(zt_str_get(&warnings), "its files cannot be listed"));
    zt_str_release(&warnings);
    remove_dir();
}

/* It would seem to be free. */
TEST(broken_list_of_locks)
{
    struct zt_ckpt_lock *lock = NULL;
    const struct zt_ckpt_wait wait = {0};
    make_dir();
    put(".lock-7");
    list_breaks_after = 0;
    CHECK_BROKEN(zt_ckpt_lock(dir, &wait, &lock, &err));
    CHECK(!lock && access(path_to(".lock-7"), F_OK) == 0 && access(path_to(".lock-1"), F_OK));
    remove_dir();
}

/* It would seem to be empty, or to hold nothing but a model. */
TEST(broken_list_of_an_export)
{
    make_dir();
    put("mine.txt");
    for (int force = 0; force < 2; force++) {
        list_breaks_after = 0;
        CHECK_BROKEN(zt_hf_check(dir, force, &err));
        list_breaks_after = -1;
        CHECK_INT(zt_hf_check(dir, force, &err), ZT_EINPUT);
    }
    remove_dir();
}

TEST_MAIN()
