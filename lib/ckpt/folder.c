#include "ckpt/folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/io.h"

#define STEP "step-"
#define TEMP "tmp-"
#define LATEST_TEMP "latest.tmp." /* of zt_write_file_atomic() */

void zt_ckpt_step_path(const char *dir, int64_t step, struct zt_str *out)
{
    zt_str_printf(out, "%s/" STEP "%06lld", dir, (long long)step);
}

void zt_ckpt_temp_path(const char *dir, int64_t step, struct zt_str *out)
{
    zt_str_printf(out, "%s/" TEMP STEP "%06lld", dir, (long long)step);
}

/* Exactly as zt_ckpt_step_path() writes it: another spelling would be another folder's number. Below ZT_CKPT_STEPS. */
static bool parse_step(const char *name, int64_t *step)
{
    char ours[32];
    const size_t n = sizeof STEP - 1;
    if (strncmp(name, STEP, n) != 0 || !zt_parse_i64(name + n, step) || *step < 0 ||
        *step >= ZT_CKPT_STEPS)
        return false;
    snprintf(ours, sizeof ours, STEP "%06lld", (long long)*step);
    return strcmp(name, ours) == 0;
}

bool zt_ckpt_named_step(const char *path, int64_t *step)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *whole = strndup(path, n);
    const char *slash = whole ? strrchr(whole, '/') : NULL;
    const bool named = whole && parse_step(slash ? slash + 1 : whole, step);
    free(whole);
    return named;
}

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int zt_ckpt_steps(const char *dir, int64_t **steps, int *n, struct zt_err *err)
{
    struct zt_dir d;
    size_t cap = 0;
    int rc = zt_dir_open(&d, dir, err);
    *steps = NULL;
    *n = 0;
    if (rc)
        return d.missing ? 0 : rc;
    for (const char *name; (name = zt_dir_next(&d));) {
        int64_t step;
        if (!parse_step(name, &step))
            continue;
        ZT_GROW(*steps, *n + 1, cap);
        (*steps)[(*n)++] = step;
    }
    rc = zt_dir_close(&d, 0, err);
    if (rc) { /* the newest may be among those that were not listed */
        free(*steps);
        *steps = NULL;
        *n = 0;
    }
    if (*n > 0)
        qsort(*steps, (size_t)*n, sizeof **steps, by_number);
    return rc;
}

bool zt_ckpt_is_one(const char *path)
{
    struct zt_str manifest = {0};
    zt_str_printf(&manifest, "%s/" ZT_CKPT_MANIFEST, path);
    const bool there = access(manifest.buf, F_OK) == 0;
    zt_str_release(&manifest);
    return there;
}

static bool has_manifest(const char *dir, int64_t step)
{
    struct zt_str path = {0};
    zt_ckpt_step_path(dir, step, &path);
    const bool there = zt_ckpt_is_one(path.buf);
    zt_str_release(&path);
    return there;
}

/* Those up to `step` that have a manifest: what else is called step-N is no checkpoint of this run. */
static int made_up_to(const char *dir, int64_t step, int64_t **steps, int *n, struct zt_err *err)
{
    int all, rc = zt_ckpt_steps(dir, steps, &all, err);
    *n = 0;
    for (int i = 0; i < all && !rc; i++)
        if ((*steps)[i] <= step && has_manifest(dir, (*steps)[i]))
            (*steps)[(*n)++] = (*steps)[i];
    return rc;
}

/* ---- latest ---- */

static int point_latest(const char *dir, int64_t step, struct zt_err *err)
{
    struct zt_str path = {0}, name = {0};
    zt_str_printf(&path, "%s/latest", dir);
    zt_str_printf(&name, STEP "%06lld\n", (long long)step);
    int rc = zt_replace_file(path.buf, name.buf, name.len, err);
    zt_str_release(&path);
    zt_str_release(&name);
    return rc ? rc : zt_fsync_dir(dir, err);
}

static bool is_latest(const char *dir, int64_t step)
{
    enum { MOST = 64 };
    struct zt_str path = {0}, text = {0};
    struct zt_err ignored;
    int64_t named = -1;
    zt_str_printf(&path, "%s/latest", dir);
    const bool read = zt_read_file(path.buf, MOST, &text, &ignored) == 0;
    if (read && text.len > 0 && text.buf[text.len - 1] == '\n') {
        text.buf[--text.len] = '\0';
        if (!parse_step(text.buf, &named))
            named = -1;
    }
    zt_str_release(&path);
    zt_str_release(&text);
    return named == step;
}

/* To what is there: a kill, or checkpoints that were moved, may have left it behind. */
static int correct_latest(const char *dir, struct zt_err *err)
{
    struct zt_str path = {0};
    int64_t *steps;
    int n, rc = made_up_to(dir, INT64_MAX, &steps, &n, err);
    zt_str_printf(&path, "%s/latest", dir);
    if (!rc && n > 0 && !is_latest(dir, steps[n - 1]))
        rc = point_latest(dir, steps[n - 1], err);
    else if (!rc && n == 0 && unlink(path.buf) && errno != ENOENT)
        rc = zt_err_errno(err, ZT_EIO, "%s: cannot be removed", path.buf);
    zt_str_release(&path);
    free(steps);
    return rc;
}

