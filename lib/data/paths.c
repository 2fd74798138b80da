#include "data/paths.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 64 };

struct finder {
    struct zt_arena *arena;
    struct zt_data_paths *out;
    struct zt_err *err;
};

static void add(struct finder *f, const char *path, bool in_folder)
{
    ZT_GROW(f->out->items, f->out->n + 1, f->out->cap);
    f->out->items[f->out->n++] = (struct zt_data_path){zt_arena_strdup(f->arena, path), in_folder};
}

/*
 * NAME.bin for NAME.idx, or for a NAME without either ending, if there is one; in the arena. NULL:
 * the path stands for itself.
 */
static const char *bin_of(struct finder *f, const char *path, bool has_ending)
{
    struct stat st;
    size_t n = strlen(path);
    if (has_ending && (n < 4 || strcmp(path + n - 4, ".idx") != 0))
        return NULL;
    const char *bin = zt_arena_printf(f->arena, "%.*s.bin", (int)(has_ending ? n - 4 : n), path);
    return stat(bin, &st) == 0 && S_ISREG(st.st_mode) ? bin : NULL;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int wanted(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int add_folder(struct finder *f, const char *dir, int depth);

/* An entry of a folder. A link to a folder is not followed: it may lead back up. */
static int add_entry(struct finder *f, const char *path, const char *name, int depth)
{
    struct stat st, link;
    if (stat(path, &st) || lstat(path, &link))
        return errno == ENOENT ? 0 : zt_err_errno(f->err, ZT_EINPUT, "%s", path);
    if (S_ISREG(st.st_mode)) {
        if (!bin_of(f, path, true)) /* else it is found as well */
            add(f, path, true);
    }
    if (S_ISDIR(link.st_mode) && strcmp(name, "build") != 0)
        return add_folder(f, path, depth + 1);
    return 0;
}

static int add_folder(struct finder *f, const char *dir, int depth)
{
    if (depth > MAX_DEPTH)
        return zt_err_set(f->err, ZT_EINPUT, "%s: folders nested deeper than %d", dir, MAX_DEPTH);
    struct dirent **entries;
    int n = scandir(dir, &entries, wanted, by_name), rc = 0;
    if (n < 0)
        return zt_err_errno(f->err, ZT_EINPUT, "%s", dir);
    size_t len = strlen(dir);
    const char *sep = len && dir[len - 1] == '/' ? "" : "/";
    for (int i = 0; i < n; i++) {
        struct zt_str path = {0};
        zt_str_printf(&path, "%s%s%s", dir, sep, entries[i]->d_name);
        if (!rc)
            rc = add_entry(f, path.buf, entries[i]->d_name, depth);
        zt_str_release(&path);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int add_named(struct finder *f, const char *path)
{
    struct stat st;
    if (stat(path, &st)) {
        int missing = errno;
        const char *bin = bin_of(f, path, false);
        if (bin)
            add(f, bin, false);
        errno = missing;
        return bin ? 0 : zt_err_errno(f->err, ZT_EINPUT, "%s", path);
    }
    if (S_ISDIR(st.st_mode))
        return add_folder(f, path, 0);
    if (!S_ISREG(st.st_mode))
        return zt_err_set(f->err, ZT_EINPUT, "%s: neither a regular file nor a folder", path);
    const char *bin = bin_of(f, path, true);
    add(f, bin ? bin : path, false);
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A folder that cannot be read may hold what the pattern is about. */
static int is_fatal(const char *path, int error)
{
    (void)path;
    return error != ENOENT && error != ENOTDIR;
}

static int add_pattern(struct finder *f, const char *pattern)
{
    glob_t g;
    int rc = glob(pattern, GLOB_NOSORT | GLOB_TILDE, is_fatal, &g);
    if (rc == GLOB_NOMATCH)
        return zt_err_set(f->err, ZT_EINPUT, "%s: no such file, and as a pattern it matches none",
                          pattern);
    if (rc)
        return zt_err_set(f->err, ZT_EIO, "%s: the pattern cannot be expanded (%s)", pattern,
                          rc == GLOB_NOSPACE ? "out of memory"
                                             : "a folder on the way cannot be read");
    qsort(g.gl_pathv, g.gl_pathc, sizeof g.gl_pathv[0], by_bytes);
    rc = 0;
    for (size_t i = 0; !rc && i < g.gl_pathc; i++) {
        const char *bin = bin_of(f, g.gl_pathv[i], true);
        if (bin && bsearch(&bin, g.gl_pathv, g.gl_pathc, sizeof g.gl_pathv[0], by_bytes))
            continue; /* it is matched as well */
        rc = add_named(f, g.gl_pathv[i]);
    }
    globfree(&g);
    return rc;
}

int zt_data_paths_find(const struct zt_str_list *given, struct zt_arena *arena,
                       struct zt_data_paths *out, struct zt_err *err)
{
    struct finder f = {arena, out, err};
    int rc = 0;
    for (int i = 0; !rc && i < given->n; i++) {
        struct stat st;
        const char *path = given->items[i];
        bool pattern = strpbrk(path, "*?[") || path[0] == '~';
        rc = pattern && stat(path, &st) ? add_pattern(&f, path) : add_named(&f, path);
    }
    return rc;
}
