#include "run_folder.h"

#include <errno.h>
#include <sys/file.h>
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
    if (rc)
        return zt_err_wrap(err, "the folder of this run, which --log_dir=DIR places elsewhere");
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
 * metrics.jsonl, locked for as long as it is open. The lock is this process's, so it goes with it; where a file system
 * knows none there is none.
 */
static int open_metrics(const char *path, FILE **out, struct stat *st, struct zt_err *err)
{
    FILE *f = fopen(path, "ae");
    int rc = !f || fstat(fileno(f), st) ? zt_err_errno(err, ZT_EIO, "%s", path) : 0;
    if (!rc && S_ISREG(st->st_mode) && flock(fileno(f), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: another run is under way in this folder; name another one with "
                        "--log_dir",
                        path);
    if (!rc && fstat(fileno(f), st)) /* the size once it is ours */
        rc = zt_err_errno(err, ZT_EIO, "%s", path);
    if (rc && f)
        fclose(f);
    *out = rc ? NULL : f;
    return rc;
}

/*
 * The record of an earlier run is not written over, but a run that goes on from a checkpoint goes on with its record
 * too.
 */
static int take_record(const char *dir, const struct zt_recipe *r, FILE **metrics,
                       struct zt_err *err)
{
    struct zt_str path = {0};
    struct stat st;
    zt_str_printf(&path, "%s/metrics.jsonl", dir);
    const bool goes_on = strcmp(r->checkpoint.resume, "never") != 0;
    int rc = open_metrics(path.buf, metrics, &st, err);
    if (!rc && !goes_on && S_ISREG(st.st_mode) && st.st_size > 0) {
        rc = zt_err_set(err, ZT_EINPUT,
                        "%s: holds the record of an earlier run; name another folder with "
                        "--log_dir, or remove it",
                        path.buf);
        fclose(*metrics);
        *metrics = NULL;
    }
    zt_str_release(&path);
    return rc;
}

int cmd_run_folder(const struct cmd_options *o, const struct zt_recipe *r, struct zt_str *dir,
                   FILE **metrics, struct zt_err *err)
{
    const char *given = o->log_dir ? o->log_dir : r->log.dir;
    int rc = given ? zt_make_dirs(given, err) : make_new(o->recipe_path, r, dir, err);
    if (given)
        zt_str_puts(dir, given);
    if (!rc)
        rc = take_record(dir->buf, r, metrics, err);
    if (!rc)
        clean(dir->buf);
    return rc;
}