/* ---- removing and moving ---- */

static void warn(struct zt_str *warnings, const struct zt_err *why)
{
    zt_str_printf(warnings, "%s%s", warnings->len ? "; " : "", why->msg);
}

int zt_ckpt_remove(const char *path, struct zt_err *err)
{
    struct zt_dir d;
    int rc = zt_dir_open(&d, path, err);
    if (rc)
        return d.missing ? 0 : rc;
    for (const char *name; (name = zt_dir_next(&d));)
        if (unlinkat(zt_dir_fd(&d), name, 0) && errno != ENOENT)
            rc = zt_err_errno(err, ZT_EIO, "%s/%s: cannot be removed", path, name);
    rc = zt_dir_close(&d, rc, err);
    if (!rc && rmdir(path) && errno != ENOENT)
        rc = zt_err_errno(err, ZT_EIO, "%s: cannot be removed", path);
    return rc;
}

static bool is_number(const char *text)
{
    return *text && text[strspn(text, "0123456789")] == '\0';
}

static bool is_latest_temp(const char *name)
{
    const size_t n = sizeof LATEST_TEMP - 1;
    return strncmp(name, LATEST_TEMP, n) == 0 && is_number(name + n);
}

/* tmp-step-N, tmp-old-N, tmp-probe-N; what else is called tmp-... is not ours. */
static bool is_temp(const char *name)
{
    static const char *const kinds[] = {TEMP STEP, TEMP "old-", TEMP "probe-"};
    for (size_t i = 0; i < ZT_ARRAY_LEN(kinds); i++) {
        const size_t n = strlen(kinds[i]);
        if (strncmp(name, kinds[i], n) == 0)
            return is_number(name + n);
    }
    return false;
}

int zt_ckpt_clean(const char *dir, struct zt_str *warnings, struct zt_err *err)
{
    struct zt_dir d;
    struct zt_err why;
    int rc = zt_dir_open(&d, dir, err);
    if (rc)
        return rc;
    for (const char *name; (name = zt_dir_next(&d));) {
        struct zt_str path = {0};
        zt_str_printf(&path, "%s/%s", dir, name);
        if (is_temp(name) && zt_ckpt_remove(path.buf, &why))
            warn(warnings, &why);
        else if (is_latest_temp(name))
            unlink(path.buf);
        zt_str_release(&path);
    }
    if (zt_dir_close(&d, 0, &why))
        warn(warnings, &why);
    if (correct_latest(dir, &why))
        warn(warnings, &why);
    return 0;
}

static int move(const char *from, const char *to, struct zt_err *err)
{
    if (rename(from, to))
        return zt_err_errno(err, ZT_EIO, "%s: cannot be renamed to %s", from, to);
    return 0;
}

