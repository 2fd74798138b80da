#include "run_folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "base/io.h"

/* How many bytes of a name go into a folder's: not half a UTF-8 character. */
static int cut_name(const char *name, size_t len)
{
    enum { MAX_BYTES = 100 };
    if (len <= MAX_BYTES)
        return (int)len;
    for (len = MAX_BYTES; len > 0 && ((unsigned char)name[len] & 0xc0) == 0x80;)
        len--;
    return (int)len;
}

/* runs/NAME-TIME, and -2, -3 ... for runs that start in the same second. */
static int make_new(const char *recipe_path, const struct zt_recipe *r, struct zt_str *dir,
                    struct zt_err *err)
{
    enum { MAX_TRIES = 1000 };
    const char *slash = strrchr(recipe_path, '/');
    const char *name = slash ? slash + 1 : recipe_path;
    const char *dot = strrchr(name, '.');
    size_t len = dot && dot != name ? (size_t)(dot - name) : strlen(name);
    if (r->log.name) {
        name = r->log.name;
        len = strlen(name);
    }
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
    int rc = zt_make_dirs("runs", err);
    for (int i = 1; !rc && i <= MAX_TRIES; i++) {
        zt_str_reset(dir);
        zt_str_printf(dir, "runs/%.*s-%s", cut_name(name, len), name, when);
        if (i > 1)
            zt_str_printf(dir, "-%d", i);
        if (mkdir(dir->buf, 0777) == 0)
            return 0;
        if (errno != EEXIST || i == MAX_TRIES)
            rc = zt_err_errno(err, ZT_EIO, "%s: mkdir", dir->buf);
    }
    return rc;
}

/* What killed runs left half written. */
static void clean(const char *dir)
{
    static const char *const names[] = {"recipe.yaml", "summary.json"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(names); i++) {
        struct zt_str path = {0};
        zt_str_printf(&path, "%s/%s", dir, names[i]);
        zt_write_file_clean(path.buf);
        zt_str_release(&path);
    }
}

/*
 * What --log_dir or log.dir says; the record of an earlier run in it is not written over, but a run that goes
 * on from a checkpoint goes on with its record too.
 */
static int make_given(const char *given, const struct zt_recipe *r, struct zt_str *dir,
                      struct zt_err *err)
{
    struct zt_str path = {0};
    struct stat st;
    zt_str_puts(dir, given);
    int rc = zt_make_dirs(given, err);
    zt_str_printf(&path, "%s/metrics.jsonl", given);
    const bool goes_on = strcmp(r->checkpoint.resume, "never") != 0;
    if (!rc && !goes_on && stat(path.buf, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: holds the record of an earlier run; name another folder with "
                        "--log_dir, or remove it",
                        path.buf);
    if (!rc)
        clean(given);
    zt_str_release(&path);
    return rc;
}

int cmd_run_folder(const struct cmd_options *o, const struct zt_recipe *r, struct zt_str *dir,
                   struct zt_err *err)
{
    const char *given = o->log_dir ? o->log_dir : r->log.dir;
    return given ? make_given(given, r, dir, err) : make_new(o->recipe_path, r, dir, err);
}