/* The first DIR/before-N that is not there. */
static int make_before(const char *dir, struct zt_str *where, struct zt_err *err)
{
    enum { MOST = 100000 };
    for (int i = 1; i <= MOST; i++) {
        zt_str_reset(where);
        zt_str_printf(where, "%s/before-%d", dir, i);
        if (mkdir(where->buf, 0777) == 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    return zt_err_errno(err, ZT_EIO, "%s: mkdir", where->buf);
}

int zt_ckpt_set_aside(const char *dir, int64_t step, int *moved, struct zt_str *where,
                      struct zt_err *err)
{
    int64_t *steps;
    struct zt_err ignored;
    int n, rc = zt_ckpt_steps(dir, &steps, &n, err);
    *moved = 0;
    for (int i = 0; i < n && !rc; i++) {
        struct zt_str from = {0}, to = {0};
        if (steps[i] <= step)
            continue;
        if (*moved == 0)
            rc = make_before(dir, where, err);
        zt_ckpt_step_path(dir, steps[i], &from);
        zt_ckpt_step_path(where->buf, steps[i], &to);
        if (!rc)
            rc = move(from.buf, to.buf, err);
        *moved += !rc;
        zt_str_release(&from);
        zt_str_release(&to);
    }
    free(steps);
    if (!rc && *moved > 0)
        rc = zt_fsync_dir(where->buf, err);
    if (!rc && *moved > 0)
        rc = zt_fsync_dir(dir, err);
    if (!rc && *moved > 0)
        (void)!correct_latest(dir, &ignored); /* should that fail, the next save says so */
    return rc;
}

/* ---- checksums on their way to rank 0 ---- */

/* The checksums, then one of them all. */
int zt_ckpt_write_sums(const char *path, const struct zt_ckpt_sum *sums, size_t n,
                       struct zt_err *err)
{
    struct zt_str name = {0}, bytes = {0};
    struct zt_ckpt_sum all = zt_ckpt_sum_of(sums, n * sizeof *sums);
    zt_str_printf(&name, "%s.sums", path);
    zt_str_add(&bytes, sums, n * sizeof *sums);
    zt_str_add(&bytes, &all, sizeof all);
    int rc = zt_write_file_atomic(name.buf, bytes.buf, bytes.len, err);
    zt_str_release(&name);
    zt_str_release(&bytes);
    return rc;
}

/* The same read and checked. */
static int read_sums(const char *path, struct zt_ckpt_sum *sums, size_t n, struct zt_err *err)
{
    struct zt_str name = {0}, bytes = {0};
    const size_t want = n * sizeof *sums;
    zt_str_printf(&name, "%s.sums", path);
    int rc = zt_read_file(name.buf, want + sizeof *sums, &bytes, err);
    if (!rc) {
        struct zt_ckpt_sum all = {{0}};
        if (bytes.len == want + sizeof *sums)
            all = zt_ckpt_sum_of(bytes.buf, want);
        if (bytes.len != want + sizeof *sums || memcmp(bytes.buf + want, &all, sizeof all) != 0)
            rc = zt_err_set(err, ZT_EIO, "%s: not the checksums of %zu blocks", name.buf, n);
        else
            memcpy(sums, bytes.buf, want);
    }
    zt_str_release(&name);
    zt_str_release(&bytes);
    return rc;
}

/* ---- the commit ---- */

static int collect_sums(struct zt_manifest *m, const char *temp, struct zt_err *err)
{
    int rc = 0;
    for (int i = 0; i < m->n_files && !rc; i++) {
        struct zt_ckpt_file *f = &m->files[i];
        struct zt_str path = {0};
        struct stat st;
        zt_str_printf(&path, "%s/%s", temp, f->name);
        if (stat(path.buf, &st))
            rc = zt_err_errno(err, ZT_EIO, "%s", path.buf);
        else if ((size_t)st.st_size != f->bytes)
            rc = zt_err_set(err, ZT_EIO, "%s: has %lld bytes, not the %zu that were written",
                            path.buf, (long long)st.st_size, f->bytes);
        if (!rc)
            rc = read_sums(path.buf, f->sums, f->n_sums, err);
        zt_str_puts(&path, ".sums");
        if (!rc && unlink(path.buf))
            rc = zt_err_errno(err, ZT_EIO, "%s: cannot be removed", path.buf);
        zt_str_release(&path);
    }
    return rc;
}

static int write_manifest(const struct zt_manifest *m, const char *temp, struct zt_err *err)
{
    struct zt_str path = {0}, text = {0};
    zt_str_printf(&path, "%s/" ZT_CKPT_MANIFEST, temp);
    zt_manifest_print(m, &text);
    int rc = zt_write_file_atomic(path.buf, text.buf, text.len, err);
    if (!rc)
        rc = zt_fsync_dir(temp, err);
    zt_str_release(&path);
    zt_str_release(&text);
    return rc;
}

static int check(struct zt_ckpt_lock *lock, struct zt_err *err)
{
    return lock ? zt_ckpt_lock_check(lock, err) : 0;
}

int zt_ckpt_commit(const char *dir, struct zt_ckpt_lock *lock, struct zt_manifest *m, bool *synced,
                   struct zt_str *warnings, struct zt_err *err)
{
    struct zt_str temp = {0}, path = {0};
    struct zt_err why;
    *synced = false;
    zt_ckpt_temp_path(dir, m->at.step, &temp);
    zt_ckpt_step_path(dir, m->at.step, &path);
    int rc = check(lock, err);
    if (!rc)
        rc = collect_sums(m, temp.buf, err);
    if (!rc)
        rc = write_manifest(m, temp.buf, err);
    if (!rc)
        rc = check(lock, err);
    if (!rc)
        rc = move(temp.buf, path.buf, err);
    zt_str_release(&temp);
    zt_str_release(&path);
    if (rc)
        return rc;
    *synced = zt_fsync_dir(dir, &why) == 0;
    if (!*synced || check(lock, &why) || point_latest(dir, m->at.step, &why))
        warn(warnings, &why);
    return 0;
}

/* Out of sight by one rename, then file by file: no crash leaves half of one under its name. */
static int remove_step(const char *dir, int64_t step, struct zt_err *err)
{
    struct zt_str path = {0}, temp = {0};
    zt_ckpt_step_path(dir, step, &path);
    zt_str_printf(&temp, "%s/" TEMP "old-%06lld", dir, (long long)step);
    int rc = move(path.buf, temp.buf, err);
    if (!rc)
        rc = zt_fsync_dir(dir, err);
    if (!rc)
        rc = zt_ckpt_remove(temp.buf, err);
    zt_str_release(&path);
    zt_str_release(&temp);
    return rc;
}

void zt_ckpt_retain(const char *dir, struct zt_ckpt_lock *lock, int64_t step, int64_t keep,
                    int64_t keep_every, struct zt_str *warnings)
{
    int64_t *steps;
    int n;
    struct zt_err why;
    if (keep <= 0)
        return;
    if (made_up_to(dir, step, &steps, &n, &why)) {
        warn(warnings, &why);
        return;
    }
    for (int i = 0; i + keep < n; i++)
        if ((keep_every == 0 || steps[i] % keep_every != 0) &&
            (check(lock, &why) || remove_step(dir, steps[i], &why)))
            warn(warnings, &why);
    free(steps);
}
